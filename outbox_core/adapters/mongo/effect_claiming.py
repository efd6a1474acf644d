"""Taking due rows, keeping them while they are worked, and giving them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pymongo
from pymongo.read_concern import ReadConcern

from outbox_core.adapters.mongo.documents import decode, decode_leniently, raw, why_invalid
from outbox_core.adapters.mongo.edges import (
    DUE,
    MALFORMED,
    NOW,
    Values,
    edge_filter,
    edge_update,
)
from outbox_core.adapters.mongo.effect_documents import launch_of
from outbox_core.adapters.mongo.effect_rows import BY_ID, EPOCH, LIVE_STATES, EffectRows
from outbox_core.adapters.mongo.errors import translated
from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.claim_order import looked_at, taken
from outbox_core.domain.effect import Claim, Effect, bounded
from outbox_core.domain.effect_lifecycle import State
from outbox_core.domain.errors import (
    TransientError,
)
from outbox_core.domain.limits import CLAIM_ARRIVAL, CLAIM_WRITE_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from outbox_core.domain.effect_lifecycle import Edge


_READ_BACK_PAUSE = 0.25
_LINEARIZABLE = ReadConcern("linearizable")


class ClaimingRows(EffectRows):
    """The claim, the renewal and the release."""

    def claim_due(self, limit: int, *, worker: str, lease: timedelta, crowded: bool = False) -> Claim:
        """See the port."""
        claim_id = self._entropy.token()
        window = looked_at(limit, crowded=crowded)
        candidates = self._candidates(window)
        read_at = self._clock.monotonic()
        if not candidates:
            parked = self._park_unreachable()
            return Claim(
                claim_id=claim_id,
                worker=worker,
                effects=(),
                claimed_at=EPOCH,
                lease_ends=0.0,
                more=False,
                parked=parked,
            )
        edge, shared = _choose(candidates)
        chosen = taken(shared, limit, claim_id, crowded=crowded and len(candidates) == window)
        now = candidates[0]["now"]
        sent_at, unclear = self._clock.monotonic(), False
        update = edge_update(edge, Values(claim_id=claim_id, worker=worker, duration=lease))
        try:
            with translated(), pymongo.timeout(CLAIM_WRITE_TIME.total_seconds()):
                self._rows.update_many(self._claim_filter(edge, chosen, now), update, hint=BY_ID)
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
            more=len(chosen) < len(candidates),
            parked=parked,
            lost=len(chosen) - len(effects) - parked,
        )

    def _candidates(self, limit: int) -> list[dict[str, Any]]:
        """Due rows of both live states in due order, with the server's time (query Q1, by the live index)."""
        query = {"tenant_id": self._tenant, "state": {"$in": LIVE_STATES}, **DUE}
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
            documents = list(raw(self._rows).find(query).hint(BY_ID).batch_size(len(chosen) + 1))
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
        query = {"tenant_id": self._tenant, "state": {"$in": LIVE_STATES}, **MALFORMED}
        with translated():
            found = [document["_id"] for document in self._rows.find(query, {"_id": 1}).limit(self._limits.claim_batch)]
        return self._park_malformed(found, "not_before: not a date that a clock reaches", "") if found else 0

    def _park_malformed(self, ids: Sequence[Any], reason: str, claim_id: str) -> int:
        edge = lifecycle.PARK_MALFORMED
        with translated():
            parked = self._rows.update_many(
                edge_filter(edge, self._tenant, ids, claim_id),
                edge_update(edge, Values(error=bounded(f"malformed: {reason}"))),
                hint=BY_ID,
            )
        return parked.modified_count

    def is_due(self) -> bool:
        """See the port."""
        return bool(self._candidates(1))

    def renew(self, claim: Claim, effect_ids: Iterable[str], lease: timedelta) -> int:
        """See the port."""
        return self._move(lifecycle.RENEW, claim, effect_ids, Values(duration=lease))

    def release(self, claim: Claim, effect_ids: Iterable[str]) -> int:
        """See the port."""
        return self._move(lifecycle.RELEASE, claim, effect_ids, Values())


def _choose(candidates: Sequence[Mapping[str, Any]]) -> tuple[Edge, list[Any]]:
    """Choose what one claim takes: the oldest alone where it must be, else all that may share a batch (E28)."""
    oldest = candidates[0]
    if oldest["state"] == State.CLAIMED.value:
        return lifecycle.RECLAIM, [oldest["_id"]]
    if oldest.get("runs_alone"):
        return lifecycle.CLAIM, [oldest["_id"]]
    shared = [row["_id"] for row in candidates if row["state"] == State.PENDING.value and not row.get("runs_alone")]
    return lifecycle.CLAIM, shared
