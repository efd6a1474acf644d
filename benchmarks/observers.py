"""The observers of the benchmark: they do as little as can be, so that what is measured is the outbox."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from outbox_core.bots import observer
from tasks.app import app

if TYPE_CHECKING:
    from outbox_core import Observation

SEEN = "seen"
WAKING = "waking"
IDLE = tuple(f"idle-{number}" for number in range(10))


def note(what: str) -> None:
    """Write down when it was seen, one line at once."""
    path = Path(os.environ["BENCH_FOLDER"]) / SEEN
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{what} {time.time()}\n".encode())
    finally:
        os.close(descriptor)


@observer(WAKING, start="beginning")
def waking(told: Observation) -> None:
    """Note when it is told."""
    note(f"{told.tenant}/{told.event_id}")


def ignore(_: Observation) -> None:
    """Do nothing."""


for consumer_id in IDLE:
    observer(consumer_id, start="beginning")(partial(ignore))


@app.task(name="bench.ping")  # type: ignore[untyped-decorator]  # Celery's
def ping(*, name: str) -> None:
    """Note when a bare message arrives: no wake-up can be quicker."""
    note(name)
