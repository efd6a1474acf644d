"""The outbox as a contestant, as it is deployed: a pool of workers, a beat, and an application that appends."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable, Mapping  # noqa: TC003 - a field's type
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import celery
import pymongo

from benchmarks.contestant import Facts
from benchmarks.outbox_stage import CHUNK, Appender, OutboxStage, outbox_stage
from benchmarks.peers.peer import Published
from outbox_core.domain.limits import Limits
from outbox_core.embedded import find_mongod
from outbox_core.embedded.programs import runnable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.measuring import MongoObserver


@dataclass(frozen=True, slots=True)
class OutboxDeployment:
    """Servers, workers and a beat that run."""

    stage: OutboxStage
    appender: Appender
    before: int
    """How many rows were done before it began."""

    @property
    def servers(self) -> list[int]:
        """The store and the broker."""
        return self.stage.servers

    @property
    def clients(self) -> list[int]:
        """Workers, beat and the application that appends."""
        return self.stage.clients

    @property
    def mongo(self) -> MongoObserver:
        """Who counts what mongod does."""
        return self.stage.observer

    def enqueue(self, first: int, count: int) -> None:
        """Append the jobs' events."""
        self.appender.append(first, count)

    def publish(self, number: int) -> Published:
        """Append one job's event, and say when that was."""
        return Published(*self.appender.append(number, 1))

    def settled(self) -> int:
        """Return how many rows are done."""
        return self.stage.settled() - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxContestant:
    """The outbox; with `hints` off, ticks alone find what was appended.

    With `rules` above 1 each tenant has so many subscriptions, and each event matches one of them. `fill` puts in what
    is there already.
    """

    name: str
    tenants: int = 1
    hints: bool = True
    beat: bool = True
    rules: int = 1
    fill: Callable[[OutboxStage], None] | None = None
    limits: Mapping[str, str] = field(default_factory=dict)

    def prepare(self, cache: Path) -> Facts:
        """Nothing is to be installed: it is this tree."""
        limits = Limits()
        return Facts(
            version=f"this tree; MongoDB {mongod_version(cache)}, pymongo {pymongo.version},"
            f" Celery {celery.__version__}, Python {platform.python_version()}",
            durability="every write w: majority and journaled but for slots, which nothing hangs on, on a replica set"
            " of one; the broker keeps nothing",
            batching=f"appended by {CHUNK:,} at once; drained by {limits.event_batch}, claimed by {limits.claim_batch}",
            notes=f"{self.tenants} tenant{'s' if self.tenants > 1 else ''}{'' if self.hints else ', no hints'}",
        )

    @contextmanager
    def deploy(self, folder: Path, cache: Path, processes: int) -> Iterator[OutboxDeployment]:
        """Start it all."""
        del cache
        with outbox_stage(folder, **self.limits) as stage:
            stage.subscribe(self.tenants, self.rules)
            if self.fill is not None:
                self.fill(stage)
            before = stage.settled()
            stage.start_worker(processes, hints=self.hints)
            if self.beat:
                stage.start_beat()
            appender = stage.appender(self.tenants, self.rules, hints=self.hints)
            yield OutboxDeployment(stage, appender, before)


def mongod_version(cache: Path) -> str:
    """Return the version of the server that is started."""
    said = subprocess.run([runnable(find_mongod(), cache), "--version"], capture_output=True, check=True, text=True)
    found = re.search(r"db version v(\S+)", said.stdout)
    return found.group(1) if found else "unknown"


OUTBOX = OutboxContestant(name="outbox")
HUNDRED = OutboxContestant(name="outbox-100-tenants", tenants=100)
TICKS = OutboxContestant(name="outbox-ticks", hints=False)
CONTESTANTS = (OUTBOX, HUNDRED, TICKS)
