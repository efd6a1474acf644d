"""A TCP proxy that understands where a message of MongoDB begins and ends, and so can lose exactly one answer.

One proxy stands before one server. What is done to it strikes the connections of one application alone, told by the
name that drivers send in their first message; the members of a replica set talk on through the same address.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Self, TypeVar

from outbox_core.embedded.server import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import TracebackType
    from typing import Any

_T = TypeVar("_T")

OUTBOX = b"outbox"
"""The name by which the product's own connections are told; b"" is every connection, the set's own included."""

_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013
_COMMAND_AT = _HEADER.size + 4 + 1 + 4 + 1
"""Where the first key of a command stands: after the header, the flags, the section's kind, a length and a type."""


class Side(Enum):
    """Which message of a command is cut off: what was asked (it never happens) or the answer (it has happened)."""

    REQUEST = "request"
    REPLY = "reply"


@dataclass(slots=True)
class Cut:
    """Closes the connection of the next commands it fits, after `passed` bytes of the message."""

    command: str
    side: Side
    times: int = 1
    skip: int = 0
    """How many such commands go by first."""
    passed: int = 0
    struck: list[str] = field(default_factory=list)
    """The commands that it was done to."""


@dataclass(slots=True, eq=False)
class _Connection:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    first: bytes = b""
    lost: dict[int, Cut] = field(default_factory=dict)
    """The answers that must not arrive, by the number of what was asked."""

    def is_of(self, application: bytes) -> bool:
        return application in self.first

    def abort(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


class ProxyThread:
    """Runs the event loop of any number of proxies. Use it as a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait_for(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_for(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something in the loop; return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Proxy:
    """One listener before one server; each method returns when it holds."""

    def __init__(self, thread: ProxyThread, target_port: Callable[[], int], port: int = 0) -> None:
        """Start listening; `target_port` is asked for each connection, so that the server may come later."""
        self._thread = thread
        self._target_port = target_port
        self._connections: set[_Connection] = set()
        self._cuts: list[Cut] = []
        self._turned_away: bytes | None = None
        self._held: bytes | None = None
        self._delay = (b"", 0.0)
        self.seen: Counter[str] = Counter()
        """The commands of the product that have come by, by name."""
        self._listener = _listener(port)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = thread.wait_for(self._listen())

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"{HOST}:{self.port}"

    def close(self) -> None:
        """Stop listening, and cut what is left. Nobody gets in until `open`."""

        async def close() -> None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._abort(b"")

        self._thread.wait_for(close())
        self._listener.close()

    def open(self) -> None:
        """Listen again, on the same port."""
        self._listener = _listener(self.port)
        self._accepting = self._thread.wait_for(self._listen())

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Be no listener at all, for anybody: connections are refused, those there are cut."""
        self.close()
        try:
            yield
        finally:
            self.open()

    def cut_now(self, application: bytes = OUTBOX) -> int:
        """Cut every connection of an application; return how many there were."""

        async def cut() -> int:
            return self._abort(application)

        return self._thread.wait_for(cut())

    @contextmanager
    def cutting(
        self, command: str = "", side: Side = Side.REPLY, *, times: int = 1, skip: int = 0, passed: int = 0
    ) -> Iterator[Cut]:
        """Cut the connection at the product's next command of this name, at any without one; see `Cut`."""
        cut = Cut(command, side, times, skip, passed)
        self._cuts.append(cut)
        try:
            yield cut
        finally:
            self._cuts.remove(cut)

    @contextmanager
    def turning_away(self, application: bytes = OUTBOX) -> Iterator[None]:
        """Cut the connections of an application, and each new one at its first message."""
        self._turned_away = application
        self.cut_now(application)
        try:
            yield
        finally:
            self._turned_away = None

    @contextmanager
    def hanging(self, application: bytes = OUTBOX) -> Iterator[None]:
        """Take everything, pass nothing on in either direction; afterwards it goes on where it was."""
        self._held = application
        try:
            yield
        finally:
            self._held = None

    @contextmanager
    def delaying(self, seconds: float, application: bytes = OUTBOX) -> Iterator[None]:
        """Pass each message on so much later."""
        self._delay = (application, seconds)
        try:
            yield
        finally:
            self._delay = (b"", 0.0)

    def _abort(self, application: bytes) -> int:
        aborted = [connection for connection in self._connections if connection.is_of(application)]
        for connection in aborted:
            connection.abort()
        return len(aborted)

    async def _listen(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        # asyncio's own server, closed between an accept and its task, loses the connection with a complaint.
        loop, serving = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        while True:
            accepted, _ = await loop.sock_accept(self._listener)
            task = asyncio.create_task(self._serve(accepted))
            serving.add(task)
            task.add_done_callback(serving.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        from_client, to_client = await asyncio.open_connection(sock=accepted)
        try:
            from_server, to_server = await asyncio.open_connection(HOST, self._target_port())
        except OSError:
            to_client.transport.abort()
            return
        connection = _Connection(to_client, to_server)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._pump(connection, from_client, to_server, Side.REQUEST),
                self._pump(connection, from_server, to_client, Side.REPLY),
            )
        finally:
            connection.abort()
            self._connections.discard(connection)

    async def _pump(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, side: Side
    ) -> None:
        """Pass whole messages on until either end closes, or a fault does."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                header = await reader.readexactly(_HEADER.size)
                message = header + await reader.readexactly(_HEADER.unpack(header)[0] - _HEADER.size)
                if not connection.first:
                    connection.first = message
                    if self._turned_away is not None and connection.is_of(self._turned_away):
                        break
                await self._wait(connection)
                cut = self._fault(connection, message, side)
                writer.write(message if cut is None else message[: cut.passed])
                await writer.drain()
                if cut is not None:
                    break
        connection.abort()

    async def _wait(self, connection: _Connection) -> None:
        application, seconds = self._delay
        if seconds and connection.is_of(application):
            await asyncio.sleep(seconds)
        while self._held is not None and connection.is_of(self._held):  # noqa: ASYNC110 - set from another thread
            await asyncio.sleep(0.01)

    def _fault(self, connection: _Connection, message: bytes, side: Side) -> Cut | None:
        """Return the cut that this message suffers, None for none."""
        _, request_id, response_to, _ = _HEADER.unpack_from(message)
        if side is Side.REPLY:
            return connection.lost.pop(response_to, None)
        name = _command(message)
        if not connection.is_of(OUTBOX) or name in {"", "hello", "ismaster", "isMaster"}:
            return None
        self.seen[name] += 1
        for cut in self._cuts:
            if cut.command not in {"", name} or not cut.times:
                continue
            if cut.skip:
                cut.skip -= 1
                continue
            cut.times -= 1
            cut.struck.append(name)
            if cut.side is Side.REQUEST:
                return cut
            connection.lost[request_id] = cut
        return None


def _command(message: bytes) -> str:
    """Return the name of the command that a message asks for, "" where it is none that we read."""
    if _HEADER.unpack_from(message)[3] != _OP_MSG or message[_HEADER.size + 4] != 0:
        return ""
    return message[_COMMAND_AT : message.index(b"\0", _COMMAND_AT)].decode("utf-8", "replace")


def _listener(port: int) -> socket.socket:
    listener = socket.create_server((HOST, port), backlog=128)
    listener.setblocking(False)
    return listener
