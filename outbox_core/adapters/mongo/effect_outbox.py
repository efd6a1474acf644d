"""The rows of one tenant on trigger_effects and runs: the only module that handles a claim_id."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import bson
import pymongo
from pymongo import UpdateMany
from pymongo.errors import BulkWriteError
from pymongo.read_concern import ReadConcern

from outbox_core.adapters.mongo.documents import decode, decode_leniently, raw, why_invalid
from outbox_core.adapters.mongo.edges import (
    DUE,
    FIRST_DATE,
    LAST_DATE,
    MALFORMED,
    NOW,
    Values,
    edge_filter,
    edge_update,
)
from outbox_core.adapters.mongo.effect_documents import launch_of, new_row_document, run_update
from outbox_core.adapters.mongo.errors import DRIVER_ERRORS, DUPLICATE_KEY, as_outbox_error, is_contention, translated
from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.adapters.mongo.transactions import session_of
from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.effect import Claim, Effect, NewEffect, Settlement, bounded
from outbox_core.domain.effect_lifecycle import LIVE, State
from outbox_core.domain.errors import (
    ClaimLostError,
    EffectNotFoundError,
    InvalidInputError,
    RowsRefusedError,
    TransientError,
    UnstorableRowError,
)
from outbox_core.domain.identity import join_key, require_own
from outbox_core.domain.limits import CLAIM_ARRIVAL, CLAIM_WRITE_TIME, MAX_RULE_ATTRIBUTES_BYTES
from outbox_core.domain.payload import require_json
from outbox_core.ports.effect_outbox import Settled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import timedelta

    from pymongo.database import Database

    from outbox_core.domain.effect_lifecycle import Edge
    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Clock, Entropy
    from outbox_core.ports.transactions import Transaction

_BY_ID = [("_id", 1)]
"""Every write over known ids names this index: left alone, the planner takes the live one and reads every live row."""

_LIVE_STATES = [state.value for state in LIVE]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ_BACK_PAUSE = 0.25
_LINEARIZABLE = ReadConcern("linearizable")

# Every read of a batch asks for it whole (batch_size): the driver's first answer holds 101 documents, and the rest
# would be another command.


class MongoEffectOutbox:
    """Implements ports.effect_outbox.EffectOutbox."""

    def __init__(
        self, database: Database[dict[str, Any]], tenant_id: str, limits: Limits, clock: Clock, entropy: Entropy
    ) -> None:
        self._tenant = tenant_id
        self._limits = limits
        self._clock = clock
        self._entropy = entropy
        self._rows = database["trigger_effects"]
        self._runs = database["runs"]

    # --- materialize ---

    def check(self, effect: NewEffect) -> None:
        """See the port."""
        require_own(self._tenant, effect.tenant_id, "a row")
        document = new_row_document(effect, _EPOCH)
        try:
            if effect.attributes is not None:
                require_json(document["attributes"], "the attributes that rules match", MAX_RULE_ATTRIBUTES_BYTES)
        except InvalidInputError as error:
            raise UnstorableRowError(str(error)) from error
        with translated():
            bson.encode(document)

    def materialize(self, effects: Sequence[NewEffect], now: datetime) -> frozenset[str]:
        """See the port."""
        for effect in effects:
            require_own(self._tenant, effect.tenant_id, "a row")
        inserted: set[str] = set()
        refused: dict[str, str] = {}
        for start in range(0, len(effects), self._limits.command_rows):
            documents = [new_row_document(effect, now) for effect in effects[start : start + self._limits.command_rows]]
            rejections = insert_all(self._rows, documents)
            for rejection in rejections:
                if (rejection.code, rejection.key) != (DUPLICATE_KEY, ("_id",)):
                    refused[documents[rejection.index]["_id"]] = rejection.reason
            known = {rejection.index for rejection in rejections}
            inserted |= {document["_id"] for index, document in enumerate(documents) if index not in known}
        if refused:
            raise RowsRefusedError(refused)
        return frozenset(inserted)

    # --- claim ---

    def claim_due(self, limit: int, *, worker: str, lease: timedelta) -> Claim:
        """See the port."""
        claim_id = self._entropy.token()
        candidates = self._candidates(limit)
        read_at = self._clock.monotonic()
        if not candidates:
            parked = self._park_unreachable()
            return Claim(
                claim_id=claim_id,
                worker=worker,
                effects=(),
                claimed_at=_EPOCH,
                lease_ends=0.0,
                more=False,
                parked=parked,
            )
        edge, chosen = _choose(candidates)
        now = candidates[0]["now"]
        sent_at, unclear = self._clock.monotonic(), False
        update = edge_update(edge, Values(claim_id=claim_id, worker=worker, duration=lease))
        try:
            with translated(), pymongo.timeout(CLAIM_WRITE_TIME.total_seconds()):
                self._rows.update_many(self._claim_filter(edge, chosen, now), update, hint=_BY_ID)
        except TransientError:
            # It may have claimed, or may yet: look only when it can no longer begin, nor go on.
            unclear = True
            surely_over = read_at + (CLAIM_ARRIVAL + CLAIM_WRITE_TIME).total_seconds()
            self._clock.sleep(max(0.0, surely_over - self._clock.monotonic()))
        give_up = sent_at + lease.total_seconds() / 2
        effects, parked = self._read_back_until(give_up, claim_id, chosen, unclear=unclear)
        return Claim(
            claim_id=claim_id,
            worker=worker,
            effects=tuple(effects),
            claimed_at=now,
            lease_ends=sent_at + lease.total_seconds(),
            more=len(candidates) == limit or len(chosen) < len(candidates),
            parked=parked,
        )

    def _candidates(self, limit: int) -> list[dict[str, Any]]:
        """Due rows of both live states in due order, with the server's time (query Q1, by the live index)."""
        query = {"tenant_id": self._tenant, "state": {"$in": _LIVE_STATES}, **DUE}
        fields = {"state": 1, "runs_alone": 1, "now": NOW}
        with translated():
            return list(self._rows.find(query, fields).sort([("not_before", 1)]).limit(limit).batch_size(limit))

    def _claim_filter(self, edge: Edge, chosen: Sequence[Any], read_at: datetime) -> dict[str, Any]:
        found = edge_filter(edge, self._tenant, chosen)
        in_time = {"$lt": [NOW, {"$add": [read_at, int(CLAIM_ARRIVAL.total_seconds() * 1000)]}]}
        return {**found, "$expr": {"$and": [found["$expr"], in_time]}}

    def _read_back_until(
        self, give_up: float, claim_id: str, chosen: Sequence[Any], *, unclear: bool
    ) -> tuple[list[Effect], int]:
        """Read what the claim owns, on a majority; keep asking while the store does not answer."""
        while True:
            try:
                if unclear:
                    self._await_majority(chosen)
                return self._read_back(claim_id, chosen)
            except TransientError:
                if self._clock.monotonic() >= give_up:
                    raise
                self._clock.sleep(_READ_BACK_PAUSE)

    def _await_majority(self, chosen: Sequence[Any]) -> None:
        """Wait until a majority holds what the primary does: a read of it does not wait for what it lacks.

        Where the others lag, a claim whose write concern failed would not be found, and its rows wait for their lease.
        """
        with translated():
            self._rows.with_options(read_concern=_LINEARIZABLE).find_one({"_id": chosen[0]}, {"_id": 1})

    def _read_back(self, claim_id: str, chosen: Sequence[Any]) -> tuple[list[Effect], int]:
        query = {
            "_id": {"$in": list(chosen)},
            "tenant_id": self._tenant,
            "claim_id": claim_id,
            "state": State.CLAIMED.value,
        }
        with translated():
            documents = list(raw(self._rows).find(query).hint(_BY_ID).batch_size(len(chosen) + 1))
        effects, broken = [], []
        for document in documents:
            try:
                effects.append(launch_of(decode(document)))
            except ValueError as error:
                # Pairs: an `_id` may be a document, which no dictionary takes as a key.
                broken.append((decode_leniently(document).get("_id"), why_invalid(error)))
        for identity, reason in broken:
            self._park_malformed([identity], reason, claim_id)
        return sorted(effects, key=lambda effect: (effect.due_at, effect.effect_id)), len(broken)

    def _park_unreachable(self) -> int:
        """Park rows whose due time no clock will ever reach, or that has no date at all (E45)."""
        query = {"tenant_id": self._tenant, "state": {"$in": _LIVE_STATES}, **MALFORMED}
        with translated():
            found = [document["_id"] for document in self._rows.find(query, {"_id": 1}).limit(self._limits.claim_batch)]
        return self._park_malformed(found, "not_before: not a date that a clock reaches", "") if found else 0

    def _park_malformed(self, ids: Sequence[Any], reason: str, claim_id: str) -> int:
        edge = lifecycle.PARK_MALFORMED
        with translated():
            parked = self._rows.update_many(
                edge_filter(edge, self._tenant, ids, claim_id),
                edge_update(edge, Values(error=bounded(f"malformed: {reason}"))),
                hint=_BY_ID,
            )
        return parked.modified_count

    # --- while in hand ---

    def renew(self, claim: Claim, effect_ids: Iterable[str], lease: timedelta) -> int:
        """See the port."""
        return self._move(lifecycle.RENEW, claim, effect_ids, Values(duration=lease))

    def release(self, claim: Claim, effect_ids: Iterable[str]) -> int:
        """See the port."""
        return self._move(lifecycle.RELEASE, claim, effect_ids, Values())

    def _move(self, edge: Edge, claim: Claim, effect_ids: Iterable[str], values: Values) -> int:
        ids = list(effect_ids)
        if not ids:
            return 0
        with translated():
            moved = self._rows.update_many(
                edge_filter(edge, self._tenant, ids, claim.claim_id), edge_update(edge, values), hint=_BY_ID
            )
        return moved.matched_count

    def finished_runs(self, effect_ids: Iterable[str]) -> frozenset[str]:
        """See the port."""
        ids = list(effect_ids)
        query = {
            "_id": {"$in": ids},
            "tenant_id": self._tenant,
            "finished_at": {"$type": "date"},
            "error": None,
        }
        with translated():
            found = self._runs.find(query, {"_id": 1}).hint(_BY_ID).batch_size(len(ids) + 1)
            return frozenset(run["_id"] for run in found)

    # --- settle ---

    def settle(self, claim: Claim, settlements: Mapping[str, Settlement]) -> Settled:
        """See the port."""
        if not settlements:
            return Settled(frozenset(), frozenset())
        self._write_runs(claim, settlements)
        groups: dict[tuple[Edge, Values], list[str]] = defaultdict(list)
        for effect_id, settlement in settlements.items():
            groups[settlement.edge, _values(settlement)].append(effect_id)
        writes = [
            UpdateMany(edge_filter(edge, self._tenant, ids, claim.claim_id), edge_update(edge, values), hint={"_id": 1})
            for (edge, values), ids in groups.items()
        ]
        try:
            with translated():
                written = self._rows.bulk_write(writes, ordered=False)
        except TransientError as error:
            return self._told_apart(claim, settlements, error)
        if written.matched_count == len(settlements):
            return Settled(frozenset(settlements), frozenset())
        return self._told_apart(claim, settlements, None)

    def _told_apart(self, claim: Claim, settlements: Mapping[str, Settlement], error: TransientError | None) -> Settled:
        """Tell the rows that are settled under this claim from those that it lost (E26)."""
        query = {"_id": {"$in": list(settlements)}, "tenant_id": self._tenant, "claim_id": claim.claim_id}
        with translated():
            rows = self._rows.find(query, {"state": 1}).hint(_BY_ID).batch_size(len(settlements) + 1)
            states = {row["_id"]: row["state"] for row in rows}
        if any(state == State.CLAIMED.value for state in states.values()):
            raise error or TransientError("rows that this claim holds were not written")
        owned = {effect_id for effect_id, state in states.items() if state == settlements[effect_id].edge.target.value}
        return Settled(frozenset(owned), frozenset(settlements) - owned)

    def _write_runs(self, claim: Claim, settlements: Mapping[str, Settlement]) -> None:
        claims = {effect.effect_id: effect.claims for effect in claim.effects}
        updates = [
            run_update(self._tenant, effect_id, claims[effect_id], claim, settlement.run)
            for effect_id, settlement in settlements.items()
            if settlement.run is not None
        ]
        if not updates:
            return
        with translated():
            try:
                self._runs.bulk_write(updates, ordered=False)
            except BulkWriteError as error:
                # A duplicate is a record that a newer claim has written: ours is fenced out.
                codes = {item.get("code") for item in error.details.get("writeErrors", [])}
                if error.details.get("writeConcernErrors") or codes != {DUPLICATE_KEY}:
                    raise

    def mark_consumed(self, transaction: Transaction, claim: Claim, effect_id: str) -> None:
        """See the port."""
        with translated():
            self._take_in(transaction, lifecycle.MARK_CONSUMED, claim, effect_id, Values())

    def settle_in(self, transaction: Transaction, claim: Claim, effect_id: str, settlement: Settlement) -> None:
        """See the port."""
        session = session_of(transaction)
        claims = next(effect.claims for effect in claim.effects if effect.effect_id == effect_id)
        try:
            if settlement.run is not None:
                self._runs.bulk_write(
                    [run_update(self._tenant, effect_id, claims, claim, settlement.run)], session=session
                )
            # The done mark is the last write; where it meets no row the transaction must not commit.
            self._take_in(transaction, settlement.edge, claim, effect_id, _values(settlement))
        except BulkWriteError as error:
            if is_contention(error):
                raise as_outbox_error(error) from error
            raise ClaimLostError(f"{effect_id}: a newer claim has written the run record") from error
        except DRIVER_ERRORS as error:
            raise as_outbox_error(error) from error

    def _take_in(self, transaction: Transaction, edge: Edge, claim: Claim, effect_id: str, values: Values) -> None:
        """Take exactly one row over an edge, in a transaction; ClaimLostError where the claim does not hold it."""
        written = self._rows.update_one(
            edge_filter(edge, self._tenant, [effect_id], claim.claim_id),
            edge_update(edge, values),
            hint=_BY_ID,
            session=session_of(transaction),
        )
        if written.matched_count != 1:
            raise ClaimLostError(f"{effect_id}: the claim does not hold the row any more")

    # --- looking ---

    def is_due(self) -> bool:
        """See the port."""
        return bool(self._candidates(1))

    def next_due(self) -> datetime | None:
        """See the port."""
        times = []
        for state in _LIVE_STATES:
            query = {"tenant_id": self._tenant, "state": state, "not_before": {"$gte": FIRST_DATE, "$lte": LAST_DATE}}
            with translated():
                found = self._rows.find_one(query, {"_id": 0, "not_before": 1}, sort=[("not_before", 1)])
            if found is not None:
                times.append(found["not_before"])
        return min(times, default=None)

    def get(self, effect_id: str) -> Mapping[str, Any]:
        """See the port."""
        query = {"_id": effect_id, "tenant_id": self._tenant}
        with translated():
            found = self._rows.find_one(query)
            run = self._runs.find_one(query)
        if found is None:
            raise EffectNotFoundError(f"tenant {self._tenant} has no effect {effect_id[:200]!r}")
        return {**found, "run": run}

    def list(
        self, *, state: str | None = None, sub_id: str | None = None, after: str = "", limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        query = {**self._own_rows(after), "tenant_id": self._tenant}
        query |= {name: value for name, value in (("state", state), ("sub_id", sub_id)) if value is not None}
        with translated():
            return list(self._rows.find(query).sort(_BY_ID).hint(_BY_ID).limit(limit))

    def newest(
        self, *, state: str | None = None, sub_id: str | None = None, after: str = "", limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        query: dict[str, Any] = {**self._own_rows(), "tenant_id": self._tenant}
        query |= {name: value for name, value in (("state", state), ("sub_id", sub_id)) if value is not None}
        with translated():
            if after:
                last = self._rows.find_one({"_id": after, "tenant_id": self._tenant}, {"seq": 1})
                if last is None:
                    raise EffectNotFoundError(f"tenant {self._tenant} has no row {after!r}: begin without it")
                # Compared as they sort, a number that is missing or none at all included.
                number, mark = {"$ifNull": ["$seq", None]}, {"$literal": last.get("seq")}
                query["$expr"] = {
                    "$or": [
                        {"$lt": [number, mark]},
                        {"$and": [{"$eq": [number, mark]}, {"$gt": ["$_id", {"$literal": after}]}]},
                    ]
                }
            newest_first = [("seq", -1), ("_id", 1)]
            return list(self._rows.find(query).sort(newest_first).hint(_BY_ID).limit(limit).allow_disk_use(True))

    def _own_rows(self, after: str = "") -> dict[str, Any]:
        """Return the range of the tenant's row keys: the index on `_id` serves what no other index holds whole."""
        prefix = join_key(self._tenant, "")
        return {"_id": {"$gt": max(after, prefix), "$lt": prefix + "\U0010ffff"}}

    def counts(self) -> Mapping[str, int]:
        """See the port."""
        pipeline: Sequence[Mapping[str, Any]] = [
            {"$match": {**self._own_rows(), "tenant_id": self._tenant}},
            {"$group": {"_id": {"state": "$state", "outcome": "$outcome"}, "rows": {"$sum": 1}}},
        ]
        counted: dict[str, int] = defaultdict(int)
        with translated():
            groups = list(self._rows.aggregate(pipeline))
        for group in groups:
            state, outcome = group["_id"].get("state"), group["_id"].get("outcome")
            counted[f"{state}:{outcome}" if state == State.DONE.value else str(state)] += group["rows"]
        return dict(counted)


def _choose(candidates: Sequence[Mapping[str, Any]]) -> tuple[Edge, list[Any]]:
    """Choose what one claim takes: the oldest alone where it must be, else all that may share a batch (E28)."""
    oldest = candidates[0]
    if oldest["state"] == State.CLAIMED.value:
        return lifecycle.RECLAIM, [oldest["_id"]]
    if oldest.get("runs_alone"):
        return lifecycle.CLAIM, [oldest["_id"]]
    shared = [row["_id"] for row in candidates if row["state"] == State.PENDING.value and not row.get("runs_alone")]
    return lifecycle.CLAIM, shared


def _values(settlement: Settlement) -> Values:
    return Values(outcome=settlement.outcome, error=settlement.error, duration=settlement.delay)
