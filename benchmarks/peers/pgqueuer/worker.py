"""One worker process of PgQueuer, run as its command line would: that does not start with the newest typer."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pgqueuer
import uvloop
from pgqueuer.db import AsyncpgDriver

from benchmarks.ledger import count
from benchmarks.peers.inside import announce, url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pgqueuer.models import Job


@asynccontextmanager
async def worker() -> AsyncIterator[pgqueuer.PgQueuer]:
    """Set it up on a connection of its own, as the page on tuning advises: a pool is slower."""
    connection = await asyncpg.connect(url())
    pgq = pgqueuer.PgQueuer(AsyncpgDriver(connection))

    @pgq.entrypoint("job")
    async def job(job: Job) -> None:
        count(int(job.payload or b""))

    announce()
    try:
        yield pgq
    finally:
        await connection.close()


uvloop.run(pgqueuer.run(worker, batch_size=int(os.environ["BENCH_BATCH"])))
