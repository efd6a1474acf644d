"""What bots and observers of a chaos run leave behind, and the names they go by; importing this registers none."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core import Observation, Projection, Run

FOLDER = Path(os.environ.get("OUTBOX_TEST_FOLDER", "."))
EXECUTIONS = "executions"
COUNTED = "chaos_counted"
"""The collection into which the transactional bot writes one document for each of its effects."""

TRANSACTIONAL_LIMIT = timedelta(seconds=5)
SLOW_LIMIT = timedelta(seconds=45)


def note(phase: str, run: Run | Projection) -> None:
    """Note a bot's start or end."""
    write_line(EXECUTIONS, phase, run.effect_id, run.attempt)


def write_line(journal: str, phase: str, what: str, attempt: int) -> None:
    """Write one line at once: lines of several processes do not mix. Its time is the kernel's, never a shifted one."""
    at = time.clock_gettime(time.CLOCK_REALTIME)
    line = json.dumps([phase, what, attempt, os.getpid(), at]) + "\n"
    descriptor = os.open(FOLDER / journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def first_time(what: str) -> bool:
    """Say whether this effect, or whatever else, asks for the first time, in any process."""
    name = what.replace("|", "~")
    try:
        os.close(os.open(FOLDER / "seen" / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


OBSERVATIONS = "observations"
SEEN_ONCE = "chaos_observed"
"""The collection into which the transactional observer writes one document for each event."""

SHAKY, COUNTING, WATCHING = "shaky-one", "counting-one", "watching-one"
HOSTED_BY_WORKERS = (SHAKY, COUNTING)
CONSUMERS = (*HOSTED_BY_WORKERS, WATCHING)


@contextmanager
def noted(told: Observation) -> Iterator[None]:
    """Leave a line at the start, and one at the end or the failure."""
    what = f"{told.consumer_id}|{told.event_id}"
    write_line(OBSERVATIONS, "start", what, told.attempt)
    try:
        yield
    except BaseException:
        write_line(OBSERVATIONS, "failed", what, told.attempt)
        raise
    write_line(OBSERVATIONS, "end", what, told.attempt)
