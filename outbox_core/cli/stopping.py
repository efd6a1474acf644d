"""Ctrl-C, SIGTERM and a closed terminal as one exception, so that a stack is stopped in order."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class StopRequested(BaseException):
    """Somebody asked this process to end; no handler of errors should take it for one."""


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Raise StopRequested at the first signal and KeyboardInterrupt at the next.

    The second one cuts an orderly stop short; the watchdog then ends what is left.
    """
    asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        del number, frame
        if asked:
            raise KeyboardInterrupt
        asked = True
        raise StopRequested

    former = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
