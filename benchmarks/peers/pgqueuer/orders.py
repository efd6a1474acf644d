"""Makes the schema of PgQueuer, puts jobs in, and asks PostgreSQL how many have not succeeded."""

from __future__ import annotations

import asyncio

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.peers.inside import chunks, take_orders, url


def main() -> None:
    """Take orders, each in a turn of one event loop."""
    with asyncio.Runner() as loop:
        connection = loop.run(asyncpg.connect(url()))
        queries = Queries(AsyncpgDriver(connection))
        loop.run(queries.install())
        loop.run(queries.optimize_autovacuum())
        put_in = 0

        async def put(first: int, count: int) -> None:
            nonlocal put_in
            for chunk in chunks(first, count):
                payloads: list[bytes | None] = [b"%d" % number for number in chunk]
                await queries.enqueue(["job"] * len(chunk), payloads, [0] * len(chunk))
                put_in += len(chunk)

        async def unfinished() -> int:
            logged = await connection.fetchval("SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'")
            return put_in - int(logged)

        take_orders(lambda first, count: loop.run(put(first, count)), lambda: loop.run(unfinished()))
        loop.run(connection.close())


main()
