"""`python -m tests.mutants`: try every mutant and tell of those that the suite does not notice.

Exit code 0 where all are killed, 1 where one survived, 2 where the trial itself is worthless.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from subprocess import CalledProcessError
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from tests.mutants.mutant import Mutant, load
from tests.mutants.trial import Place, Result, StoppedError, Verdict, files_of, top_level

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
_UNCHANGED_TIMEOUT_S = 900.0
_SHOWN = {Verdict.KILLED: "green", Verdict.SURVIVED: "bold red", Verdict.HUNG: "yellow", Verdict.BROKEN: "bold red"}

_console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)


@click.command()
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1), help="How many run at a time.")
@click.option("--only", multiple=True, metavar="NAME", help="Try this one alone; may be given again.")
def main(jobs: int, only: tuple[str, ...]) -> None:
    """Change the code in ways that break a promise, and see that the suite notices each."""
    mutants = load()
    if unknown := set(only) - {mutant.name for mutant in mutants}:
        raise click.UsageError(f"there is no mutant named {', '.join(sorted(unknown))}; see tests/mutants/catalogue")
    chosen = [mutant for mutant in mutants if not only or mutant.name in only]
    try:
        files = files_of(ROOT)
    except (OSError, CalledProcessError) as error:
        raise click.ClickException(f"needs git, and {ROOT} to be a work tree of it: {error}") from None
    # Asked to end, it ends as at Ctrl-C: no process and no folder stays behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(try_all(ROOT, files, chosen, jobs))


def try_all(root: Path, files: Sequence[str], mutants: Sequence[Mutant], jobs: int) -> int:
    """Try the mutants in copies of a tree's files, print what became of them, and return the exit code."""
    started, stop = time.monotonic(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: SimpleQueue[Place] = SimpleQueue()
        for number in range(jobs):
            free.put(Place(Path(folder) / str(number), root, files))
        with ThreadPoolExecutor(jobs) as pool:
            try:
                if not _is_sound(pool, free, mutants, stop):
                    return 2
                results = _try_each(pool, free, mutants, stop)
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)
    _report(mutants, results, time.monotonic() - started)
    return 0 if all(results[mutant.name].verdict is Verdict.KILLED for mutant in mutants) else 1


def _is_sound(
    pool: ThreadPoolExecutor, free: SimpleQueue[Place], mutants: Sequence[Mutant], stop: threading.Event
) -> bool:
    """Say whether the tests pass without any change: where one fails, its failing with one would say nothing."""
    packages = sorted({top_level(mutant.file) for mutant in mutants})
    chosen: dict[str, set[str]] = defaultdict(set)
    for mutant in mutants:
        chosen[mutant.only].update(mutant.tests)

    def try_part(only: str, tests: set[str]) -> Result:
        # A file that stands there whole includes its tests.
        words = sorted(test for test in tests if "::" not in test or test.partition("::")[0] not in tests)
        with _borrowed(free, stop) as place:
            return place.try_unchanged([*words, *(["-k", only] if only else [])], packages, stop, _UNCHANGED_TIMEOUT_S)

    _console.print("the tests that are to notice them, on the code as it is …")
    started = time.monotonic()
    for trial in as_completed([pool.submit(try_part, only, tests) for only, tests in chosen.items()]):
        result = trial.result()
        if result.verdict is not Verdict.SURVIVED:
            _console.print(f"they do not pass, so nothing can be said: {result.what}", style="bold red", markup=False)
            return False
    _console.print(f"… pass ({time.monotonic() - started:.0f} s)")
    return True


def _try_each(
    pool: ThreadPoolExecutor, free: SimpleQueue[Place], mutants: Sequence[Mutant], stop: threading.Event
) -> dict[str, Result]:
    def try_one(mutant: Mutant) -> tuple[str, Result]:
        with _borrowed(free, stop) as place:
            return mutant.name, place.try_mutant(mutant, stop)

    results: dict[str, Result] = {}
    for trial in as_completed([pool.submit(try_one, mutant) for mutant in mutants]):
        name, result = trial.result()
        results[name] = result
        said = f"{len(results):3}/{len(mutants)} {name}: {result.verdict.value} ({result.seconds:.0f} s)"
        _console.print(said, style=_SHOWN[result.verdict], markup=False)
    return results


@contextmanager
def _borrowed(free: SimpleQueue[Place], stop: threading.Event) -> Iterator[Place]:
    if stop.is_set():
        raise StoppedError
    place = free.get()
    try:
        yield place
    finally:
        free.put(place)


def _report(mutants: Sequence[Mutant], results: dict[str, Result], seconds: float) -> None:
    table = Table(title="mutants", show_lines=False)
    for column in ("mutant", "promises", "verdict", "by", "s"):
        table.add_column(column, overflow="fold")
    for mutant in mutants:
        result = results[mutant.name]
        table.add_row(
            mutant.name,
            " ".join(mutant.promises),
            f"[{_SHOWN[result.verdict]}]{result.verdict.value}[/]",
            result.what.rpartition("/")[2].replace("[", r"\["),
            f"{result.seconds:.0f}",
        )
    _console.print(table)
    killed = sum(results[mutant.name].verdict is Verdict.KILLED for mutant in mutants)
    for mutant in mutants:
        if results[mutant.name].verdict is not Verdict.KILLED:
            result = results[mutant.name]
            said = f"{result.verdict.value}: {mutant.name} ({mutant.file}): {mutant.breaks}. {result.what}"
            _console.print(said, markup=False)
    _console.print(f"killed {killed} of {len(mutants)} in {seconds:.0f} s")


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort, StoppedError):
        _console.print("stopped; nothing is left behind")
        sys.exit(130)
