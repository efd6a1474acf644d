"""Every case, in the order in which a whole run measures them."""

from __future__ import annotations

from benchmarks.cases import appends, commands, drains, fairness, history, latency, throughput, ticks, upkeep

CASES = (
    *commands.CASES,
    *throughput.CASES,
    *latency.CASES,
    *appends.CASES,
    *drains.CASES,
    *history.CASES,
    *ticks.CASES,
    *fairness.CASES,
    *upkeep.CASES,
)
