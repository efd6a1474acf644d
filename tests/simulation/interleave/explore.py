"""Exploring the schedules of a cast: all of them within its budget, or as many as asked for by seed."""

from __future__ import annotations

import logging
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest.mock import patch

from outbox_core.application import heart
from outbox_core.domain.errors import TransientError
from tests.simulation.interleave.casts import CASTS
from tests.simulation.interleave.scheduler import Pruned, Scheduler
from tests.simulation.interleave.stage import HeartThreads, Snapshot, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from tests.simulation.interleave.scheduler import Budget, Strategy


_SNAPSHOTS: dict[str, Snapshot] = {}


class BrokenPromiseError(AssertionError):
    """A schedule after which something does not hold, and how to play it again."""


@dataclass(slots=True)
class Report:
    """What an exploration came to; `whole` says that nothing within the budget is left."""

    cast: str
    schedules: int = 0
    pruned: int = 0
    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    whole: bool = False

    def __str__(self) -> str:
        rate = self.steps / self.seconds if self.seconds else 0.0
        extent = "all" if self.whole else "some"
        return (
            f"{self.cast}: {extent}, {self.schedules} schedules to their end, {self.pruned} that met a known state, "
            f"{self.states} states, {self.steps} steps in {self.seconds:.1f} s ({rate:.0f}/s)"
        )


@dataclass(slots=True)
class Exhaustive:
    """Depth first through all choices; a state from which all was explored is left at once."""

    waiting: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    seen: set[Hashable] = field(default_factory=set)
    _prefix: tuple[int, ...] = ()
    _taken: list[int] = field(default_factory=list)

    def begin(self) -> None:
        """Begin the next schedule."""
        self._prefix, self._taken = self.waiting.pop(), []

    def met(self, end: Hashable) -> bool:
        """Say whether a schedule has ended so before."""
        known = end in self.seen
        self.seen.add(end)
        return known

    def pick(self, options: int, state: Callable[[], Hashable]) -> int:
        """See Strategy."""
        chosen = 0
        if len(self._taken) < len(self._prefix):
            chosen = self._prefix[len(self._taken)]
        else:
            key = state()
            if key in self.seen:
                raise Pruned
            self.seen.add(key)
            taken = tuple(self._taken)
            self.waiting += [(*taken, other) for other in range(options - 1, 0, -1)]
        self._taken.append(chosen)
        return chosen


class Seeded:
    """Chance: a seed draws how restless its schedule is, then each choice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a schedule, no secret
        self._restless = self._random.choice((0.1, 0.3, 0.6))

    def pick(self, options: int, state: Callable[[], Hashable]) -> int:
        """See Strategy."""
        del state
        return self._random.randrange(options) if self._random.random() < self._restless else 0


class Given:
    """Choices written down; where they end, the first option."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._left = list(choices)

    def pick(self, options: int, state: Callable[[], Hashable]) -> int:
        """See Strategy."""
        del state
        return min(self._left.pop(0), options - 1) if self._left else 0


def play(cast: str, strategy: Strategy, *, budget: Budget | None = None) -> Scheduler:
    """Play one schedule of a cast and judge it; raise BrokenPromiseError with its choices."""
    chosen = CASTS[cast]
    stage = Stage(chosen.limits)
    scheduler = Scheduler(strategy, budget or chosen.budget, stage.harness.server_clock, stage.state)
    stage.scheduler = scheduler
    with patch.object(heart, "threading", HeartThreads(stage)), _silent():
        judge = chosen.prepare(stage)
        stage.set_up(_SNAPSHOTS, cast)
        scheduler.run()
        if isinstance(strategy, Exhaustive) and not scheduler.violation and strategy.met(scheduler.ended_as()):
            scheduler.pruned = True
        if scheduler.pruned:
            return scheduler
        try:
            _require_whole(scheduler, transient=chosen.transient or scheduler.faults > 0)
            judge()
        except Exception as error:
            text = ".".join(map(str, scheduler.choices))
            steps = "\n  ".join(scheduler.trace)
            raise BrokenPromiseError(
                f"{cast}: {type(error).__name__}: {error}\n  {steps}\n"
                f"again: python -m tests.simulation.interleave --replay {cast} {text or '-'}"
            ) from error
    return scheduler


def _require_whole(scheduler: Scheduler, *, transient: bool) -> None:
    """Raise what went wrong in the middle; `transient`, a store that did not answer was told of to whom it concerns."""
    if scheduler.violation:
        raise AssertionError(scheduler.violation)
    for actor in scheduler.actors:
        if actor.error is not None and not (transient and isinstance(actor.error, TransientError)):
            raise actor.error


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the product from telling of what thousands of schedules do to it."""
    log = logging.getLogger("outbox")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def explore(cast: str, *, budget: Budget | None = None, most: int | None = None, seconds: float = 1e9) -> Report:
    """Play every schedule of a cast within its budget, or the first `most` of them, for so many seconds."""
    strategy, report, began = Exhaustive(), Report(cast), time.monotonic()
    while strategy.waiting and (most is None or report.schedules + report.pruned < most):
        if report.seconds > seconds:
            break
        strategy.begin()
        _count(report, play(cast, strategy, budget=budget), began)
    report.states, report.whole = len(strategy.seen), not strategy.waiting
    return report


def explore_seeds(cast: str, seeds: Sequence[int], *, seconds: float = 1e9) -> Report:
    """Play a cast once for each seed, beyond the bounds of its budget."""
    report, began = Report(cast), time.monotonic()
    for seed in seeds:
        if report.seconds > seconds:
            break
        try:
            _count(report, play(cast, Seeded(seed), budget=CASTS[cast].wide), began)
        except BrokenPromiseError as error:
            raise BrokenPromiseError(f"{error} --wide (seed {seed})") from error
    return report


def _count(report: Report, played: Scheduler, began: float) -> None:
    report.schedules += not played.pruned
    report.pruned += played.pruned
    report.steps += played.steps
    report.seconds = time.monotonic() - began
