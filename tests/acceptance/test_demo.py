"""The demo, as `make demo` runs it: it ends by itself with everything settled, and leaves no process."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.deliveries import EXAMPLES, delivery_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def of_this_demo(folder: Path) -> list[str]:
    """The command lines of processes that run in the demo's folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("TMPDIR") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


def play(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    # Its temporary folder also marks its processes.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "DEMO"))}
    return subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env={**environment, "TMPDIR": str(folder), **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


@pytest.mark.timeout(150)
@pytest.mark.parametrize("source", delivery_files(), ids=lambda path: path.parent.name)
def test_the_demo_settles_every_delivery_and_leaves_nothing(source: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="demo-test-") as name:
        folder = Path(name)
        done = play(folder, **({} if source == EXAMPLES else {"DEMO_INPUT": str(source)}))
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(re.findall(r" ok$", done.stdout, re.MULTILINE)) == 12
        assert "the one-shot 'go' is spent" in done.stdout
        assert "20 mirrored, none launched; 1 move posted" in done.stdout
        assert "0 effects live" in done.stdout
        assert of_this_demo(folder) == []
        assert list(folder.iterdir()) == []


@pytest.mark.promise("O06")
@pytest.mark.parametrize("text", ["", "{not json"], ids=["missing", "bad line"])
def test_bad_deliveries_end_the_demo_before_anything_starts(tmp_path: Path, text: str) -> None:
    file = tmp_path / "deliveries.jsonl"
    if text:
        file.write_text(text)
    done = play(tmp_path, DEMO_INPUT=str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("demo: ")
