"""What the embedded servers share: a folder that is locked, a port that is kept, start and stop."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from outbox_core.domain.errors import OutboxError
from outbox_core.embedded.errors import EmbeddedServerError
from outbox_core.embedded.supervisor import Process, Supervisor, wait_for

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

HOST = "127.0.0.1"
START_WITHIN = timedelta(seconds=60)
STOP_GRACE = timedelta(seconds=20)

_FOLDER_FREE_WITHIN = timedelta(seconds=10)
"""A server whose parent was killed with -9 takes this long at most to be ended."""

_PORT_TRIES = 5

# Below the range from which systems give ports to outgoing connections: one of those would take a
# port that we want to keep.
_LOWEST_PORT = 20_000
_PORTS = 12_000


class EmbeddedServer(ABC):
    """A server of our own in a folder. Use it as a context manager, or `start` and `stop`.

    The folder holds its data, its port, its lock and its log; a second start finds them. The lock
    is held by the server itself, so it lasts exactly as long as the server does.
    """

    name: str

    def __init__(self, folder: Path, supervisor: Supervisor | None) -> None:
        self.folder = folder.absolute()
        self._supervisor = supervisor or Supervisor()
        self._owns_supervisor = supervisor is None
        self._process: Process | None = None
        self._port: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect. Raises EmbeddedServerError before the first start."""

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1. Raises EmbeddedServerError before the first start."""
        if self._port is None:
            raise EmbeddedServerError(f"{self.name} was not started")
        return self._port

    @property
    def pid(self) -> int:
        """The server's process id. Raises EmbeddedServerError while it is not started."""
        if self._process is None:
            raise EmbeddedServerError(f"{self.name} is not started")
        return self._process.pid

    @property
    def log(self) -> Path:
        """The server's log; it grows over starts."""
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and return when it takes work; nothing happens if it runs.

        Raises:
            EmbeddedServerError: no program, a folder that is in use or cannot be written, or a
                server that does not come up; nothing keeps running then.
        """
        if self.running:
            return
        self.kill()  # Takes one that ended on its own off the books.
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            argv = self._prepare()
            for _ in range(_PORT_TRIES):
                if self._started(argv):
                    return
        except OSError as error:
            self.kill()
            raise EmbeddedServerError(f"{self.name} cannot use {self.folder}: {error}") from error
        except BaseException:
            self.kill()
            raise
        raise EmbeddedServerError(f"{self.name} found no free port in {_PORT_TRIES} tries")

    def stop(self) -> None:
        """TERM, wait, KILL. The data stays. A repeat call does nothing."""
        self._end(kill=False)

    def kill(self) -> None:
        """KILL at once, as a crash would. `start` brings it back on the same port and data."""
        self._end(kill=True)

    @abstractmethod
    def _prepare(self) -> list[str]:
        """Returns the command line without its port; makes what it needs in the folder."""

    @abstractmethod
    def _port_arguments(self, port: int) -> list[str]:
        """Returns the end of the command line."""

    @abstractmethod
    def _await_ready(self, process: Process) -> None:
        """Return when the server takes work. Raises EmbeddedServerError if it never does."""

    def _explain_exit(self, code: int) -> str | None:
        """Returns what an exit code of the server means, or None if it says nothing."""
        del code
        return None

    def _started(self, argv: list[str]) -> bool:
        """Returns False if the port was taken between choosing it and the server's bind."""
        with _FolderLock(self.folder) as lock_fd:
            # Under the lock: a former server in this folder has then given its port back.
            self._port = self._choose_port()
            self._process = self._supervisor.spawn(
                self.name,
                [*argv, *self._port_arguments(self._port)],
                log=self.log,
                stop_grace=STOP_GRACE,
                pass_fds=(lock_fd,),
            )
        try:
            self._await_ready(self._process)
        except OutboxError as error:
            code = self._process.poll()
            taken = code is not None and not _is_free(self.port)
            self.kill()
            if taken:
                return False
            meaning = None if code is None else self._explain_exit(code)
            if meaning is not None:
                raise EmbeddedServerError(f"{self.name} ended with {code}: {meaning}; see {self.log}") from error
            raise EmbeddedServerError(str(error)) from error
        return True

    def _end(self, *, kill: bool) -> None:
        process = self._process
        if process is not None:
            if kill:
                process.kill()
            else:
                process.stop()
            self._supervisor.forget(process)
            self._process = None
        if self._owns_supervisor:
            self._supervisor.stop_all()

    def _choose_port(self) -> int:
        """Returns the port of the last start if it is free, else a new one, which it keeps."""
        kept = self.folder / "port"
        with contextlib.suppress(OSError, ValueError):
            port = int(kept.read_text("ascii"))
            if 0 < port < 2**16 and _is_free(port):
                return port
        port = _LOWEST_PORT + secrets.randbelow(_PORTS)
        while not _is_free(port):
            port = _LOWEST_PORT + secrets.randbelow(_PORTS)
        kept.write_text(f"{port}\n", "ascii")
        return port


class _FolderLock:
    """Takes the folder's lock; yields its descriptor, to be inherited by the server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    def __enter__(self) -> int:
        self._fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not wait_for(self._taken, _FOLDER_FREE_WITHIN):
            os.close(self._fd)
            raise EmbeddedServerError(f"{self._folder} is in use by another running server")
        return self._fd

    def __exit__(self, *_: object) -> None:
        # The server has inherited the same lock: it ends with the last descriptor, the server's.
        os.close(self._fd)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def port_is_open(port: int) -> bool:
    """Returns whether something accepts connections there; costs less than a client's attempt."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: connections of a past server that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
