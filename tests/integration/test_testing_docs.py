"""The examples of docs/testing.md, run as they stand, by pytest and by unittest, with no service there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "testing.md").read_text("utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in re.findall(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE):
        path = tmp_path / block.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(block, "utf-8")
    return tmp_path


def python(folder: Path, *arguments: str) -> str:
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("OUTBOX_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "OUTBOX_MONGO_URL": "mongodb://127.0.0.1:1/"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_its_tests_pass_under_pytest(folder: Path) -> None:
    tests = sum(path.read_text("utf-8").count("def test_") for path in folder.glob("test_*.py"))
    said = python(folder, "-m", "pytest", "-q", "-p", "no:valkey", "-p", "no:cacheprovider", "-W", "error")
    assert f"{tests} passed" in said


def test_its_tests_pass_under_unittest(folder: Path) -> None:
    assert re.search(r"^Ran 1 test .*\n\nOK", python(folder, "-m", "unittest", "test_rules"), re.MULTILINE)


def test_its_local_mode_runs_what_is_appended_at_once(folder: Path) -> None:
    assert python(folder, "local_mode.py") == "hello ann\n"


def test_its_tests_notice_a_bot_that_is_wrong(folder: Path) -> None:
    bots = folder / "shop" / "bots.py"
    bots.write_text(bots.read_text("utf-8").replace("hours=1", "hours=2"), "utf-8")
    with pytest.raises(AssertionError, match="1 failed"):
        python(folder, "-m", "pytest", "-q", "-p", "no:valkey", "-p", "no:cacheprovider")
