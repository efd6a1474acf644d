"""A Celery application with one task and nothing else: what a worker's start is held against."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("bare", broker=os.environ["OUTBOX_BROKER_URL"])


@app.task(name="bare.nothing")  # type: ignore[untyped-decorator]  # Celery's
def nothing() -> None:
    """Do nothing."""
