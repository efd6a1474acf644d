"""The rows of one tenant on the twin: `trigger_effects` and `runs`."""

from __future__ import annotations

import math
from collections import Counter
from copy import deepcopy
from datetime import datetime
from typing import TYPE_CHECKING, Any

from outbox_core.adapters.memory.documents import storable_document
from outbox_core.adapters.memory.effect_rows import Values, born, due_time, effect_of, may_take, over
from outbox_core.adapters.memory.transactions import inside
from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.claim_order import looked_at, taken
from outbox_core.domain.effect import Claim, bounded
from outbox_core.domain.effect_lifecycle import State
from outbox_core.domain.errors import (
    ClaimLostError,
    EffectNotFoundError,
)
from outbox_core.domain.identity import join_key, require_own
from outbox_core.domain.limits import MAX_RESULT_BYTES
from outbox_core.domain.payload import json_bytes
from outbox_core.ports.effect_outbox import Settled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from outbox_core.adapters.memory.database import Document, MemoryDatabase, MemoryTransaction
    from outbox_core.domain.effect import Effect, NewEffect, Settlement
    from outbox_core.domain.effect_lifecycle import Edge
    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Clock, Entropy
    from outbox_core.ports.transactions import Transaction

_EFFECTS = "trigger_effects"
_RUNS = "runs"


class MemoryEffectOutbox:
    """Implements ports.effect_outbox.EffectOutbox."""

    def __init__(
        self, database: MemoryDatabase, tenant_id: str, limits: Limits, clock: Clock, entropy: Entropy
    ) -> None:
        self._database = database
        self._tenant_id = tenant_id
        self._limits = limits
        self._clock = clock
        self._entropy = entropy

    def check(self, effect: NewEffect) -> None:
        """See the port."""
        self._born(effect, self._database.clock.now())

    def materialize(self, effects: Sequence[NewEffect], now: datetime) -> frozenset[str]:
        """See the port."""
        rows = [self._born(effect, now) for effect in effects]
        with self._database.lock:
            return frozenset(row["_id"] for row in rows if self._database.insert(_EFFECTS, row) is None)

    def claim_due(self, limit: int, *, worker: str, lease: timedelta, crowded: bool = False) -> Claim:
        """See the port."""
        values = Values(claim_id=self._entropy.token(), worker=worker, duration=lease)
        lease_ends = self._clock.monotonic() + lease.total_seconds()
        with self._database.lock:
            now = self._database.clock.now()
            self._database.expire(now)
            chosen, more = self._candidates(limit, now, values.claim_id, crowded=crowded)
            claimed = [self._claim(row, now, values) for row in chosen]
            effects = sorted(
                (e for e in claimed if e is not None), key=lambda effect: (effect.due_at, effect.effect_id)
            )
            parked = len(claimed) - len(effects) if chosen else self._park_unreachable(now)
        return Claim(
            claim_id=values.claim_id,
            worker=worker,
            effects=tuple(effects),
            claimed_at=now,
            lease_ends=lease_ends,
            more=more,
            parked=parked,
        )

    def renew(self, claim: Claim, effect_ids: Iterable[str], lease: timedelta) -> int:
        """See the port."""
        return len(self._move(claim, effect_ids, lifecycle.RENEW, Values(duration=lease)))

    def release(self, claim: Claim, effect_ids: Iterable[str]) -> int:
        """See the port."""
        return len(self._move(claim, effect_ids, lifecycle.RELEASE, Values()))

    def finished_runs(self, effect_ids: Iterable[str]) -> frozenset[str]:
        """See the port."""
        with self._database.lock:
            runs = [self._run(effect_id) for effect_id in effect_ids]
        return frozenset(
            run["_id"]
            for run in runs
            if run is not None and run.get("error") is None and isinstance(run.get("finished_at"), datetime)
        )

    def settle(self, claim: Claim, settlements: Mapping[str, Settlement]) -> Settled:
        """See the port."""
        effects = {effect.effect_id: effect for effect in claim.effects}
        with self._database.lock:
            for effect_id, settlement in settlements.items():
                self._record_run(claim, effects.get(effect_id), settlement, None)
            owned = {
                effect_id
                for effect_id, settlement in settlements.items()
                if self._move(claim, [effect_id], settlement.edge, _values(settlement))
                or self._state_under(claim, effect_id) == settlement.edge.target.value
            }
        return Settled(frozenset(owned), frozenset(settlements) - owned)

    def mark_consumed(self, transaction: Transaction, claim: Claim, effect_id: str) -> None:
        """See the port."""
        opened = inside(transaction)
        if not self._move(claim, [effect_id], lifecycle.MARK_CONSUMED, Values(), opened):
            raise ClaimLostError(f"effect {effect_id} is not held by claim {claim.claim_id} any more")

    def settle_in(self, transaction: Transaction, claim: Claim, effect_id: str, settlement: Settlement) -> None:
        """See the port."""
        opened = inside(transaction)
        effects = {effect.effect_id: effect for effect in claim.effects}
        with self._database.lock:
            self._record_run(claim, effects.get(effect_id), settlement, opened)
            if not self._move(claim, [effect_id], settlement.edge, _values(settlement), opened):
                raise ClaimLostError(f"effect {effect_id} is not held by claim {claim.claim_id} any more")

    def is_due(self) -> bool:
        """See the port."""
        with self._database.lock:
            return bool(self._due(self._database.clock.now()))

    def next_due(self) -> datetime | None:
        """See the port."""
        with self._database.lock:
            return min((due for row in self._own() if (due := due_time(row)) is not None), default=None)

    def get(self, effect_id: str) -> Mapping[str, Any]:
        """See the port."""
        with self._database.lock:
            row, run = self._row(effect_id), self._run(effect_id)
        if row is None:
            raise EffectNotFoundError(f"effect {effect_id} of {self._tenant_id} does not exist")
        return deepcopy({**row, "run": run})

    def list(
        self, *, state: str | None = None, sub_id: str | None = None, after: str = "", limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        with self._database.lock:
            rows = [
                row
                for row in self._own()
                if self._keyed(row)
                and row["_id"] > after
                and (state is None or row.get("state") == state)
                and (sub_id is None or row.get("sub_id") == sub_id)
            ]
        return deepcopy(sorted(rows, key=lambda row: str(row["_id"]))[:limit])

    def newest(
        self, *, state: str | None = None, sub_id: str | None = None, after: str = "", limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        with self._database.lock:
            own = [row for row in self._own() if self._keyed(row)]
            found = [row for row in own if state in (None, row.get("state")) and sub_id in (None, row.get("sub_id"))]
            found.sort(key=_newest_first)
            if after:
                last = self._row(after)
                if last is None:
                    raise EffectNotFoundError(
                        f"tenant {self._tenant_id} has no effect {after!r}: begin without it again"
                    )
                found = [row for row in found if _newest_first(row) > _newest_first(last)]
        return deepcopy(found[:limit])

    def counts(self) -> Mapping[str, int]:
        """See the port."""
        with self._database.lock:
            return Counter(
                f"{row['state']}:{row.get('outcome', '')}" if row["state"] == State.DONE else str(row["state"])
                for row in self._own()
                if self._keyed(row)
            )

    def _born(self, effect: NewEffect, now: datetime) -> Document:
        require_own(self._tenant_id, effect.tenant_id, "a row")
        return born(effect, now)

    def _own(self) -> Iterator[Document]:
        for row in self._database.documents(_EFFECTS).values():
            if row.get("tenant_id") == self._tenant_id:
                yield row

    def _keyed(self, row: Document) -> bool:
        """Say whether a row's key is the tenant's too: lists and counts go by the keys."""
        return str(row["_id"]).startswith(join_key(self._tenant_id, ""))

    def _row(self, effect_id: str, opened: MemoryTransaction | None = None) -> Document | None:
        row = self._database.get(_EFFECTS, effect_id, opened)
        return row if row is not None and row.get("tenant_id") == self._tenant_id else None

    def _run(self, effect_id: str, opened: MemoryTransaction | None = None) -> Document | None:
        run = self._database.get(_RUNS, effect_id, opened)
        return run if run is not None and run.get("tenant_id") == self._tenant_id else None

    def _due(self, now: datetime) -> Sequence[Document]:
        """Return the due rows in due order."""
        takes = (lifecycle.CLAIM, lifecycle.RECLAIM)
        due = [row for row in self._own() if any(may_take(row, edge, now) for edge in takes)]
        due.sort(key=lambda row: row["not_before"])  # Of one time, in the order of their birth.
        return due

    def _candidates(
        self, limit: int, now: datetime, claim_id: str, *, crowded: bool
    ) -> tuple[Sequence[Document], bool]:
        """Return what one claim takes of the oldest due rows, and whether other rows are due as well."""
        window = looked_at(limit, crowded=crowded)
        candidates = self._due(now)[:window]
        shared = _choose(candidates) if candidates else []
        chosen = taken(shared, limit, claim_id, crowded=crowded and len(candidates) == window)
        return chosen, len(chosen) < len(candidates)

    def _claim(self, row: Document, now: datetime, values: Values) -> Effect | None:
        """Claim a row; None where it is malformed and was parked under its fence."""
        edge = lifecycle.CLAIM if row["state"] == State.PENDING else lifecycle.RECLAIM
        claimed = over(row, edge, now, values)
        self._database.put(_EFFECTS, claimed)
        try:
            return effect_of(claimed)
        except ValueError as error:
            self._park(claimed, now, str(error))
            return None

    def _park_unreachable(self, now: datetime) -> int:
        """Park live rows whose due time is none: they would never be due."""
        broken = [row for row in self._own() if may_take(row, lifecycle.PARK_MALFORMED, now)]
        for row in broken[: self._limits.claim_batch]:
            self._park(row, now, "not_before: not a date that a clock reaches")
        return len(broken[: self._limits.claim_batch])

    def _park(self, row: Document, now: datetime, error: str) -> None:
        values = Values(error=bounded(f"malformed: {error}"))
        self._database.put(_EFFECTS, over(row, lifecycle.PARK_MALFORMED, now, values))

    def _state_under(self, claim: Claim, effect_id: str) -> str | None:
        """Return the state of a row while its claim_id is this claim's, None otherwise."""
        with self._database.lock:
            row = self._row(effect_id)
        return None if row is None or row.get("claim_id") != claim.claim_id else str(row["state"])

    def _move(
        self,
        claim: Claim,
        effect_ids: Iterable[str],
        edge: Edge,
        values: Values,
        opened: MemoryTransaction | None = None,
    ) -> Sequence[str]:
        """Take rows over an edge where the claim holds them; return the ids that it took."""
        moved = []
        with self._database.lock:
            now = self._database.clock.now()
            for effect_id in effect_ids:
                row = self._row(effect_id, opened)
                if row is not None and may_take(row, edge, now, claim.claim_id):
                    self._database.put(_EFFECTS, over(row, edge, now, values), opened)
                    moved.append(effect_id)
        return moved

    def _record_run(
        self, claim: Claim, effect: Effect | None, settlement: Settlement, opened: MemoryTransaction | None
    ) -> None:
        """Write a run record, unless a newer claim has written one."""
        run = settlement.run
        if effect is None or run is None:
            return
        before = self._run(effect.effect_id, opened)
        held = None if before is None else (before["claims"], before["claim_id"])
        if held is not None and held[0] >= effect.claims and held != (effect.claims, claim.claim_id):
            return
        keeps = run.result is None or json_bytes(run.result, "the result") <= MAX_RESULT_BYTES
        document = {
            **(before or {}),
            "_id": effect.effect_id,
            "tenant_id": self._tenant_id,
            "claims": effect.claims,
            "claim_id": claim.claim_id,
            "claimed_by": claim.worker,
            "bot_id": run.bot_id,
            "args": dict(run.args),
            "started_at": run.started_at,
            "finished_at": run.finished_at,
            "result": run.result if keeps else None,
            "result_dropped": not keeps,
            "error": run.error,
        }
        self._database.put(_RUNS, storable_document(document), opened)


def _choose(candidates: Sequence[Document]) -> Sequence[Document]:
    """Choose what one claim takes: the oldest alone where it must be, else all that may share a batch (E28)."""
    oldest = candidates[0]
    if oldest["state"] == State.CLAIMED or oldest.get("runs_alone"):
        return [oldest]
    return [row for row in candidates if row["state"] == State.PENDING and not row.get("runs_alone")]


def _values(settlement: Settlement) -> Values:
    return Values(duration=settlement.delay, outcome=settlement.outcome, error=settlement.error)


def _newest_first(row: Mapping[str, Any]) -> tuple[float, str]:
    """Order rows as the store does; one without a number comes last."""
    seq = row.get("seq")
    return -seq if isinstance(seq, int) else math.inf, str(row["_id"])
