"""Contestants side by side: all deployed, each measured in turn, A B C A B C, on numbers of jobs that suit its pace."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from benchmarks.contestant import Ledger, Unavailable
from benchmarks.ledger import FOLDER
from benchmarks.measuring import MongoObserver, cpu_seconds
from benchmarks.outbox_stage import environ

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.bench import Bench
    from benchmarks.contestant import Contestant, Deployment, Facts

PROBES = (50, 400)
"""Jobs that warm a deployment up, and tell how many it does in a second."""

STALLED_S = 45.0
_POLL_S = 0.005


class StalledError(Exception):
    """A contestant did not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measurement of one contestant."""

    jobs: int
    seconds: float
    enqueued_after: float
    server_cpu: float
    client_cpu: float
    others_cpu: float
    commands: int | None
    conflicts: int | None

    @property
    def rate(self) -> float:
        """Jobs per second, from the first append to the last that is done."""
        return self.jobs / self.seconds


class Tally:
    """How many lines stand in a deployment's ledger, read on from where it was left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.lines = 0

    def look(self) -> int:
        """Return how many jobs have been run so far, repeats included."""
        for path in self._folder.glob("*"):
            with path.open("rb") as ledger:
                ledger.seek(self._read.get(path, 0))
                new = ledger.read()
            self._read[path] = self._read.get(path, 0) + len(new)
            self.lines += new.count(b"\n")
        return self.lines


@dataclass(slots=True)
class Running:
    """A contestant that is deployed."""

    name: str
    deployment: Deployment
    folder: Path
    tally: Tally
    enqueued: int = 0
    next_number: int = 1
    rounds: list[Round] = field(default_factory=list)

    @property
    def mongo(self) -> MongoObserver | None:
        """Who counts MongoDB's commands, where there is a MongoDB that counts."""
        observer = getattr(self.deployment, "mongo", None)
        return observer if isinstance(observer, MongoObserver) else None

    def enqueue(self, jobs: int) -> int:
        """Put so many new jobs in; return the first one's number."""
        first = self.skip(jobs)
        self.deployment.enqueue(first, jobs)
        return first

    def skip(self, jobs: int) -> int:
        """Count so many new jobs as put in, which the caller does by itself; return the first one's number."""
        first = self.next_number
        self.next_number += jobs
        self.enqueued += jobs
        return first

    def await_done(self, *, stalled_s: float = STALLED_S) -> None:
        """Wait until every job is run, and done by the store's own word."""
        last, since = self.tally.look(), time.monotonic()
        while self.tally.lines < self.enqueued or self.deployment.settled() < self.enqueued:
            time.sleep(_POLL_S)
            if self.tally.look() != last:
                last, since = self.tally.lines, time.monotonic()
            elif time.monotonic() - since > stalled_s:
                settled = self.deployment.settled()
                raise StalledError(
                    f"nothing for {stalled_s:g} s: of {self.enqueued} jobs {last} were run and {settled} are done"
                )

    def measure(self, jobs: int, others: Sequence[Running]) -> Round:
        """Put jobs in and wait until all are done."""
        before = self.mongo.counts() if self.mongo else None
        around = [pid for other in others for pid in (*other.deployment.servers, *other.deployment.clients)]
        cpu = [cpu_seconds(pids) for pids in (self.deployment.servers, self.deployment.clients, around)]
        begun = time.perf_counter()
        self.enqueue(jobs)
        enqueued = time.perf_counter()
        self.await_done()
        ended = time.perf_counter()
        used = [
            now - then
            for now, then in zip(
                [cpu_seconds(pids) for pids in (self.deployment.servers, self.deployment.clients, around)],
                cpu,
                strict=True,
            )
        ]
        spent = self.mongo.counts().since(before) if self.mongo and before else None
        return Round(
            jobs=jobs,
            seconds=ended - begun,
            enqueued_after=enqueued - begun,
            server_cpu=used[0],
            client_cpu=used[1],
            others_cpu=used[2],
            commands=spent.commands.total() if spent else None,
            conflicts=spent.conflicts if spent else None,
        )

    def check(self) -> str:
        """Return what is wrong with the ledger: a job that did not run, or ran more than once; "" where all is well."""
        counts = Ledger(self.folder / "ledger").read().counts
        missing = sum(1 for number in range(1, self.next_number) if number not in counts)
        again = sum(1 for times in counts.values() if times > 1)
        wrong = ([f"{missing} jobs never ran"] if missing else []) + ([f"{again} ran more than once"] if again else [])
        return " and ".join(wrong)


class Field:
    """The contestants of a case, deployed side by side. One that fails is left out from there on, with its reason."""

    def __init__(self, bench: Bench, contestants: Sequence[Contestant], processes: int) -> None:
        self._bench = bench
        self._contestants = contestants
        self._processes = processes
        self._stacks: dict[str, ExitStack] = {}
        self.running: dict[str, Running] = {}
        self.failed: dict[str, str] = {}

    def __enter__(self) -> Self:
        for contestant in self._contestants:
            self._deploy(contestant)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._stacks):
            self._end(name)

    def round_robin(self, seconds: float, most: int, sized: Mapping[str, int]) -> None:
        """Measure each in turn, as often as the run has rounds, with about so many seconds' worth of jobs.

        `sized` names who gets another number, whatever its pace: a hundred tenants share their jobs, and few each is
        another question.
        """
        sizes = {name: sized.get(name) or self._size(name, seconds, most) for name in list(self.running)}
        for name in sized.keys() & self.running.keys():
            self.guarded(name, lambda one: one.measure(PROBES[-1], ()))
        for number in range(self._bench.rounds):
            for name in list(self.running):
                self.guarded(name, partial(self._measure, sizes[name]))
            told = ", ".join(f"{name} {one.rounds[-1].rate:,.0f}" for name, one in self.running.items())
            self._bench.tell(f"  round {number + 1} of {self._bench.rounds}, jobs/s: {told}")

    def guarded(self, name: str, step: Callable[[Running], object]) -> None:
        """Do something with one contestant; where it fails, end it and note the reason."""
        if name not in self.running:
            return
        try:
            step(self.running[name])
        except Exception as error:  # noqa: BLE001 - one contestant that fails must not end the run
            self._fail(name, error)

    def check(self) -> None:
        """Fail who lost a job or, where nothing crashed, ran one twice."""
        for name, one in list(self.running.items()):
            if wrong := one.check():
                self._fail(name, RuntimeError(wrong))

    def _measure(self, jobs: int, one: Running) -> None:
        others = [other for name, other in self.running.items() if name != one.name]
        one.rounds.append(one.measure(jobs, others))

    def _size(self, name: str, seconds: float, most: int) -> int:
        rate = [0.0]

        def probe(one: Running) -> None:
            for jobs in PROBES:
                rate[0] = one.measure(jobs, ()).rate
            # A second's worth first: who batches shows its pace on no less.
            rate[0] = one.measure(max(PROBES[-1], min(most, int(rate[0]))), ()).rate

        self.guarded(name, probe)
        return max(PROBES[-1], min(most, int(rate[0] * seconds)))

    def _deploy(self, contestant: Contestant) -> None:
        name = contestant.name
        self._bench.tell(f"  {name}: preparing and starting")
        stack = self._stacks[name] = ExitStack()
        try:
            facts = contestant.prepare(self._bench.cache)
            # A case's own deployments of the outbox are no contestants.
            if name in self._bench.contestants:
                self._bench.facts.setdefault(name, _facts_document(facts))
            folder = stack.enter_context(self._bench.folder(name))
            (folder / "ledger").mkdir()
            with environ({**os.environ, FOLDER: str(folder / "ledger")}):
                deployment = stack.enter_context(contestant.deploy(folder, self._bench.cache, self._processes))
            self.running[name] = Running(name, deployment, folder, Tally(folder / "ledger"))
        except Exception as error:  # noqa: BLE001 - one contestant that fails must not end the run
            self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, Unavailable | StalledError) else f"{type(error).__name__}: {error}"
        self.failed[name] = reason
        if name in self._bench.contestants:
            self._bench.failures.setdefault(name, reason)
        self._bench.tell(f"  {name} is out: {reason}")
        self.running.pop(name, None)
        self._end(name)

    def _end(self, name: str) -> None:
        try:
            self._stacks.pop(name).close()
        except Exception as error:  # noqa: BLE001 - what does not end well must not end the run
            self._bench.tell(f"  {name} did not end well: {type(error).__name__}: {error}")


def _facts_document(facts: Facts) -> dict[str, str]:
    return {name: str(getattr(facts, name)) for name in ("version", "durability", "batching", "notes")}
