"""What keeps a consumer's lease while its observer works."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from outbox_core.domain.consumer import Lease
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

_log = logging.getLogger("outbox.lifecycle")

_LONGEST_WAIT = 0.5


class LeaseHeart:
    """Renews a lease every third of it while its block is open, but for a call that overstays its own limit.

    `ends` is until when the lease is surely ours, on the clock's monotonic time: nothing is begun after that.
    """

    def __init__(self, store: TenantStore, runtime: Runtime, lease: Lease, sent_at: float) -> None:
        self._store = store
        self._runtime = runtime
        self._lease = lease
        self._duration = runtime.limits.consumer_lease
        self._lock = threading.Lock()
        self._ends = sent_at + self._duration.total_seconds()
        self._until: float | None = None
        self._quiet = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="outbox-lease-heart", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def holds(self) -> bool:
        """Whether the lease is surely ours now."""
        return self._runtime.clock.monotonic() < self._ends

    @contextmanager
    def call(self, limit: timedelta) -> Iterator[None]:
        """Mark a call of foreign code: beyond its limit the lease is renewed no more, and the fence does the rest."""
        self._until = self._runtime.clock.monotonic() + limit.total_seconds()
        try:
            yield
        finally:
            self._until = None

    @contextmanager
    def quiet(self, duration: timedelta) -> Iterator[bool]:
        """Renew once for `duration`, then not within the block: a renewal would undo the transaction that acks in it.

        Yields whether the lease was still ours.
        """
        # No beat is on its way once the lock is taken.
        with self._lock:
            self._quiet = True
        try:
            yield self._renew(duration)
        finally:
            self._quiet = False

    def _beat(self) -> None:
        clock = self._runtime.clock
        period = self._duration.total_seconds() / 3
        renew_at = clock.monotonic() + period
        while not self._stop.wait(min(max(0.0, renew_at - clock.monotonic()), _LONGEST_WAIT)):
            now = clock.monotonic()
            if now < renew_at:
                continue
            renew_at = now + period
            try:
                with self._lock:
                    if not self._quiet and not self._overstays(now):
                        self._renew(self._duration)
            except Exception:  # noqa: BLE001 - the named edge: the heart
                # A beat that fails must not stop the heart; the lease's end does what it left undone.
                _log.exception("tenant %s: a lease could not be renewed", self._store.tenant_id)

    def _overstays(self, now: float) -> bool:
        until = self._until
        return until is not None and now >= until

    def _renew(self, duration: timedelta) -> bool:
        sent_at = self._runtime.clock.monotonic()
        held = self._store.consumers.renew(self._lease, duration)
        # Refused once, the lease is another's, or an operator has taken it away: nothing is begun under it any more.
        self._ends = max(self._ends, sent_at + duration.total_seconds()) if held else float("-inf")
        return held
