"""Rows that a turn lets be born claimed by itself: no claim looks for them, and nothing of them is read again."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from outbox_core.application.known import Known, may_be_made_again
from outbox_core.application.leave_slot import leave_slot
from outbox_core.application.patience import patiently
from outbox_core.domain.effect import DEAD_EVENT, Claim, Hold
from outbox_core.domain.errors import TransientError
from outbox_core.domain.event import Event
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from outbox_core.application.decide_batch import Batch
    from outbox_core.domain.effect import Effect, NewEffect
    from outbox_core.domain.event import LogEntry
    from outbox_core.domain.subscription import Subscription
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

_log = logging.getLogger("outbox.turn")


class Newborn:
    """The rows of one turn, and the slot of the slice that runs them.

    Their lease counts from before the cursor was read, so it is over for their worker before it is for the store whose
    clock stamps them.
    """

    def __init__(self, store: TenantStore, runtime: Runtime) -> None:
        limits = runtime.limits
        self._store = store
        self._runtime = runtime
        self._rules: dict[str, Subscription] = {}
        self.cursor_is_read()
        self._hold = Hold(claim_id=runtime.entropy.token(), worker=runtime.worker, lease=limits.effect_lease)
        self._held: dict[str, NewEffect] = {}
        self._claim: Claim | None = None
        self._known = Known(finished=frozenset(), rules={}, events={}, bindings={})
        self._slot: str | None = None

    def cursor_is_read(self) -> None:
        """Count the lease from here: the cursor, whose time stamps the rows, is read next."""
        self._read_at = self._runtime.clock.monotonic()

    @property
    def in_hand(self) -> tuple[str, Claim, Known | None] | None:
        """The slot, the claim and what its rows need, once rows were held; the claim may hold none that is new.

        What they need is read again where it is older than a slice lasts: a rule may have been disabled since (E34).
        """
        if self._slot is None or self._claim is None:
            return None
        age = self._runtime.clock.monotonic() - self._read_at
        fresh = age < self._runtime.limits.slice_time.total_seconds()
        return self._slot, self._claim, self._known if fresh else None

    def hold(self, batch: Batch, entries: Sequence[LogEntry], now: datetime) -> Sequence[NewEffect]:
        """Return the rows of a batch, held as far as a slice can run them; none is where no slice's slot is free.

        They will be stamped with `now`, the server's time at the read of the cursor.
        """
        events = {entry.event_id: entry for entry in entries if isinstance(entry, Event)}
        # Of a row that may have been there before a claim asks for its finished run, and a turn does not.
        again = {event_id for event_id, event in events.items() if may_be_made_again(event, now)}
        limits, pace = self._runtime.limits, self._runtime.pace
        rows = [row for row in batch.rows if row.kind != DEAD_EVENT and row.event_id not in again][: limits.claim_batch]
        chosen = rows[: pace.fitting([row.bot_id or row.kind for row in rows], limits.slice_time)]
        if not chosen or self._runtime.stopping() or not self._take_slot():
            return batch.rows
        held = {row.effect_id: row.held_by(self._hold) for row in chosen}
        self._held |= held
        self._stamp = now
        # The worker's idea of the server's time must not run ahead of it: the cursor was read at the latest just now.
        since_read = self._runtime.clock.monotonic() - self._read_at
        self._claim = self._claim or self._claim_of((), now - timedelta(seconds=since_read))
        launched = {row.sub_id for row in chosen}
        # All that were held stay known: a batch that is decided again, shorter, leaves rows behind that are made. What
        # a bot is given is its own: it may change it, and the store's copy of a rule is every turn's.
        self._rules |= {
            rule.sub_id: replace(rule, vars=deepcopy(rule.vars)) if rule.vars else rule
            for rule in batch.rules
            if rule.sub_id in launched
        }
        self._known = Known(
            finished=frozenset(),  # What has never been claimed has no run.
            rules=self._rules,
            events=events,
            bindings=batch.bindings,
            just_matched=True,
        )
        return [held.get(row.effect_id, row) for row in batch.rows]

    def born(self, new_ids: Collection[str]) -> bool:
        """Note which rows are new: they alone are ours; say whether every new one is."""
        if self._claim is not None:
            ours = tuple(row.claimed(self._stamp) for key, row in self._held.items() if key in new_ids)
            self._claim = self._claim_of(ours, self._claim.claimed_at)
        return self._held.keys() >= set(new_ids)

    def give_back(self) -> None:
        """Give back whatever is ours of what was held, as far as the store answers before the lease is over."""
        if self._slot is not None:
            leave_slot(self._store, Lane.SLICE, self._slot)
        claim = self._claim
        if claim is None:
            return
        try:
            patiently(
                self._runtime.clock, self._lease_ends, lambda: self._store.effects.release(claim, list(self._held))
            )
        except TransientError as error:
            _log.warning("tenant %s: new rows wait for their lease's end: %s", self._store.tenant_id, error)

    def _claim_of(self, effects: tuple[Effect, ...], now: datetime) -> Claim:
        return Claim(
            claim_id=self._hold.claim_id,
            worker=self._hold.worker,
            effects=effects,
            claimed_at=now,
            lease_ends=self._lease_ends,
            more=False,
        )

    @property
    def _lease_ends(self) -> float:
        return self._read_at + self._hold.lease.total_seconds()

    def _take_slot(self) -> bool:
        if self._slot is None:
            try:
                self._slot = self._store.slots.take(Lane.SLICE, self._runtime.limits.slot_hold)
            except TransientError as error:
                _log.info("tenant %s: new rows are left to a slice: %s", self._store.tenant_id, error)
        return self._slot is not None
