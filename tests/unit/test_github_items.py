"""Cards of GitHub's own projects, classic and new: what a delivery says of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outbox_core.domain.board import Card, CardChange, apply_change
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.forge_delivery import Delivery
from outbox_core.sources.github import read_delivery

AT = "2026-11-02T09:00:00Z"


def classic(action: str = "moved", *, came_from: object = None, **fields: object) -> dict[str, Any]:
    card = {
        "id": 21,
        "url": "https://api.github.com/projects/columns/cards/21",
        "project_url": "https://api.github.com/projects/7",
        "column_url": "https://api.github.com/projects/columns/5",
        "column_id": 5,
        "note": "Fix the pump\nIt runs dry.",
        "archived": False,
        "creator": {"login": "ada"},
        "updated_at": AT,
        **fields,
    }
    changes = {} if came_from is None else {"changes": {"column_id": {"from": came_from}}}
    return {
        "action": action,
        "project_card": card,
        "repository": {"full_name": "acme/pumps"},
        "sender": {"login": "bob"},
        **changes,
    }


def item(action: str = "edited", *, changes: object = None, **fields: object) -> dict[str, Any]:
    of_item = {
        "id": 33,
        "project_node_id": "PVT_x-1",
        "content_node_id": "I_1",
        "content_type": "Issue",
        "creator": {"login": "ada"},
        "archived_at": None,
        "updated_at": AT,
        **fields,
    }
    said = {} if changes is None else {"changes": changes}
    return {
        "action": action,
        "projects_v2_item": of_item,
        "organization": {"login": "acme"},
        "sender": {"login": "bob"},
        **said,
    }


def status(before: str | None, after: str | None, **more: object) -> dict[str, Any]:
    named = {key: name and {"id": "x", "name": name, "color": "RED"} for key, name in (("from", before), ("to", after))}
    return {"field_value": {"field_name": "Status", "field_type": "single_select", **named, **more}}


def read(payload: dict[str, Any]) -> tuple[Delivery, CardChange]:
    kind = "project_card" if "project_card" in payload else "projects_v2_item"
    said = read_delivery({"X-GitHub-Event": kind, "X-GitHub-Delivery": "d"}, json.dumps(payload).encode(), secret=None)
    assert isinstance(said, Delivery)
    assert said.change is not None
    return said, said.change


def test_a_classic_card_stands_in_its_column_on_the_board_of_its_project() -> None:
    said, change = read(classic(came_from=4))
    assert (said.source, said.type, said.action, said.subject, said.actor) == (
        "board",
        "project_card",
        "moved",
        "gh.card.21",
        "bob",
    )
    card = apply_change("t", None, change)
    assert (card.card_id, card.board, card.state) == ("gh.card.21", "gh.project.7", "5")
    assert (card.title, card.body, card.repo, card.author) == (
        "Fix the pump",
        "Fix the pump\nIt runs dry.",
        "acme/pumps",
        "ada",
    )
    assert change.from_state == "4"
    assert said.data["project"] == "7"
    assert said.data["url"].endswith("/cards/21")


def test_a_classic_card_that_shows_an_issue_has_no_note_and_tells_of_its_content() -> None:
    said, change = read(classic("converted", note=None, content_url="https://api.github.com/repos/acme/pumps/issues/1"))
    assert (change.title, change.body, change.from_state) == ("", "", None)
    assert said.data["content_url"] == "https://api.github.com/repos/acme/pumps/issues/1"
    assert read(classic("edited", note="N"))[1].title == "N"


def test_an_item_stands_where_its_projects_status_says() -> None:
    said, change = read(item(changes=status("Todo", "In Progress")))
    assert (said.type, said.subject, change.board) == ("projects_v2_item", "gh.item.33", "gh.project.PVT_x-1")
    assert (change.state, change.from_state) == ("In Progress", "Todo")
    assert (said.data["content"], said.data["content_type"], said.data["field"]) == ("I_1", "Issue", "Status")
    assert read(item(changes=status(None, "Todo")))[1].state == "Todo"
    assert read(item(changes=status("Todo", None)))[1].state == ""


@pytest.mark.parametrize(
    "changes",
    [
        None,
        {"field_value": {"field_node_id": "x", "field_type": "single_select"}},
        status("a", "b", field_name="Size"),
        status("a", "b", field_type="text"),
        {"field_value": {"field_name": "Points", "field_type": "number", "from": 1, "to": 2}},
        {"field_value": {"field_name": "When", "field_type": "date", "from": None, "to": "2026-01-01"}},
        {"content_type": {"from": "DraftIssue", "to": "Issue"}},
        {"previous_projects_v2_item_node_id": {"from": "x", "to": "y"}},
    ],
)
def test_any_other_change_of_an_item_leaves_its_state(changes: object) -> None:
    _, change = read(item(changes=changes))
    assert (change.state, change.from_state) == (None, None)
    before = Card(tenant_id="t", card_id="gh.item.33", state="Todo", version=1)
    assert apply_change("t", before, change).state == "Todo"


@pytest.mark.parametrize(
    ("gone", "back"),
    [
        (item("archived", archived_at=AT), item("restored")),
        (classic("edited", archived=True), classic("edited")),
    ],
)
def test_archiving_and_restoring_outside_is_seen_and_an_older_delivery_does_not_undo_it(
    gone: dict[str, Any], back: dict[str, Any]
) -> None:
    archived = apply_change("t", None, read(gone)[1])
    assert archived.archived_at is not None
    assert apply_change("t", archived, read(gone)[1]) == archived
    for part in ("projects_v2_item", "project_card"):
        if part in back:
            older = {**back, part: {**back[part], "updated_at": "2026-11-02T08:59:59Z"}}
            assert apply_change("t", archived, read(older)[1]).archived_at == archived.archived_at
    assert apply_change("t", archived, read(back)[1]).archived_at is None
    assert not archived.gone


@pytest.mark.parametrize("payload", [classic("deleted"), item("deleted")])
def test_a_deletion_ends_the_card(payload: dict[str, Any]) -> None:
    assert apply_change("t", None, read(payload)[1]).gone


def test_what_is_missing_leaves_the_cards() -> None:
    bare = {"action": "edited", "project_card": {"id": 21}}
    _, change = read(bare)
    assert (change.board, change.state, change.title, change.archived, change.repo) == (None, None, None, None, None)
    _, change = read({"action": "edited", "projects_v2_item": {"id": 33}})
    assert (change.board, change.state, change.archived, change.author) == (None, None, None, None)


def test_a_project_whose_id_fits_no_key_is_hashed() -> None:
    _, change = read(item(project_node_id="MDc6UHJvamVjdDI2NDA5MDI="))
    assert change.board is not None
    assert len(change.board) == 64


@pytest.mark.promise("O06")
@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({**classic(), "action": ""}, r"\$\.action"),
        ({"action": "moved"}, r"\$\.project_card"),
        (classic(id="21"), r"\$\.project_card\.id"),
        (classic(column_id="5"), r"\$\.project_card\.column_id"),
        (item(id=0), r"\$\.projects_v2_item\.id"),
        (item(archived_at="yesterday"), r"\$\.projects_v2_item\.archived_at"),
    ],
)
def test_what_is_not_as_github_sends_it_is_refused_by_its_path(payload: dict[str, Any], path: str) -> None:
    kind = "projects_v2_item" if "projects_v2_item" in payload else "project_card"
    with pytest.raises(InvalidInputError, match=path):
        read_delivery({"X-GitHub-Event": kind, "X-GitHub-Delivery": "d"}, json.dumps(payload).encode(), secret=None)
