"""A private Redis-compatible server: a broker that may lose everything at any moment."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from outbox_core.embedded.programs import find_redis, runnable
from outbox_core.embedded.server import HOST, START_WITHIN, EmbeddedServer

if TYPE_CHECKING:
    from pathlib import Path

    from outbox_core.embedded.supervisor import Process, Supervisor

_PING_TIMEOUT_S = 0.3
_REPLY_BYTES = 16_384


class EmbeddedRedis(EmbeddedServer):
    """A valkey-server or redis-server in a folder."""

    name = "redis"

    def __init__(self, folder: Path, *, persistence: bool = False, supervisor: Supervisor | None = None) -> None:
        """Describe the server; `start` starts it.

        Args:
            folder: where everything of it lies; made if missing.
            persistence: keep the data over a stop, in an append-only file.
            supervisor: who runs it; None makes one of its own.
        """
        super().__init__(folder, supervisor)
        self.persistence = persistence

    @property
    def url(self) -> str:
        """The connection string of database 0."""
        return f"redis://{HOST}:{self.port}/0"

    def restart(self) -> None:
        """Stop and start on the same port; without persistence everything in it is gone."""
        self.stop()
        self.start()

    def _prepare(self) -> list[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        return [
            str(runnable(find_redis(), self.folder)),
            *("--bind", HOST),
            *("--dir", str(data)),
            *("--save", ""),
            *("--appendonly", "yes" if self.persistence else "no"),
            *("--daemonize", "no"),
        ]

    def _port_arguments(self, port: int) -> list[str]:
        return ["--port", str(port)]

    def _await_ready(self, process: Process) -> None:
        process.await_ready(lambda: _answers(self.port, process.pid), START_WITHIN)


def _answers(port: int, pid: int) -> bool:
    """Returns whether the server there has loaded its data, and is the one we started."""
    try:
        with socket.create_connection((HOST, port), timeout=_PING_TIMEOUT_S) as connection:
            connection.sendall(b"PING\r\n")
            if not connection.recv(_REPLY_BYTES).startswith(b"+PONG"):
                return False  # It says -LOADING while it reads its file.
            connection.sendall(b"INFO server\r\n")
            # One packet on the loopback; cut short it only means another round.
            return f"process_id:{pid}\r\n".encode("ascii") in connection.recv(_REPLY_BYTES)
    except OSError:
        return False
