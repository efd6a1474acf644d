"""The twin's clock: the server's time and the process's own time, moved by the same hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from threading import Lock

FROZEN_START = datetime(2030, 1, 1, tzinfo=UTC)


class MemoryClock:
    """A server's clock that a test can move; it is also the Clock of a process whose time runs with it.

    Frozen, it moves by `advance` and `sleep` alone, so waiting costs no real time. Ticking, it follows real time.
    """

    def __init__(self, start: datetime | None = None, *, frozen: bool = False) -> None:
        self._frozen = frozen
        self._start = start or (FROZEN_START if frozen else datetime.now(UTC))
        self._began = time.monotonic()
        self._moved = timedelta(0)
        self._lock = Lock()

    def now(self) -> datetime:
        """Return the server's time: aware UTC, whole milliseconds."""
        return truncated(self._start + timedelta(seconds=self.monotonic()))

    def advance(self, delta: timedelta) -> None:
        """Move the time; a negative delta is a server whose clock steps back."""
        with self._lock:
            self._moved += delta

    def monotonic(self) -> float:
        """Return the seconds since the clock was made, moves included."""
        with self._lock:
            ran = 0.0 if self._frozen else time.monotonic() - self._began
            return ran + self._moved.total_seconds()

    def sleep(self, seconds: float) -> None:
        """Wait; frozen, by moving the time."""
        if self._frozen:
            self.advance(timedelta(seconds=seconds))
        else:
            time.sleep(seconds)


def truncated(instant: datetime) -> datetime:
    """Return an instant as a store keeps it: UTC, whole milliseconds."""
    utc = instant.astimezone(UTC)
    return utc.replace(microsecond=utc.microsecond // 1_000 * 1_000)
