"""How a change from outside applies to a card."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.domain.board import Card, CardChange, apply_change

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def _change(at: datetime = NOW, **said: Any) -> CardChange:  # noqa: ANN401 - fields by name
    return CardChange(card_id="c1", at=at, **said)


def _card(**more: Any) -> Card:  # noqa: ANN401 - fields by name
    return Card(tenant_id="acme", card_id="c1", **{"changed_at": NOW, "version": 3, **more})


def test_a_change_creates_the_card_that_is_not_there() -> None:
    card = apply_change("acme", None, _change(title="T", state="open", opening_labels=("Bug", "bug", "wip")))
    assert card == Card(
        tenant_id="acme", card_id="c1", title="T", state="open", labels=("Bug", "wip"), changed_at=NOW, version=0
    )


def test_what_a_change_does_not_say_stays() -> None:
    card = apply_change("acme", _card(title="T", body="B"), _change(title="", state="closed"))
    assert (card.title, card.body, card.state, card.version) == ("", "B", "closed", 3)


@pytest.mark.parametrize(("lag", "title"), [(timedelta(0), "new"), (-SECOND, "new"), (SECOND, "old")])
def test_a_change_is_stale_only_if_it_is_strictly_older(lag: timedelta, title: str) -> None:
    card = apply_change("acme", _card(title="old"), _change(NOW - lag, title="new"))
    assert card.title == title
    assert card.changed_at == max(NOW, NOW - lag)


def test_a_stale_change_fills_what_is_not_known_and_moves_labels_all_the_same() -> None:
    stale = _change(NOW - SECOND, title="older", repo="o/r", labels_added=("wip",), labels_removed=("BUG",))
    card = apply_change("acme", _card(title="T", labels=("bug", "x")), stale)
    assert (card.title, card.repo, card.labels, card.changed_at) == ("T", "o/r", ("x", "wip"), NOW)


def test_a_list_of_labels_counts_only_where_it_creates_the_card() -> None:
    """A stale list must not bring back a label that was taken away."""
    assert apply_change("acme", _card(labels=("a",)), _change(opening_labels=("b",))).labels == ("a",)


@pytest.mark.parametrize(
    ("labels", "added", "removed", "after"),
    [
        (("Bug",), ("bug",), (), ("Bug",)),
        (("Straße",), (), ("STRASSE",), ()),
        (("a", "b"), ("c",), ("a",), ("b", "c")),
        ((), ("x",), ("X",), ()),
        (("a",), (), ("never",), ("a",)),
    ],
)
def test_labels_are_added_and_removed_as_they_fold(
    labels: tuple[str, ...], added: tuple[str, ...], removed: tuple[str, ...], after: tuple[str, ...]
) -> None:
    changed = apply_change("acme", _card(labels=labels), _change(labels_added=added, labels_removed=removed))
    assert changed.labels == after


def test_what_is_deleted_stays_deleted_at_its_first_time() -> None:
    deleted = apply_change("acme", _card(), _change(deletes=True))
    assert (deleted.deleted_at, deleted.gone) == (NOW, True)
    later = apply_change("acme", deleted, _change(NOW + SECOND, deletes=True, state="open"))
    assert later.deleted_at == NOW
    early = apply_change("acme", _card(), _change(NOW - SECOND, deletes=True))
    assert early.gone


_LABELS = st.lists(st.sampled_from(["a", "A", "ß", "ss", "b"]), max_size=3).map(tuple)
_CHANGES = st.builds(
    _change,
    at=st.integers(-2, 2).map(lambda seconds: NOW + seconds * SECOND),
    title=st.sampled_from([None, "", "x"]),
    state=st.sampled_from([None, "open", "closed"]),
    opening_labels=_LABELS,
    labels_added=_LABELS,
    labels_removed=_LABELS,
    deletes=st.booleans(),
)


@given(st.lists(_CHANGES, max_size=4), _CHANGES)
def test_repeating_a_change_at_once_changes_nothing(before: list[CardChange], change: CardChange) -> None:
    card: Card | None = None
    for earlier in before:
        card = apply_change("acme", card, earlier)
    once = apply_change("acme", card, change)
    assert apply_change("acme", once, change) == once
