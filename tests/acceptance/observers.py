"""Observers of the acceptance tests: they leave their traces in files of the test's folder."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from outbox_core import observer

if TYPE_CHECKING:
    from outbox_core import Observation, Reconciliation

FOLDER = Path(os.environ.get("OUTBOX_TEST_FOLDER", "."))


def note(name: str, told: Observation) -> None:
    """One write of one line: lines of several processes do not mix."""
    words = (told.event_id, told.attempt, os.getpid(), "own" if told.own else "other", told.writer_process_id)
    _write(name, " ".join(map(str, words)))


def _write(name: str, line: str) -> None:
    descriptor = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def held(name: str) -> None:
    """Wait while the test holds this observer back, by a file."""
    while (FOLDER / f"{name}.hold").exists():
        time.sleep(0.01)


def reconcile(given: Reconciliation) -> None:
    _write("reconciled", f"{given.consumer_id} {sum(1 for _ in given.cards)} {given.why}")


@observer("plain", start="beginning", reconcile=reconcile)
def plain(told: Observation) -> None:
    """May be told twice; acknowledges each event by itself."""
    note("plain.begins", told)
    held("plain")
    note("plain.returns", told)


@observer("counts", start="beginning", reconcile=reconcile, transactional=True, time_limit=timedelta(seconds=2))
def counts(told: Observation) -> None:
    """Counts in the database, exactly once for each event."""
    note("counts.begins", told)
    if told.transaction is None:
        raise RuntimeError("not transactional")
    told.transaction.database["counted"].insert_one({"event_id": told.event_id}, session=told.transaction.session)
    held("counts")
    note("counts.returns", told)


@observer("batches", start="latest", reconcile=reconcile, idempotent=True)
def batches(told: Observation) -> None:
    """May be told a whole batch twice."""
    note("batches.returns", told)


@observer("fails", start="beginning")
def fails(told: Observation) -> None:
    """Fails while the test says so."""
    note("fails.begins", told)
    if (FOLDER / "failing").exists():
        raise ValueError("told to fail, and this text is kept nowhere")
