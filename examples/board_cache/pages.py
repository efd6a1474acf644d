"""The browser's side: one page, and the stream of server-sent events that feeds it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tornado import web
from tornado.iostream import StreamClosedError

if TYPE_CHECKING:
    from examples.board_cache.cache import BoardCache

_QUEUED = 1_000
"""A browser that is behind by more than this is cut off, and starts over when it comes back."""

_KEEP_ALIVE_S = 15.0
_CLOSE_S = 2.0
_RETRY_MS = 1_000
"""How soon a browser asks again after a lost connection."""

_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"


class Feed:
    """Hands what the cache's thread tells to every browser; used from the server's loop, but for `tell`."""

    def __init__(self, cache: BoardCache) -> None:
        """Listen to the cache; a loop must run in this thread."""
        self._loop = asyncio.get_running_loop()
        self._queues: set[asyncio.Queue[str | None]] = set()
        self._streams: set[asyncio.Queue[str | None]] = set()
        self._none_is_left = asyncio.Event()
        self._closed = False
        self.cache = cache
        cache.changed = self.tell

    def tell(self, change: dict[str, Any]) -> None:
        """Pass a change on, from any thread."""
        self._loop.call_soon_threadsafe(self._spread, _message(change["kind"], change))

    def join(self) -> asyncio.Queue[str | None]:
        """Return a browser's queue, which begins with the whole board."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(_QUEUED)
        # First the queue, then the board: a change between the two comes twice, and none is left out.
        self._queues.add(queue)
        self._streams.add(queue)
        board = f"retry: {_RETRY_MS}\n{_message('board', {'cards': self.cache.rows()})}"
        queue.put_nowait(None if self._closed else board)
        return queue

    def leave(self, queue: asyncio.Queue[str | None]) -> None:
        """Forget a browser."""
        self._queues.discard(queue)
        self._streams.discard(queue)
        if self._closed and not self._streams:
            self._none_is_left.set()

    async def close(self) -> None:
        """End every browser's stream, so that each knows; one that does not take it is not waited for."""
        self._closed = True
        for queue in list(self._queues):
            self._cut(queue)
        if self._streams:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._none_is_left.wait(), _CLOSE_S)

    def _spread(self, message: str) -> None:
        for queue in list(self._queues):
            if queue.full():
                self._cut(queue)
            else:
                queue.put_nowait(message)

    def _cut(self, queue: asyncio.Queue[str | None]) -> None:
        self._queues.discard(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)


def _message(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


class Events(web.RequestHandler):
    """The stream: `board` first, then `deleted`, `restored` and `reconciled`."""

    def initialize(self, feed: Feed) -> None:
        """Take the feed."""
        self._feed = feed

    async def get(self) -> None:
        """Stream until the browser goes."""
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-store")
        queue = self._feed.join()
        try:
            while (message := await self._next(queue)) is not None:
                self.write(message)
                await self.flush()
            await self.finish()
        except StreamClosedError:
            pass
        finally:
            self._feed.leave(queue)

    async def _next(self, queue: asyncio.Queue[str | None]) -> str | None:
        try:
            return await asyncio.wait_for(queue.get(), _KEEP_ALIVE_S)
        except TimeoutError:
            return ": still here\n\n"


class Cards(web.RequestHandler):
    """What the cache holds, as JSON."""

    def initialize(self, feed: Feed) -> None:
        """Take the feed."""
        self._feed = feed

    def get(self) -> None:
        """Answer with the cards."""
        self.write({"cards": self._feed.cache.rows()})


class Asset(web.StaticFileHandler):
    """The page, its script and its style, from beside this module."""

    def set_extra_headers(self, path: str) -> None:
        """Let nothing but the page's own script run; text from cards is never markup."""
        del path
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-cache")


def application(feed: Feed) -> web.Application:
    """Return the web application."""
    folder = {"path": str(Path(__file__).parent)}
    return web.Application(
        [
            web.url(r"/events", Events, {"feed": feed}),
            web.url(r"/cards", Cards, {"feed": feed}),
            web.url(r"/()", Asset, {**folder, "default_filename": "board.html"}),
            web.url(r"/(board\.(?:css|js))", Asset, folder),
        ]
    )
