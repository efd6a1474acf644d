"""The heart: the thread that renews the leases of what a slice has in hand, and ends the slice in time."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.application.hand import Hand
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

_log = logging.getLogger("outbox.heart")

_LONGEST_WAIT = 0.5


class Heart:
    """Beats while its block is open.

    At `slice_ends` it gives back what has not started and writes what is decided, so that one long bot holds neither;
    every third of a lease it renews what is in hand and lets `extend_slot` keep the slice's slot.
    """

    def __init__(
        self,
        store: TenantStore,
        runtime: Runtime,
        hand: Hand,
        *,
        slice_ends: float,
        write_decided: Callable[[], None],
        extend_slot: Callable[[], None],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._hand = hand
        self._slice_ends = slice_ends
        self._write_decided = write_decided
        self._extend_slot = extend_slot
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="outbox-heart", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        clock, limits = self._runtime.clock, self._runtime.limits
        period = min(limits.renew_interval, limits.slot_hold / 3).total_seconds()
        renew_at = clock.monotonic() + period
        end_at, ended = self._slice_ends, False
        while True:
            next_at = renew_at if ended else min(renew_at, end_at)
            if self._stop.wait(min(max(0.0, next_at - clock.monotonic()), _LONGEST_WAIT)):
                return
            now = clock.monotonic()
            try:
                if now >= renew_at:
                    renew_at = now + period
                    self._renew(now)
                if not ended and now >= end_at:
                    # Again a moment later where the store does not answer, as at a failover.
                    end_at = now + _LONGEST_WAIT
                    self._end_slice()
                    ended = True
            except Exception:  # noqa: BLE001 - the named edge: the heart
                # A beat that fails must not stop the heart; what it left undone the lease's end does.
                _log.exception("tenant %s: a heart beat failed", self._store.tenant_id)

    def _end_slice(self) -> None:
        released = self._hand.take_waiting()
        if released:
            self._store.effects.release(self._hand.claim, released)
            self._hand.let_go()
        self._write_decided()

    def _renew(self, now: float) -> None:
        in_hand = self._hand.to_renew()
        lease = self._runtime.limits.effect_lease
        if in_hand and self._store.effects.renew(self._hand.claim, in_hand, lease) == len(in_hand):
            self._hand.renewed(in_hand, now + lease.total_seconds())
        self._extend_slot()
