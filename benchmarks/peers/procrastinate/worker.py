"""One worker process of Procrastinate."""

from __future__ import annotations

import asyncio
import os

from app import app

from benchmarks.peers.inside import announce


async def main() -> None:
    """Run it until it is told to stop."""
    async with app.open_async():
        announce()
        await app.run_worker_async(concurrency=int(os.environ["BENCH_CONCURRENCY"]))


asyncio.run(main())
