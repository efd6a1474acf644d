"""An outbox on servers of its own: MongoDB and a broker started bare, and a worker pool and a beat where asked for.

The contestant and every case about the outbox alone stand on it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from benchmarks.jobs import BOT, PREFIX
from benchmarks.ledger import FOLDER
from benchmarks.measuring import MongoObserver
from outbox_core import Outbox
from outbox_core.adapters.mongo.client import connect
from outbox_core.bots import load_bots
from outbox_core.cli import programs
from outbox_core.domain.effect_lifecycle import LIVE, State
from outbox_core.embedded import EmbeddedMongo, EmbeddedRedis, Supervisor
from outbox_core.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pymongo.database import Database

    from outbox_core.embedded import Process

DATABASE = "bench"
BOTS = "benchmarks.bots"
JOB = "job"
"""The type of the events."""

SUBSCRIPTION = "all"
CACHE = "cache_size=1G"
OPLOG_MB = 1_024
CHUNK = 1_000

_READY = timedelta(seconds=60)
_LIVE = [state.value for state in LIVE]


def tenant_names(count: int) -> list[str]:
    """Return the names of so many tenants."""
    return [f"tenant-{number}" for number in range(count)]


def job_event(number: int, rules: int = 1) -> dict[str, Any]:
    """Return the event of a job: small, its number in its id. Of so many rules it matches one."""
    seen: dict[str, Any] = {name: value[0] for name, value in _terms(number % rules, rules).items()}
    if repo := seen.pop("repos", ""):
        seen["repo"] = repo
    if label := seen.pop("labels", ""):
        seen["labels"] = [label]
    return {"event_id": f"{PREFIX}{number}", "type": seen.pop("types"), **seen}


def _terms(rule: int, rules: int) -> dict[str, list[str]]:
    """Return what the rule of that number matches: a third each by a type, by a repo and by a label of its own."""
    if rules == 1:
        return {"types": [JOB]}
    own = ({"types": [f"{JOB}-{rule}"]}, {"types": [JOB], "repos": [f"acme/repo-{rule}"]})
    return own[rule % 3] if rule % 3 < len(own) else {"types": [JOB], "labels": [f"label-{rule}"]}


class Appender:
    """A process that appends jobs as an application does: `Outbox.append_many`, in chunks, with hints."""

    def __init__(self, environment: Mapping[str, str], tenants: int, rules: int, log: Path) -> None:
        argv = [sys.executable, "-m", "benchmarks.outbox_appender", str(tenants), str(rules)]
        with log.open("ab") as errors:
            self._popen = subprocess.Popen(
                argv, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._await("ready")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def append(self, first: int, count: int, tenant: str = "") -> tuple[float, float]:
        """Append jobs; return when it began and when they were durable. Without a tenant they are spread over all."""
        return self._ask(f"{first} {count} {tenant}")

    def hint(self, tenant: str) -> None:
        """Tell a worker to look at a tenant."""
        self._ask(f"hint {tenant}")

    def close(self) -> None:
        """End it."""
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        self._popen.wait(30)
        if self._popen.stdout is not None:
            self._popen.stdout.close()

    def _ask(self, line: str) -> tuple[float, float]:
        if self._popen.stdin is None:
            raise RuntimeError("the appender has no input")
        self._popen.stdin.write(f"{line}\n")
        self._popen.stdin.flush()
        began, returned = self._await("ok")
        return float(began), float(returned)

    def _await(self, word: str) -> list[str]:
        said = self._popen.stdout.readline() if self._popen.stdout is not None else ""
        if said.split()[:1] != [word]:
            raise RuntimeError(f"the appender did not say {word!r} but {said!r}; its log has more")
        return said.split()[1:]


@dataclass(slots=True)
class OutboxStage:
    """An outbox that is ready to be used, with its schema; `setup` goes through `outbox`, which sends no hints."""

    folder: Path
    mongo: EmbeddedMongo
    broker: EmbeddedRedis
    environment: dict[str, str]
    outbox: Outbox
    database: Database[dict[str, Any]]
    observer: MongoObserver
    _supervisor: Supervisor = field(default_factory=Supervisor)
    running: list[Process] = field(default_factory=list)
    _appenders: list[Appender] = field(default_factory=list)

    @property
    def ledger(self) -> Path:
        """Where the workers count."""
        return self.folder / "ledger"

    @property
    def servers(self) -> list[int]:
        """Process ids of the servers."""
        return [self.mongo.pid, self.broker.pid]

    @property
    def clients(self) -> list[int]:
        """Process ids of workers, beat and appenders."""
        return [*(process.pid for process in self.running), *(one.pid for one in self._appenders)]

    def subscribe(self, tenants: int = 1, rules: int = 1, *, names: Sequence[str] = ()) -> Self:
        """Have every tenant's jobs launch the bot that counts, by so many rules of which each event matches one."""
        for tenant in names or tenant_names(tenants):
            for rule in range(rules):
                sub_id = SUBSCRIPTION if rules == 1 else f"{SUBSCRIPTION}-{rule}"
                terms: dict[str, Any] = {**_terms(rule, rules)}
                self.outbox.subscribe(tenant, sub_id, BOT, **terms)
        return self

    def start_worker(self, processes: int, *, hints: bool = True) -> Process:
        """Start a pool of workers; return when it is ready."""
        return self.start_program("worker", programs.worker(processes), " ready.", hints=hints)

    def start_beat(self) -> Process:
        """Start the ticks."""
        return self.start_program("beat", programs.beat(), "Starting")

    def appender(self, tenants: int = 1, rules: int = 1, *, hints: bool = True) -> Appender:
        """Start a process that appends."""
        appender = Appender(self._environment(hints=hints), tenants, rules, self.folder / "appender.log")
        self._appenders.append(appender)
        return appender

    def forget(self, process: Process) -> None:
        """Take a worker that has ended off the books."""
        self.running.remove(process)
        self._supervisor.forget(process)

    def settled(self) -> int:
        """Return how many rows are done for good: all but the live and the failed ones."""
        rows = self.observer.database["trigger_effects"]
        # All first: a row that is inserted in between is then counted as live at most.
        total = rows.estimated_document_count()
        return total - self.count(_LIVE) - self.count([State.FAILED.value])

    def append(self, first: int, count: int, tenant: str = "", rules: int = 1) -> None:
        """Append from this process, without hints."""
        for start in range(first, first + count, CHUNK):
            chunk = range(start, min(start + CHUNK, first + count))
            events = [job_event(number, rules) for number in chunk]
            self.outbox.append_many(tenant or tenant_names(1)[0], events)

    def count(self, states: list[str]) -> int:
        """Return how many rows are in these states, by their partial index."""
        rows = self.observer.database["trigger_effects"]
        hint = "failed" if states == [State.FAILED.value] else "live"
        return rows.count_documents({"state": {"$in": states} if len(states) > 1 else states[0]}, hint=hint)

    def close(self) -> None:
        """End what was started, the servers excepted."""
        for appender in self._appenders:
            appender.close()
        self._supervisor.stop_all()
        self.outbox.close()
        self.database.client.close()

    def _environment(self, *, hints: bool) -> dict[str, str]:
        return {**self.environment, "OUTBOX_HINTS": "on" if hints else "off"}

    def start_program(self, name: str, argv: tuple[str, ...], ready: str, *, hints: bool = True) -> Process:
        """Start a Celery program; return when its log says that it is ready."""
        log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "celery", *argv]
        process = self._supervisor.spawn(name, command, log=log, env=self._environment(hints=hints))
        self.running.append(process)
        process.await_ready(lambda: ready in log.read_text("utf-8", "replace"), _READY)
        return process


@contextmanager
def outbox_stage(folder: Path, **limits: str) -> Iterator[OutboxStage]:
    """Start the servers in an empty folder and ensure the schema; `limits` are settings by their environment's name."""
    with ExitStack() as stack:
        mongo = stack.enter_context(EmbeddedMongo(folder / "mongo", oplog_mb=OPLOG_MB))
        broker = stack.enter_context(EmbeddedRedis(folder / "broker"))
        wanted = {
            "OUTBOX_MONGO_URL": mongo.url,
            "OUTBOX_MONGO_DB": DATABASE,
            "OUTBOX_BROKER_URL": broker.url,
            "OUTBOX_BOTS": BOTS,
            FOLDER: str(folder / "ledger"),
            **{f"OUTBOX_{name.upper()}": value for name, value in limits.items()},
        }
        environment = {**{name: value for name, value in os.environ.items() if name[:7] != "OUTBOX_"}, **wanted}
        (folder / "ledger").mkdir(exist_ok=True)
        with environ(environment):
            settings = load_settings()
        load_bots([BOTS])
        outbox = Outbox.from_settings(settings)
        outbox.ensure_schema()
        database = connect(mongo.url, DATABASE, settings.limits)
        # The embedded server is made for development; a server of its own has more memory than a quarter of a gigabyte.
        database.client.admin.command("setParameter", 1, wiredTigerEngineRuntimeConfig=CACHE)
        observer = stack.enter_context(MongoObserver(mongo.url, DATABASE))
        stage = OutboxStage(folder, mongo, broker, environment, outbox, database, observer)
        stack.callback(stage.close)
        yield stage


@contextmanager
def environ(environment: Mapping[str, str]) -> Iterator[None]:
    """Have this process's environment be another for a while."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
