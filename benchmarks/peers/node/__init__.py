"""What the peers on Node share: their packages, their worker processes, and the process that puts jobs in for them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks.contestant import Facts, Unavailable
from benchmarks.peers.peer import Published
from outbox_core.embedded import EmbeddedServerError, Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from outbox_core.embedded.server import EmbeddedServer

_HERE = Path(__file__).parent
_OLDEST_NODE = 20
_START_WITHIN = timedelta(seconds=60)
_STOP_WITHIN_S = 20


class NodePeer(ABC):
    """A queue on Node, with its packages in a folder of their own.

    Its home holds `package.json` with its lock, `worker.mjs`, and `enqueue.mjs`, which puts jobs in and asks the store
    what is done.
    """

    def __init__(self, name: str, home: Path) -> None:
        """Several that differ in a setting share one home, and so what is installed."""
        self.name = name
        self._home = home

    def prepare(self, cache: Path) -> Facts:
        """Install its packages; what is there already from the same lock stays as it is."""
        return self._facts(install(self._home, cache))

    @contextmanager
    def deploy(self, folder: Path, cache: Path, processes: int) -> Iterator[NodeDeployment]:
        """Start the server, who puts jobs in, and the workers; ready when each worker process says so."""
        programs = (cache / self._home.name).absolute()
        with self._server(folder / "server") as server:
            store = {"url": self._url(server)}
            worker = {**store, "ledger": str(folder / "ledger"), **self._worker()}
            with (
                Orders(programs, folder, {**store, **self._enqueue()}) as orders,
                _workers(programs, folder, processes, worker, self._settings()) as pids,
            ):
                yield NodeDeployment([server.pid], [*pids, orders.pid], orders)

    def _url(self, server: EmbeddedServer) -> str:
        """Returns where its processes connect."""
        return server.url

    def _settings(self) -> Mapping[str, str]:
        """Returns environment variables that only this one's workers need."""
        return {}

    @abstractmethod
    def _facts(self, node: str) -> Facts:
        """Returns what a reader of its figures must know; `node` is the version of Node."""

    @abstractmethod
    def _server(self, folder: Path) -> EmbeddedServer:
        """Returns the server that it keeps its jobs in, not started."""

    @abstractmethod
    def _worker(self) -> Mapping[str, Any]:
        """Returns what its workers are told beside the store and the ledger."""

    @abstractmethod
    def _enqueue(self) -> Mapping[str, Any]:
        """Returns what the process that puts jobs in is told beside the store."""


class Orders:
    """The process of a peer that puts jobs in and asks the store; orders are lines, answered one at a time.

    It ends with its stdin, and so with this process in any case. Use it as a context manager.
    """

    def __init__(self, programs: Path, folder: Path, options: Mapping[str, Any]) -> None:
        """Describe the process; entering the context starts it."""
        self._argv: list[str | Path] = ["node", programs / "enqueue.mjs", json.dumps(dict(options))]
        self._log = folder / "enqueue.log"
        self._lock = threading.Lock()
        self._popen: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._popen = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(),
                start_new_session=True,  # No Ctrl-C of a terminal reaches it.
            )
        try:
            self._answer()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running().pid

    def order(self, *order: str | int) -> str:
        """Give an order and return its answer.

        Raises:
            EmbeddedServerError: it could not be carried out; the process has ended then.
        """
        with self._lock:
            stdin = self._running().stdin
            if stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # That no answer comes tells more.
                    stdin.write(f"{' '.join(map(str, order))}\n")
                    stdin.flush()
            return self._answer()

    def _answer(self) -> str:
        stdout = self._running().stdout
        line = "" if stdout is None else stdout.readline()
        if not line:
            raise EmbeddedServerError(f"who takes orders has ended; see {self._log}")
        return line.strip()

    def _running(self) -> subprocess.Popen[str]:
        if self._popen is None:
            raise EmbeddedServerError("nobody takes orders yet")
        return self._popen

    def _end(self) -> None:
        popen = self._running()
        for stream in (popen.stdin, popen.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            popen.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


@dataclass(frozen=True, slots=True)
class NodeDeployment:
    """A peer on Node that runs."""

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
        began, returned = self.orders.order("publish", number).split()
        return Published(float(began), float(returned))


def install(home: Path, cache: Path) -> str:
    """Put a peer's programs into the cache, with exactly the packages of its lock; returns the version of Node.

    Raises:
        Unavailable: no Node that is new enough, or npm could not install.
    """
    version = _node_version()
    folder = cache / home.name
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the packages: a module is found from where its importer lies.
    for program in (*home.glob("*.mjs"), *_HERE.glob("*.mjs")):
        shutil.copy(program, folder)
    stamp = folder / "installed"
    wanted = hashlib.sha256((home / "package-lock.json").read_bytes() + version.encode("ascii")).hexdigest()
    if stamp.exists() and stamp.read_text("ascii") == wanted:
        return version
    stamp.unlink(missing_ok=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(home / file, folder)
    done = subprocess.run(
        [shutil.which("npm") or "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
    )
    if done.returncode != 0:
        raise Unavailable(f"{home.name} cannot be installed: {' '.join(done.stderr.split())[:300]}")
    stamp.write_text(wanted, "ascii")
    return version


def versions(home: Path, *names: str) -> str:
    """Returns some of a peer's packages with their versions, in words."""
    pins: dict[str, str] = json.loads((home / "package.json").read_bytes())["dependencies"]
    return ", ".join(f"{name} {pins[name]}" for name in names)


@contextmanager
def _workers(
    programs: Path, folder: Path, processes: int, options: Mapping[str, Any], settings: Mapping[str, str]
) -> Iterator[list[int]]:
    """Start worker processes; open with their ids when all are ready, and ended when it closes."""
    # A supervisor of their own: they end before their server does.
    with Supervisor() as supervisor:
        for number in range(1, processes + 1):
            supervisor.spawn(
                f"worker {number}",
                ["node", programs / "worker.mjs", json.dumps(dict(options))],
                log=folder / f"worker-{number}.log",
                env={**_environment(), **settings},
            )
        for worker in supervisor.processes:
            worker.await_ready(partial(_says_ready, worker.log), _START_WITHIN)
        yield [worker.pid for worker in supervisor.processes]


def _environment() -> dict[str, str]:
    """Returns our environment without what steers PostgreSQL's clients, for a program in use, not in development."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "NODE_"))}
    return ours | {"NODE_ENV": "production"}


def _says_ready(log: Path) -> bool:
    return "ready" in log.read_text("utf-8", "replace").splitlines()


def _node_version() -> str:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        raise Unavailable(f"no node and npm on PATH: Node {_OLDEST_NODE} or newer is needed")
    version = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout.strip().lstrip("v")
    major = re.match(r"\d+", version)
    if major is None or int(major.group()) < _OLDEST_NODE:
        raise Unavailable(f"Node {version} is too old: {_OLDEST_NODE} or newer is needed")
    return version
