"""Draws the plots of a report: `python plots.py results.json folder`. It runs where matplotlib is, and imports no more.

A case that is not in the results has no plot.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found]  # installed by the report, in an environment of its own

mpl.use("svg")
from matplotlib import pyplot as plt

OURS, RAW = "outbox", "raw"
COLOURS = {OURS: "#1f6feb", RAW: "#57606a"}
OTHERS = "#bf8700"

mpl.rcParams.update(
    {"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.size": 10, "axes.spines.top": False}
    | {"axes.spines.right": False, "figure.facecolor": "white"}
)


def colour(name: str) -> str:
    """Return ours in one colour, the raw limit in another, everybody else in a third."""
    return next((shade for start, shade in COLOURS.items() if name.startswith(start)), OTHERS)


def ours(name: str) -> bool:
    """Say whether it is the outbox, in one of its forms."""
    return name.startswith(OURS)


def errors(spreads: list[dict[str, Any]]) -> list[list[float]]:
    """Return how far the extremes lie from each median."""
    return [
        [one["median"] - one["least"] for one in spreads],
        [one["most"] - one["median"] for one in spreads],
    ]


def measured(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the contestants that gave a rate, the fastest last."""
    found = {name: one for name, one in figures.items() if isinstance(one, dict) and "rate" in one}
    return dict(sorted(found.items(), key=lambda item: float(item[1]["rate"]["median"])))


def throughput(figures: dict[str, Any], folder: Path) -> None:
    """Bars of everybody at two processes."""
    found = measured(figures["2"])
    rates = [one["rate"] for one in found.values()]
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(found) + 1.2))
    shades = [colour(name) for name in found]
    medians = [one["median"] for one in rates]
    axes.barh(list(found), medians, xerr=errors(rates), color=shades, capsize=3)
    for at, one in enumerate(rates):
        axes.annotate(f"{one['median']:,.0f}", (one["most"], at), (6, -3), textcoords="offset points")
    axes.margins(x=0.12)
    axes.set_xlabel("jobs a second, append to done, 2 worker processes (medians, least to most)")
    save(figure, folder / "throughput.svg")


def scaling(figures: dict[str, Any], folder: Path) -> None:
    """Lines over the number of processes."""
    counts = sorted(int(count) for count in figures)
    if len(counts) == 1:
        return
    figure, axes = plt.subplots(figsize=(8, 4.5))
    names = [name for name in measured(figures[str(counts[0])]) if all(name in figures[str(each)] for each in counts)]
    for name in reversed(names):
        rates = [figures[str(count)][name]["rate"] for count in counts]
        medians = [one["median"] for one in rates]
        axes.errorbar(counts, medians, yerr=errors(rates), marker="o", capsize=3, label=name)
    axes.set_xticks(counts)
    axes.set_yscale("log")
    axes.set_xlabel("worker processes")
    axes.set_ylabel("jobs a second (log scale)")
    axes.legend(frameon=False, fontsize=8)
    save(figure, folder / "scaling.svg")


def latency(figures: dict[str, Any], folder: Path) -> None:
    """Medians and p99, idle and at half load."""
    found = [
        (f"{name}, {'idle' if when == 'idle' else 'half load'}", one["from_commit" if ours(name) else "from_call"])
        for when in ("half", "idle")
        for name, one in figures.get(when, {}).items()
        if isinstance(one, dict) and "from_commit" in one
    ]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(found) + 1.2))
    for at, (name, one) in enumerate(found):
        median = one["median"]["median"]
        axes.plot([median, one["p99"]], [at, at], color=colour(name))
        axes.plot([median], [at], marker="o", markersize=8, color=colour(name))
        axes.plot([one["p99"]], [at], marker="|", markersize=14, color=colour(name))
        axes.annotate(f"{median:,.1f}", (median, at), (-3, 8), textcoords="offset points")
    axes.set_yticks(range(len(found)), [name for name, _ in found])
    axes.margins(y=0.12)
    axes.set_xscale("log")
    axes.set_xlabel("ms to the start of the job: ours from the commit, others from the call (dot: median, mark: p99)")
    save(figure, folder / "latency.svg")


def appends(figures: dict[str, Any], folder: Path) -> None:
    """Lines over the number of writers."""
    figure, axes = plt.subplots(figsize=(8, 4))
    counts = sorted(int(count) for count in figures)
    for way, style in (("append", "-"), ("bare insert", "--"), ("transaction", "-"), ("bare transaction", "--")):
        rates = [figures[str(count)][way]["rate"] for count in counts]
        medians = [one["median"] for one in rates]
        shade = COLOURS[RAW] if way.startswith("bare") else COLOURS[OURS]
        marker = "s" if "transaction" in way else "o"
        axes.errorbar(counts, medians, errors(rates), color=shade, ls=style, marker=marker, capsize=3, label=way)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("writers of one tenant")
    axes.set_ylabel("a second")
    axes.legend(frameon=False)
    save(figure, folder / "appends.svg")


def over(figures: dict[str, Any], path: Path) -> None:
    """Bars of deployments of ours that differ in one thing, in the order of the case."""
    found = {name: one["rate"] for name, one in figures.items() if isinstance(one, dict) and "rate" in one}
    figure, axes = plt.subplots(figsize=(6, 3))
    medians = [one["median"] for one in found.values()]
    axes.bar(list(found), medians, yerr=errors(list(found.values())), color=COLOURS[OURS], capsize=4, width=0.6)
    axes.set_ylabel("jobs a second")
    save(figure, path)


def save(figure: Any, path: Path) -> None:  # noqa: ANN401 - matplotlib's
    """Write it, the same bytes for the same figures."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Draw what there is."""
    results, folder = json.loads(Path(sys.argv[1]).read_text("utf-8")), Path(sys.argv[2])
    cases = {name: case["figures"] for name, case in results["cases"].items() if case["figures"]}
    for name, draw in (("throughput", throughput), ("throughput", scaling), ("latency", latency), ("appends", appends)):
        if name in cases:
            draw(cases[name], folder)
    for name in ("drains", "history"):
        if name in cases:
            over(cases[name], folder / f"{name}.svg")


if __name__ == "__main__":
    main()
