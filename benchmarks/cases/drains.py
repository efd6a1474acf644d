"""What many subscriptions cost: the drain as a whole against 1, 10 and 1,000, and the matching by itself."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Case, Outcome, Table, interleaved
from benchmarks.cases.throughput import figures_of
from benchmarks.figures import Spread, ratios
from benchmarks.outbox_contestant import OutboxContestant
from benchmarks.outbox_stage import outbox_stage
from benchmarks.rounds import Field
from outbox_core.application.decide_batch import decide_batch
from outbox_core.domain.limits import Limits

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.outbox_stage import OutboxStage

RULES = (1, 10, 1_000)
PROCESSES = 2


def run(bench: Bench) -> Outcome:
    """Append to done with so many subscriptions, of which each event matches one; the rounds add up to the events."""
    jobs = bench.size(100_000, 10_000) // bench.rounds
    contestants = [OutboxContestant(name=f"{rules:,} subscription{'s' * (rules > 1)}", rules=rules) for rules in RULES]
    with Field(bench, contestants, PROCESSES) as deployed:
        deployed.round_robin(0, jobs, {one.name: jobs for one in contestants})
        deployed.check()
        found = {name: figures_of(one) for name, one in deployed.running.items()}
        failed = deployed.failed
    columns = ("", "events/s", "so many times as long as with 10", "CPU ms an event: servers", "workers", "commands")
    figures: dict[str, Any] = {**found, "failed": failed}
    ten = found[contestants[1].name]
    rows = []
    for name, one in found.items():
        one["longer"] = ratios(ten["rate"]["values"], one["rate"]["values"]).document()
        spreads = [one["rate"], one["longer"], *(_times(one[what], 1000) for what in ("server_cpu", "client_cpu"))]
        rows.append([name, *(Spread.of(each["values"]).text() for each in (*spreads, one["commands"]))])
    figures["ratio"] = found[contestants[2].name]["longer"]
    return Outcome(figures, [Table(f"Drain of {jobs * bench.rounds:,} events, and their effects", columns, rows)])


def _times(spread: dict[str, Any], factor: float) -> dict[str, Any]:
    return {"values": [value * factor for value in spread["values"]]}


def match_alone(bench: Bench) -> Outcome:
    """Decide batches of events against rules on a real store, in this process: CPU of reading rules and of matching."""
    batches = bench.size(50, 10)
    with bench.folder("matching") as folder, outbox_stage(folder) as stage:
        work = []
        for rules in RULES[1:]:
            tenant = f"rules-{rules}"
            stage.subscribe(names=[tenant], rules=rules)
            stage.append(1, Limits().event_batch, tenant, rules)
            work.append((str(rules), partial(_decide, stage, tenant, batches)))
        for _, decide in work:
            decide()
        found = interleaved(bench, work)
    few, many = (found[str(rules)] for rules in RULES[1:])
    ratio = ratios(many, few)
    rows = [[f"{rules:,}", Spread.of(found[str(rules)]).text()] for rules in RULES[1:]]
    table = Table("Matching alone", ("subscriptions", "CPU µs an event"), rows, f"Ratio: {ratio.text()}")
    each = {rules: Spread.of(values).document() for rules, values in found.items()}
    return Outcome({**each, "ratio": ratio.document()}, [table])


def _decide(stage: OutboxStage, tenant: str, batches: int) -> float:
    """Return the microseconds of CPU that this process used for each event."""
    store, runtime = stage.outbox.tenant(tenant), stage.outbox.runtime
    cursor = store.progress.load()
    entries = store.log.read_after(0, runtime.limits.event_batch)
    begun = time.process_time()
    for _ in range(batches):
        batch = decide_batch(store, runtime, cursor, entries, {})
        if len(batch.rows) != len(entries):
            raise RuntimeError(f"{len(batch.rows)} rows for {len(entries)} events that match one rule each")
    return (time.process_time() - begun) / batches / len(entries) * 1e6


CASES = (
    Case("drains", "Drain against 1, 10 and 1,000 subscriptions", run),
    Case("matching", "Matching 1,000 subscriptions against 10", match_alone),
)
