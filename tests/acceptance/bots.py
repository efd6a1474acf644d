"""Bots of the acceptance tests: they leave their traces in files of the test's folder."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from outbox_core import bot

if TYPE_CHECKING:
    from outbox_core import Run

FOLDER = Path(os.environ.get("OUTBOX_TEST_FOLDER", "."))


def note(name: str, run: Run) -> None:
    """One write of one line: lines of several processes do not mix."""
    line = f"{run.effect_id} {run.attempt} {os.getpid()}\n"
    descriptor = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@bot("note-it")
def note_it(run: Run, seconds: float = 0) -> None:
    note("starts", run)
    time.sleep(seconds)
    note("runs", run)


@bot("hold-it")
def hold_it(run: Run) -> None:
    """Goes on when the test says so."""
    note("starts", run)
    while not (FOLDER / "released").exists():
        time.sleep(0.02)
    note("runs", run)


@bot("count-it", transactional=True, time_limit=timedelta(seconds=2))
def count_it(run: Run, seconds: float = 0) -> None:
    """Counts in the database, exactly once per effect."""
    note("starts", run)
    transaction = run.transaction
    if transaction is None:
        raise RuntimeError("not transactional")
    transaction.database["counted"].insert_one({"effect_id": run.effect_id}, session=transaction.session)
    time.sleep(seconds)
    note("runs", run)


@bot("work-it")
def work_it(run: Run, seconds: float = 0) -> None:  # noqa: ARG001 - a bot's signature
    """Leaves no trace but its row."""
    time.sleep(seconds)
