"""Saying a thing once in a while, however often it is found."""

from __future__ import annotations

from datetime import timedelta
from threading import Lock

_REMEMBERED = 1_000


class Rarely:
    """Remembers what was said when; one process has one. Safe for threads.

    It remembers the last thousand things: what comes from outside must not fill the memory.
    """

    def __init__(self, period: timedelta = timedelta(hours=1)) -> None:
        self._period_s = period.total_seconds()
        self._said_at: dict[str, float] = {}
        self._lock = Lock()

    def is_time(self, what: str, now_s: float) -> bool:
        """Say whether this was not said within the period before `now_s`; it counts as said then."""
        with self._lock:
            said_at = self._said_at.get(what)
            if said_at is not None and now_s < said_at + self._period_s:
                return False
            self._said_at.pop(what, None)
            if len(self._said_at) >= _REMEMBERED:
                del self._said_at[next(iter(self._said_at))]
            self._said_at[what] = now_s
            return True
