"""Try one mutant: in a copy of the tree, never in the tree, with the tests that are to notice it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator, Sequence

    from tests.mutants.mutant import Mutant

RUN_TIMEOUT_S = 240.0
TEST_TIMEOUT_S = 90.0

_GOODBYE_S = 15.0
_POLL_S = 0.1
_LOADING = {"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError", "UnboundLocalError"}
"""A test that fails with one of these says that the change is no program, not that the suite noticed it."""


class Verdict(Enum):
    """What became of a mutant. Only a test that failed kills: `HUNG` never ended, `BROKEN` went wrong by itself."""

    KILLED = "killed"
    SURVIVED = "survived"
    HUNG = "hung"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Result:
    """A verdict, what it rests on (the test that failed, or what went wrong), and what it took."""

    verdict: Verdict
    what: str
    seconds: float


class StoppedError(Exception):
    """The trials were interrupted; nothing of this one is left."""


class Place:
    """A folder with a copy of the tree, in which one trial at a time runs."""

    def __init__(self, folder: Path, root: Path, files: Iterable[str]) -> None:
        self.tree = folder / "tree"
        self._temporary = folder / "tmp"
        self._plugins = folder / "plugins"
        self._report = folder / "report.json"
        for name in files:
            source, target = root / name, self.tree / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        self._plugins.mkdir()
        shutil.copy2(Path(__file__).with_name("witness.py"), self._plugins / "mutants_witness.py")

    def try_mutant(self, mutant: Mutant, stop: threading.Event, timeout_s: float = RUN_TIMEOUT_S) -> Result:
        """Change the copy, run the mutant's tests, change it back."""
        path = self.tree / mutant.file
        before = path.read_text("utf-8")
        path.write_text(mutant.applied_to(before), "utf-8")
        selected = [*mutant.tests, *(["-k", mutant.only] if mutant.only else []), f"--timeout={TEST_TIMEOUT_S}", "-x"]
        try:
            return self._run(selected, [top_level(mutant.file)], stop, timeout_s)
        finally:
            path.write_text(before, "utf-8")

    def try_unchanged(
        self, tests: Sequence[str], packages: Sequence[str], stop: threading.Event, timeout_s: float
    ) -> Result:
        """Run tests in the copy as it is: `SURVIVED` is as it should be, else `what` says why a test failed."""
        result = self._run(list(tests), packages, stop, timeout_s)
        if result.verdict is Verdict.KILLED:
            told = json.loads(self._report.read_text("utf-8"))["failures"]
            why = "; ".join(f"{one['test']}: {one['error']}: {one['text']}" for one in told)
            return Result(result.verdict, why, result.seconds)
        return result

    def _run(self, words: Sequence[str], packages: Sequence[str], stop: threading.Event, timeout_s: float) -> Result:
        self._report.unlink(missing_ok=True)
        self._temporary.mkdir(exist_ok=True)
        started = time.monotonic()
        try:
            code, said = self._pytest(words, packages, stop, timeout_s)
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)
        verdict, what = self._judge(code, said)
        return Result(verdict, what, time.monotonic() - started)

    def _pytest(
        self, words: Sequence[str], packages: Sequence[str], stop: threading.Event, timeout_s: float
    ) -> tuple[int | None, str]:
        """Return pytest's exit code, None where it did not end in time, and the end of what it printed."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "OUTBOX_"))}
        environment = {
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(self.tree), str(self._plugins)]),
            "PYTHONDONTWRITEBYTECODE": "1",  # A change within a second that keeps the size would meet the old bytecode.
            "CI": "true",  # Hypothesis then tries the same examples each time.
            "TMPDIR": str(self._temporary),
            "MUTANTS_REPORT": str(self._report),
            "MUTANTS_PACKAGES": ",".join(packages),
        }
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "mutants_witness"]
        output = self._temporary / "output"
        with output.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, *words],
                cwd=self.tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            give_up, code = time.monotonic() + timeout_s, None
            with _ended(process):
                while code is None and time.monotonic() < give_up:
                    if stop.is_set():
                        raise StoppedError
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        code = process.wait(_POLL_S)
        return code, output.read_text("utf-8", "replace")[-2_000:]

    def _judge(self, code: int | None, said: str) -> tuple[Verdict, str]:
        if code is None:
            return Verdict.HUNG, "the run did not end in time"
        if not self._report.exists():
            return Verdict.BROKEN, f"pytest ended with {code}: {_last_line(said)}"
        told = json.loads(self._report.read_text("utf-8"))
        foreign = [origin for origin in told["origins"].values() if not Path(origin).is_relative_to(self.tree)]
        if foreign or not told["origins"]:
            return Verdict.BROKEN, f"what ran was not the copy: {foreign}"
        if code == 0:
            return (Verdict.SURVIVED, "") if told["passed"] else (Verdict.BROKEN, "no test ran")
        if code != 1:
            return Verdict.BROKEN, f"pytest ended with {code}: {_last_line(said)}"
        return _judge_failures(told["failures"])


def _judge_failures(failures: Sequence[dict[str, Any]]) -> tuple[Verdict, str]:
    for failure in failures:
        test, error = failure["test"], failure["error"]
        if failure["when"] != "call" or error in _LOADING:
            return Verdict.BROKEN, f"{test}: {failure['when']}: {error} {_last_line(failure['text'])}"
        # pytest-timeout raises pytest's own `Failed`.
        if error == "Failed" and failure["text"].startswith("Timeout"):
            return Verdict.HUNG, test
        return Verdict.KILLED, test
    return Verdict.BROKEN, "pytest told of a failure and named none"


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave nothing of a run behind: neither pytest nor the servers that its tests have started."""
    try:
        yield
    finally:
        if process.poll() is None:
            started = psutil.Process(process.pid).children(recursive=True)
            # As Ctrl-C: the fixtures stop their servers in order.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GOODBYE_S)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for one in _left_after(_GOODBYE_S, started):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            _left_after(_GOODBYE_S, started)


def _left_after(seconds: float, processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return those that still run when the time is over. One that nobody has reaped yet has ended."""
    give_up = time.monotonic() + seconds
    while (left := [one for one in processes if is_alive(one.pid)]) and time.monotonic() < give_up:
        time.sleep(_POLL_S)
    return left


def is_alive(pid: int) -> bool:
    """Say whether a process runs."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def top_level(file: str) -> str:
    """Return the package, or the module, that a file of the tree is imported under."""
    return file.partition("/")[0].removesuffix(".py")


def files_of(root: Path) -> list[str]:
    """Return the files of the work tree: what git tracks, and what is new and not ignored."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=root, capture_output=True, check=True)
    return [name for name in listed.stdout.decode().split("\0") if name]


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")[:300]
