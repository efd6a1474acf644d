"""A worker process of faststream-outbox, and what it shares with who publishes."""

from __future__ import annotations

import asyncio

from faststream import FastStream
from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.ledger import count
from benchmarks.peers.inside import announce, url

WORKERS = 4
BATCH = 100

metadata = MetaData()
outbox = make_outbox_table(metadata, table_name="outbox")
engine = create_async_engine(url().replace("postgresql:", "postgresql+asyncpg:", 1), pool_size=WORKERS + 2)
broker = OutboxBroker(engine, outbox_table=outbox)


@broker.subscriber(
    "jobs",
    max_workers=WORKERS,
    fetch_batch_size=BATCH,
    # Off by default: what the page on performance shows for many jobs that may be repeated.
    terminal_flush_batch_size=BATCH,
)
async def job(number: int) -> None:
    """Count it."""
    count(number)


if __name__ == "__main__":
    app = FastStream(broker)
    app.after_startup(announce)
    asyncio.run(app.run())
