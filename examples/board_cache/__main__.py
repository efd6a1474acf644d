"""Run the board cache until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click

from examples.board_cache.cache import BoardCache
from examples.board_cache.pages import Feed, application
from outbox_core.bootstrap import Outbox
from outbox_core.lifecycle import LifecycleConsumer


@click.command()
@click.option("--tenant", required=True, help="Whose cards.")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Where the cache lies.")
@click.option("--port", type=click.IntRange(1, 65_535), default=8090, show_default=True, help="On 127.0.0.1.")
def main(tenant: str, file: Path, port: int) -> None:
    """Cache a tenant's live cards, and feed browsers; the database is that of the OUTBOX_* settings."""
    asyncio.run(_serve(tenant, file, port))


async def _serve(tenant: str, file: Path, port: int) -> None:
    outbox = Outbox.from_settings()
    cache = BoardCache(file, outbox, tenant)
    feed = Feed(cache)
    server = application(feed).listen(port, address="127.0.0.1")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with LifecycleConsumer(outbox, tenant, cache.observer()):
        click.echo(f"board cache of {tenant}: http://127.0.0.1:{port}/")
        await stop.wait()
    server.stop()
    await feed.close()
    await server.close_all_connections()
    outbox.close()


if __name__ == "__main__":
    main()
