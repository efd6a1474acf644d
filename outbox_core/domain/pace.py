"""How long rows take here, so that a claim takes about as many as its slice can run."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

_ROWS = 64
"""Over about how many of the last rows an average goes: one that met a busy moment must not make its bot a slow one."""

_REMEMBERED = 10_000
_QUICK = (0.0, 0)


class Pace:
    """Moving averages of seconds per row, by bot and by tenant; one process has one. Safe for threads.

    A bot, and a tenant, that did not run here yet counts as quick. The ids come from outside, so the oldest are
    forgotten where there are very many.
    """

    def __init__(self) -> None:
        self._bots: dict[str, tuple[float, int]] = {}
        self._tenants: dict[str, tuple[float, int]] = {}
        self._lock = Lock()

    def note(self, tenant_id: str, bot_id: str, seconds: float) -> None:
        """Note how long a row of a bot took, whatever it came to; a projection goes by its kind."""
        with self._lock:
            _average(self._bots, bot_id, seconds)
            _average(self._tenants, tenant_id, seconds)

    def rows(self, tenant_id: str, limit: int, time: timedelta) -> int:
        """Return how many rows, of whichever bots, to claim for so much time: from 1 to `limit`."""
        seconds, _ = self._tenants.get(tenant_id, _QUICK)
        return limit if seconds * limit <= time.total_seconds() else max(1, int(time.total_seconds() / seconds))

    def fitting(self, bot_ids: Iterable[str], time: timedelta) -> int:
        """Return how many rows of these bots, in this order, fit into so much time; the first one always does."""
        count, left = 0, time.total_seconds()
        for bot_id in bot_ids:
            left -= self._bots.get(bot_id, _QUICK)[0]
            if count and left < 0:
                break
            count += 1
        return count


def _average(of: dict[str, tuple[float, int]], name: str, seconds: float) -> None:
    before, rows = of.get(name, _QUICK)
    if not rows and len(of) >= _REMEMBERED:
        del of[next(iter(of))]
    rows = min(rows + 1, _ROWS)
    of[name] = (before + (seconds - before) / rows, rows)
