"""The application and the task of Procrastinate: loaded by its workers and by who defers jobs."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector

from benchmarks.ledger import count
from benchmarks.peers.inside import url

app = App(connector=PsycopgConnector(conninfo=url()))


@app.task(name="job")
async def job(number: int) -> None:
    """Count it."""
    count(number)
