"""A lock that lasts as long as a process, or as its last child that inherited the descriptor."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta
    from pathlib import Path


def locked(path: Path, within: timedelta) -> int | None:
    """Take the lock of a file; return its descriptor, None where it is held for longer than `within`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for _ in _tries(within):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    os.close(descriptor)
    return None


def _tries(within: timedelta) -> Iterator[None]:
    deadline = time.monotonic() + within.total_seconds()
    yield
    while time.monotonic() < deadline:
        time.sleep(0.05)
        yield
