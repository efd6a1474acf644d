"""What becomes of a row whose transaction met another one, or no answer: it goes back for a while, and pays nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from outbox_core.domain.effect import Postponed

if TYPE_CHECKING:
    from datetime import datetime

    from outbox_core.domain.effect import Effect
    from outbox_core.ports.runtime import Runtime

_SHORTEST_S, _LONGEST_S = 0.2, 2.0
_LONGEST_WAIT = timedelta(minutes=1)
_JITTER_LOW, _JITTER_WIDTH = 0.8, 0.4


def contended(runtime: Runtime, effect: Effect, now: datetime, error: Exception) -> Postponed:
    """Return the outcome of contention: again after 0.2 to 2 s, so that those that met do not meet again.

    A row that has met others for long waits a tenth of that, up to a minute: a bot that undoes its own transaction
    each time looks the same from here, and must not keep a worker busy for as long as it may.
    """
    share = (runtime.entropy.jitter() - _JITTER_LOW) / _JITTER_WIDTH
    drawn = timedelta(seconds=_SHORTEST_S + share * (_LONGEST_S - _SHORTEST_S))
    waited = now - (effect.waiting_since or now)
    return Postponed(max(drawn, min(waited / 10, _LONGEST_WAIT)), f"its transaction was undone: {error}")
