"""Exploring the schedules of a cast: all of them within its budget, or as many as asked for by seed."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest.mock import patch

from outbox_core.application import heart, lease_heart, observe_lifecycle
from outbox_core.domain.errors import TransientError
from tests.simulation.interleave import casts, consumer_casts
from tests.simulation.interleave.cast import CASTS
from tests.simulation.interleave.scheduler import Pruned, Scheduler
from tests.simulation.interleave.stage import HeartThreads, Snapshot, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from tests.simulation.interleave.scheduler import Budget, Strategy


if not CASTS:
    raise AssertionError(f"{casts.__name__} and {consumer_casts.__name__} register nothing")

_SNAPSHOTS: dict[str, Snapshot] = {}


class BrokenPromiseError(AssertionError):
    """A schedule after which something does not hold, and how to play it again."""


@dataclass(slots=True)
class Report:
    """What an exploration came to: all schedules of at most `turns` turns, or, `whole`, all within the budget."""

    cast: str
    schedules: int = 0
    pruned: int = 0
    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    turns: int | None = None
    whole: bool = False

    def __str__(self) -> str:
        rate = self.steps / self.seconds if self.seconds else 0.0
        extent = "all" if self.whole else "by seed" if self.turns is None else f"all of {self.turns} turns"
        return (
            f"{self.cast}: {extent}, {self.schedules} schedules to their end, {self.pruned} that met a known state, "
            f"{self.states} states, {self.steps} steps in {self.seconds:.1f} s ({rate:.0f}/s)"
        )


class Exhaustive:
    """All schedules, by how many of their choices are not the first option; no state is explored twice.

    A state is met first with the fewest such turns, so what was left out for it had no more of them to spend: once a
    level is through, every schedule of that many turns is covered.
    """

    def __init__(self) -> None:
        self.seen: set[Hashable] = set()
        self._waiting: list[deque[tuple[int, ...]]] = [deque([()])]
        self._level = 0
        self._prefix: tuple[int, ...] = ()
        self._taken: list[int] = []

    @property
    def through(self) -> int | None:
        """The most turns of which every schedule is covered; None where that is every schedule."""
        return next((level - 1 for level, waiting in enumerate(self._waiting) if waiting), None)

    def begin(self) -> None:
        """Begin the next schedule."""
        self._level = next(level for level, waiting in enumerate(self._waiting) if waiting)
        if self._level + 1 == len(self._waiting):
            self._waiting.append(deque())
        self._prefix, self._taken = self._waiting[self._level].popleft(), []

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
            if self.met(state()):
                raise Pruned
            taken = tuple(self._taken)
            self._waiting[self._level + 1].extend((*taken, other) for other in range(1, options))
        self._taken.append(chosen)
        return chosen


class Seeded:
    """Chance: a seed draws how restless its schedule is, then each choice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a schedule, no secret
        self._restless = self._random.choice((0.05, 0.15, 0.4))

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
    threads = HeartThreads(stage)
    with (
        patch.object(heart, "threading", threads),
        patch.object(lease_heart, "threading", threads),
        patch.object(observe_lifecycle, "threading", threads),
        _silent(),
    ):
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
    while strategy.through is not None and (most is None or report.schedules + report.pruned < most):
        if report.seconds > seconds:
            break
        strategy.begin()
        _count(report, play(cast, strategy, budget=budget), began)
    report.states, report.turns, report.whole = len(strategy.seen), strategy.through, strategy.through is None
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
