"""What a slice has in hand of one claim, shared between the thread that runs rows and the heart."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from outbox_core.domain.effect import Claim, Settlement
    from outbox_core.ports.runtime import Clock


class Hand:
    """Rows waiting, the one that runs, and outcomes not yet written; one lock decides between runner and heart."""

    def __init__(self, claim: Claim, clock: Clock, lease: timedelta) -> None:
        self.claim = claim
        self._clock = clock
        self._lock = threading.Lock()
        self._sent_at = claim.lease_ends - lease.total_seconds()
        self._lease_ends = claim.lease_ends
        self._waiting = dict.fromkeys(effect.effect_id for effect in claim.effects)
        self._running: str | None = None
        self._running_until = 0.0
        self._running_lease_ends = 0.0
        self._unrenewed: set[str] = set()
        self._leaving: list[str] = []
        self._gave_back = False
        self._decided: dict[str, Settlement] = {}

    @property
    def lease_ends(self) -> float:
        """Until when the rows are ours, on the clock's monotonic time."""
        return self._lease_ends

    @property
    def lease_is_over(self) -> bool:
        """The row that runs may be another's: it begins nothing any more.

        Beyond its own limit it is renewed no more, while the rows that wait are.
        """
        with self._lock:
            return self._clock.monotonic() >= self._running_lease_ends

    @property
    def gave_back(self) -> bool:
        """Rows were taken to be released: they are still due."""
        return self._gave_back

    def server_now(self) -> datetime:
        """Return the server's time as this worker knows it: the claim's, and what has passed here since."""
        return self.claim.claimed_at + timedelta(seconds=self._clock.monotonic() - self._sent_at)

    def start(self, effect_id: str, limit: timedelta) -> bool:
        """Take a row to run it; False where it was released, or where the lease is over before its turn (E27)."""
        with self._lock:
            now = self._clock.monotonic()
            if effect_id not in self._waiting or now >= self._lease_ends:
                return False
            del self._waiting[effect_id]
            self._running, self._running_until = effect_id, now + limit.total_seconds()
            self._running_lease_ends = self._lease_ends
            return True

    def leave_out(self, effect_id: str) -> None:
        """Do not renew this row: its lease was set for its whole run, and a renewal would undo its transaction."""
        with self._lock:
            self._unrenewed.add(effect_id)

    def finish(self, effect_id: str, settlement: Settlement | None) -> None:
        """Put down what ran; without a settlement nothing is left to write for it."""
        with self._lock:
            self._running = None
            if settlement is not None:
                self._decided[effect_id] = settlement

    def take_waiting(self) -> list[str]:
        """Take all rows that did not start, to release them; they are given again until they are `let_go`.

        None of them starts any more: a release whose answer was lost may have made it another worker's.
        """
        with self._lock:
            self._leaving += self._waiting
            self._waiting.clear()
            self._gave_back = self._gave_back or bool(self._leaving)
            return list(self._leaving)

    def let_go(self) -> None:
        """Note that all that was taken to be released is released."""
        with self._lock:
            self._leaving.clear()

    def take_decided(self) -> Mapping[str, Settlement]:
        """Take the outcomes that are not written yet."""
        with self._lock:
            taken, self._decided = self._decided, {}
            return taken

    def put_back(self, decided: Mapping[str, Settlement]) -> None:
        """Keep outcomes whose write failed."""
        with self._lock:
            self._decided = {**decided, **self._decided}

    def to_renew(self) -> list[str]:
        """Return the rows whose lease must go on: all in hand, but one that runs beyond its own limit."""
        with self._lock:
            running = [self._running] if self._running and self._clock.monotonic() < self._running_until else []
            held = [*self._waiting, *running, *self._decided]
            return [effect_id for effect_id in held if effect_id not in self._unrenewed]

    def renewed(self, effect_ids: Collection[str], lease_ends: float) -> None:
        """Note that the lease of these, which `to_renew` gave, goes on until `lease_ends`."""
        with self._lock:
            self._lease_ends = lease_ends
            if self._running in effect_ids:
                self._running_lease_ends = lease_ends
