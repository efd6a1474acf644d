"""How many jobs a second, from the first append to the last that is done, at 1, 2 and 4 worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.bench import Case, Outcome, Table
from benchmarks.contestants import known
from benchmarks.figures import Spread, number, ratios
from benchmarks.rounds import Field

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.rounds import Round, Running

OURS = "outbox"
HUNDRED = "outbox-100-tenants"
PROCESSES = (2, 1, 4)
LEFT_OUT = frozenset({"outbox-ticks"})
"""Who is no other queue, and for throughput no other figure."""

NOT_QUICK = frozenset({HUNDRED, "raw-born-claimed"})
SCALED = ("outbox", "raw", "celery-redis-always", "pgqueuer", "graphile-worker")
"""How the names begin of those who are measured at other numbers of processes than two, too."""

COLUMNS = (
    "contestant",
    "jobs/s",
    "outbox is so many times it",
    "appended after",
    "CPU ms a job: servers",
    "workers and application",
    "commands a job",
    "write conflicts",
)


def run(bench: Bench) -> Outcome:
    """Measure everybody at 2 processes, and at 1 and 4 as well where the run is whole."""
    figures: dict[str, Any] = {}
    tables = []
    for processes in bench.size(PROCESSES, PROCESSES[:1]):
        bench.tell(f"{processes} worker processes")
        found, table = _at(bench, processes)
        figures[str(processes)] = found
        tables.append(table)
    return Outcome(figures, tables)


def _at(bench: Bench, processes: int) -> tuple[dict[str, Any], Table]:
    everyone, _ = known()
    left_out = bench.size(LEFT_OUT, LEFT_OUT | NOT_QUICK)
    names = [name for name in bench.contestants if name not in left_out]
    main = processes == PROCESSES[0]
    chosen = [everyone[name] for name in names if main or name.startswith(SCALED)]
    most = bench.size(20_000, 4_000)
    with Field(bench, chosen, processes) as contestants:
        contestants.round_robin(bench.size(2.0 if main else 1.0, 0.7), most, {HUNDRED: most // 2})
        contestants.check()
        found = {name: figures_of(one) for name, one in contestants.running.items() if one.rounds}
        failed = dict(contestants.failed)
    mine = found.get(OURS, {}).get("rate", {}).get("values")
    for figures in found.values():
        if mine:
            figures["ratio"] = ratios(mine, figures["rate"]["values"]).document()
    rows = [_row(name, figures) for name, figures in sorted(found.items(), key=lambda item: -item[1]["rate"]["median"])]
    rows += [[name, f"failed: {reason}", "", "", "", "", "", ""] for name, reason in failed.items()]
    title = f"Append to done, {processes} worker process{'es' if processes > 1 else ''}"
    return {**found, "failed": failed}, Table(title, COLUMNS, rows)


def figures_of(one: Running) -> dict[str, Any]:
    """Return what the rounds of a contestant came to."""
    rounds = one.rounds

    def each(what: str) -> dict[str, Any]:
        return Spread.of([getattr(found, what) / found.jobs for found in rounds]).document()

    return {
        "rate": Spread.of([found.rate for found in rounds]).document(),
        "jobs": rounds[0].jobs,
        "enqueued_share": Spread.of([found.enqueued_after / found.seconds for found in rounds]).document(),
        "server_cpu": each("server_cpu"),
        "client_cpu": each("client_cpu"),
        "others_cpu": Spread.of([found.others_cpu / found.seconds for found in rounds]).document(),
        **_of_mongo(rounds),
    }


def _of_mongo(rounds: list[Round]) -> dict[str, Any]:
    commands = [found.commands / found.jobs for found in rounds if found.commands is not None]
    conflicts = [float(found.conflicts) for found in rounds if found.conflicts is not None]
    if not commands:
        return {}
    return {"commands": Spread.of(commands).document(), "conflicts": Spread.of(conflicts).document()}


def _row(name: str, figures: dict[str, Any]) -> list[str]:
    def spread(what: str, times: float = 1.0) -> str:
        found = figures.get(what)
        return Spread.of([value * times for value in found["values"]]).text() if found else ""

    return [
        name,
        spread("rate"),
        spread("ratio") if name != OURS else "1",
        f"{number(figures['enqueued_share']['median'] * 100, 2)} % of the time",
        spread("server_cpu", 1000),
        spread("client_cpu", 1000),
        spread("commands"),
        spread("conflicts"),
    ]


CASES = (Case("throughput", "Throughput, append to done", run),)
