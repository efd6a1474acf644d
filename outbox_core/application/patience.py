"""Ask a store again while it does not answer, up to a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from outbox_core.domain.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.ports.runtime import Clock

_T = TypeVar("_T")

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0


def patiently(clock: Clock, give_up: float, call: Callable[[], _T]) -> _T:
    """Call until it does not raise TransientError, pausing longer each time; raise the last one from `give_up` on.

    `give_up` is on the clock's monotonic time. The call must be one that may be repeated.
    """
    pause = _FIRST_PAUSE
    while True:
        try:
            return call()
        except TransientError:
            if clock.monotonic() + pause >= give_up:
                raise
        clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
