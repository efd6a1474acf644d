"""How long a lone job takes, from the moment it is durable to the start of its bot, and to done.

Sample by sample in turn, the outbox with hints and Celery's plain publish, each on an idle deployment; then at half
load, where jobs go in every 50 ms at half the pace that the same deployment showed just before, and one more in the
middle of the pause is looked at. By ticks alone there are no hints: beat's ticks find the event, and then its row.

A job is durable when the call that puts it in has returned, in the process that makes it: the append's commit, the
publish's answer. A worker may begin before that answer is heard, then nothing is counted; a message is often taken
before its sender knows that it was sent. So the ratio is from the outbox's commit to the start of its bot, over
Celery's publish, from the call on, to the start of its task. The same with both from the call on is told beside it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Case, Outcome, Table
from benchmarks.contestant import Ledger
from benchmarks.contestants import known
from benchmarks.figures import Spread, number, percentile, ratios
from benchmarks.jobs import PREFIX
from benchmarks.outbox_contestant import OutboxDeployment
from benchmarks.rounds import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.bench import Bench
    from benchmarks.peers.peer import Published
    from benchmarks.rounds import Running

OURS, TICKS, PEERS = "outbox", "outbox-ticks", "celery-redis"
PROCESSES = 2
PAUSE_S = 0.05
WARM = 20


@dataclass(slots=True)
class Sample:
    """One job: when it was put in, when it was durable; seconds of the system's clock."""

    number: int
    called: float
    returned: float


@dataclass(slots=True)
class Times:
    """What the samples of one contestant came to, round by round, in milliseconds."""

    from_commit: list[list[float]] = field(default_factory=list)
    from_call: list[list[float]] = field(default_factory=list)
    to_done: list[list[float]] = field(default_factory=list)
    load: list[float] = field(default_factory=list)

    def all(self, what: str) -> list[float]:
        """Return the samples of all rounds."""
        return [value for values in getattr(self, what) for value in values]


def run(bench: Bench) -> Outcome:
    """Measure idle, at half load, and by ticks alone."""
    everyone, _ = known()
    names = [name for name in bench.contestants if name in {OURS, TICKS} or name.startswith(PEERS)]
    with Field(bench, [everyone[name] for name in names], PROCESSES) as contestants:
        for name in names:
            contestants.guarded(name, lambda one: one.measure(WARM, ()))
        idle = _idle(bench, contestants)
        half = _half_load(bench, contestants)
        contestants.check()
        failed = contestants.failed
    figures: dict[str, Any] = {"failed": failed}
    tables = []
    for key, found, title in (("idle", idle, "idle"), ("half", half, "half load")):
        figures[key] = _figures(found)
        tables.append(_table(title, figures[key]))
    return Outcome(figures, tables)


def _idle(bench: Bench, contestants: Field) -> dict[str, Times]:
    times = {name: Times() for name in contestants.running}
    for number_of_round in range(bench.rounds):
        samples: dict[str, list[Sample]] = {name: [] for name in contestants.running}
        ticked = bench.size(2, 1)
        for at in range(bench.size(40, 10)):
            for name in list(contestants.running):
                # A tick may take seconds.
                if name != TICKS or at < ticked:
                    contestants.guarded(name, partial(_alone, samples[name]))
        for name, one in contestants.running.items():
            _note(times[name], one, samples[name])
        bench.tell(f"  idle, round {number_of_round + 1} of {bench.rounds}")
    return {name: times[name] for name in contestants.running}


def _half_load(bench: Bench, contestants: Field) -> dict[str, Times]:
    times = {name: Times() for name in contestants.running if name != TICKS}
    paces: dict[str, float] = {}
    for name in times:
        contestants.guarded(name, partial(_pace, bench.size(2_000, 500), paces))
    for number_of_round in range(bench.rounds):
        for name, into in times.items():
            contestants.guarded(name, partial(_loaded, paces.get(name, 0.0) / 2, bench.size(3.0, 1.5), into))
        bench.tell(f"  half load, round {number_of_round + 1} of {bench.rounds}")
    return {name: found for name, found in times.items() if name in contestants.running}


def _alone(into: list[Sample], one: Running) -> None:
    into.append(_put_in(one))
    one.await_done()


def _pace(jobs: int, into: dict[str, float], one: Running) -> None:
    into[one.name] = one.measure(jobs, ()).rate


def _put_in(one: Running) -> Sample:
    """Put one in; the process that does it says when it began and when it had its answer."""
    number_of_job = one.skip(1)
    published: Published = one.deployment.publish(number_of_job)  # type: ignore[attr-defined]  # who is in this case has it
    return Sample(number_of_job, published.began, published.returned)


def _loaded(rate: float, seconds: float, into: Times, one: Running) -> None:
    """Put jobs in at a steady rate, and a lone one in the middle of each pause."""
    samples, background = [], 0
    begun = time.monotonic()
    turn = 0
    while time.monotonic() - begun < seconds:
        turn += 1
        due = int(rate * PAUSE_S * turn) - background
        if due > 0:
            one.enqueue(due)
            background += due
        time.sleep(max(0.0, begun + PAUSE_S * (turn - 0.5) - time.monotonic()))
        samples.append(_put_in(one))
        time.sleep(max(0.0, begun + PAUSE_S * turn - time.monotonic()))
    took = time.monotonic() - begun
    one.await_done()
    into.load.append((background + len(samples)) / took / (2 * rate))
    _note(into, one, samples)


def _note(times: Times, one: Running, samples: Sequence[Sample]) -> None:
    """Look the starts up, and where the store says so the ends."""
    if not samples:
        return
    starts = Ledger(one.folder / "ledger").read().starts
    times.from_commit.append([max(0.0, starts[sample.number] - sample.returned) * 1000 for sample in samples])
    times.from_call.append([(starts[sample.number] - sample.called) * 1000 for sample in samples])
    if isinstance(one.deployment, OutboxDeployment):
        ids = {f"{PREFIX}{sample.number}": sample.returned for sample in samples}
        rows = one.deployment.stage.database["trigger_effects"].find({"event_id": {"$in": list(ids)}})
        done = [(row["done_at"].timestamp() - ids[row["event_id"]]) * 1000 for row in rows]
        times.to_done.append([max(0.0, took) for took in done])


def _figures(found: dict[str, Times]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, times in found.items():
        if not times.from_commit:
            continue
        figures[name] = {
            what: {
                "median": Spread.of([percentile(values, 0.5) for values in getattr(times, what)]).document(),
                "p99": percentile(times.all(what), 0.99),
                "samples": len(times.all(what)),
            }
            for what in ("from_commit", "from_call", "to_done")
            if getattr(times, what)
        }
        if times.load:
            figures[name]["load"] = Spread.of(times.load).document()
    peers = [name for name in figures if name.startswith(PEERS)]
    if OURS in figures and peers:
        best = min(peers, key=lambda name: figures[name]["from_call"]["median"]["median"])
        theirs = figures[best]["from_call"]
        for what, key in (("from_commit", "ratio"), ("from_call", "ratio_from_call")):
            ours = figures[OURS][what]
            figures[key] = {
                "against": best,
                **ratios(ours["median"]["values"], theirs["median"]["values"]).document(),
                "p99": ours["p99"] / theirs["p99"],
            }
    return figures


def _table(title: str, figures: dict[str, Any]) -> Table:
    rows = []
    for name, found in figures.items():
        if "from_commit" not in found:
            continue
        cells = [name]
        for what in ("from_commit", "from_call", "to_done"):
            if what in found:
                middle = found[what]["median"]
                cells += [Spread.of(middle["values"]).text(), number(found[what]["p99"])]
            else:
                cells += ["", ""]
        load = f"{number(found['load']['median'] * 100, 2)} %" if "load" in found else ""
        rows.append([*cells, str(found["from_commit"]["samples"]), load])
    columns = ("contestant", "durable to start, ms", "p99", "call to start, ms", "p99", "durable to done, ms", "p99")
    note = ""
    if "ratio" in figures:
        ratio = figures["ratio"]
        called = figures["ratio_from_call"]
        note = (
            f"The outbox's commit to start, over {ratio['against']}'s call to start:"
            f" {Spread.of(ratio['values']).text()} at the median, {number(ratio['p99'])} at p99;"
            f" call to start over call to start:"
            f" {Spread.of(called['values']).text()}, {number(called['p99'])}."
        )
    return Table(f"Latency of a lone job, {title}", (*columns, "samples", "load"), rows, note)


CASES = (Case("latency", "Latency of a lone job", run),)
