"""What long use costs: jobs beside no done rows, 300,000 and 3,000,000, with their events, runs and journal."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Case, Outcome, Table
from benchmarks.cases.throughput import figures_of
from benchmarks.figures import Spread, ratios
from benchmarks.history import fill_history
from benchmarks.outbox_contestant import OutboxContestant
from benchmarks.rounds import Field

if TYPE_CHECKING:
    from benchmarks.bench import Bench

DONE = (0, 300_000, 3_000_000)
QUICK_DONE = (0, 30_000)
PROCESSES = 2


def run(bench: Bench) -> Outcome:
    """Append to done, claim and drain included, side by side."""
    jobs = bench.size(10_000, 2_000)
    names = {rows: f"{rows:,} done rows" for rows in bench.size(DONE, QUICK_DONE)}
    contestants = [OutboxContestant(name=name, fill=partial(fill_history, rows=rows)) for rows, name in names.items()]
    with Field(bench, contestants, PROCESSES) as deployed:
        deployed.round_robin(0, jobs, {one.name: jobs for one in contestants})
        deployed.check()
        found = {name: figures_of(one) for name, one in deployed.running.items()}
        failed = deployed.failed
    none = found[names[0]]
    rows = []
    for name, one in found.items():
        one["longer"] = ratios(none["rate"]["values"], one["rate"]["values"]).document()
        both = ratios(*([_cpu(each) for each in (one, none)]))
        one["more_cpu"] = both.document()
        spreads = (one["rate"], one["longer"], one["more_cpu"], one["commands"])
        rows.append([name, *(Spread.of(each["values"]).text() for each in spreads)])
    figures: dict[str, Any] = {**found, "failed": failed, "ratio": found[names[max(names)]]["longer"]}
    columns = ("", "jobs/s", "so many times as long as with none", "so many times its CPU", "commands a job")
    return Outcome(figures, [Table("Done rows that lie there already", columns, rows)])


def _cpu(figures: dict[str, Any]) -> list[float]:
    pairs = zip(figures["server_cpu"]["values"], figures["client_cpu"]["values"], strict=True)
    return [server + client for server, client in pairs]


CASES = (Case("history", "Claim and drain beside a long history", run),)
