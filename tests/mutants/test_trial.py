"""The trial of a mutant: what counts as a kill, and that nothing of it stays behind."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.mutants.__main__ import try_all
from tests.mutants.mutant import Mutant
from tests.mutants.trial import Place, StoppedError, Verdict, is_alive
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "pytest.ini": "[pytest]\naddopts = -p no:valkey -p no:xdist -p no:anyio -p no:hypothesispytest\n",
    "sums/__init__.py": "def add(a, b):\n    return a + b\n",
    "test_sums.py": "from sums import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
}
STUCK = """return _stuck(a, b)


def _stuck(a, b):
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with open("pids.part", "w") as told:
        told.write(f"{os.getpid()} {child.pid}")
    os.rename("pids.part", "pids")
    time.sleep(600)
"""


def changed_to(new: str, name: str = "m") -> Mutant:
    return Mutant(
        name=name,
        breaks="sums are wrong",
        file="sums/__init__.py",
        old="return a + b\n",
        new=new + "\n",
        promises=("E01",),
        tests=("test_sums.py",),
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


@pytest.fixture
def place(tree: Path, tmp_path: Path) -> Place:
    return Place(tmp_path / "place", tree, FILES)


def test_a_survivor_and_a_change_that_is_no_program_are_told_and_fail_the_run(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mutants = [changed_to("return a - b", "minus"), changed_to("return b + a", "swapped"), changed_to("return (", "no")]
    assert try_all(tree, list(FILES), mutants, jobs=1) == 1
    said = capsys.readouterr().out
    assert "killed 1 of 3" in said
    assert "survived: swapped" in said
    assert "broken: no" in said
    assert "minus: killed" in said
    assert {name: (tree / name).read_text("utf-8") for name in FILES} == FILES
    assert {path.name for path in tree.rglob("*") if path.is_file()} == {name.rpartition("/")[2] for name in FILES}


def test_tests_that_fail_without_any_change_end_the_run_before_it_says_anything(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "sums" / "__init__.py").write_text("def add(a, b):\n    return a + b\n\n\nadd = None\n", "utf-8")
    assert try_all(tree, list(FILES), [changed_to("return a - b")], jobs=1) == 2
    assert "nothing can be said" in capsys.readouterr().out


def test_a_trial_that_is_stopped_leaves_neither_its_processes_nor_its_change(
    place: Place, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mutants.trial._GOODBYE_S", 0.3)
    stop = threading.Event()
    pids = place.tree / "pids"
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(place.try_mutant, changed_to(STUCK), stop)
        try:
            wait_until(pids.exists, timeout=60, what="the trial's processes")
        finally:
            stop.set()
        with pytest.raises(StoppedError):
            trial.result(60)
    assert not [pid for pid in map(int, pids.read_text("utf-8").split()) if is_alive(pid)]
    assert (place.tree / "sums" / "__init__.py").read_text("utf-8") == FILES["sums/__init__.py"]
    assert not (tree / "pids").exists()


def failed(when: str = "call", error: str = "AssertionError", text: str = "assert 1 == 2") -> dict[str, str]:
    return {"test": "test_sums.py::test_add", "when": when, "error": error, "text": text}


@pytest.mark.parametrize(
    ("code", "failures", "passed", "verdict"),
    [
        (0, [], 3, Verdict.SURVIVED),
        (0, [], 0, Verdict.BROKEN),
        (1, [failed()], 3, Verdict.KILLED),
        # What the change made is no program, or the servers did not start: no word on the suite.
        (1, [failed(error="ImportError")], 3, Verdict.BROKEN),
        (1, [failed(error="NameError")], 3, Verdict.BROKEN),
        (1, [failed(when="setup")], 3, Verdict.BROKEN),
        (1, [failed(when="collect", error="")], 0, Verdict.BROKEN),
        (1, [], 3, Verdict.BROKEN),
        (2, [failed()], 0, Verdict.BROKEN),
        (1, [failed(error="Failed", text="Timeout (>90.0s) from pytest-timeout.")], 3, Verdict.HUNG),
        (1, [failed(error="Failed", text="DID NOT RAISE")], 3, Verdict.KILLED),
        (None, [], 3, Verdict.HUNG),
    ],
)
def test_only_a_test_that_fails_in_its_own_body_is_a_kill(
    place: Place, code: int | None, failures: list[dict[str, str]], passed: int, verdict: Verdict
) -> None:
    report(place, failures=failures, passed=passed)
    assert place._judge(code, "")[0] is verdict


def test_a_run_of_other_code_than_the_copy_and_one_that_told_nothing_are_no_kill(place: Place, tree: Path) -> None:
    assert place._judge(1, "")[0] is Verdict.BROKEN
    report(place, failures=[failed()], passed=1, origins={"sums": str(tree / "sums" / "__init__.py")})
    assert place._judge(1, "")[0] is Verdict.BROKEN
    report(place, failures=[failed()], passed=1, origins={})
    assert place._judge(1, "")[0] is Verdict.BROKEN


def report(place: Place, **told: Any) -> None:  # noqa: ANN401 - parts of a JSON document
    origins = {"sums": str(place.tree / "sums" / "__init__.py")}
    place._report.write_text(json.dumps({"origins": origins, **told}), "utf-8")
