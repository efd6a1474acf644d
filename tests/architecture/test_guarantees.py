"""docs/guarantees.md and the tests say the same: each id there is marked at a test, and each mark is an id there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.promises import guaranteed

ROOT = Path(__file__).parents[2]

PYTEST_INI = "[pytest]\ntestpaths = tests\nmarkers = promise(*ids): ids\n"
TWO = "# Guarantees\n\n- **A01** one\n- **A02** two\n"
MARKED = "import pytest\n\n@pytest.mark.promise('A01')\ndef test_one():\n    pass\n\n@pytest.mark.promise('A02')\n"


def marks(name: str) -> dict[str, set[str]]:
    """Every argument of a mark, and the test files that it stands in."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{name}":
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"{path}: a mark names its ids"
                    found[str(argument.value)].add(path.name)
    return found


def test_every_guarantee_has_a_test_and_every_marked_id_is_a_guarantee() -> None:
    written, marked = guaranteed(ROOT), marks("promise")
    assert sorted(written) == sorted(set(written)), "an id stands twice"
    assert {"without a test": set(written) - set(marked), "not written down": set(marked) - set(written)} == {
        "without a test": set(),
        "not written down": set(),
    }


def test_guarantees_stand_in_the_order_of_their_ids_within_a_section() -> None:
    for section in (ROOT / "docs" / "guarantees.md").read_text("utf-8").split("\n## ")[1:]:
        ids = [line[4:7] for line in section.splitlines() if line.startswith("- **")]
        assert ids == sorted(ids), section.splitlines()[0]


@pytest.mark.parametrize(
    ("last_test", "arguments", "code", "said"),
    [
        ("def test_two():\n    pass", [], 0, "2 passed"),
        ("@pytest.mark.skip\ndef test_two():\n    pass", [], 1, "no test that passed shows A02"),
        ("@pytest.mark.xfail\ndef test_two():\n    assert False", [], 1, "no test that passed shows A02"),
        ("def test_two():\n    assert False", [], 1, "1 failed"),
        ("@pytest.mark.skip\ndef test_two():\n    pass", ["-n", "2"], 1, "no test that passed shows A02"),
        ("def test_two():\n    pass", ["-n", "2"], 0, "2 passed"),
        # A part of the suite says nothing of the whole.
        ("@pytest.mark.skip\ndef test_two():\n    pass", ["tests/test_it.py"], 0, "1 passed, 1 skipped"),
        ("@pytest.mark.skip\ndef test_two():\n    pass", ["-k", "one or two"], 0, "1 passed, 1 skipped"),
        ("@pytest.mark.skip\ndef test_two():\n    pass", ["--collect-only"], 0, "2 tests collected"),
        ("def test_two():\n    pass", ["-n", "2", "--deselect", "tests/test_it.py::test_two"], 0, "1 passed"),
    ],
)
def test_a_whole_run_fails_where_a_guarantee_was_shown_by_no_test_that_passed(
    last_test: str, arguments: list[str], code: int, said: str, tmp_path: Path
) -> None:
    for folder in ("docs", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pytest.ini").write_text(PYTEST_INI, "utf-8")
    (tmp_path / "docs" / "guarantees.md").write_text(TWO, "utf-8")
    (tmp_path / "tests" / "test_it.py").write_text(MARKED + last_test, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.promises", "-p", "no:valkey", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout
