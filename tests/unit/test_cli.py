"""The command line: its words, its exit codes, and what it does without a store."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from outbox_core.cli import outbox
from outbox_core.cli.group import LateGroup, exit_code
from outbox_core.cli.output import print_json, table_text
from outbox_core.cli.stack import _worker_is_ready
from outbox_core.domain.errors import (
    ConfigurationError,
    ContentionError,
    EffectNotFoundError,
    EventTooLargeError,
    InvalidInputError,
    OutboxError,
    SubscriptionNotFoundError,
    TransientError,
)
from outbox_core.embedded import EmbeddedServerError

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = [
    ["dev"],
    ["schema"],
    ["ingest"],
    ["stats"],
    *(["subscriptions", name] for name in ("add", "list", "disable", "enable", "remove")),
    *(["boards", name] for name in ("add", "list", "show", "bind", "unbind", "rename-column", "remove-column")),
    *(["cards", name] for name in ("add", "list", "show", "move", "label", "archive", "restore", "delete")),
    *(["effects", name] for name in ("list", "show")),
]


def run(*words: str, given: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(outbox, words, input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_tells_its_json_within_80_columns(words: list[str]) -> None:
    code, out, _ = run(*words, "--help")
    assert code == 0
    assert "--json" in out
    assert "JSON" in out.split("Options:")[0]
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_the_help_of_the_group_tells_the_exit_codes() -> None:
    code, out, _ = run("--help")
    assert code == 0
    for number in "0123":
        assert f"\n    {number}  " in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dance"], "No such command 'dance'"),
        (["effects", "dance"], "No such command 'dance'"),
        (["ingest", "-"], "Missing option '--tenant'"),
        (["effects", "list", "--tenant", "t", "--state", "lost"], "'lost' is not one of"),
        (["effects", "list", "--tenant", "t", "--limit", "0"], "0 is not in the range"),
        (["dev", "--workers", "0"], "0 is not in the range"),
        (["subscriptions", "add", "--tenant", "t"], "give ID and --bot, or --file"),
        (["subscriptions", "add", "--tenant", "t", "r", "--file", "-"], "not both"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(words: list[str], said: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OutboxError("x"), 1),
        (SubscriptionNotFoundError("x"), 1),
        (EffectNotFoundError("x"), 1),
        (EmbeddedServerError("x"), 1),
        (InvalidInputError("x"), 2),
        (EventTooLargeError("x"), 2),
        (ConfigurationError("x"), 2),
        (TransientError("x"), 3),
        (ContentionError("x"), 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_becomes_one_line_and_its_exit_code(error: OutboxError, code: int) -> None:
    @click.group(cls=LateGroup)
    def group() -> None:
        raise type(error)("first line\n  second line")

    assert exit_code(error) == code
    result = CliRunner().invoke(group, ["stats", "--tenant", "t"])
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", "outbox: first line second line\n")


@pytest.mark.promise("C09")
def test_the_plug_in_of_every_celery_process_imports_click_and_no_more() -> None:
    loaded = "import sys, outbox_core.cli; print(sorted(set(sys.modules) & set(sys.argv[1:])))"
    heavy = ["tasks", "celery", "kombu", "redis", "pymongo", "bson", "pydantic", "rich", "outbox_core.bootstrap"]
    done = subprocess.run([sys.executable, "-c", loaded, "click", *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['click']"


def test_a_table_in_a_pipe_has_one_line_a_row_and_cuts_nothing() -> None:
    long = "t|" + "x" * 200 + "|[bold]"
    lines = table_text(("effect", "done"), [(long, datetime(2026, 11, 30, tzinfo=UTC)), (0, None)]).splitlines()
    assert [line.split() for line in lines] == [["effect", "done"], [long, "2026-11-30", "00:00:00Z"], ["0"]]


def test_json_is_one_line_with_iso_instants(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"at": datetime(2026, 11, 30, 15, 0, 0, 5000, tzinfo=UTC), "terms": ("b", "a"), "text": "ü\n"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"at": "2026-11-30T15:00:00.005Z", "terms": ["b", "a"], "text": "ü\n"}


@pytest.mark.promise("O06")
@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("[1]", "object"),
        ("{", "JSON"),
        ('{"id": "r"}', "bot: Field required"),
        ('{"id": "r", "bot": "b", "matches": {}}', "matches: Extra inputs are not permitted"),
        ('{"id": "r", "bot": "b", "match": {"labels": "bug"}}', "match.labels: "),
        ('{"id": "r", "bot": "b", "enabled": "yes"}', "enabled: "),
        ('{"id": "r r", "bot": "b"}', "subscription id: 'r r' is not an id"),
        ('{"id": "r", "bot": "b", "vars": {"a b": 1}}', "'a b' cannot be the name of an argument"),
        ('{"id": "r", "bot": "b", "vars": {"a": 99999999999999999999}}', "does not fit 64 bits"),
        ('{"id": "r", "bot": "b", "vars": {"a": 1, "a": 2}}', "a: given more than once"),
        ('{"id": "r", "bot": "b", "mode": "loud"}', "mode 'loud' is not known"),
        ('{"id": "r", "bot": "b", "repo": "a/b", "match": {"repos": ["c/d"]}}', "repos does not hold it"),
    ],
)
def test_a_rule_in_a_file_is_refused_in_one_line_before_any_store_is_asked(
    tmp_path: Path, rule: str, said: str
) -> None:
    file = tmp_path / "rule.json"
    file.write_text(rule)
    code, out, err = run("subscriptions", "add", "--tenant", "t", "--file", str(file))
    assert (code, out) == (2, "")
    assert err.startswith("outbox: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.promise("O06")
@pytest.mark.parametrize("words", [("ingest",), ("subscriptions", "add", "--file")], ids=" ".join)
def test_a_file_that_is_missing_is_said_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    missing = str(tmp_path / "none.jsonl")
    code, out, err = run(*words, missing, "--tenant", "t")
    assert (code, out, err) == (2, "", f"outbox: {missing} cannot be read: No such file or directory\n")


@pytest.mark.parametrize(
    ("said", "ready"),
    [
        ("[INFO/MainProcess] celery@here ready.", False),
        ("[INFO/MainProcess] celery@here ready.\n[INFO/MainProcess] outbox ready: database outbox, bots: a", True),
    ],
    ids=["another application", "ours"],
)
def test_a_worker_of_the_stack_is_ready_only_when_it_says_so_in_our_words(said: str, *, ready: bool) -> None:
    assert _worker_is_ready(said) is ready
