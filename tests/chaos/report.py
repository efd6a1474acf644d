"""The ledger, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from tests.chaos.observed import LIFECYCLE

if TYPE_CHECKING:
    from rich.console import Console

    from tests.chaos.run import Ledger


def figures_of(ledger: Ledger) -> dict[str, int | float | str]:
    """Return what was found, by name."""
    found = ledger.found
    return {
        "events": found.figures["events"],
        "holes filled": found.figures["holes filled"],
        **{f"effects {name}": count for name, count in sorted(found.effects.items())},
        "claims": found.figures["claims"],
        "attempts spent": found.figures["attempts spent"],
        "executions": found.figures["executions"],
        "executions repeated, at least once": found.figures["executions repeated"],
        **{name: count for name, count in found.figures.items() if name.startswith(LIFECYCLE)},
        "writes fenced out": ledger.fenced_out,
        "processes killed": ledger.deaths,
        "processes that ended by themselves": len(ledger.ended_by_themselves),
        "appends asked again": ledger.repeats,
        "longest append, seconds": round(ledger.longest_append_s, 1),
        "longest from a kill to the row's completion, leases": round(found.longest_leases, 2),
        "rest after healing, seconds": round(ledger.rest_s, 1),
        "longest standstill after healing, seconds": round(ledger.standstill_s, 1),
        "lost": sum(
            "no row" in one or "never" in one or "acknowledged" in one or "still" in one for one in found.violations
        ),
        "doubled": sum("happened" in one or "repeat" in one or "nothing had struck" in one for one in found.violations),
        "promises broken": len(ledger.violations),
    }


def as_json(ledger: Ledger) -> dict[str, Any]:
    """Return the whole ledger."""
    return {
        "seed": ledger.run.seed,
        "seconds": ledger.run.duration.total_seconds(),
        "elapsed": round(ledger.elapsed_s, 1),
        "thrown": dict(ledger.thrown),
        "found": figures_of(ledger),
        "violations": ledger.violations,
    }


def print_report(console: Console, ledger: Ledger) -> None:
    """Print what was thrown and what was found."""
    thrown = Table(title=f"thrown, seed {ledger.run.seed}", min_width=48)
    thrown.add_column("fault")
    thrown.add_column("times", justify="right")
    for kind, times in sorted(ledger.thrown.items()):
        thrown.add_row(kind, str(times))
    thrown.add_row("all", str(ledger.thrown.total()), style="bold")
    found = Table(title=f"found, in {ledger.elapsed_s:.0f} s with start and end", min_width=48)
    found.add_column("figure")
    found.add_column("", justify="right")
    for name, figure in figures_of(ledger).items():
        found.add_row(name, str(figure))
    console.print(thrown)
    console.print(found)
    console.print(
        f"{ledger.standstill_bound_s:g} s may pass without an end; the longest was {ledger.found.longest_effect}"
    )
    for violation in ledger.violations:
        console.print(f"BROKEN: {violation}", style="bold red", markup=False)
