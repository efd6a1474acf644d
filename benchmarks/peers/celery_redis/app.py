"""The Celery application of this peer: loaded by its workers and by who puts tasks in."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import worker_process_init, worker_ready

from benchmarks.ledger import count
from benchmarks.peers.inside import announce, url

app = Celery("bench", broker=url())
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    # For many short tasks the guide to optimizing says: large, say 64 or 128.
    worker_prefetch_multiplier=128,
    broker_connection_retry_on_startup=True,
)


@app.task
def job(number: int) -> None:
    """Count it."""
    count(number)


@worker_ready.connect
@worker_process_init.connect
def _say_so(**_: Any) -> None:  # noqa: ANN401 - a signal's arguments
    announce()
