"""How many MongoDB commands an effect costs, from its append to its settling: exact on any machine.

A worker of one process and no beat, so that nothing but the jobs is counted. A lone effect is appended with a hint, and
counted when MongoDB is left alone again. Full batches: the log is filled first, without hints; then one hint.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.bench import Case, Outcome, Table
from benchmarks.figures import number
from benchmarks.outbox_contestant import OutboxContestant, OutboxDeployment
from benchmarks.outbox_stage import tenant_names
from benchmarks.rounds import Running, Tally

if TYPE_CHECKING:
    from benchmarks.bench import Bench

LONE = 5


def run(bench: Bench) -> Outcome:
    """Count."""
    with bench.folder("commands") as folder:
        contestant = OutboxContestant(name="outbox", beat=False)
        with contestant.deploy(folder, bench.cache, processes=1) as deployment:
            one = Running("outbox", deployment, folder, Tally(folder / "ledger"))
            return counted(one, deployment, bench.size(10_000, 2_000))


def counted(one: Running, deployment: OutboxDeployment, full: int, times: int = LONE) -> Outcome:
    """Return what a lone effect costs, looked at so many times, and one of many."""
    one.enqueue(1)
    one.await_done()
    counts = [deployment.mongo.quiet().commands]
    for jobs in (*[1] * times, full):
        _put_in(one, deployment, jobs)
        counts.append(deployment.mongo.quiet().commands)
    *alone, many = [after - before for before, after in pairwise(counts)]
    usual = Counter(tuple(sorted(spent.items())) for spent in alone).most_common(1)[0][0]
    lone = dict(usual)
    each = {name: times / full for name, times in many.most_common()}
    figures = {
        "lone": {"total": sum(lone.values()), "by_name": lone, "totals": [spent.total() for spent in alone]},
        "full": {"total": many.total() / full, "by_name": each, "jobs": full},
    }
    names = sorted({*lone, *each}, key=lambda name: -lone.get(name, 0))
    rows = [[name, str(lone.get(name, 0)), number(each.get(name, 0.0) * 200)] for name in names]
    rows.append(["all", str(sum(lone.values())), number(many.total() / full * 200)])
    columns = ("command", "a lone effect", f"200 effects of {full:,} in full batches")
    return Outcome(figures, [Table("MongoDB commands, from append to done", columns, rows)])


def _put_in(one: Running, deployment: OutboxDeployment, jobs: int) -> None:
    if jobs == 1:
        one.enqueue(1)
    else:
        deployment.stage.append(one.skip(jobs), jobs)
        deployment.appender.hint(tenant_names(1)[0])
    one.await_done()


CASES = (Case("commands", "MongoDB commands per effect", run),)
