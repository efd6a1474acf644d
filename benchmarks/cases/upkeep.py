"""The start of a worker, its memory over 200,000 effects, and what a kill of it costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.bench import Case, Outcome, Table, interleaved
from benchmarks.contestant import Ledger
from benchmarks.figures import Spread, number, ratios
from benchmarks.measuring import cpu_seconds
from benchmarks.outbox_contestant import OutboxContestant, OutboxDeployment
from benchmarks.outbox_stage import outbox_stage
from benchmarks.rounds import Field, Running, Tally
from outbox_core.cli import programs

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.bench import Bench
    from benchmarks.outbox_stage import OutboxStage

PROCESSES = 2
BARE = ("-A", "benchmarks.bare_celery", "worker", "--loglevel=INFO", f"--concurrency={PROCESSES}")
MEGABYTE = 2**20

QUICK_LIMITS = {"op_timeout": "2s", "effect_lease": "15s", "slot_hold": "5s", "claim_batch": "200"}
"""A quick run does not wait a whole minute for a lease to end."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a worker."""

    seconds: float
    cpu: float


def start_up(bench: Bench) -> Outcome:
    """Start a worker until it is ready, in turn with a bare Celery worker on the same broker."""
    with bench.folder("start") as folder, outbox_stage(folder) as stage:
        ways: dict[str, tuple[str, ...]] = {"outbox": programs.worker(PROCESSES), "bare Celery": BARE}
        work: list[tuple[str, Callable[[], Start]]] = [
            (name, partial(_start, stage, argv)) for name, argv in ways.items()
        ]
        for _, step in bench.size(work, []):
            step()
        found = interleaved(bench, work)
    figures: dict[str, Any] = {
        name: {
            "seconds": Spread.of([one.seconds for one in starts]).document(),
            "cpu": Spread.of([one.cpu for one in starts]).document(),
        }
        for name, starts in found.items()
    }
    ours, bare = (figures[name]["seconds"]["values"] for name in ways)
    figures["ratio"] = ratios(ours, bare).document()
    rows = [[name, *(Spread.of(figures[name][what]["values"]).text() for what in ("seconds", "cpu"))] for name in ways]
    note = f"Ratio: {ratios(ours, bare).text()}"
    title = f"Start of a worker of {PROCESSES} processes, until it says that it is ready"
    return Outcome(figures, [Table(title, ("", "seconds", "CPU seconds"), rows, note)])


def _start(stage: OutboxStage, argv: tuple[str, ...]) -> Start:
    begun = time.perf_counter()
    process = stage.start_program("worker", argv, " ready.")
    took = time.perf_counter() - begun
    cpu = cpu_seconds([process.pid])
    process.stop()
    stage.forget(process)
    return Start(took, cpu)


def memory(bench: Bench) -> Outcome:
    """Weigh a worker before, in the middle of and after many effects."""
    half = bench.size(100_000, 5_000)
    rows, figures = [], dict[str, Any]()
    with Field(bench, [OutboxContestant(name="outbox")], PROCESSES) as deployed:
        one = deployed.running["outbox"]
        one.measure(1_000, ())
        for done in (0, half, 2 * half):
            if done:
                one.measure(half, ())
                bench.tell(f"  {done:,} effects")
            rss, own = _weight(one)
            figures[str(done)] = {"rss": rss, "own": own}
            rows.append([f"{done:,}", number(rss), number(own)])
        deployed.check()
        if deployed.failed:
            raise RuntimeError(deployed.failed["outbox"])
    figures["growth_of_last_half"] = figures[str(2 * half)]["own"] / figures[str(half)]["own"]
    columns = ("effects done", "resident, MB", "of which its own, MB")
    return Outcome(figures, [Table(f"Memory of a worker of {PROCESSES} processes and its parent", columns, rows)])


def _weight(one: Running) -> tuple[float, float]:
    """Return the megabytes of the worker and its children: resident, and those that no other process shares."""
    worker = psutil.Process(one.deployment.clients[0])
    weights = [process.memory_full_info() for process in (worker, *worker.children(recursive=True))]
    return sum(one.rss for one in weights) / MEGABYTE, sum(one.uss for one in weights) / MEGABYTE


def recovery(bench: Bench) -> Outcome:
    """Kill a worker with -9 in the middle of 10,000 rows, start another, and wait until all are done."""
    found = []
    for at in range(bench.size(2, 1)):
        found.append(_killed(bench, bench.size(10_000, 4_000)))
        bench.tell(f"  kill {at + 1}: {found[-1]['done']:.1f} s")
    figures: dict[str, Any] = {
        what: Spread.of([float(one[what]) for one in found]).document()
        for what in ("ready", "resumed", "all_but_claimed", "done", "again", "claimed")
    }
    said = ", ".join(f"{name} {value}" for name, value in QUICK_LIMITS.items()) if bench.quick else "the defaults"
    rows = [[Spread.of(figures[what]["values"]).text() for what in figures]]
    columns = (
        "seconds after the kill: new worker ready",
        "first job of it",
        "all but what was claimed",
        "all done",
        "jobs that ran again",
        "rows that the dead worker held",
    )
    return Outcome(figures, [Table(f"Recovery of a killed worker's rows; limits: {said}", columns, rows)])


def _killed(bench: Bench, jobs: int) -> dict[str, float]:
    limits = QUICK_LIMITS if bench.quick else {}
    contestant = OutboxContestant(name="outbox", limits=limits)
    with bench.folder("recovery") as folder, contestant.deploy(folder, bench.cache, PROCESSES) as deployment:
        one = Running("outbox", deployment, folder, Tally(folder / "ledger"))
        one.measure(200, ())
        one.enqueue(jobs)
        ran_before = one.tally.look()
        while one.tally.look() < ran_before + jobs // 4:
            time.sleep(0.01)
        stage = deployment.stage
        worker = next(process for process in stage.running if process.name == "worker")
        claimed = _halted_with_claims(stage, worker.pid)
        worker.kill()
        killed = time.time()
        stage.forget(worker)
        last = one.tally.look()
        stage.start_worker(PROCESSES)
        ready = time.time() - killed
        one.await_done(stalled_s=LONGEST_S)
        done = time.time() - killed
        ledger = Ledger(folder / "ledger").read()
        missing = one.enqueued - len(ledger.counts)
        if missing or not isinstance(deployment, OutboxDeployment):
            raise RuntimeError(f"{missing} jobs never ran")
        starts = sorted(start - killed for start in ledger.starts.values() if start > killed)
        again = ledger.counts.total() - len(ledger.counts)
        unclaimed = max(0, len(starts) - claimed - 1)
        return {
            "ready": ready,
            "resumed": starts[0],
            "all_but_claimed": starts[unclaimed] if last < one.enqueued else starts[-1],
            "done": done,
            "again": float(again),
            "claimed": float(claimed),
        }


def _halted_with_claims(stage: OutboxStage, pid: int) -> int:
    """Halt a worker, all its processes, at a moment when it holds claims; return how many rows it holds."""
    root = psutil.Process(pid)
    give_up = time.monotonic() + LONGEST_S
    while time.monotonic() < give_up:
        halted = [root, *root.children(recursive=True)]
        for process in halted:
            process.suspend()
        # What it had sent already is still carried out.
        time.sleep(SENT_S)
        if claimed := stage.count(["claimed"]):
            return claimed
        for process in halted:
            process.resume()
        time.sleep(0.01)
    raise TimeoutError("the worker was never seen to hold a claim")


SENT_S = 0.2
LONGEST_S = 180.0
"""No lease and no slot of a dead worker is held for longer."""

CASES = (
    Case("startup", "Start of a worker", start_up),
    Case("memory", "Memory over many effects", memory),
    Case("recovery", "Recovery after a kill", recovery),
)
