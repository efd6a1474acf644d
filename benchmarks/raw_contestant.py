"""The raw limit: the fewest MongoDB writes that this data model needs, by bare pymongo, with no logic around them.

One process appends: for 1,000 events one update of the tenant's counter and one insert_many into `board_events`. N
processes work, each a batch of 200 in turn, as they are told through a pipe: one find of the events, one insert_many of
the rows, one update_many that claims them, one insert_many of the runs, one update_many that settles them. `raw` does
all of these; `raw-born-claimed` inserts the rows as claimed, so it needs no claim. The collections have the schema of
the outbox, and every write is w: majority and journaled.

What is left out: no cursor and no journal, no lease that is kept, no fence that is read back, no check that a launch
still applies or has run, no second tenant, no broker. A crash in it loses work.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import pymongo

from benchmarks.contestant import Facts
from benchmarks.outbox_contestant import mongod_version
from benchmarks.outbox_stage import OutboxStage, outbox_stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.measuring import MongoObserver


class RawProcess:
    """One process of raw_process."""

    def __init__(self, stage: OutboxStage, role: str) -> None:
        argv = [sys.executable, "-m", "benchmarks.raw_process", role]
        with (stage.folder / f"{role}.log").open("ab") as errors:
            self._popen = subprocess.Popen(
                argv, env=stage.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        if (said := self.hear()) != "ready":
            raise RuntimeError(f"a raw process did not begin: {said!r}")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def say(self, line: str) -> None:
        """Tell it something."""
        if self._popen.stdin is not None:
            self._popen.stdin.write(f"{line}\n")
            self._popen.stdin.flush()

    def hear(self) -> str:
        """Return its next line."""
        return self._popen.stdout.readline().strip() if self._popen.stdout is not None else ""

    def close(self) -> None:
        """End it."""
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                stream.close()
        self._popen.wait(30)


@dataclass(frozen=True, slots=True)
class RawDeployment:
    """mongod and the raw processes."""

    stage: OutboxStage
    appender: RawProcess
    workers: list[RawProcess]
    _turns: Iterator[int] = field(default_factory=count)

    @property
    def servers(self) -> list[int]:
        """The store alone."""
        return [self.stage.mongo.pid]

    @property
    def clients(self) -> list[int]:
        """The process that appends, and those that work."""
        return [self.appender.pid, *(worker.pid for worker in self.workers)]

    @property
    def mongo(self) -> MongoObserver:
        """Who counts what mongod does."""
        return self.stage.observer

    def enqueue(self, first: int, count: int) -> None:
        """Append; each batch is handed to the next worker as soon as it is durable."""
        self.appender.say(f"{first} {count}")
        while (said := self.appender.hear()) != "ok":
            if not said.startswith("range "):
                raise RuntimeError(f"the raw appender said {said!r}")
            self.workers[next(self._turns) % len(self.workers)].say(said.removeprefix("range "))

    def settled(self) -> int:
        """Return how many rows are done."""
        return self.stage.settled()


@dataclass(frozen=True, slots=True, kw_only=True)
class RawContestant:
    """The raw limit, with rows that are claimed by a write or born claimed."""

    name: str
    role: str

    def prepare(self, cache: Path) -> Facts:
        """Nothing is to be installed."""
        return Facts(
            version=f"MongoDB {mongod_version(cache)}, pymongo {pymongo.version}, Python {platform.python_version()}",
            durability="every write w: majority and journaled, on a replica set of one",
            batching="appended by 1,000 at once; worked by 200",
            notes="no limit but the store's: no logic, no fence, no recovery",
        )

    @contextmanager
    def deploy(self, folder: Path, cache: Path, processes: int) -> Iterator[RawDeployment]:
        """Start it all."""
        del cache
        with outbox_stage(folder) as stage:
            made: list[RawProcess] = []
            try:
                made.append(RawProcess(stage, "append"))
                made += (RawProcess(stage, self.role) for _ in range(processes))
                yield RawDeployment(stage, made[0], made[1:])
            finally:
                for process in made:
                    process.close()


RAW = RawContestant(name="raw", role="work")
CONTESTANTS = (RAW, RawContestant(name="raw-born-claimed", role="work-born-claimed"))
