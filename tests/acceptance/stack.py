"""Real worker and beat processes on a database and a broker of the test's own; stopped and killed by process id."""

from __future__ import annotations

import os
import sys
import uuid
from collections import Counter
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from outbox_core.application.add_subscription import add_subscription
from outbox_core.bootstrap import Outbox
from outbox_core.domain.effect import DELIVERED
from outbox_core.domain.subscription import Match, Subscription
from outbox_core.embedded import Supervisor
from tests.waiting import patiently

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from outbox_core.embedded import Process

ROOT = Path(__file__).parents[2]
BOTS = "tests.acceptance.bots"
READY_WITHIN = timedelta(seconds=40)
STOP_GRACE = timedelta(seconds=20)
SHORT = {
    "OUTBOX_OP_TIMEOUT": "2s",
    "OUTBOX_GAP_GRACE": "4s",
    "OUTBOX_DRAIN_TICK": "500ms",
    "OUTBOX_SWEEP_TICK": "500ms",
    "OUTBOX_SLOT_HOLD": "2s",
    "OUTBOX_EFFECT_LEASE": "14500ms",
    "OUTBOX_BACKOFF_BASE": "500ms",
}
"""Near the shortest that the relations between limits allow, so that a test waits seconds, not minutes."""


class Stack:
    """One deployment: the environment of its processes, the processes, and an outbox in the test's own process."""

    def __init__(self, folder: Path, supervisor: Supervisor, settings: dict[str, str]) -> None:
        self.folder = folder
        self.broker_url = settings["OUTBOX_BROKER_URL"]
        self._supervisor = supervisor
        self._started = 0
        self.program = ["celery"]
        """The module that processes run from now on, with its first arguments; see shifted_clock."""
        self.outbox = Outbox.from_settings()

    def worker(self, *, processes: int = 2, pool: str = "prefork", **variables: str) -> Process:
        """Start a worker, with these variables beside the deployment's, and return when it takes work."""
        options = [f"--concurrency={processes}", f"--pool={pool}", "--without-gossip", "--without-mingle"]
        return self._start("worker", [*options, "-n", f"w{self._started}@test"], " ready.", variables)

    def beat(self, **variables: str) -> Process:
        """Start a beat, and return when it ticks."""
        return self._start("beat", [], "beat: Starting", variables)

    def celery(self, *words: str, name: str, **variables: str) -> Process:
        """Start a celery command, and return at once."""
        module, *first = self.program
        return self.python(module, *first, "-A", "tasks", *words, name=name, **variables)

    def python(self, module: str, *words: str, name: str, **variables: str) -> Process:
        """Start a module as a program, and return at once."""
        self._started += 1
        argv = [sys.executable, "-m", module, *words]
        log = self.folder / f"{name}-{self._started}.log"
        environment = {**os.environ, **variables} if variables else None
        return self._supervisor.spawn(name, argv, log=log, cwd=ROOT, stop_grace=STOP_GRACE, env=environment)

    def forget(self, process: Process) -> None:
        """Take a process that has ended off the books."""
        self._supervisor.forget(process)

    def _start(self, command: str, options: list[str], ready: str, variables: dict[str, str]) -> Process:
        process = self.celery(command, "--loglevel=INFO", *options, name=command, **variables)
        process.await_ready(lambda: ready in process.log.read_text("utf-8", "replace"), READY_WITHIN)
        return process

    def subscribe(self, tenant: str, bot_id: str, *, sub_id: str = "rule", **given: object) -> None:
        """Add a rule that matches everything."""
        rule = Subscription(tenant_id=tenant, sub_id=sub_id, bot_id=bot_id, match=Match(), vars=given)
        patiently(lambda: add_subscription(self.outbox.tenant(tenant), rule))

    def append(self, tenant: str, count: int = 1) -> list[str]:
        """Append events; return their ids."""
        ids = [uuid.uuid4().hex for _ in range(count)]
        for event_id in ids:
            patiently(partial(self.outbox.append, tenant, type="order", action="placed", event_id=event_id))
        return ids

    def states(self, tenant: str) -> dict[str, int]:
        """Count the tenant's rows by state, done ones by outcome."""
        counts = patiently(self.outbox.tenant(tenant).effects.counts)
        return {state: count for state, count in counts.items() if count}

    def all_done(self, tenant: str, count: int) -> bool:
        """Say whether exactly so many rows are there, all delivered."""
        return self.states(tenant) == {f"done:{DELIVERED}": count}

    @property
    def runs(self) -> Counter[str]:
        """How often each effect's bot has run to its end."""
        return Counter(line.split()[0] for line in self._lines("runs"))

    @property
    def starts(self) -> list[tuple[str, int, int]]:
        """Each start of a bot: the effect, the attempt, the process."""
        return [(words[0], int(words[1]), int(words[2])) for line in self._lines("starts") if (words := line.split())]

    def release(self) -> None:
        """Let bots go on that wait."""
        (self.folder / "released").touch()

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text("utf-8").splitlines() if path.exists() else []


def children(process: Process) -> list[int]:
    """Return the process ids of a worker's pool."""
    return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


@contextmanager
def running_stack(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, mongo_url: str, broker_url: str, database: str, **settings: str
) -> Iterator[Stack]:
    """Set the environment, and end every process that was started, whatever happens."""
    environment = {
        **SHORT,
        "OUTBOX_MONGO_URL": mongo_url,
        "OUTBOX_MONGO_DB": database,
        "OUTBOX_BROKER_URL": broker_url,
        "OUTBOX_BOTS": BOTS,
        "OUTBOX_TEST_FOLDER": str(folder),
        **settings,
    }
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    with Supervisor() as supervisor:
        stack = Stack(folder, supervisor, environment)
        with closing(stack.outbox):
            try:
                patiently(stack.outbox.ensure_schema)
                yield stack
            finally:
                stack.release()
                for process in supervisor.processes:
                    process.kill()
                with suppress(PyMongoError), MongoClient[dict[str, Any]](mongo_url, timeoutMS=5_000) as client:
                    client.drop_database(database)  # else a server that many tests share slows down under the files
