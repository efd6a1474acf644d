"""Real faults against real processes: `python -m tests.chaos --seconds 120 --seed 7 --faults kill-worker,step-down`."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from rich.console import Console

from tests.chaos.plan import BY_NAME
from tests.chaos.report import as_json, print_report
from tests.chaos.run import Run, run_chaos

_SEEDS = 1_000_000


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kinds = frozenset(given.faults.split(",")) if given.faults else frozenset(BY_NAME)
    if unknown := kinds - BY_NAME.keys():
        sys.exit(f"chaos: there is no fault {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}")
    console = Console(highlight=False, soft_wrap=True)
    seed = random.randrange(_SEEDS) if given.seed is None else given.seed  # noqa: S311 - no secret
    folder = Path(tempfile.mkdtemp(prefix="outbox-chaos-"))
    run = Run(
        seed=seed,
        duration=timedelta(seconds=given.seconds),
        kinds=kinds,
        writers=given.writers,
        folder=folder,
        say=console.print,
    )
    console.print(f"chaos: seed {seed}, {given.seconds:g} s, {len(kinds)} kinds of faults; logs in {folder}")
    kept = True
    try:
        ledger = run_chaos(run)
        print_report(console, ledger)
        if given.ledger:
            given.ledger.write_text(json.dumps(as_json(ledger), indent=1), "utf-8")
        kept = bool(ledger.violations) or given.keep
        if ledger.violations:
            words = f"SECONDS={given.seconds:g} SEED={seed}" + (f" FAULTS={given.faults}" if given.faults else "")
            console.print(f"to replay: make chaos {words}; the logs are in {folder}", style="bold red")
        return int(bool(ledger.violations))
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long faults are thrown")
    parser.add_argument("--seed", type=int, help="what decides the plan; random unless given")
    parser.add_argument("--faults", default="", help="kinds of faults, with commas; all unless given")
    parser.add_argument("--writers", type=int, default=3, help="how many threads write, beside a process that does")
    parser.add_argument("--ledger", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--keep", action="store_true", help="leave the logs also where all is well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
