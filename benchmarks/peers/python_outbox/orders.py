"""Makes the table of faststream-outbox, publishes to it, and asks PostgreSQL how many rows are left."""

from __future__ import annotations

import asyncio

from app import broker, engine, metadata, outbox
from faststream_outbox import outbox_autovacuum_ddl
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker

from benchmarks.peers.inside import chunks, take_orders

sessions = async_sessionmaker(engine, expire_on_commit=False)


async def install() -> None:
    """Make the table, with the autovacuum settings that the documents recommend."""
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(text(outbox_autovacuum_ddl("outbox")))


async def publish(first: int, count: int) -> None:
    """Publish in transactions of a thousand."""
    for chunk in chunks(first, count):
        async with sessions() as session, session.begin():
            await broker.publish_batch(*chunk, queue="jobs", session=session)


async def unfinished() -> int:
    """Count rows: one that is done is gone."""
    async with engine.connect() as connection:
        return int((await connection.execute(select(func.count()).select_from(outbox))).scalar_one())


with asyncio.Runner() as loop:
    loop.run(install())
    take_orders(lambda first, count: loop.run(publish(first, count)), lambda: loop.run(unfinished()))
    loop.run(engine.dispose())
