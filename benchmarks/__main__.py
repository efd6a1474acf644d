"""Measure everything, each case as ratios within this one run.

    python -m benchmarks [--quick] [--cases a,b] [--contestants x,y] [--pairs N] [--out FILE]

Results are written as JSON, and every case prints its tables when it is done. `python -m benchmarks.report FILE`
renders them into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.cases.all import CASES
from benchmarks.contestants import known
from benchmarks.machine import describe
from benchmarks.targets import judged, table

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".bench"
ROUNDS, QUICK_ROUNDS = 5, 2
QUICK = ("outbox", "raw", "celery-redis")
"""How the names begin of those who take part in a quick run in any case; of the others, those that are prepared."""

VARIANTS = ("-everysec", "-one-by-one", "-unbatched")
"""How the names end of a peer's second form, which a quick run leaves out."""


def main() -> None:
    given = _arguments()
    CACHE.mkdir(exist_ok=True)
    wanted = given.cases.split(",") if given.cases else [case.name for case in CASES]
    if unknown := set(wanted) - {case.name for case in CASES}:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in CASES)}")
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=CACHE))
    bench = Bench(
        quick=given.quick,
        rounds=given.pairs or (QUICK_ROUNDS if given.quick else ROUNDS),
        cache=CACHE,
        scratch=scratch,
        contestants=_contestants(given),
    )
    results: dict[str, Any] = {
        "machine": describe(CACHE),
        "quick": given.quick,
        "rounds": bench.rounds,
        "began": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cases": {},
    }
    out = given.out or CACHE / time.strftime("results-%Y%m%d-%H%M%S.json")
    print("\n".join(f"{name}: {value}" for name, value in results["machine"].items()), flush=True)
    try:
        for case in CASES:
            if case.name in wanted:
                results["cases"][case.name] = _measured(bench, case)
                results |= {"contestants": bench.facts, "failures": bench.failures}
                results["targets"] = judged(results["cases"])
                out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"\n{table(results['targets']).text()}\n\nresults in {out}")


def _measured(bench: Bench, case: Any) -> dict[str, Any]:  # noqa: ANN401 - a Case
    bench.tell(f"{case.name}: {case.title}")
    begun = time.monotonic()
    try:
        outcome = case.run(bench)
    except Exception as error:  # noqa: BLE001 - a case that fails must not end the run
        bench.tell(f"{case.name} failed: {type(error).__name__}: {error}")
        return {"title": case.title, "failed": f"{type(error).__name__}: {error}", "figures": {}, "tables": []}
    seconds = time.monotonic() - begun
    for made in outcome.tables:
        print(f"\n{made.text()}", flush=True)
    bench.tell(f"{case.name} took {seconds:.0f} s")
    tables = [made.document() for made in outcome.tables]
    return {"title": case.title, "seconds": round(seconds, 1), "figures": outcome.figures, "tables": tables}


def _contestants(given: argparse.Namespace) -> tuple[str, ...]:
    everyone, missing = known()
    for name, reason in missing.items():
        print(f"{name} takes no part: {reason}", file=sys.stderr)
    if given.contestants:
        chosen = tuple(given.contestants.split(","))
        if unknown := [name for name in chosen if name not in everyone]:
            sys.exit(f"no such contestant: {', '.join(unknown)}; there are {', '.join(everyone)}")
        return chosen
    if given.quick:
        ready = (*QUICK, *(folder.name.replace("_", "-") for folder in CACHE.glob("*/")))
        return tuple(name for name in everyone if name.startswith(ready) and not name.endswith(VARIANTS))
    return tuple(everyone)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds: under five minutes")
    parser.add_argument("--cases", help=f"some of {','.join(case.name for case in CASES)}")
    parser.add_argument("--contestants", help="some of them, by name")
    parser.add_argument("--pairs", type=int, help="how many rounds")
    parser.add_argument("--out", type=Path, help="where the results go, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
