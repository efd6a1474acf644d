"""What ports.cards promises, on both stores."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.board import Card
from outbox_core.domain.errors import CardNotFoundError, ContentionError

if TYPE_CHECKING:
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness


def _card(card_id: str = "c1", tenant: str = "acme", **more: object) -> Card:
    return replace(Card(tenant_id=tenant, card_id=card_id), **more)  # type: ignore[arg-type] # fields by name


def _put(store: TenantStore, card: Card) -> Card:
    with store.transactions.begin() as transaction:
        stored = store.cards.put(card, transaction)
        transaction.commit()
    return stored


def test_a_card_is_read_back_as_it_was_stored_with_its_next_version(harness: Harness) -> None:
    card = _card(
        board="o/r",
        title="T",
        body="B",
        state="open",
        labels=("Bug", "ñ"),
        assignee="ann",
        link="https://forge/1",
        repo="o/r",
        author="bob",
        changed_at=harness.now(),
    )
    stored = _put(harness.acme, card)
    assert stored == replace(card, version=1)
    assert harness.acme.cards.get("c1") == stored
    again = _put(harness.acme, replace(stored, state="closed"))
    assert (again.version, harness.acme.cards.get("c1").state) == (2, "closed")


def test_a_card_that_does_not_exist_is_not_found(harness: Harness) -> None:
    with pytest.raises(CardNotFoundError):
        harness.acme.cards.get("nobody")


@pytest.mark.promise("E11")
def test_a_card_stands_while_it_is_not_deleted(harness: Harness) -> None:
    _put(harness.acme, _card("there"))
    _put(harness.acme, _card("deleted", deleted_at=harness.now()))
    assert harness.acme.cards.standing(["there", "deleted", "never"]) == {"there"}
    assert harness.acme.cards.standing([]) == frozenset()
    assert harness.acme.cards.get("deleted").gone


def test_a_write_over_a_version_that_is_not_stored_any_more_is_contention_and_undone(harness: Harness) -> None:
    first = _put(harness.acme, _card())
    _put(harness.acme, replace(first, title="theirs"))
    for stale in (first, _card()):
        with harness.acme.transactions.begin() as transaction, pytest.raises(ContentionError):
            harness.acme.cards.put(replace(stale, title="mine"), transaction)
    assert harness.acme.cards.get("c1").title == "theirs"


def test_two_transactions_on_one_card_do_not_both_commit(harness: Harness) -> None:
    stored = _put(harness.acme, _card())
    cards = harness.acme.cards
    with harness.acme.transactions.begin() as first:
        cards.put(replace(stored, title="first"), first)
        with harness.acme.transactions.begin() as second, pytest.raises(ContentionError):
            cards.put(replace(stored, title="second"), second)
        first.commit()
    assert cards.get("c1").title == "first"


def test_a_transaction_reads_its_own_write_and_others_do_not(harness: Harness) -> None:
    stored = _put(harness.acme, _card(title="old"))
    with harness.acme.transactions.begin() as transaction:
        harness.acme.cards.put(replace(stored, title="new"), transaction)
        assert harness.acme.cards.get("c1", transaction).title == "new"
        assert harness.acme.cards.get("c1").title == "old"
    assert harness.acme.cards.get("c1").title == "old"


def test_a_transaction_reads_one_snapshot(harness: Harness) -> None:
    first, second = _put(harness.acme, _card("c1", title="1")), _put(harness.acme, _card("c2", title="1"))
    with harness.acme.transactions.begin() as transaction:
        assert harness.acme.cards.get("c1", transaction).title == "1"
        _put(harness.acme, replace(first, title="2"))
        _put(harness.acme, replace(second, title="2"))
        assert harness.acme.cards.get("c2", transaction).title == "1"


def test_a_link_leads_to_the_card_that_changed_last(harness: Harness) -> None:
    now = harness.now()
    _put(harness.acme, _card("old", link="l", changed_at=now - timedelta(days=1)))
    newest = _put(harness.acme, _card("new", link="l", changed_at=now, deleted_at=now))
    _put(harness.acme, _card("never", link="l"))
    assert harness.acme.cards.linked("l") == newest
    assert harness.acme.cards.linked("m") is None
    assert harness.other.cards.linked("l") is None


@pytest.mark.promise("O08")
def test_a_cards_field_of_a_later_version_survives_a_write(harness: Harness) -> None:
    stored = _put(harness.acme, _card())
    harness.change("board_cards", "acme|c1", of_a_later_version="x")
    _put(harness.acme, replace(stored, title="new"))
    (document,) = harness.raw("board_cards")
    assert (document["title"], document["of_a_later_version"]) == ("new", "x")


def test_a_columns_cards_are_those_that_stand_in_it_archived_ones_included_and_deleted_ones_not(
    harness: Harness,
) -> None:
    now = harness.now()
    for card in (
        _card("here", board="b", state="todo"),
        _card("archived", board="b", state="todo", archived_at=now),
        _card("deleted", board="b", state="todo", deleted_at=now),
        _card("elsewhere", board="b", state="done"),
        _card("other-board", board="c", state="todo"),
    ):
        _put(harness.acme, card)
    with harness.acme.transactions.begin() as transaction:
        found = harness.acme.cards.in_column("b", "todo", transaction, 10)
        assert sorted(card.card_id for card in found) == ["archived", "here"]
        assert len(harness.acme.cards.in_column("b", "todo", transaction, 1)) == 1
        assert harness.acme.cards.in_column("b", "never", transaction, 10) == []
    with harness.other.transactions.begin() as transaction:
        assert harness.other.cards.in_column("b", "todo", transaction, 10) == []


def test_a_column_is_read_in_the_transactions_own_view(harness: Harness) -> None:
    stored = _put(harness.acme, _card("c1", board="b", state="todo"))
    _put(harness.acme, _card("c2", board="b", state="done"))
    with harness.acme.transactions.begin() as transaction:
        harness.acme.cards.put(replace(stored, state="done"), transaction)
        _put(harness.acme, _card("late", board="b", state="done"))
        found = harness.acme.cards.in_column("b", "done", transaction, 10)
        assert {"c1", "c2"} <= {card.card_id for card in found}
        assert harness.acme.cards.in_column("b", "todo", transaction, 10) == []


def test_a_boards_cards_are_listed_by_id_page_by_page_without_what_is_gone_or_archived(harness: Harness) -> None:
    now = harness.now()
    for name in ("c3", "c1", "c2"):
        _put(harness.acme, _card(name, board="b"))
    _put(harness.acme, _card("c0", board="b", archived_at=now))
    _put(harness.acme, _card("c4", board="b", deleted_at=now))
    _put(harness.acme, _card("c5", board="other"))
    listed = harness.acme.cards.listed
    assert [card.card_id for card in listed("b")] == ["c1", "c2", "c3"]
    assert [card.card_id for card in listed("b", limit=2)] == ["c1", "c2"]
    assert [card.card_id for card in listed("b", after="c2", limit=2)] == ["c3"]
    assert harness.other.cards.listed("b") == []


@pytest.mark.promise("L18")
def test_deletions_are_told_of_those_that_are_deleted_outside_and_inside_a_transaction(harness: Harness) -> None:
    store, now = harness.acme, harness.now()
    deleted = _put(store, _card("deleted", deleted_at=now))
    _put(store, _card("there"))
    assert dict(store.cards.deletions(["deleted", "there", "never"])) == {"deleted": deleted.deleted_at}
    assert dict(store.cards.deletions([])) == {}
    with store.transactions.begin() as transaction:
        store.cards.put(replace(deleted, deleted_at=None), transaction)
        assert dict(store.cards.deletions(["deleted"], transaction)) == {}
        assert dict(store.cards.deletions(["deleted"])) == {"deleted": deleted.deleted_at}


@pytest.mark.promise("L12")
def test_live_cards_come_in_pages_archived_ones_included_and_deleted_ones_not(harness: Harness) -> None:
    for name in ("c", "a", "e"):
        _put(harness.acme, _card(name))
    _put(harness.acme, _card("b", archived_at=harness.now()))
    _put(harness.acme, _card("d", deleted_at=harness.now()))
    _put(harness.other, _card("x", tenant="other"))
    cards = harness.acme.cards
    assert [card.card_id for card in cards.live()] == ["a", "b", "c", "e"]
    assert [card.card_id for card in cards.live(limit=2)] == ["a", "b"]
    assert [card.card_id for card in cards.live(after="b", limit=9)] == ["c", "e"]
    assert list(cards.live(after="e")) == []
