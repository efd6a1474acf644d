"""What the outbox has set itself, and whether it was met: computed from the figures of the cases."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - a field's type
from dataclasses import dataclass
from typing import Any

from benchmarks.bench import Table
from benchmarks.figures import number


@dataclass(frozen=True, slots=True)
class Target:
    """A goal: what is looked at, what it should be, and how it is found in the figures of all cases."""

    what: str
    at_least: float | None
    at_most: float | None
    find: Callable[[dict[str, Any]], float]

    @property
    def goal(self) -> str:
        """The goal in words."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return f"at most {self.at_most:g}"

    def met_by(self, value: float) -> bool:
        """Say whether a figure meets it."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


def _against(prefix: str) -> Callable[[dict[str, Any]], float]:
    """Return what finds the ratio against the fastest contestant whose name begins so."""

    def find(cases: dict[str, Any]) -> float:
        found = cases["throughput"]["figures"]["2"]
        names = [name for name in found if name.startswith(prefix)]
        ratio: float = min(found[name]["ratio"]["median"] for name in names)
        return ratio

    return find


def _figure(case: str, *path: str) -> Callable[[dict[str, Any]], float]:
    def find(cases: dict[str, Any]) -> float:
        at: Any = cases[case]["figures"]
        for word in path:
            at = at[word]
        return float(at)

    return find


TARGETS = (
    Target("throughput against Celery + Redis, acks_late", 10, None, _against("celery-redis")),
    Target("throughput against Procrastinate", 15, None, _against("procrastinate")),
    Target("throughput against Agenda", 6, None, _against("agenda")),
    Target("throughput against dramatiq", 3, None, _against("dramatiq")),
    Target("throughput against the Python outbox on PostgreSQL", 2, None, _against("python-outbox")),
    Target("throughput against PgQueuer, batched", 1.25, None, _against("pgqueuer")),
    Target("throughput against graphile-worker, batching on", 1, None, _against("graphile-worker")),
    Target("throughput against the raw limit", 0.6, None, _figure("throughput", "2", "raw", "ratio", "median")),
    Target(
        "lone effect, commit to bot start: times Celery's publish to start, median",
        None,
        2,
        _figure("latency", "idle", "ratio", "median"),
    ),
    Target("the same, p99", None, 3, _figure("latency", "idle", "ratio", "p99")),
    Target("commands per effect, full batches", None, 0.05, _figure("commands", "full", "total")),
    Target("commands per effect, lone", None, 12, _figure("commands", "lone", "total")),
    Target("drain and claim over 3,000,000 done rows, times none", None, 1.1, _figure("history", "ratio", "median")),
    Target("commands of a tick, 100,000 idle tenants, times none", None, 1, _figure("ticks", "ratio")),
    Target("Jain index of the fairness case", 0.95, None, _figure("fairness", "jain", "median")),
    Target("matching 1,000 subscriptions, times 10, per event", None, 3, _figure("matching", "ratio", "median")),
)


def judged(cases: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each target with its figure, and whether it is met; None where its case gave none."""
    found = []
    for target in TARGETS:
        try:
            value: float | None = target.find(cases)
        except (KeyError, ValueError, TypeError):
            value = None
        met = None if value is None else target.met_by(value)
        found.append({"what": target.what, "goal": target.goal, "value": value, "met": met})
    return found


def table(targets: list[dict[str, Any]]) -> Table:
    """Return the targets as a table."""
    words = {True: "met", False: "not met", None: "not measured"}
    rows = [
        [one["what"], one["goal"], "" if one["value"] is None else number(one["value"]), words[one["met"]]]
        for one in targets
    ]
    return Table("Targets", ("what", "goal", "measured (median)", ""), rows)
