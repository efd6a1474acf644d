"""The commands on a real database: their documents keep their shape, under the script and under celery alike."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from outbox_core import Outbox
from outbox_core.cli import outbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.embedded import EmbeddedMongo

ROOT = Path(__file__).parents[2]
SCRIPT = [sys.executable, "-c", "from outbox_core.cli import main; main()"]
UNDER_CELERY = [sys.executable, "-m", "celery", "-A", "tasks", "outbox"]
ROW = {
    "effect_id",
    "seq",
    "event_id",
    "kind",
    "state",
    "outcome",
    "sub_id",
    "bot_id",
    "attempts",
    "claims",
    "not_before",
    "created_at",
    "updated_at",
    "done_at",
    "last_error",
}


@pytest.fixture
def filled(mongo_server: EmbeddedMongo, database_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outbox]:
    """A database that the environment names, in which rule `r` is owed three effects."""
    monkeypatch.setenv("OUTBOX_MONGO_URL", mongo_server.url)
    monkeypatch.setenv("OUTBOX_MONGO_DB", database_name)
    opened = Outbox.from_settings()
    opened.ensure_schema()
    document("subscriptions", "add", "--tenant", "t", "r", "--bot", "theirs", "--allow-unknown-bot", "--type", "order")
    for number in range(3):
        opened.append("t", event_id=f"e{number}", type="order", action="placed")
    opened.drain_tenant("t")
    yield opened
    opened.close()


def document(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(outbox, [*words, "--json"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def text(*words: str) -> str:
    result = CliRunner().invoke(outbox, words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_rule_is_added_listed_disabled_enabled_and_removed(filled: Outbox, tmp_path: Path) -> None:
    file = tmp_path / "rule.json"
    given = {
        "id": "from-file",
        "bot": "theirs",
        "repo": "acme/pumps",
        "match": {"labels": ["bug"], "sources": ["board"]},
        "vars": {"folder": "in", "depth": 2},
        "args_var": "event",
        "consume_labels": ["bug"],
        "created_by": "ada",
    }
    file.write_text(json.dumps(given))
    added = document("subscriptions", "add", "--tenant", "t", "--file", str(file), "--allow-unknown-bot")[
        "subscription"
    ]
    match = {"sources": ["board"], "types": [], "actions": [], "repos": [], "authors": [], "subject_states": []}
    expected = {
        **given,
        "match": {**match, "labels": ["bug"]},
        "mode": "direct",
        "enabled": True,
        "origin": "cli",
    }
    assert {name: value for name, value in added.items() if name not in {"from_seq", "created_at"}} == expected
    assert added["from_seq"] == 3

    listed = document("subscriptions", "list", "--tenant", "t")["subscriptions"]
    assert [rule["id"] for rule in listed] == ["from-file", "r"]
    assert listed[0] == added
    one_shot = ("--source", "board", "--label", "go", "--consume-label", "go", "--allow-unknown-bot")
    added = document("subscriptions", "add", "--tenant", "t", "one-shot", "--bot", "theirs", *one_shot)["subscription"]
    assert (added["consume_labels"], added["mode"]) == (["go"], "direct")
    assert document("subscriptions", "remove", "--tenant", "t", "one-shot")["changed"]
    assert document("subscriptions", "disable", "--tenant", "t", "from-file") == {
        "sub_id": "from-file",
        "changed": True,
    }
    assert document("subscriptions", "disable", "--tenant", "t", "from-file")["changed"] is False
    filled.append("t", type="order")
    assert document("subscriptions", "enable", "--tenant", "t", "from-file")["changed"] is True
    rule = document("subscriptions", "list", "--tenant", "t")["subscriptions"][0]
    assert (rule["enabled"], rule["from_seq"]) == (True, 4)
    assert "repo: acme/pumps; sources: board; labels: bug" in text("subscriptions", "list", "--tenant", "t")
    assert document("subscriptions", "remove", "--tenant", "t", "from-file")["changed"] is True
    assert document("subscriptions", "list", "--tenant", "other") == {"subscriptions": []}


def test_rows_are_listed_page_by_page_and_shown(filled: Outbox) -> None:
    del filled
    first = document("effects", "list", "--tenant", "t", "--limit", "2")
    rest = document("effects", "list", "--tenant", "t", "--limit", "2", "--after", first["next_after"])
    rows = first["effects"] + rest["effects"]
    assert rest["next_after"] is None
    assert [row["event_id"] for row in rows] == ["e2", "e1", "e0"]
    assert {frozenset(row) for row in rows} == {frozenset(ROW)}
    assert document("effects", "list", "--tenant", "t", "--state", "done")["effects"] == []
    assert document("effects", "list", "--tenant", "t", "--subscription", "none")["effects"] == []
    assert document("effects", "list", "--tenant", "other")["effects"] == []

    shown = document("effects", "show", "--tenant", "t", "t|e1|r")["effect"]
    assert (shown["effect_id"], shown["state"], shown["run"]) == ("t|e1|r", "pending", None)
    assert shown["attributes"]["type"] == "order"
    lines = text("effects", "show", "--tenant", "t", "t|e1|r").splitlines()
    assert ["attempts", "0"] in [line.split() for line in lines]


def test_people_see_what_became_of_each_row_and_the_command_for_the_rest(
    filled: Outbox,
) -> None:
    """A row whose error has several lines is one line; a delivered one shows no error of a former try."""
    with filled.store.tenant("t").transactions.begin() as reading:
        rows = reading.database["trigger_effects"]
    at = datetime(2026, 11, 30, 15, tzinfo=UTC)
    told = {"last_error": "boom:\n  a traceback", "updated_at": at, "attempts": 2}
    rows.update_one({"_id": "t|e0|r"}, {"$set": {**told, "state": "done", "outcome": "delivered", "done_at": at}})
    rows.update_one({"_id": "t|e1|r"}, {"$set": {**told, "state": "failed"}})
    result = CliRunner().invoke(outbox, ["effects", "list", "--tenant", "t"])
    head, *lines = result.stdout.splitlines()
    columns = ["seq", "subscription", "bot", "state", "outcome", "tries", "due", "settled", "effect", "last error"]
    starts = [head.index(name) for name in columns]
    cells = [[line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)] for line in lines]
    due = cells[0].pop(6)
    assert due.endswith("Z")
    assert cells == [
        ["3", "r", "theirs", "pending", "", "0", "", "t|e2|r", ""],
        ["2", "r", "theirs", "failed", "", "2", "", "2026-11-30 15:00:00Z", "t|e1|r", "boom: a traceback"],
        ["1", "r", "theirs", "done", "delivered", "2", "", "2026-11-30 15:00:00Z", "t|e0|r", ""],
    ]
    first = CliRunner().invoke(outbox, ["effects", "list", "--tenant", "t", "--subscription", "r", "--limit", "2"])
    (more,) = first.stderr.splitlines()
    words = shlex.split(more.removeprefix("there may be more: outbox "))
    assert [row["effect_id"] for row in document(*words)["effects"]] == ["t|e0|r"]


@pytest.mark.parametrize("words", [["stats"], ["effects", "list"], ["subscriptions", "list"]], ids=" ".join)
def test_a_tenant_that_has_nothing_is_said_and_is_no_error(filled: Outbox, words: list[str]) -> None:
    del filled
    result = CliRunner().invoke(outbox, [*words, "--tenant", "typo", "--json"])
    assert (result.exit_code, result.stderr) == (0, "tenant typo has no events, rules or rows yet\n")
    assert json.loads(result.stdout)
    assert CliRunner().invoke(outbox, [*words, "--tenant", "t"]).stderr == ""


def test_a_subscription_that_is_not_there_is_said_and_is_no_error(filled: Outbox) -> None:
    del filled
    result = CliRunner().invoke(outbox, ["effects", "list", "--tenant", "t", "--subscription", "rr"])
    assert (result.exit_code, result.stderr) == (0, "tenant t has no subscription 'rr'\n")


@pytest.mark.parametrize("command", [SCRIPT, UNDER_CELERY], ids=["script", "celery"])
def test_the_script_and_the_plug_in_of_celery_say_the_same(filled: Outbox, command: list[str]) -> None:
    del filled
    done = subprocess.run(
        [*command, "stats", "--tenant", "t", "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found.pop("now") >= found.pop("next_due")
    assert found == {
        "tenant_id": "t",
        "last_seq": 3,
        "drained_seq": 3,
        "undrained": 0,
        "live": 3,
        "rows": {"pending": 3},
        "subscriptions": 1,
        "enabled": 1,
    }
    none = subprocess.run(
        [*command, "effects", "show", "--tenant", "t", "none"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (none.returncode, none.stdout, none.stderr.count("\n")) == (1, "", 1)
    assert none.stderr.startswith("outbox: ")


@pytest.mark.parametrize("command", [SCRIPT, UNDER_CELERY], ids=["script", "celery"])
def test_a_wrong_setting_ends_both_with_the_exit_code_of_the_table(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_GAP_GRACE", "1s")
    done = subprocess.run(
        [*command, "stats", "--tenant", "t", "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "outbox: limits: OP_TIMEOUT (10s) must be shorter than GAP_GRACE (1s)\n"


def test_the_version_is_told() -> None:
    assert text("--version") == f"outbox {version('effect-outbox')}\n"


def test_a_watch_goes_on_until_ctrl_c_and_ends_with_0(filled: Outbox) -> None:
    del filled
    words = ["stats", "--tenant", "t", "--watch", "--interval", "0.2", "--json"]
    with subprocess.Popen(
        [*SCRIPT, *words], env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watch:
        if watch.stdout is None or watch.stderr is None:
            raise AssertionError("no pipes")
        looks = [json.loads(watch.stdout.readline()) for _ in range(3)]
        watch.send_signal(signal.SIGINT)
        assert watch.wait(timeout=20) == 0
        assert watch.stderr.read() == ""
    assert [look["live"] for look in looks] == [3, 3, 3]
    assert looks[0]["now"] < looks[2]["now"]


def test_the_schema_is_applied_once_and_its_check_changes_nothing(
    mongo_server: EmbeddedMongo, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_MONGO_URL", mongo_server.url)
    monkeypatch.setenv("OUTBOX_MONGO_DB", database_name)
    check = CliRunner().invoke(outbox, ["schema", "--check", "--json"])
    pending = json.loads(check.stdout)["pending"]
    assert (check.exit_code, bool(pending)) == (1, True)
    assert document("schema") == {"applied": pending, "pending": []}
    assert document("schema") == {"applied": [], "pending": []}
    assert document("schema", "--check") == {"applied": [], "pending": []}
