"""The consumers of one tenant: registrations and what operators do, in front of leases, cursors and dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from outbox_core.adapters.mongo.consumer_edges import RUNNING, STANDING, edge_update, lease_is_over, literal
from outbox_core.adapters.mongo.consumer_leasing import LeasedRows
from outbox_core.adapters.mongo.consumer_rows import BY_ID, CURSORS, LETTERS, end_of, written_at
from outbox_core.adapters.mongo.documents import raw
from outbox_core.adapters.mongo.edges import NOW
from outbox_core.adapters.mongo.errors import translated
from outbox_core.adapters.mongo.event_log import whole_number
from outbox_core.adapters.mongo.letters import LetterRows
from outbox_core.adapters.mongo.lifecycle_documents import consumer_of
from outbox_core.adapters.mongo.lifecycle_stream import OUTBOX, SEQUENCES
from outbox_core.adapters.mongo.transactions import session_of
from outbox_core.domain import delivery
from outbox_core.domain.consumer import Consumer, LetterState, Look, Start, goes_on_after, lag
from outbox_core.domain.errors import InvariantError
from outbox_core.domain.identity import require_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outbox_core.ports.transactions import Transaction

_RAW = CodecOptions(document_class=RawBSONDocument)
_ROWS_AT_ONCE = 1_000
_DUE_NOW = {"next_poll_at": NOW, "idle_polls": 0, "updated_at": NOW}


class MongoConsumers(LeasedRows, LetterRows):
    """Implements ports.consumers.Consumers."""

    def register(self, consumer_id: str, start: Start, by: str) -> Consumer:
        """See the port."""
        require_id(consumer_id, "consumer id")

        def write(transaction: Transaction) -> Consumer:
            before = self._read(consumer_id, transaction)
            if before is not None and before.retired_at is None:
                return before
            update = edge_update(
                delivery.REGISTER,
                tenant_id=literal(self._tenant),
                consumer_id=literal(consumer_id),
                last_acked_sequence=None,
                start=start.value,
                registered_at=NOW,
                retired_at=None,
                paused_at=None,
                must_reconcile=before is not None,
                stopped_for="",
                fence={"$ifNull": ["$fence", 0]},
                heartbeat_at=None,
                idle_polls=0,
                next_poll_at=NOW,
            )
            stored = self._change_in(transaction, delivery.REGISTER, consumer_id, update, upsert=True)
            if stored is None:
                raise InvariantError(f"the registration of {consumer_id} was not stored")
            at, detail = written_at(stored), {"start": start.value}
            self._audit(transaction, delivery.REGISTER.audit, consumer_id, at, detail, by=by)
            return consumer_of(stored)

        return self._transact(write)

    def look(self, consumer_id: str) -> Look:
        """See the port; the row is read before the head, which so never lies below a cursor that moved meanwhile."""
        key, prefix = self._key(consumer_id), f"{self._key(consumer_id)}|"
        asked = {"tenant_id": self._tenant, "state": LetterState.REPLAYING.value}
        pipeline: list[dict[str, Any]] = [
            {"$documents": [{"now": NOW}]},
            _joined(CURSORS, "rows", {"_id": key, "tenant_id": self._tenant}),
            _joined(SEQUENCES, "heads", {"_id": self._tenant}),
            _joined(LETTERS, "replays", {**asked, "_id": {"$gt": prefix, "$lt": end_of(prefix)}}),
        ]
        with translated():
            (found,) = self._database.with_options(codec_options=_RAW).aggregate(pipeline)
            rows: list[RawBSONDocument] = list(found["rows"])
            heads = [head.get("last_sequence") for head in found["heads"]]
            return Look(
                consumer=consumer_of(rows[0]) if rows else None,
                head=self._head_of(heads[0]) if heads else 0,
                now=found["now"].replace(tzinfo=UTC),
                replays=bool(list(found["replays"])),
            )

    def all(self) -> Sequence[Consumer]:
        """See the port; one that does not decode is there too, and keeps the stream from being pruned."""
        with translated():
            found = raw(self._cursors).find({"tenant_id": self._tenant}).sort("consumer_id", 1)
            return [consumer_of(document) for document in found.batch_size(_ROWS_AT_ONCE)]

    def wake(self, consumer_ids: Iterable[str]) -> Sequence[str]:
        """See the port."""
        with translated():
            head = self._head()
            waiting = {
                "_id": {"$in": [self._key(consumer_id) for consumer_id in consumer_ids]},
                "tenant_id": self._tenant,
                **RUNNING,
                "failing": None,
                "$expr": {
                    "$and": [
                        lease_is_over(self._limits.longest_consumer_lease + self._limits.op_timeout),
                        {
                            "$or": [
                                {"$not": {"$isNumber": "$last_acked_sequence"}},
                                {"$lt": ["$last_acked_sequence", head]},
                            ]
                        },
                    ]
                },
            }
            woken = {
                row["_id"]: row["consumer_id"] for row in self._cursors.find(waiting, {"consumer_id": 1}, hint=BY_ID)
            }
            if woken:
                again = {**waiting, "_id": {"$in": list(woken)}}
                self._cursors.update_many(again, [{"$set": _DUE_NOW}], hint=BY_ID)
        return sorted(woken.values())

    def require_reconcile(self, consumer_id: str, by: str, why: str) -> None:
        """See the port; whoever is at it loses its lease, so that what it read before does not count as this."""
        update = edge_update(
            delivery.ASK_RECONCILE, must_reconcile=True, stopped_for="", idle_polls=0, next_poll_at=NOW
        )

        def write(transaction: Transaction) -> None:
            self._require_standing(consumer_id, transaction)
            at = self._written(self._move_in(transaction, delivery.ASK_RECONCILE, consumer_id, update))
            self._audit(transaction, delivery.ASK_RECONCILE.audit, consumer_id, at, {}, by=by, why=why)

        self._transact(write)

    def skip(self, consumer_id: str, by: str, why: str) -> int:
        """See the port."""

        def write(transaction: Transaction) -> int:
            self._require_standing(consumer_id, transaction)
            head = self._head(transaction)
            update = edge_update(
                delivery.SKIP, number=head, must_reconcile=False, stopped_for="", idle_polls=0, next_poll_at=NOW
            )
            at = self._written(self._move_in(transaction, delivery.SKIP, consumer_id, update))
            self._audit(transaction, delivery.SKIP.audit, consumer_id, at, {"head": head}, by=by, why=why)
            return head

        return self._transact(write)

    def retire(self, consumer_id: str, by: str, why: str) -> bool:
        """See the port."""
        update = edge_update(delivery.RETIRE, retired_at=NOW)

        def write(transaction: Transaction) -> bool:
            before = self._require(consumer_id, transaction)
            if before.retired_at is not None:
                return False
            at = self._written(self._move_in(transaction, delivery.RETIRE, consumer_id, update))
            self._resolve_all(transaction, consumer_id, at, by)
            detail = {"cursor": str(before.cursor)}
            self._audit(transaction, delivery.RETIRE.audit, consumer_id, at, detail, by=by, why=why)
            return True

        return self._transact(write)

    def set_paused(self, consumer_ids: Iterable[str] | None, *, paused: bool) -> Sequence[str]:
        """See the port; a retired one is neither."""
        named = {} if consumer_ids is None else {"consumer_id": {"$in": list(consumer_ids)}}
        other = {"paused_at": None} if paused else {"paused_at": {"$ne": None}}
        query = {"tenant_id": self._tenant, **named, **STANDING, **other}
        change = {"paused_at": NOW if paused else None, **_DUE_NOW}
        with translated():
            found = {row["_id"]: row["consumer_id"] for row in self._cursors.find(query, {"consumer_id": 1})}
            if found:
                again = {**query, "_id": {"$in": list(found)}}
                self._cursors.update_many(again, [{"$set": change}], hint=BY_ID)
        return sorted(found.values())

    def lags(self) -> Mapping[str, int]:
        """See the port; the rows are read before the head."""
        rows = self.all()
        with translated():
            head = self._head()
        return {row.consumer_id: lag(row.cursor, head) for row in rows if row.retired_at is None}

    def oldest_unacknowledged(self) -> Mapping[str, datetime]:
        """See the port; where the event after a cursor was pruned, it is the first one that is left."""
        rows = {row.consumer_id: goes_on_after(row.cursor) for row in self.all() if row.retired_at is None}
        with translated():
            head = self._head()
            lagging = {consumer_id: cursor for consumer_id, cursor in rows.items() if cursor < head}
            if not lagging:
                return {}
            outbox, wanted = self._database[OUTBOX], {"_id": 0, "sequence": 1, "occurred_at": 1}
            nexts = sorted({cursor + 1 for cursor in lagging.values()})
            first = (
                outbox.find({"tenant_id": self._tenant, "sequence": {"$gt": 0}}, wanted).sort("sequence", 1).limit(1)
            )
            exact = outbox.find({"tenant_id": self._tenant, "sequence": {"$in": nexts}}, wanted)
            found = {whole_number(row["sequence"]): row.get("occurred_at") for row in chain(first, exact)}
        known = sorted(number for number in found if number is not None)
        oldest = {
            consumer_id: found[after]
            for consumer_id, cursor in lagging.items()
            if (after := next((number for number in known if number > cursor), None)) is not None
        }
        return {consumer_id: at for consumer_id, at in oldest.items() if isinstance(at, datetime)}

    def _head(self, transaction: Transaction | None = None) -> int:
        sequences = self._database[SEQUENCES] if transaction is None else transaction.database[SEQUENCES]
        found = sequences.find_one({"_id": self._tenant}, {"last_sequence": 1}, session=session_of(transaction))
        return 0 if found is None else self._head_of(found.get("last_sequence"))

    def _head_of(self, stored: object) -> int:
        head = whole_number(stored)
        if head is None:
            raise InvariantError(f"the lifecycle counter of tenant {self._tenant} is damaged: it is no whole number")
        return head

    def _written(self, at: datetime | None) -> datetime:
        if at is None:
            raise InvariantError("a row that the transaction had read was not there to be written")
        return at


def _joined(collection: str, name: str, query: dict[str, Any]) -> dict[str, Any]:
    """Return the stage that adds what one collection has for a query: one row at most."""
    return {"$lookup": {"from": collection, "pipeline": [{"$match": query}, {"$limit": 1}], "as": name}}
