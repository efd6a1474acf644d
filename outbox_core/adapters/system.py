"""The machine's own clock, chance and alarm."""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from outbox_core.domain.errors import BotOverstayedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import FrameType

_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""BOOTTIME goes on while the machine sleeps, so a lease that ran out meanwhile is seen to be over."""

_AGAIN_S = 1.0
"""How soon code that went on after its interrupt is interrupted again."""

_SOON_S = 0.002
"""How soon a moment that does not bear an interrupt is looked at again."""

_AT_ONCE_S = 1e-6


_writer = secrets.token_hex(16)


def writer_id() -> str:
    """Return by what events name this process as their writer: random, the same in all of it, another after a fork."""
    return _writer


def _be_another_writer() -> None:
    global _writer  # noqa: PLW0603 - a forked child is another process, and this is its name
    _writer = secrets.token_hex(16)


os.register_at_fork(after_in_child=_be_another_writer)


class SystemClock:
    """Implements ports.runtime.Clock."""

    def monotonic(self) -> float:
        """See the port."""
        return time.clock_gettime(_CLOCK_ID)

    def sleep(self, seconds: float) -> None:
        """See the port."""
        time.sleep(seconds)


class SystemEntropy:
    """Implements ports.runtime.Entropy; safe after a fork, since each token is asked of the system."""

    def token(self) -> str:
        """See the port: 128 random bits in hexadecimal."""
        return secrets.token_hex(16)

    def jitter(self) -> float:
        """See the port."""
        return random.uniform(0.8, 1.2)  # noqa: S311 - it spreads retries; a forked child draws others


class SignalInterrupt:
    """Implements ports.runtime.Interrupt by the process's real-time timer (SIGALRM).

    It works in a process's main thread alone, where a prefork worker runs its tasks; in another thread, and where the
    system has no such timer, the block does nothing. It ends sleeping, waiting on a socket and running Python code;
    code in C that asks for no signals runs on. `may_interrupt` says of a frame whether it bears an exception now; where
    it does not, the interrupt comes a moment later.
    """

    def __init__(self, may_interrupt: Callable[[FrameType | None], bool] = lambda _: True) -> None:
        self._may_interrupt = may_interrupt

    def limit(self, duration: timedelta) -> _AlarmBlock:
        """See the port."""
        return _AlarmBlock(duration, self._may_interrupt)


class _AlarmBlock:
    """A block under the timer; the timer and the handler that were there before are put back after it."""

    def __init__(self, duration: timedelta, may_interrupt: Callable[[FrameType | None], bool]) -> None:
        self._duration = duration
        self._may_interrupt = may_interrupt
        self._usable = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        self._previous_handler: Any = None
        self._previous_timer = (0.0, 0.0)
        self._started_at = 0.0

    def __enter__(self) -> None:
        if self._usable:
            self._started_at = time.monotonic()
            self._previous_handler = signal.signal(signal.SIGALRM, self._overstayed)
            self._previous_timer = signal.setitimer(signal.ITIMER_REAL, self._duration.total_seconds(), _AGAIN_S)

    def __exit__(self, *exc: object) -> None:
        if not self._usable:
            return
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        # A handler that was set outside of Python cannot be put back.
        handler = signal.SIG_DFL if self._previous_handler is None else self._previous_handler
        signal.signal(signal.SIGALRM, handler)
        left, interval = self._previous_timer
        if left:
            passed = time.monotonic() - self._started_at
            signal.setitimer(signal.ITIMER_REAL, max(left - passed, _AT_ONCE_S), interval)

    def _overstayed(self, _number: int, frame: FrameType | None) -> None:
        # Between two instructions of the block's own end nothing may be raised: the timer would then stay on.
        if frame is not None and frame.f_code in _OWN_CODE:
            return
        if not self._may_interrupt(frame):
            signal.setitimer(signal.ITIMER_REAL, _SOON_S, _AGAIN_S)
            return
        raise BotOverstayedError(self._duration)


_OWN_CODE = frozenset({_AlarmBlock.__enter__.__code__, _AlarmBlock.__exit__.__code__})
