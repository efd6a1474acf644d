"""`outbox dev` with real processes: it works, it stops whole, it comes back with its data, and it mends itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
import psutil
import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from types import TracebackType

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "github_deliveries.jsonl"
COMMAND = [sys.executable, "-c", "from outbox_core.cli import main; main()"]
START_S = 60
STOP_S = 40


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}


class Dev:
    """A running `outbox dev --json` in a folder."""

    def __init__(self, folder: Path, *options: str, bots: str = "examples.bots", cwd: Path = ROOT) -> None:
        self.errors: list[str] = []
        words = ["dev", "--folder", str(folder), "--json", "--workers", "1", "--bots", bots, *options]
        self._popen = subprocess.Popen(
            [*COMMAND, *words],
            cwd=cwd,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        self.family: list[psutil.Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()
        for stream in (self._popen.stdout, self._popen.stderr):
            if stream is not None:
                self._reader.join()
                stream.close()

    def await_running(self) -> dict[str, Any]:
        """Wait for its JSON; remember every process that it has started."""
        if self._popen.stdout is None:
            raise AssertionError("no stdout")
        text = self._popen.stdout.readline()
        assert text, self.errors
        found: dict[str, Any] = json.loads(text)
        self.family = psutil.Process(self.pid).children(recursive=True)
        assert {part["pid"] for part in found["parts"]} <= {process.pid for process in self.family}
        return found

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def exit_code(self) -> int:
        return self._popen.wait(timeout=STOP_S)

    def await_nothing_left(self) -> None:
        wait_until(lambda: not self._living(), timeout=STOP_S, what="no process is left")

    def _living(self) -> list[psutil.Process]:
        return [process for process in self.family if _runs(process)]

    def _read_errors(self) -> None:
        if self._popen.stderr is not None:
            self.errors.extend(iter(self._popen.stderr.readline, ""))


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def cli(environment: dict[str, str], *words: str) -> dict[str, Any]:
    """Run a command with --json in a process of its own; return its document."""
    done = subprocess.run(
        [*COMMAND, *words, "--json"],
        cwd=ROOT,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def subscribe_to_bugs(environment: dict[str, str]) -> None:
    rule = ["--bot", "print-it", "--type", "issues", "--label", "bug"]
    cli(environment, "subscriptions", "add", "--tenant", "t", "r", *rule)


def delivered(environment: dict[str, str], count: int) -> bool:
    found = cli(environment, "stats", "--tenant", "t")
    rows: dict[str, int] = found["rows"]
    return found["undrained"] == 0 and rows == {"done:delivered": count}


@pytest.mark.timeout(240)
def test_the_stack_runs_deliveries_stops_whole_and_finds_its_data_again(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    with Dev(folder) as first:
        found = first.await_running()
        assert [part["name"] for part in found["parts"]] == ["mongod", "redis", "worker", "flower", "beat"]
        environment = found["environment"]
        assert cli(environment, "schema", "--check") == {"applied": [], "pending": []}
        subscribe_to_bugs(environment)
        taken = cli(environment, "ingest", str(EXAMPLES), "--tenant", "t")
        assert (taken["taken"], taken["known"], taken["refused"]) == (19, 1, 0)
        wait_until(lambda: delivered(environment, 7), timeout=30, what="seven launches of bugs are delivered")
        rows = cli(environment, "effects", "list", "--tenant", "t")["effects"]
        shown = cli(environment, "effects", "show", "--tenant", "t", rows[0]["effect_id"])["effect"]
        assert (shown["state"], shown["run"]["error"]) == ("done", None)
        wait_until(lambda: _flower_knows_a_slice(found["flower_url"]), timeout=20, what="Flower shows slices")
        first.send(signal.SIGTERM)
        assert first.exit_code() == 0, first.errors
        first.await_nothing_left()

    with Dev(folder, "--no-flower") as second:
        again = second.await_running()
        assert again["environment"] == environment
        assert again["flower_url"] is None
        assert cli(environment, "effects", "list", "--tenant", "t")["effects"] == rows

        with Dev(folder, "--no-flower") as refused:
            assert refused.exit_code() == 1
            refused._reader.join()
            assert [line for line in refused.errors if line.startswith("outbox: ")] == [
                f"outbox: {folder} is in use by another `outbox dev`: stop it, or give --folder\n"
            ]
        second.send(signal.SIGKILL)
        assert second.exit_code() == -signal.SIGKILL
        second.await_nothing_left()


@pytest.mark.timeout(240)
def test_a_part_that_is_killed_is_started_again_and_the_work_goes_on(tmp_path: Path) -> None:
    with Dev(tmp_path / "dev", "--no-flower") as dev:
        found = dev.await_running()
        environment = found["environment"]
        subscribe_to_bugs(environment)
        for name in ("mongod", "redis", "worker"):
            pid = next(part["pid"] for part in found["parts"] if part["name"] == name)
            psutil.Process(pid).kill()
        for name in ("mongod", "redis", "worker"):
            wait_until(lambda: f"{name} runs again\n" in dev.errors, timeout=60, what=f"{name} runs again")  # noqa: B023 - awaited here
        cli(environment, "ingest", str(EXAMPLES), "--tenant", "t")
        wait_until(lambda: delivered(environment, 7), timeout=60, what="seven launches of bugs are delivered")
        dev.family = psutil.Process(dev.pid).children(recursive=True)
        dev.send(signal.SIGINT)
        assert dev.exit_code() == 0, dev.errors
        dev.await_nothing_left()


SLEEPER = """
from pathlib import Path
from time import sleep
from outbox_core import bot

@bot("sleeper")
def sleeper(run, file):
    Path(file).touch()
    sleep(600)
"""


@pytest.mark.timeout(240)
def test_a_second_signal_stops_at_once_and_the_next_start_waits_for_what_a_kill_left(tmp_path: Path) -> None:
    """The bots lie in the folder of the start: what it prints points another folder at them."""
    place, began = tmp_path / "app", tmp_path / "began"
    place.mkdir()
    (place / "slow_bots.py").write_text(SLEEPER)
    folder = place / "dev"
    with Dev(folder, "--no-flower", bots="slow_bots", cwd=place) as dev:
        environment = dev.await_running()["environment"]
        assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(place)
        rule = ["--bot", "sleeper", "--type", "issues", "--var", f"file={began}"]
        cli(environment, "subscriptions", "add", "--tenant", "t", "r", *rule)
        cli(environment, "ingest", str(EXAMPLES), "--tenant", "t")
        wait_until(began.exists, timeout=30, what="a bot is in hand")
        dev.send(signal.SIGTERM)
        waits = "waiting for the bots in hand; again (Ctrl-C or SIGTERM) to stop at once\n"
        wait_until(lambda: waits in dev.errors, timeout=20, what="it says what it waits for")
        dev.send(signal.SIGTERM)
        assert dev.exit_code() == 0, dev.errors
        dev.await_nothing_left()
        dev._reader.join()
        assert dev.errors[-2:] == [
            "stopping at once: what is in hand is tried again when its lease is over\n",
            f"stopped; the data stays in {folder}\n",
        ]

    with Dev(folder, "--no-flower", bots="slow_bots", cwd=place) as killed:
        killed.await_running()
        killed.send(signal.SIGKILL)
        killed.exit_code()
        with Dev(folder, "--no-flower", bots="slow_bots", cwd=place) as again:
            again.await_running()
            assert "waiting for the processes of the former stack to end …\n" in again.errors
            again.send(signal.SIGTERM)
            assert again.exit_code() == 0, again.errors
        killed.await_nothing_left()


def _flower_knows_a_slice(url: str) -> bool:
    asked = {"draw": "1", "start": "0", "length": "100", "search[value]": "outbox.run_slice"}
    order = {"order[0][column]": "0", "order[0][dir]": "asc", "columns[0][data]": "name"}
    return "outbox.run_slice" in {
        task["name"] for task in httpx.get(url + "tasks/datatable", params=asked | order).json()["data"]
    }
