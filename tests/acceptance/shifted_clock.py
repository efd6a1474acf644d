"""A program whose clock is off: `python -m tests.acceptance.shifted_clock FILE celery -A tasks worker …`.

FILE holds how far, and `set_shift` moves the clock of processes that run. It moves `time.time` and `datetime.now`, also
in those that they fork; never the monotonic clock, nor a file's times. The patch is in place before the program's own
imports.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import gc
import mmap
import runpy
import struct
import sys
import time
from pathlib import Path
from typing import Any

_SECONDS = struct.Struct("d")


def set_shift(file: Path, seconds: float) -> None:
    """Set the clocks of all processes on this file ahead by so much; below 0 is back."""
    if not file.exists():
        file.write_bytes(bytes(_SECONDS.size))
    with file.open("r+b") as opened:
        opened.write(_SECONDS.pack(seconds))


def install(file: Path) -> None:
    """Put this process's clock under the file's rule."""
    with file.open("rb") as opened:
        shared = mmap.mmap(opened.fileno(), _SECONDS.size, access=mmap.ACCESS_READ)

    def shift() -> float:
        return float(_SECONDS.unpack_from(shared)[0])

    real_time, real_time_ns = time.time, time.time_ns
    time.time = lambda: real_time() + shift()
    time.time_ns = lambda: real_time_ns() + int(shift() * 1e9)
    # The type is written in C and cannot be assigned to; its dictionary can, and so no copy of its name is missed.
    # `today` asks `time.time`.
    (names,) = gc.get_referents(dt.datetime.__dict__)
    for name in ("now", "utcnow"):
        names[name] = classmethod(_shifted(names[name], shift))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(dt.datetime))


def _shifted(real: Any, shift: Any) -> Any:  # noqa: ANN401 - a method of a type in C
    def moved(cls: type[dt.datetime], *args: Any, **options: Any) -> dt.datetime:  # noqa: ANN401 - as above
        now: dt.datetime = real.__get__(None, cls)(*args, **options) + dt.timedelta(seconds=shift())
        return now

    return moved


if __name__ == "__main__":
    _, given, program, *rest = sys.argv
    install(Path(given))
    sys.argv = [program, *rest]
    runpy.run_module(program, run_name="__main__", alter_sys=True)
