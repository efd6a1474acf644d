"""What becomes of a row whose transaction met another one: it goes back for a moment, and pays nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from outbox_core.domain.effect import Postponed

if TYPE_CHECKING:
    from outbox_core.ports.runtime import Runtime

_SHORTEST_S, _LONGEST_S = 0.2, 2.0
_JITTER_LOW, _JITTER_WIDTH = 0.8, 0.4


def contended(runtime: Runtime, error: Exception) -> Postponed:
    """Return the outcome of contention: again after 0.2 to 2 s, so that those that met do not meet again."""
    share = (runtime.entropy.jitter() - _JITTER_LOW) / _JITTER_WIDTH
    delay = timedelta(seconds=_SHORTEST_S + share * (_LONGEST_S - _SHORTEST_S))
    return Postponed(delay, f"its transaction met another one: {error}")
