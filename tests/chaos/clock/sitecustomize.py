"""A wall clock that is wrong in one process: a folder on PYTHONPATH that Python loads before anything else.

CHAOS_CLOCK_SHIFT_S says by how many seconds. Shifted for Python code: `time.time`, `time.time_ns`, and the `now`,
`utcnow` and `today` of `datetime.datetime`, so also log lines and the expiry of Celery's messages. Not shifted:
monotonic clocks, `time.clock_gettime`, `time.gmtime` and its like without an argument, `date.today`, and code in C
that asks the kernel by itself.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from typing import Any

_REAL = dt.datetime


class _Meta(type):
    """Every datetime is one of ours, so that `isinstance` says what it said before."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _REAL)

    def __subclasscheck__(cls, one: type) -> bool:
        return issubclass(one, _REAL)


def _shifted(shift: dt.timedelta) -> type:
    class Shifted(_REAL, metaclass=_Meta):
        """`datetime.datetime` whose now is elsewhere; it makes plain datetimes."""

        def __new__(cls, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - the original's
            return _REAL(*given, **named)

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:  # noqa: ANN401 - as above
            return _REAL.now(tz) + shift

        @classmethod
        def utcnow(cls) -> Any:  # noqa: ANN401 - as above
            return _REAL.now(dt.UTC).replace(tzinfo=None) + shift

        @classmethod
        def today(cls) -> Any:  # noqa: ANN401 - as above
            return _REAL.now() + shift

    Shifted.__name__ = Shifted.__qualname__ = "datetime"
    return Shifted


def _shift_clock(seconds: float) -> None:
    real_time, real_time_ns = time.time, time.time_ns
    shift_ns = round(seconds * 1_000_000_000)
    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_time_ns() + shift_ns
    dt.datetime = _shifted(dt.timedelta(seconds=seconds))  # type: ignore[assignment, misc]


if asked := float(os.environ.get("CHAOS_CLOCK_SHIFT_S", "0")):
    _shift_clock(asked)
