"""Whether one tenant with 100,000 due effects holds up 99 tenants with 10 each.

Two deployments in turn: one whose first tenant is filled up to 100,000 before each burst, one whose first tenant has
nothing. A burst appends 10 jobs for each of the 99, with hints, and ends when all of them have run.

Wait: from the moment a small tenant's ten events are durable to the start of the last of its ten bots. Jain's index is
over what share of its due effects each of the 100 tenants has had run by the moment when a tenth of all due effects
have run, counted from the burst on. Where the large one runs first it is about 1/100; where all are served in turn the
small ones are through by then, and it is 0.99.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Case, Outcome, Table
from benchmarks.contestant import Ledger
from benchmarks.figures import Spread, jain, percentile, ratios
from benchmarks.outbox_contestant import OutboxContestant, OutboxDeployment
from benchmarks.outbox_stage import tenant_names
from benchmarks.rounds import Field

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from benchmarks.bench import Bench
    from benchmarks.rounds import Running

TENANTS, QUICK_TENANTS = 100, 30
LARGE, QUICK_LARGE = 100_000, 10_000
SMALL_JOBS = 10
WINDOWS = (0.02, 0.05, 0.1)
"""After which part of all due effects is looked; the last is the index that is told."""

PROCESSES = 2
BESIDE, ALONE = "beside the large tenant", "without it"
_WITHIN_S = 120.0


@dataclass(slots=True)
class Burst:
    """Ten jobs for each small tenant: their numbers, and when they were durable."""

    began: float
    durable: dict[str, float] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    def numbers(self, tenant: str) -> range:
        """Return a tenant's jobs."""
        return range(self.first[tenant], self.first[tenant] + SMALL_JOBS)


def run(bench: Bench) -> Outcome:
    """Measure bursts beside the large tenant and without it, in turn."""
    large = bench.size(LARGE, QUICK_LARGE)
    tenants = bench.size(TENANTS, QUICK_TENANTS)
    contestants = [OutboxContestant(name=name, tenants=tenants) for name in (BESIDE, ALONE)]
    bursts: dict[str, list[Burst]] = {BESIDE: [], ALONE: []}
    with Field(bench, contestants, PROCESSES) as deployed:
        for name in bursts:
            deployed.guarded(name, lambda one: one.measure(tenants, ()))
        for number_of_round in range(bench.rounds):
            for name, into in bursts.items():
                size = large if name == BESIDE else 0
                deployed.guarded(name, partial(_burst, tenants, size, into))
            bench.tell(f"  round {number_of_round + 1} of {bench.rounds}")
        if deployed.failed:
            raise RuntimeError("; ".join(f"{name}: {reason}" for name, reason in deployed.failed.items()))
        starts = {name: Ledger(one.folder / "ledger").read().starts for name, one in deployed.running.items()}
    waits = {name: [_waits(burst, starts[name]) for burst in each] for name, each in bursts.items()}
    others = {number for burst in bursts[BESIDE] for tenant in burst.first for number in burst.numbers(tenant)}
    indexes = {
        str(part): [_index(burst, large, starts[BESIDE], others, part) for burst in bursts[BESIDE]] for part in WINDOWS
    }
    return _outcome(f"One tenant with {large:,} due, {tenants - 1} with {SMALL_JOBS} each", waits, indexes)


def _outcome(title: str, waits: dict[str, list[list[float]]], indexes: dict[str, list[float]]) -> Outcome:
    figures: dict[str, Any] = {"jain": Spread.of(indexes[str(WINDOWS[-1])]).document()}
    figures["jain_by_window"] = {part: Spread.of(values).document() for part, values in indexes.items()}
    rows = []
    for name, rounds in waits.items():
        middle = Spread.of([percentile(values, 0.5) for values in rounds])
        worst = Spread.of([percentile(values, 0.99) for values in rounds])
        figures[name] = {"median": middle.document(), "p99": worst.document()}
        rows.append([name, middle.text(), worst.text()])
    slower = ratios(figures[BESIDE]["p99"]["values"], figures[ALONE]["p99"]["values"])
    figures["slower"] = slower.document()
    note = f"The small ones' p99 beside the large tenant is {slower.text()} times that without it. Jain's index, "
    note += ", ".join(
        f"after {float(part):.0%} of all due effects: {Spread.of(values).text()}" for part, values in indexes.items()
    )
    columns = ("the small ones", "wait for their last bot, s: median", "p99")
    return Outcome(figures, [Table(title, columns, rows, note)])


def _burst(tenants: int, large: int, into: list[Burst], one: Running) -> None:
    deployment = one.deployment
    if not isinstance(deployment, OutboxDeployment):
        raise TypeError("bursts are the outbox's own")
    big, *small = tenant_names(tenants)
    waiting = one.enqueued - one.tally.look()
    if large > waiting:
        deployment.stage.append(one.skip(large - waiting), large - waiting, big)
        deployment.appender.hint(big)
    burst = Burst(time.time())
    for tenant in small:
        burst.first[tenant] = one.skip(SMALL_JOBS)
        deployment.appender.append(burst.first[tenant], SMALL_JOBS, tenant)
        burst.durable[tenant] = time.time()
    wanted = {number for tenant in small for number in burst.numbers(tenant)}
    give_up = time.monotonic() + _WITHIN_S
    while missing := wanted - Ledger(one.folder / "ledger").read().counts.keys():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{len(missing)} jobs of small tenants have not run after {_WITHIN_S:g} s")
        time.sleep(0.2)
    into.append(burst)


def _waits(burst: Burst, starts: Mapping[int, float]) -> list[float]:
    """Return each small tenant's seconds from its events' commit to the start of its last bot."""
    return [
        max(0.0, max(starts[number] for number in burst.numbers(tenant)) - durable)
        for tenant, durable in burst.durable.items()
    ]


def _index(burst: Burst, large: int, starts: Mapping[int, float], others: Collection[int], part: float) -> float:
    """Return Jain's index when a part of all due effects has run; `others` are the small tenants' of any burst."""
    owners = {number: tenant for tenant in burst.first for number in burst.numbers(tenant)}
    due = {"": large, **dict.fromkeys(burst.first, SMALL_JOBS)}
    mine = ((start, number) for number, start in starts.items() if number in owners or number not in others)
    ran = sorted((start, number) for start, number in mine if start >= burst.began)
    window = ran[: int(part * sum(due.values()))]
    got = Counter(owners.get(number, "") for _, number in window)
    return jain([got[tenant] / wanted for tenant, wanted in due.items()])


CASES = (Case("fairness", "One large tenant beside 99 small ones", run),)
