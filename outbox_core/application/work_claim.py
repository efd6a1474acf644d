"""Work one claim: run its rows while the heart beats, then write what they came to."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.application.execute_effect import execute_effect
from outbox_core.application.hand import Hand
from outbox_core.application.heart import Heart
from outbox_core.application.known import read_known
from outbox_core.application.patience import patiently
from outbox_core.domain.effect_lifecycle import State
from outbox_core.domain.errors import ClaimLostError, TransientError
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from outbox_core.application.known import Known
    from outbox_core.domain.effect import Claim, Effect, Settlement
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

_log = logging.getLogger("outbox.slice")


@dataclass(slots=True)
class SliceReport:
    """What a slice came to: rows claimed, settled, fenced out, given back unrun; `more` says that others are due."""

    claimed: int = 0
    settled: int = 0
    fenced_out: int = 0
    more: bool = False


def work_claim(
    store: TenantStore,
    runtime: Runtime,
    slot: str,
    claim: Claim,
    report: SliceReport,
    *,
    slice_ends: float,
    known: Known | None = None,
) -> None:
    """Run the rows of a claim until the slice ends, and leave none of them in hand; `report` counts on.

    What they need is read first, unless it is `known`.
    """
    _Work(store, runtime, slot, claim, report).take(slice_ends, known)


class _Work:
    """One claim in hand: run its rows while the heart beats, then write what they came to."""

    def __init__(self, store: TenantStore, runtime: Runtime, slot: str, claim: Claim, report: SliceReport) -> None:
        self._store = store
        self._runtime = runtime
        self._slot = slot
        self._claim = claim
        self._report = report
        self._hand = Hand(claim, runtime.clock, runtime.limits.effect_lease)

    def take(self, slice_ends: float, given: Known | None) -> None:
        """Run the rows until the slice ends, and leave none of them in hand."""
        heart = Heart(
            self._store,
            self._runtime,
            self._hand,
            slice_ends=slice_ends,
            write_decided=lambda: self._write_decided(0.0),
            extend_slot=self._extend_slot,
        )
        try:
            with heart:
                known = given or read_known(self._store, self._claim)
                for effect in self._claim.effects:
                    if self._runtime.stopping():
                        break
                    self._run(effect, known)
        finally:
            self._leave()

    def _run(self, effect: Effect, known: Known) -> None:
        if not self._hand.start(effect.effect_id, self._limit_of(effect, known)):
            return
        decided = None
        try:
            decided = execute_effect(self._store, self._runtime, self._hand, effect, known)
        except ClaimLostError:
            self._report.fenced_out += 1
            _log_fenced_out(self._store.tenant_id, effect.effect_id)
        finally:
            self._hand.finish(effect.effect_id, decided)

    def _leave(self) -> None:
        unrun, give_up = self._hand.take_waiting(), self._hand.lease_ends
        try:
            self._write_decided(give_up)
        finally:
            self._report.more = self._report.more or self._hand.gave_back
            if unrun:
                # Left to their lease's end they would each pay an attempt, and run alone.
                patiently(self._runtime.clock, give_up, lambda: self._store.effects.release(self._claim, unrun))
                self._hand.let_go()

    def _write_decided(self, give_up: float) -> None:
        """Write the outcomes; while the store does not answer, again until `give_up`, then they stay in hand."""
        decided = self._hand.take_decided()
        if not decided:
            return
        try:
            settled = patiently(self._runtime.clock, give_up, lambda: self._store.effects.settle(self._claim, decided))
        except TransientError:
            self._hand.put_back(decided)
            raise
        self._report.settled += len(settled.owned)
        self._report.fenced_out += len(settled.fenced_out)
        _log_settled(self._store.tenant_id, decided, settled.owned, settled.fenced_out)

    def _extend_slot(self) -> None:
        self._store.slots.extend(Lane.SLICE, self._slot, self._runtime.limits.slot_hold)

    def _limit_of(self, effect: Effect, known: Known) -> timedelta:
        rule = known.rules.get(effect.sub_id)
        bot = None if rule is None or isinstance(rule, str) else self._runtime.bots.get(rule.bot_id)
        limits = self._runtime.limits
        return limits.effect_time_limit if bot is None else bot.limit(limits)


def _log_settled(
    tenant_id: str, decided: Mapping[str, Settlement], owned: frozenset[str], fenced_out: frozenset[str]
) -> None:
    for effect_id in sorted(fenced_out):
        _log_fenced_out(tenant_id, effect_id)
    for effect_id in sorted(owned):
        if decided[effect_id].edge.target is State.FAILED:
            _log.warning("tenant %s: effect %s is parked: %s", tenant_id, effect_id, decided[effect_id].error)


def _log_fenced_out(tenant_id: str, effect_id: str) -> None:
    _log.warning("tenant %s: effect %s was claimed by another worker; nothing is written", tenant_id, effect_id)
