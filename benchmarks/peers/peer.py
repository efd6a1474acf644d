"""What the peers in Python share: an environment of their own, their workers, and who puts jobs in for them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks.contestant import Facts, Unavailable
from benchmarks.ledger import FOLDER
from benchmarks.peers.inside import ADDRESS, READY, URL
from outbox_core.embedded import EmbeddedServerError, Supervisor
from outbox_core.embedded.supervisor import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from types import TracebackType

    from outbox_core.embedded.server import EmbeddedServer

REQUIREMENTS = "requirements.txt"

_TREE = Path(__file__).parents[2]
_START_WITHIN = timedelta(seconds=60)
# What would bring this project's environment into that of a peer.
_NOT_THEIRS = ("PYTHON", "VIRTUAL_ENV", "PG", "CELERY", "OUTBOX_", "dramatiq_", "PGQUEUER_", "PROCRASTINATE_")


@dataclass(frozen=True, slots=True)
class Published:
    """When a single job was put in, by the system's clock."""

    began: float
    returned: float


class Peer(ABC):
    """A queue in Python, in a virtual environment of its own.

    Its folder holds its pinned requirements, `orders.py`, which puts jobs in and asks the store what is done, and what
    its workers load.
    """

    def __init__(self, name: str, home: Path) -> None:
        """Several that differ in a setting share one folder, and so one environment."""
        self.name = name
        self._home = home

    def prepare(self, cache: Path) -> Facts:
        """Install its requirements; what is there already from the same file stays as it is."""
        install(self._home, cache)
        return self._facts()

    @contextmanager
    def deploy(self, folder: Path, cache: Path, processes: int) -> Iterator[PeerDeployment]:
        """Start the server, who puts jobs in, and the workers; ready when each worker process says so."""
        python = _python(self._home, cache)
        ready = folder / "ready"
        for made in (ready, folder / "ledger"):
            made.mkdir(exist_ok=True)
        # Supervisors of their own: workers end before who puts jobs in, and that before the server.
        with self._server(folder / "server") as server, Supervisor() as supervisor:
            environment = _environment(self._home) | {
                URL: server.url,
                READY: str(ready),
                ADDRESS: str(folder / "orders.address"),
                FOLDER: str(folder / "ledger"),
                **self._settings(),
            }
            supervisor.spawn(
                "orders",
                [python, self._home / "orders.py"],
                log=folder / "orders.log",
                env=environment,
                cwd=folder,
            )
            orders = Orders(folder / "orders.address", supervisor)
            with orders, Supervisor() as workers:
                for number, argv in enumerate(self._workers(processes), 1):
                    workers.spawn(
                        f"worker {number} of {self.name}",
                        [python, *argv],
                        log=folder / f"worker-{number}.log",
                        env=environment,
                        cwd=folder,
                    )
                _await_all(workers, ready, self._announcements(processes))
                pids = [process.pid for process in (*workers.processes, *supervisor.processes)]
                yield PeerDeployment([server.pid], pids, orders)

    def _announcements(self, processes: int) -> int:
        """Returns how many processes will say that they are ready."""
        return processes

    def _settings(self) -> Mapping[str, str]:
        """Returns environment variables that only this one's processes need."""
        return {}

    @abstractmethod
    def _facts(self) -> Facts:
        """Returns what a reader of its figures must know."""

    @abstractmethod
    def _server(self, folder: Path) -> EmbeddedServer:
        """Returns the server that it keeps its jobs in, not started."""

    @abstractmethod
    def _workers(self, processes: int) -> Sequence[Sequence[str]]:
        """Returns the command lines, after the interpreter, that together make that many worker processes."""


class Orders:
    """The process of a peer that puts jobs in and asks the store; orders are answered one at a time."""

    def __init__(self, address: Path, supervisor: Supervisor) -> None:
        """Describe the connection; entering the context makes it, as soon as the process listens."""
        self._address = address
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        (process,) = self._supervisor.processes
        process.await_ready(self._address.exists, _START_WITHIN)
        self._connection = Client(self._address.read_text("utf-8"), family="AF_UNIX")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def order(self, *order: str | int) -> Any:  # noqa: ANN401 - each order has an answer of its own
        """Give an order and return its answer.

        Raises:
            EmbeddedServerError: it could not be carried out.
        """
        with self._lock:
            if self._connection is None:
                raise EmbeddedServerError("nobody takes orders yet")
            try:
                self._connection.send(order)
                done, answer = self._connection.recv()
            except (EOFError, OSError) as error:
                raise EmbeddedServerError(
                    f"who takes orders has ended; see {self._address.parent}/orders.log"
                ) from error
        if not done:
            raise EmbeddedServerError(f"the order {order} failed: {answer}")
        return answer


@dataclass(frozen=True, slots=True)
class PeerDeployment:
    """A peer in Python that runs."""

    servers: list[int]
    clients: list[int]
    """The workers, and the process that puts jobs in."""
    orders: Orders

    def enqueue(self, first: int, count: int) -> None:
        """Put jobs in; return when they are durable."""
        self.orders.order("enqueue", first, count)

    def settled(self) -> int:
        """Returns how many jobs the store says are done for good."""
        return int(self.orders.order("settled"))

    def publish(self, number: int) -> Published:
        """Put a single job in, for its latency; its start stands in the ledger."""
        began, returned = self.orders.order("publish", number)
        return Published(began, returned)


def install(home: Path, cache: Path) -> None:
    """Make a peer's virtual environment, with exactly its pinned requirements.

    Raises:
        Unavailable: no environment can be made here, or pip could not install.
    """
    requirements = home / REQUIREMENTS
    environment = cache / home.name / "venv"
    stamp = environment / "installed"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode("utf-8")).hexdigest()
    if stamp.exists() and stamp.read_text("ascii") == wanted:
        return
    environment.parent.mkdir(parents=True, exist_ok=True)
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "-r", str(requirements)]
    for argv in ([sys.executable, "-m", "venv", "--clear", str(environment)], [str(_python(home, cache)), *pip]):
        done = subprocess.run(argv, check=False, capture_output=True, text=True, env=_environment(home))
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise Unavailable(f"{home.name} cannot be installed: {''.join(last)}")
    stamp.write_text(wanted, "ascii")


def pinned(home: Path) -> dict[str, str]:
    """Returns the version of each of a peer's requirements."""
    lines = (home / REQUIREMENTS).read_text("utf-8").splitlines()
    pairs = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {name: version for name, _, version in pairs}


def versions(home: Path, *names: str) -> str:
    """Returns some requirements with their versions, in words."""
    pins = pinned(home)
    return ", ".join(f"{name} {pins[name]}" for name in names)


def _python(home: Path, cache: Path) -> Path:
    return (cache / home.name / "venv" / "bin" / "python").absolute()


def _environment(home: Path) -> dict[str, str]:
    """Returns our environment without what steers Python, and with the peer's own modules on its path."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_THEIRS)}
    return ours | {"PYTHONPATH": os.pathsep.join((str(home), str(_TREE))), "PYTHONUNBUFFERED": "1"}


def _await_all(workers: Supervisor, ready: Path, expected: int) -> None:
    """Wait until so many processes have said that they are ready.

    Raises:
        EmbeddedServerError: one ended first, or time was up.
    """
    if not wait_for(lambda: bool(workers.dead()) or len(list(ready.iterdir())) >= expected, _START_WITHIN):
        raise EmbeddedServerError(f"not every worker was ready in time; the logs are in {ready.parent}")
    for process in workers.dead():
        raise EmbeddedServerError(f"{process.name} ended with {process.poll()}: {process.log_tail()}")
