"""Writing what became of claimed rows, run records first."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pymongo import UpdateMany
from pymongo.errors import BulkWriteError

from outbox_core.adapters.mongo.edges import (
    Values,
    edge_filter,
    edge_update,
)
from outbox_core.adapters.mongo.effect_documents import run_document, run_update
from outbox_core.adapters.mongo.effect_rows import BY_ID, EffectRows
from outbox_core.adapters.mongo.errors import DRIVER_ERRORS, DUPLICATE_KEY, as_outbox_error, is_contention, translated
from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.adapters.mongo.transactions import session_of
from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.effect_lifecycle import State
from outbox_core.domain.errors import (
    ClaimLostError,
    TransientError,
)
from outbox_core.ports.effect_outbox import Settled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from outbox_core.domain.effect import Claim, Settlement
    from outbox_core.domain.effect_lifecycle import Edge
    from outbox_core.ports.transactions import Transaction


class SettlingRows(EffectRows):
    """The settle, and what is written inside a transaction."""

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
            found = self._runs.find(query, {"_id": 1}).hint(BY_ID).batch_size(len(ids) + 1)
            return frozenset(run["_id"] for run in found)

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
            rows = self._rows.find(query, {"state": 1}).hint(BY_ID).batch_size(len(settlements) + 1)
            states = {row["_id"]: row["state"] for row in rows}
        if any(state == State.CLAIMED.value for state in states.values()):
            raise error or TransientError("rows that this claim holds were not written")
        owned = {effect_id for effect_id, state in states.items() if state == settlements[effect_id].edge.target.value}
        return Settled(frozenset(owned), frozenset(settlements) - owned)

    def _write_runs(self, claim: Claim, settlements: Mapping[str, Settlement]) -> None:
        effects = {effect.effect_id: effect for effect in claim.effects}
        ran = [(effects[effect_id], one.run) for effect_id, one in settlements.items() if one.run is not None]
        # No try was spent, so there is hardly a record yet, and an insert costs a seventh of the upsert.
        fresh = [(effect, run) for effect, run in ran if not effect.attempts]
        rest = [(effect, run) for effect, run in ran if effect.attempts]
        if fresh:
            documents = [run_document(self._tenant, effect, claim, run) for effect, run in fresh]
            rest += [fresh[rejection.index] for rejection in insert_all(self._runs, documents)]
        if not rest:
            return
        with translated():
            try:
                self._runs.bulk_write(
                    [run_update(self._tenant, effect, claim, run) for effect, run in rest], ordered=False
                )
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
        effect = next(effect for effect in claim.effects if effect.effect_id == effect_id)
        try:
            if settlement.run is not None:
                self._runs.bulk_write([run_update(self._tenant, effect, claim, settlement.run)], session=session)
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
            hint=BY_ID,
            session=session_of(transaction),
        )
        if written.matched_count != 1:
            raise ClaimLostError(f"{effect_id}: the claim does not hold the row any more")


def _values(settlement: Settlement) -> Values:
    return Values(outcome=settlement.outcome, error=settlement.error, duration=settlement.delay)
