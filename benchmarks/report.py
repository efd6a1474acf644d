"""Render results into docs/benchmarks.md, between its markers, and draw the plots.

    python -m benchmarks.report RESULTS.json [MORE.json …] [--keep] [--no-plots]

Several files are parts of one run on one machine: the later one's cases replace the earlier one's. `--keep` stores what
was rendered as docs/benchmarks/results.json. What stands outside of the markers stays as it is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cases.all import CASES
from benchmarks.targets import judged, table

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "benchmarks"
VENV = ROOT / ".bench" / "venv"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")

PLOTS_OF = {
    "throughput": ("throughput", "scaling"),
    "latency": ("latency",),
    "appends": ("appends",),
    "drains": ("drains",),
    "history": ("history",),
}


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return several results as one."""
    whole: dict[str, Any] = {**parts[-1], "cases": {}, "contestants": {}, "failures": {}}
    for part in parts:
        for name in ("cases", "contestants", "failures"):
            whole[name] |= part.get(name, {})
    order = [case.name for case in CASES]
    whole["cases"] = dict(sorted(whole["cases"].items(), key=lambda item: order.index(item[0])))
    whole["targets"] = judged(whole["cases"])
    return whole


def with_block(page: str, name: str, text: str) -> str:
    """Return the page with what stands between a block's markers replaced; ValueError where it has no such block."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no block {name!r}: {begin} … {end}")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


def blocks(results: dict[str, Any], plots: Sequence[str]) -> dict[str, str]:
    """Return the text of each block; `plots` are the names of those that were drawn."""
    return {
        "machine": _machine(results),
        "targets": _table(table(results["targets"]).document(), titled=False),
        "contestants": _contestants(results),
        "cases": "\n\n".join(_case(name, case, plots) for name, case in results["cases"].items()),
    }


def _machine(results: dict[str, Any]) -> str:
    lines = [f"- {name}: {value}" for name, value in results["machine"].items()]
    size = "A **quick** run: small sizes, no figure to quote" if results["quick"] else "A whole run"
    return "\n".join([f"{size}, {results['rounds']} rounds, begun {results['began']}.", "", *lines])


def _contestants(results: dict[str, Any]) -> str:
    columns = ("contestant", "version", "durability", "what it batches", "notes")
    rows = [
        [name, *(facts.get(what, "") for what in ("version", "durability", "batching", "notes"))]
        for name, facts in results["contestants"].items()
    ]
    failed = [f"- {name} dropped out: {reason}" for name, reason in results["failures"].items()]
    made = {"title": "", "columns": list(columns), "rows": rows, "note": "\n".join(failed)}
    return _table(made, titled=False)


def _case(name: str, case: dict[str, Any], plots: Sequence[str]) -> str:
    parts = [f"### {case['title']}"]
    if "failed" in case:
        return "\n\n".join([*parts, f"It failed: {case['failed']}"])
    parts += [_table(one, titled=True) for one in case["tables"]]
    parts += [f"![{case['title']}](benchmarks/{plot}.svg)" for plot in PLOTS_OF.get(name, ()) if plot in plots]
    return "\n\n".join(parts)


def _table(made: dict[str, Any], *, titled: bool) -> str:
    lines = [_line(made["columns"]), _line(["---"] * len(made["columns"])), *(_line(row) for row in made["rows"])]
    title = [f"**{made['title']}**", ""] if titled else []
    note = ["", made["note"]] if made["note"] else []
    return "\n".join([*title, *lines, *note])


def _line(cells: Sequence[str]) -> str:
    told = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(told)} |"


def draw(results: Path) -> list[str]:
    """Draw the plots, with what that needs installed on its own; return their names."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    PLOTS.mkdir(exist_ok=True)
    for old in PLOTS.glob("*.svg"):
        old.unlink()
    subprocess.run([str(python), str(Path(__file__).with_name("plots.py")), str(results), str(PLOTS)], check=True)
    return [path.stem for path in PLOTS.glob("*.svg")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--keep", action="store_true", help="store the results beside the plots")
    parser.add_argument("--no-plots", action="store_true", help="leave the plots as they are")
    given = parser.parse_args()
    results = merged([json.loads(path.read_text("utf-8")) for path in given.results])
    whole = ROOT / ".bench" / "rendered.json"
    whole.parent.mkdir(exist_ok=True)
    whole.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    plots = [path.stem for path in PLOTS.glob("*.svg")] if given.no_plots else draw(whole)
    page = PAGE.read_text("utf-8")
    for name, text in blocks(results, plots).items():
        page = with_block(page, name, text)
    PAGE.write_text(page, "utf-8")
    if given.keep:
        (PLOTS / "results.json").write_text(whole.read_text("utf-8"), "utf-8")
    print(f"{PAGE.relative_to(ROOT)}, and {len(plots)} plots in {PLOTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
