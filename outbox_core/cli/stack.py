"""The whole stack in a folder of its own: a replica set, a broker, a worker pool, a beat and Flower.

Nothing of it outlives its parent: `stop` ends the parts in order, and a watchdog does after a kill -9. A part that
dies is started again after a pause; one that keeps dying ends the stack.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import outbox_core
from outbox_core.cli import programs
from outbox_core.cli.folder_lock import locked
from outbox_core.cli.parts import PROGRAM_GRACE, Program
from outbox_core.cli.stopping import StopRequested, undisturbed
from outbox_core.domain.errors import TransientError
from outbox_core.embedded import EmbeddedMongo, EmbeddedRedis, EmbeddedServerError, Supervisor
from outbox_core.embedded.server import HOST, port_is_open

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from outbox_core.cli.parts import Part

WORKER_GRACE = timedelta(seconds=75)
"""A warm shutdown lets the bot in hand finish; its own limit is a minute."""

FORMER_WITHIN = WORKER_GRACE + timedelta(seconds=20)
"""How long the parts of a stack whose parent was killed may take to be ended: a bot in hand finishes there too."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
DEATHS_IN_A_ROW = 5
STEADY_S = 60.0
"""A part that has run this long starts at the first pause again."""

_FLOWER_PORT = 5555
_FLOWER_PORTS = 50
_REDIS_PORT = 6379
_BROKER_WITHIN_S = 5.0


@dataclass(slots=True)
class _Deaths:
    """How often a part has died in a row, and when it is started again."""

    count: int = 0
    again_at: float | None = None
    started_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Place:
    """One line of what runs: what it is, where it is reached, where it writes."""

    what: str
    address: str
    log: Path | None
    pid: int | None


class Stack:
    """Use it as a context manager, or `start`, `tend` once in a while, and `stop`.

    `environment` holds what a process needs to use this stack, once it is started. A URL that is given is used
    instead of a private server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        flower: bool = True,
        flower_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Describe the stack; nothing is touched before `start`.

        Args:
            folder: where everything of it lies; made if missing.
            workers: processes of the worker pool.
            flower: whether Flower runs.
            flower_port: its port; None takes 5555 or the next free one.
            settings: OUTBOX_* variables; OUTBOX_MONGO_URL and OUTBOX_BROKER_URL take the place of the private servers.
            report: hears one line about each part that died, and about what a start or a stop waits for.
        """
        self.folder = folder.absolute()
        self.environment: dict[str, str] = dict(settings or {})
        self._workers = workers
        self._with_flower = flower
        self._asked_flower_port = flower_port
        self._report = report or _say_nothing
        self._supervisor = Supervisor()
        self._locks: list[int] = []
        self._servers: list[Part] = []
        self._programs: list[Program] = []
        self._deaths: dict[str, _Deaths] = {}
        self._flower_port = 0

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
    def flower_url(self) -> str | None:
        """Where Flower is, None where it does not run."""
        return f"http://{HOST}:{self._flower_port}/" if self._flower_port else None

    @property
    def places(self) -> list[Place]:
        """What runs, in the order of starting."""
        addresses = {
            "mongod": self.environment.get("OUTBOX_MONGO_URL", ""),
            "redis": self.environment.get("OUTBOX_BROKER_URL", ""),
            "worker": f"{self._workers} processes",
            "flower": self.flower_url or "",
        }
        given = [
            Place(what, f"{_without_password(self.environment[variable])} (given by {variable})", None, None)
            for what, variable in (("mongod", "OUTBOX_MONGO_URL"), ("redis", "OUTBOX_BROKER_URL"))
            if all(part.name != what for part in self._servers)
        ]
        return given + [Place(part.name, addresses.get(part.name, ""), part.log, part.pid) for part in self._parts()]

    def start(self, before_programs: Callable[[Mapping[str, str]], None] | None = None) -> None:
        """Start all parts, and return when all work; after an error nothing keeps running.

        Args:
            before_programs: called with the environment when the servers run, before the first worker: the schema.

        Raises:
            EmbeddedServerError: the folder is in use, a program is missing or does not start, a port is taken, or
                another module hides one of ours.
            TransientError: a server that was given by its URL cannot be reached.
        """
        try:
            _require_own_modules(self._program_environment())
            self._take_folder()
            self._start_servers()
            if before_programs is not None:
                self._prepare(before_programs)
            self._start_programs()
        except BaseException:
            self.stop()
            raise

    def tend(self) -> None:
        """Start again what has died, each after its pause; call it about twice a second.

        Raises:
            EmbeddedServerError: a part died five times in a row, or a server came back at another port.
        """
        for part in self._parts():
            deaths = self._deaths.setdefault(part.name, _Deaths())
            now = time.monotonic()
            if part.running:
                if deaths.count and now - deaths.started_at > STEADY_S:
                    deaths.count = 0
            elif deaths.again_at is None:
                self._note_death(part, deaths, now)
            elif now >= deaths.again_at:
                self._start_again(part, deaths)

    def stop(self) -> None:
        """Stop beat, Flower, the workers (warm), the broker, the replica set; a repeat call does nothing.

        A StopRequested meanwhile, which `stop_signals` raises at a second signal, kills all that is left: rows in hand
        are due again when their lease is over, and the servers recover from their journals.
        """
        try:
            for part in reversed(self._parts()):
                part.stop()
            self._supervisor.stop_all()
        except StopRequested:
            with undisturbed():
                self._report("stopping at once: what is in hand is tried again when its lease is over")
                self._supervisor.kill_all()
                self._supervisor.stop_all()
        self._servers.clear()
        self._programs.clear()
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()

    def _parts(self) -> list[Part]:
        return [*self._servers, *self._programs]

    def _take_folder(self) -> None:
        try:
            (self.folder / "logs").mkdir(parents=True, exist_ok=True)
            ours = locked(self.folder / "dev.lock", timedelta(0))
            if ours is None:
                raise EmbeddedServerError(f"{self.folder} is in use by another `outbox dev`: stop it, or give --folder")
            self._locks.append(ours)
            # Held by the programs too: after a kill -9 of the parent it lasts until the last of them has ended.
            theirs = locked(self.folder / "programs.lock", timedelta(0))
            if theirs is None:
                self._report("waiting for the processes of the former stack to end …")
                theirs = locked(self.folder / "programs.lock", FORMER_WITHIN)
            if theirs is None:
                raise EmbeddedServerError(f"programs of an earlier `outbox dev` still run in {self.folder}")
            self._locks.append(theirs)
        except OSError as error:
            raise EmbeddedServerError(f"the folder {self.folder} cannot be used: {error.strerror}") from error

    def _start_servers(self) -> None:
        if "OUTBOX_MONGO_URL" not in self.environment:
            mongo = EmbeddedMongo(self.folder / "mongo", supervisor=self._supervisor)
            self._servers.append(mongo)
            mongo.start()
            self.environment["OUTBOX_MONGO_URL"] = mongo.url
        if "OUTBOX_BROKER_URL" not in self.environment:
            redis = EmbeddedRedis(self.folder / "redis", supervisor=self._supervisor)
            self._servers.append(redis)
            redis.start()
            self.environment["OUTBOX_BROKER_URL"] = redis.url
        else:
            _require_broker(self.environment["OUTBOX_BROKER_URL"])

    def _prepare(self, before_programs: Callable[[Mapping[str, str]], None]) -> None:
        try:
            before_programs(self.environment)
        except TransientError as error:
            if any(part.name == "mongod" for part in self._servers):
                raise
            raise TransientError(f"{error}; {_use_a_private('OUTBOX_MONGO_URL')}") from error

    def _start_programs(self) -> None:
        self._add("worker", programs.worker(self._workers), _worker_is_ready, WORKER_GRACE)
        self._programs[-1].on_long_stop = lambda: self._report(
            "waiting for the bots in hand; again (Ctrl-C or SIGTERM) to stop at once"
        )
        if self._with_flower:
            self._flower_port = self._choose_flower_port()
            port = self._flower_port
            self._add("flower", programs.flower(HOST, port), lambda _: port_is_open(port))
        self._add("beat", programs.beat(), lambda said: "beat: Starting" in said)
        for program in self._programs:
            program.launch()
        for program in self._programs:
            program.await_ready()

    def _add(
        self,
        name: str,
        arguments: Sequence[str],
        is_ready: Callable[[str], bool],
        grace: timedelta = PROGRAM_GRACE,
    ) -> None:
        self._programs.append(
            Program(
                name=name,
                argv=[sys.executable, "-m", "celery", *arguments],
                log=self.folder / "logs" / f"{name}.log",
                env=self._program_environment(),
                supervisor=self._supervisor,
                is_ready=is_ready,
                grace=grace,
                lock_fd=self._locks[-1],
            )
        )

    def _program_environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment}

    def _choose_flower_port(self) -> int:
        if self._asked_flower_port is not None:
            if port_is_open(self._asked_flower_port):
                raise EmbeddedServerError(
                    f"port {self._asked_flower_port} is taken: give another --flower-port, or none for a free one"
                )
            return self._asked_flower_port
        for port in range(_FLOWER_PORT, _FLOWER_PORT + _FLOWER_PORTS):
            if not port_is_open(port):
                return port
        raise EmbeddedServerError(f"Flower found no free port from {_FLOWER_PORT} on: give --flower-port")

    def _note_death(self, part: Part, deaths: _Deaths, now: float) -> None:
        deaths.count += 1
        if deaths.count >= DEATHS_IN_A_ROW:
            raise EmbeddedServerError(f"{part.name} ended {deaths.count} times in a row; see {part.log}")
        pause = min(FIRST_PAUSE_S * 2 ** (deaths.count - 1), LONGEST_PAUSE_S)
        deaths.again_at = now + pause
        self._report(f"{part.name} ended by itself; starting it again in {pause:g} s; see {part.log}")

    def _start_again(self, part: Part, deaths: _Deaths) -> None:
        deaths.again_at = None
        deaths.started_at = time.monotonic()
        try:
            part.start()
        except EmbeddedServerError as error:
            part.stop()
            self._report(str(error))
            return
        for server, variable in (("mongod", "OUTBOX_MONGO_URL"), ("redis", "OUTBOX_BROKER_URL")):
            if part.name == server and getattr(part, "url", None) != self.environment[variable]:
                raise EmbeddedServerError(f"{server} came back at another port, its own was taken: start again")
        self._report(f"{part.name} runs again")


_OURS = ("tasks", "beat_schedule", "outbox_core")

# Asked of a child, in the current folder, as celery will be: that one looks there first, then along its import path.
_WHERE = """
import importlib.util, os, sys
sys.path[:0] = [os.getcwd()]
for name in sys.argv[1:]:
    found = importlib.util.find_spec(name)
    print("" if found is None else found.origin or next(iter(found.submodule_search_locations)))
"""


def _require_own_modules(environment: Mapping[str, str]) -> None:
    """Refuse to start where another module hides one of ours from the programs: they would run it without a word."""
    said = subprocess.run(  # noqa: S603 - our own interpreter, our own words
        [sys.executable, "-c", _WHERE, *_OURS], env=environment, capture_output=True, text=True, check=False
    )
    if said.returncode:
        raise EmbeddedServerError(f"{sys.executable} cannot look for modules: {said.stderr.strip()[-300:]}")
    ours = Path(outbox_core.__file__).resolve().parents[1]
    for name, place in zip(_OURS, said.stdout.splitlines(), strict=True):
        if not place:
            raise EmbeddedServerError(f"the module `{name}` of the outbox is not on the import path: install it again")
        if Path(place).resolve() not in {ours / name / "__init__.py", ours / f"{name}.py"}:
            raise EmbeddedServerError(
                f"{place} hides the module `{name}` of the outbox: start from another folder, "
                f"and put on PYTHONPATH only folders that hold no `{name}`"
            )


def _require_broker(url: str) -> None:
    """Raise TransientError where nobody listens at a broker's address: a worker would wait for it without a word."""
    parts = urlsplit(url)
    if parts.scheme not in {"redis", "rediss"} or ";" in url or parts.hostname is None:
        return
    try:
        socket.create_connection((parts.hostname, parts.port or _REDIS_PORT), timeout=_BROKER_WITHIN_S).close()
    except OSError as error:
        raise TransientError(
            f"the broker cannot be reached: {_without_password(url)}: {error}; {_use_a_private('OUTBOX_BROKER_URL')}"
        ) from error


def _use_a_private(variable: str) -> str:
    return f"{variable} names it: `unset {variable}` to get a private server"


def _say_nothing(text: str) -> None:
    del text


def _worker_is_ready(said: str) -> bool:
    # Celery says "ready" of any application; this line is ours.
    return "outbox ready: database " in said


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    scheme, separator, _ = head.partition("://")
    return f"{scheme}{separator}…@{tail}" if at else url
