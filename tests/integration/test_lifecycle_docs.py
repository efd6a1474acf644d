"""The code of docs/lifecycle.md, run as it stands against a real replica set."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pymongo import MongoClient

from outbox_core import Outbox
from outbox_core.cli import outbox
from outbox_core.domain.delivery import RETRIES
from outbox_core.domain.limits import Limits, duration_text
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.embedded import EmbeddedMongo

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "lifecycle.md").read_text("utf-8")


class Guide:
    """A folder that holds the guide's programs, and the database of their environment."""

    def __init__(self, folder: Path, environment: dict[str, str], opened: Outbox) -> None:
        self.folder = folder
        self.environment = environment
        self.boards = opened.boards("acme")
        self.consumers = opened.consumers("acme")
        for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE):
            (folder / name).write_text(code, "utf-8")

    def argv(self, name: str) -> dict[str, Any]:
        return {"args": [sys.executable, f"{name}.py"], "cwd": self.folder, "env": self.environment, "text": True}

    def index(self) -> list[str]:
        try:
            with sqlite3.connect(f"file:{self.folder}/index.sqlite?mode=ro", uri=True) as index:
                found = [row[0] for row in index.execute("SELECT card_id FROM live ORDER BY card_id")]
            index.close()
        except sqlite3.OperationalError:
            return []
        return found


@pytest.fixture
def guide(
    mongo_server: EmbeddedMongo, database_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Guide]:
    settings = {"MONGO_URL": mongo_server.url, "MONGO_DB": database_name, "CONSUMER_POLL": "200ms"}
    settings |= {"CONSUMER_IDLE_CAP": "200ms"}
    for name, text in settings.items():
        monkeypatch.setenv(f"OUTBOX_{name}", text)
    opened = Outbox.from_settings()
    opened.ensure_schema()
    opened.boards("acme").create_board("bugs", ["todo"])
    for number in range(1, 4):
        opened.boards("acme").create_card("bugs", "A card", card_id=f"c{number}")
    yield Guide(tmp_path, {**os.environ, "PYTHONPATH": str(ROOT)}, opened)
    opened.close()


@pytest.mark.promise("L05", "L06", "L12")
def test_the_guides_dashboard_follows_and_its_nightly_job_books_each_event_once(
    guide: Guide, mongo_server: EmbeddedMongo, database_name: str
) -> None:
    with subprocess.Popen(**guide.argv("dashboard"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as dashboard:
        try:
            wait_until(lambda: guide.index() == ["c1", "c2", "c3"], 20, "it has begun")
            guide.boards.delete_card("c1")
            guide.boards.delete_card("c2")
            wait_until(lambda: guide.index() == ["c3"], 20, "the deletions")
            guide.boards.restore_card("c2")
            wait_until(lambda: guide.index() == ["c2", "c3"], 20, "the restore")
            dashboard.send_signal(signal.SIGTERM)
            assert dashboard.wait(20) == 0
        finally:
            dashboard.kill()
        assert dashboard.communicate() == ("following\n", "")
    jobs = [subprocess.run(**guide.argv("nightly"), capture_output=True, check=True) for _ in range(2)]
    assert [job.stderr for job in jobs] == ["", ""]
    assert jobs[1].stdout == "idle 0\n"
    with MongoClient[dict[str, Any]](mongo_server.url) as client:
        booked = [(one["card"], one["what"]) for one in client[database_name]["bookings"].find().sort("_id", 1)]
    # The deletion of c2 was undone before its turn.
    assert booked == [("c1", "task:deleted"), ("c2", "task:restored")]
    rows = {one.consumer_id: (one.cursor, one.lease_owner) for one in guide.consumers.all()}
    assert rows == {"bookkeeping": (3, ""), "search-index": (3, "")}


def test_the_guide_names_the_limits_as_they_are() -> None:
    limits = Limits()
    named = re.findall(r"\b([A-Z_]{8,}) \((\d+) ?(s|min|days)?\)", GUIDE)
    assert len(named) >= 6
    for name, number, unit in named:
        known = getattr(limits, name.lower())
        said = str(known) if isinstance(known, int) else duration_text(known)
        assert f"{number}{unit[:1]}" == said, name
    assert [duration_text(one) for one in RETRIES] == ["1s", "5s", "30s", "5m", "15m"]
    assert "1 s, 5 s, 30 s, 5 min, then every 15 min" in GUIDE


def test_the_guides_commands_are_there() -> None:
    named = set(re.findall(r"outbox (consumers|dead) (\w+)", GUIDE))
    assert named
    for group, command in named:
        shown = CliRunner().invoke(outbox, [group, command, "--help"])
        assert shown.exit_code == 0, (group, command)
