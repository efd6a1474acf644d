"""Makes the schema of Procrastinate, defers jobs, and asks PostgreSQL how many have not succeeded."""

from __future__ import annotations

import psycopg
from app import app, job

from benchmarks.peers.inside import chunks, take_orders, url


def enqueue(first: int, count: int) -> None:
    """Defer them by the thousand."""
    for chunk in chunks(first, count):
        job.batch_defer(*({"number": number} for number in chunk))


with app.open(), psycopg.connect(url(), autocommit=True) as store:
    app.schema_manager.apply_schema()

    def unfinished() -> int:
        """Count jobs in any other state."""
        row = store.execute("SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'").fetchone()
        return 0 if row is None else row[0]

    take_orders(enqueue, unfinished)
