"""`outbox boards` and `outbox cards` on a real database: what they print, what they refuse, how they end."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pymongo import MongoClient

from outbox_core import Outbox
from outbox_core.cli import outbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.database import Database

    from outbox_core.embedded import EmbeddedMongo

T = ("--tenant", "t")


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(outbox, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def document(*words: str) -> dict[str, Any]:
    code, out, err = run(*words, "--json")
    assert (code, out.count("\n")) == (0, 1), err
    found: dict[str, Any] = json.loads(out)
    return found


def text(*words: str) -> str:
    code, out, err = run(*words)
    assert code == 0, err
    return out


@pytest.fixture
def database(
    mongo_server: EmbeddedMongo, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database[dict[str, Any]]]:
    """A database that the environment names, with a board of three columns and a card."""
    monkeypatch.setenv("OUTBOX_MONGO_URL", mongo_server.url)
    monkeypatch.setenv("OUTBOX_MONGO_DB", database_name)
    assert run("schema")[0] == 0
    text("boards", "add", *T, "b", "--column", "todo", "--column", "doing", "--column", "done")
    text("cards", "add", *T, "c", "--board", "b", "--title", "The pump runs dry", "--label", "Bug")
    with MongoClient[dict[str, Any]](mongo_server.url) as client:
        yield client[database_name]
        client.drop_database(database_name)


def written(database: Database[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    names = ("boards", "board_cards", "board_events")
    return {name: list(database[name].find({}).sort("_id", 1)) for name in names}


def test_a_board_is_added_bound_shown_and_its_columns_change(database: Database[dict[str, Any]]) -> None:
    board: dict[str, Any] = {"id": "b", "columns": ["todo", "doing", "done"], "binding": None}
    assert document("boards", "list", *T) == {"boards": [board]}
    assert document("boards", "add", *T, "b", *(x for c in board["columns"] for x in ("--column", c))) == {
        "board": board
    }
    bound = document("boards", "bind", *T, "b", "--kind", "mirror", "--target", "there")["board"]
    assert bound["binding"] == {"kind": "mirror", "target": "there"}
    assert "mirror: there" in text("boards", "list", *T)
    assert "mirror: there" in text("boards", "show", *T, "b")
    assert document("boards", "unbind", *T, "b")["board"] == board == document("boards", "show", *T, "b")["board"]
    renamed = document("boards", "rename-column", *T, "b", "todo", "next", "--author", "ada")
    assert (renamed["board"]["columns"], renamed["cards"]) == (["next", "doing", "done"], 1)
    out = text("boards", "remove-column", *T, "b", "next", "--into", "doing")
    assert out == "board b has the columns doing, done; 1 card moved along\n"
    reasons = [event["reason"] for event in database["board_events"].find({}).sort("seq", 1)]
    assert reasons == ["", "state_rename", "state_delete"]


def test_a_card_is_added_moved_labeled_archived_deleted_and_restored(database: Database[dict[str, Any]]) -> None:
    moved = document("cards", "move", *T, "c", "doing", "--author", "ada", "--reason", "urgent", "--event-id", "m")
    assert (moved["card"]["state"], moved["seqs"]) == ("doing", [2])
    assert document("cards", "move", *T, "c", "doing", "--event-id", "m")["seqs"] == [2]
    assert document("cards", "move", *T, "c", "doing")["seqs"] == []
    labeled = document("cards", "label", *T, "c", "--add", "hot", "--add", "now", "--remove", "bug")
    assert (labeled["card"]["labels"], labeled["seqs"]) == (["hot", "now"], [3, 4])
    assert text("cards", "move", *T, "c", "done", "--watchdog") == "card c stands in done (event 5)\n"
    assert document("cards", "archive", *T, "c")["card"]["archived_at"] is not None
    assert document("cards", "list", *T, "--board", "b") == {"cards": [], "next_after": None}
    deleted = document("cards", "delete", *T, "c", "--run-id", "r")
    assert document("cards", "delete", *T, "c") == {**deleted, "seqs": []}
    assert document("cards", "show", *T, "c")["card"] == deleted["card"]
    restored = document("cards", "restore", *T, "c")["card"]
    assert (restored["archived_at"], restored["deleted_at"], restored["state"]) == (None, None, "done")
    assert text("cards", "restore", *T, "c") == "card c stands in done (nothing changed)\n"
    events = list(database["board_events"].find({}).sort("seq", 1))
    assert [event["reason"] for event in events[1:5]] == ["urgent", "", "", "watchdog"]
    assert [event["run_id"] for event in events if event["action"] == "deleted"] == ["r"]


def test_cards_are_listed_page_by_page_and_shown(database: Database[dict[str, Any]]) -> None:
    del database
    made = document("cards", "add", *T, "--board", "b", "--title", "Other", "--column", "done", "--assignee", "ida")
    first = document("cards", "list", *T, "--board", "b", "--limit", "1")
    rest = document("cards", "list", *T, "--board", "b", "--after", first["next_after"])
    assert {card["title"] for card in first["cards"] + rest["cards"]} == {"The pump runs dry", "Other"}
    assert made["card"] in first["cards"] + rest["cards"]
    assert ["c", "todo", "The", "pump", "runs", "dry", "Bug"] in [
        line.split() for line in text("cards", "list", *T, "--board", "b").splitlines()
    ]
    shown = text("cards", "show", *T, made["card"]["card_id"])
    assert ["assignee", "ida"] in [line.split() for line in shown.splitlines()]


def test_a_page_of_cards_ends_with_the_command_that_shows_the_next_one(database: Database[dict[str, Any]]) -> None:
    del database
    text("cards", "add", *T, "d", "--board", "b", "--title", "Other")
    code, _, err = run("cards", "list", *T, "--board", "b", "--limit", "1")
    assert (code, err) == (0, "there may be more: outbox cards list --tenant t --board b --limit 1 --after c\n")
    shown = text(*err.removeprefix("there may be more: outbox ").split())
    assert [line.split()[0] for line in shown.splitlines()] == ["card", "d"]


def test_a_name_that_may_be_a_typo_is_said_so_where_there_is_nothing_to_show(
    database: Database[dict[str, Any]],
) -> None:
    code, out, err = run("cards", "list", *T, "--board", "nowhere", "--json")
    assert (code, json.loads(out)["cards"]) == (0, [])
    assert err == "tenant t has no board 'nowhere', and no card stands on one of that name\n"
    assert run("boards", "list", "--tenant", "t2", "--json")[1:] == (
        '{"boards": []}\n',
        "tenant t2 has no boards yet\n",
    )
    text("boards", "add", *T, "empty", "--column", "x")
    assert run("cards", "list", *T, "--board", "empty")[2] == ""
    database["board_cards"].update_many({}, {"$set": {"board": "gh.project.1"}})
    assert run("cards", "list", *T, "--board", "gh.project.1")[2] == ""


def test_binding_to_a_projector_that_nobody_here_knows_is_said_so(
    database: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run("boards", "bind", *T, "b", "--kind", "mirrror", "--target", "there")
    assert (code, err.count("\n")) == (0, 1)
    assert "has a projector of kind 'mirrror'" in err
    monkeypatch.setenv("OUTBOX_BOTS", "no_such_module")
    before = written(database)
    assert run("boards", "bind", *T, "b", "--kind", "mirror", "--target", "there")[0] == 2
    assert written(database) == before
    monkeypatch.setenv("OUTBOX_BOTS", "examples.projectors")
    assert run("boards", "bind", *T, "b", "--kind", "mirror", "--target", "there")[2] == ""


def test_a_list_of_rules_tells_their_modes_and_the_labels_that_they_take_off(
    database: Database[dict[str, Any]],
) -> None:
    del database
    rule = ("subscriptions", "add", *T, "--bot", "any", "--allow-unknown-bot", "--source", "board", "--label", "go")
    text(*rule, "once", "--consume-label", "go")
    text(*rule, "stamp", "--mode", "board")
    rows = [line.split() for line in text("subscriptions", "list", *T).splitlines()]
    assert rows[0] == ["subscription", "bot", "mode", "enabled", "from", "matches"]
    assert rows[1][:3] + rows[1][-3:] == ["once", "any", "direct", "takes", "off:", "go"]
    assert rows[2][:3] + rows[2][-2:] == ["stamp", "any", "board", "labels:", "go"]


def test_a_list_of_effects_tells_projections_from_launches(
    database: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    del database
    monkeypatch.setenv("OUTBOX_BOTS", "examples.projectors")
    text("boards", "bind", *T, "b", "--kind", "mirror", "--target", "there.cards")
    text("cards", "move", *T, "c", "doing")
    with closing(Outbox.from_settings()) as found:
        found.drain_tenant("t")
    header, row = (line.split() for line in text("effects", "list", *T).splitlines())
    assert header[2] == "bot"
    assert row[1:3] == ["(projection)", "pending"]


def test_a_card_is_shown_with_the_arguments_of_its_stamp_as_json(database: Database[dict[str, Any]]) -> None:
    database["board_cards"].update_many({}, {"$set": {"bot": "act", "bot_args": {"hot": True}}})
    assert 'bot_args {"hot": true}' in [" ".join(line.split()) for line in text("cards", "show", *T, "c").splitlines()]


@pytest.mark.promise("O06")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["boards", "add", *T, "b", "--column", "x"], 2, "already"),
        (["boards", "add", *T, "b2", "--column", ""], 2, "column ''"),
        (["boards", "add", *T, "b2"], 2, "Missing option '--column'"),
        (["boards", "add", "--tenant", "t t", "b2", "--column", "x"], 2, "tenant"),
        (["boards", "show", *T, "nowhere"], 1, "no board 'nowhere'"),
        (["boards", "bind", *T, "b", "--kind", "a b", "--target", "x"], 2, "projector kind"),
        (["boards", "unbind", *T, "nowhere"], 1, "no board 'nowhere'"),
        (["boards", "rename-column", *T, "b", "no", "x"], 1, "no column 'no'; it has todo, doing, done"),
        (["boards", "rename-column", *T, "b", "todo", "done"], 2, "called the same"),
        (["boards", "remove-column", *T, "b", "todo"], 2, "holds 1 cards; name the column that takes them"),
        (["cards", "add", *T, "x", "--board", "nowhere", "--title", "t"], 1, "no board 'nowhere'"),
        (["cards", "add", *T, "c", "--board", "b", "--title", "t"], 2, "a card 'c' already"),
        (["cards", "add", *T, "x", "--board", "b", "--title", " "], 2, "title"),
        (["cards", "show", *T, "nobody"], 1, "tenant t has no card 'nobody'"),
        (["cards", "move", *T, "nobody", "todo"], 1, "no card 'nobody'"),
        (["cards", "move", *T, "c", "no"], 1, "no column 'no'"),
        (["cards", "move", *T, "c", "doing", "--reason", "state_rename"], 2, "machine's own"),
        (["cards", "move", *T, "c", "doing", "--event-id", "a b"], 2, "event id"),
        (["cards", "label", *T, "c"], 2, "at least one label"),
        (["cards", "delete", *T, "nobody"], 1, "no card 'nobody'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_gives_one_line_and_its_code_and_writes_nothing(
    database: Database[dict[str, Any]], words: list[str], code: int, said: str
) -> None:
    before = written(database)
    found, out, err = run(*words)
    assert (found, out) == (code, ""), err
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err
    assert written(database) == before
