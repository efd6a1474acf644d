"""What a tick costs with 100 busy tenants, beside 100,000 idle ones and beside none.

A tick is run in this process, its offers are taken and forgotten; before each, what it leaves behind is undone. Keys
and documents are what the server's queries examined.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Case, Outcome, Table, interleaved
from benchmarks.figures import Spread
from benchmarks.history import fill_idle_tenants
from benchmarks.jobs import BOT
from benchmarks.outbox_stage import SUBSCRIPTION, outbox_stage, tenant_names
from benchmarks.raw_process import SEPARATOR
from outbox_core import Outbox
from outbox_core.ports.hints import NoHints

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.bench import Bench
    from benchmarks.measuring import MongoCounts
    from benchmarks.outbox_stage import OutboxStage
    from outbox_core.ports.slots import Lane

BUSY = 100
DUE_EACH = 10
TICKS = ("drain_tick", "sweep_tick")


class TakingHints(NoHints):
    """Takes every offer, and forgets it."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def drain(self, tenant_id: str, token: str | None = None) -> bool:  # noqa: ARG002 - the port's names
        """Take it."""
        self.taken.add(tenant_id)
        return True

    def slice(self, tenant_id: str, token: str) -> bool:  # noqa: ARG002 - the port's names
        """Take it."""
        self.taken.add(tenant_id)
        return True

    def waiting(self, lane: Lane) -> int:  # noqa: ARG002 - the port's name
        """Return 0: all was taken."""
        return 0


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick took."""

    spent: MongoCounts
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Tenants:
    """A stage with busy tenants, and what they look like before a tick."""

    stage: OutboxStage
    outbox: Outbox
    offers: TakingHints
    cursors: list[dict[str, Any]]

    def tick(self, name: str) -> Tick:
        """Run one tick over all tenants, from the same state each time."""
        database = self.stage.database
        for collection in ("ticks", "tenant_slots"):
            database[collection].delete_many({})
        for cursor in self.cursors:
            database["trigger_cursors"].replace_one({"_id": cursor["_id"]}, cursor)
        self.offers.taken.clear()
        before = self.stage.observer.quiet(0.2)
        begun = time.perf_counter()
        getattr(self.outbox, name)()
        took = time.perf_counter() - begun
        if len(self.offers.taken) != BUSY:
            raise RuntimeError(f"{name} offered {len(self.offers.taken)} tenants, not {BUSY}")
        return Tick(self.stage.observer.counts().since(before), took * 1000)


def run(bench: Bench) -> Outcome:
    """Measure the ticks of both deployments in turn."""
    idle = bench.size(100_000, 10_000)
    figures: dict[str, Any] = {}
    rows = []
    with ExitStack() as stack:
        made = {count: _tenants(bench, stack, count) for count in (0, idle)}
        for name in TICKS:
            for tenants in made.values():
                tenants.tick(name)
            work: list[tuple[str, Callable[[], Tick]]] = [
                (str(count), partial(tenants.tick, name)) for count, tenants in made.items()
            ]
            found = interleaved(bench, work)
            figures[name] = {count: _figures(ticks) for count, ticks in found.items()}
            rows += [_row(name, int(count), figures[name][count]) for count in found]
    totals = [sum(figures[name][str(count)]["commands"] for name in TICKS) for count in (idle, 0)]
    figures["ratio"] = totals[0] / totals[1]
    columns = ("tick", "idle tenants", "busy", "commands", "keys examined", "documents examined", "ms")
    return Outcome(figures, [Table("What a tick costs", columns, rows)])


def _tenants(bench: Bench, stack: ExitStack, idle: int) -> Tenants:
    bench.tell(f"  {idle:,} idle tenants, {BUSY} busy")
    stage = stack.enter_context(outbox_stage(stack.enter_context(bench.folder(f"idle-{idle}"))))
    fill_idle_tenants(stage, idle)
    names = tenant_names(BUSY)
    stage.subscribe(BUSY)
    for tenant in names:
        stage.append(1, DUE_EACH, tenant)
    now = datetime.now(UTC)
    due = {"kind": "launch", "state": "pending", "sub_id": SUBSCRIPTION, "bot_id": BOT, "attempts": 0, "claims": 0}
    rows = [
        {"_id": f"{tenant}{SEPARATOR}due-{at}{SEPARATOR}{SUBSCRIPTION}", "tenant_id": tenant, "not_before": now, **due}
        for tenant in names
        for at in range(DUE_EACH)
    ]
    stage.database["trigger_effects"].insert_many(rows)
    for tenant in names:
        stage.outbox.tenant(tenant).progress.load()
    cursors = list(stage.database["trigger_cursors"].find({"_id": {"$in": names}}))
    offers = TakingHints()
    outbox = Outbox.from_settings(stage.outbox.settings, offers=offers)
    stack.callback(outbox.close)
    return Tenants(stage, outbox, offers, cursors)


def _figures(ticks: list[Tick]) -> dict[str, Any]:
    """Return the medians; counts are the same in every round, unless something else went on."""
    return {
        "commands": Spread.of([float(tick.spent.commands.total()) for tick in ticks]).median,
        "by_name": dict(ticks[0].spent.commands),
        "keys": Spread.of([float(tick.spent.keys) for tick in ticks]).median,
        "documents": Spread.of([float(tick.spent.documents) for tick in ticks]).median,
        "milliseconds": Spread.of([tick.milliseconds for tick in ticks]).document(),
    }


def _row(name: str, idle: int, figures: dict[str, Any]) -> list[str]:
    counts = [f"{figures[what]:,.0f}" for what in ("commands", "keys", "documents")]
    took = Spread.of(figures["milliseconds"]["values"]).text()
    return [name.replace("_", " "), f"{idle:,}", str(BUSY), *counts, took]


CASES = (Case("ticks", "A tick beside 100,000 idle tenants", run),)
