"""Ctrl-C, SIGTERM and a closed terminal as one exception, so that a stack is stopped in order."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(BaseException):
    """Somebody asked this process to end; no handler of errors should take it for one."""


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Raise StopRequested at every signal: the first begins an orderly stop, one during that cuts it short."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise StopRequested

    with _handled_by(on_signal):
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore the signals, for what takes moments and must not be cut short."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    former = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, theirs in former.items():
            signal.signal(number, theirs)
