"""The demo, as `make demo` runs it: it ends by itself with everything settled, and leaves no process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.deliveries import EXAMPLES, delivery_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def of_this_demo(folder: Path) -> list[str]:
    """The command lines of processes that run in the demo's folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("TMPDIR") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


def of_demo(folder: Path) -> dict[str, str]:
    """The environment of a demo. Its temporary folder also marks its processes."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "DEMO"))}
    return {**others, "TMPDIR": str(folder)}


def play(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env={**of_demo(folder), **settings},
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
        verdict = r"^all (\d+) events and (\d+) effects are settled as expected$"
        ((events, effects),) = re.findall(verdict, done.stdout, re.MULTILINE)
        if source == EXAMPLES:
            took = re.findall(r"(\d+) (?:deliveries became events|came again|concern no card)", done.stdout)
            said = re.search(r"(\d+) deliveries and a board become about (\d+) effects", README)
            assert said is not None
            assert int(said[1]) == sum(map(int, took))
            # Whether the deleted card's events are drained before it is gone is a matter of moments.
            assert abs(int(effects) - int(said[2])) <= 5
            assert int(events) > int(said[1])
        assert of_this_demo(folder) == []
        assert list(folder.iterdir()) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("end", ["broken pipe", "SIGTERM"])
def test_a_demo_that_is_cut_short_leaves_no_folder_and_no_process(end: str) -> None:
    with tempfile.TemporaryDirectory(prefix="demo-test-") as name:
        with subprocess.Popen(
            [sys.executable, "-m", "examples.demo"],
            cwd=ROOT,
            env=of_demo(Path(name)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as demo:
            if demo.stdout is None or demo.stderr is None:
                raise AssertionError("no pipes")
            first = demo.stdout.readline()
            assert first.startswith("The stack runs"), first + demo.stderr.read()
            if end == "SIGTERM":
                demo.send_signal(signal.SIGTERM)
            else:
                demo.stdout.close()
            said = demo.stderr.read()
            code = demo.wait(timeout=60)
        told = [line for line in said.splitlines() if not line.startswith("waiting for the bots in hand")]
        assert (code, told) == ((130, ["demo: stopped"]) if end == "SIGTERM" else (141, []))
        assert of_this_demo(Path(name)) == []
        assert list(Path(name).iterdir()) == []


@pytest.mark.promise("O06")
def test_a_mode_that_is_none_is_said(tmp_path: Path) -> None:
    done = play(tmp_path, DEMO="sty")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "demo: DEMO=sty says nothing; DEMO=stay keeps everything running afterwards\n"
    assert list(tmp_path.iterdir()) == []


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
