"""What ports.boards promises, on both stores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.board import Binding, Board
from outbox_core.domain.errors import BoardNotFoundError, ContentionError

if TYPE_CHECKING:
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness

MIRROR = Binding(kind="mirror", target="там")


def _board(board_id: str = "b", **more: object) -> Board:
    return replace(Board(tenant_id="acme", board_id=board_id, columns=("todo", "Готово")), **more)  # type: ignore[arg-type] # fields by name


def _put(store: TenantStore, board: Board) -> Board:
    with store.transactions.begin() as transaction:
        stored = store.boards.put(board, transaction)
        transaction.commit()
    return stored


@pytest.mark.parametrize("binding", [None, MIRROR])
def test_a_board_is_read_back_as_it_was_stored_with_its_next_version(harness: Harness, binding: Binding | None) -> None:
    stored = _put(harness.acme, _board(binding=binding))
    assert stored == _board(binding=binding, version=1)
    assert harness.acme.boards.get("b") == stored
    again = _put(harness.acme, replace(stored, columns=("one",), binding=None))
    assert again == harness.acme.boards.get("b")
    assert (again.version, again.columns, again.binding) == (2, ("one",), None)


def test_a_board_that_does_not_exist_is_not_found(harness: Harness) -> None:
    _put(harness.acme, _board())
    with pytest.raises(BoardNotFoundError, match="nowhere"):
        harness.acme.boards.get("nowhere")
    with harness.acme.transactions.begin() as transaction, pytest.raises(BoardNotFoundError):
        harness.acme.boards.get("nowhere", transaction)


def test_a_write_over_a_version_that_is_not_stored_any_more_is_contention_and_undone(harness: Harness) -> None:
    first = _put(harness.acme, _board())
    _put(harness.acme, replace(first, columns=("theirs",)))
    for stale in (first, _board()):
        with harness.acme.transactions.begin() as transaction, pytest.raises(ContentionError):
            harness.acme.boards.put(replace(stale, columns=("mine",)), transaction)
    assert harness.acme.boards.get("b").columns == ("theirs",)


def test_two_transactions_on_one_board_do_not_both_commit_though_neither_changes_it(harness: Harness) -> None:
    """On this a card that enters a column, and a rename of that column, meet."""
    stored = _put(harness.acme, _board())
    with harness.acme.transactions.begin() as first:
        harness.acme.boards.put(stored, first)
        with harness.acme.transactions.begin() as second, pytest.raises(ContentionError):
            harness.acme.boards.put(stored, second)
        first.commit()
    assert harness.acme.boards.get("b").version == 2


def test_a_transaction_that_read_a_board_before_another_write_of_it_cannot_write_it(harness: Harness) -> None:
    stored = _put(harness.acme, _board())
    with harness.acme.transactions.begin() as transaction:
        assert harness.acme.boards.get("b", transaction) == stored
        _put(harness.acme, replace(stored, columns=("theirs",)))
        assert harness.acme.boards.get("b", transaction) == stored
        with pytest.raises(ContentionError):
            harness.acme.boards.put(stored, transaction)


def test_what_is_not_committed_is_seen_inside_alone_and_gone_after(harness: Harness) -> None:
    stored = _put(harness.acme, _board())
    with harness.acme.transactions.begin() as transaction:
        harness.acme.boards.put(replace(stored, binding=MIRROR), transaction)
        assert harness.acme.boards.get("b", transaction).binding == MIRROR
        assert harness.acme.boards.bindings(["b"]) == {}
    assert harness.acme.boards.get("b") == stored


def test_boards_are_listed_by_id_and_each_tenant_has_its_own(harness: Harness) -> None:
    for name in ("b", "a", "c"):
        _put(harness.acme, _board(name))
    assert [board.board_id for board in harness.acme.boards.all()] == ["a", "b", "c"]
    assert harness.other.boards.all() == []


def test_bindings_are_those_of_the_bound_boards_that_were_asked_for(harness: Harness) -> None:
    _put(harness.acme, _board("bound", binding=MIRROR))
    _put(harness.acme, _board("other", binding=MIRROR))
    _put(harness.acme, _board("unbound"))
    assert harness.acme.boards.bindings(["bound", "unbound", "never"]) == {"bound": MIRROR}
    assert harness.acme.boards.bindings([]) == {}


@pytest.mark.promise("O08")
def test_a_boards_field_of_a_later_version_survives_a_write(harness: Harness) -> None:
    stored = _put(harness.acme, _board())
    harness.change("boards", "acme|b", of_a_later_version="x")
    _put(harness.acme, replace(stored, columns=("new",)))
    (document,) = harness.raw("boards")
    assert (document["columns"], document["of_a_later_version"]) == (["new"], "x")
