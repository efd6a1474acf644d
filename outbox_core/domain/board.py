"""Boards, and cards: units of work, and how a change from outside applies to one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card as it is stored. `version` grows with each write; 0 means not stored yet.

    `changed_at` is the outside time of the newest change that set its fields. `bot` and `bot_args` are what a promotion
    has stamped on it. `last_deleted_at` survives a restore.
    """

    tenant_id: str
    card_id: str
    board: str = ""
    title: str = ""
    body: str = ""
    state: str = ""
    labels: tuple[str, ...] = ()
    assignee: str = ""
    link: str = ""
    repo: str = ""
    author: str = ""
    bot: str = ""
    bot_args: Mapping[str, Any] = field(default_factory=dict)
    changed_at: datetime | None = None
    archived_at: datetime | None = None
    deleted_at: datetime | None = None
    last_deleted_at: datetime | None = None
    version: int = 0

    @property
    def gone(self) -> bool:
        """The card is deleted: events about it are skipped, but for those that tell of the deletion."""
        return self.deleted_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Where a board's moves are reflected: `kind` names a projector, `target` tells it where."""

    kind: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A board: its columns in order, which are the states of its cards, and what it is bound to.

    `version` grows with each write; 0 means not stored yet.
    """

    tenant_id: str
    board_id: str
    columns: tuple[str, ...] = ()
    binding: Binding | None = None
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardChange:
    """What one delivery says of a card; None means that it says nothing of that field.

    Labels change only by what is added or removed: a stale list must not bring back a label that was taken away.
    `opening_labels` is the list of the delivery that opened the card; it counts only where it creates the card.
    `from_state` is what the delivery says that the card was before it; it changes nothing of the card.
    """

    card_id: str
    at: datetime
    board: str | None = None
    title: str | None = None
    body: str | None = None
    state: str | None = None
    assignee: str | None = None
    link: str | None = None
    repo: str | None = None
    author: str | None = None
    from_state: str | None = None
    archived: bool | None = None
    opening_labels: tuple[str, ...] = ()
    labels_added: tuple[str, ...] = ()
    labels_removed: tuple[str, ...] = ()
    deletes: bool = False


_FIELDS = ("board", "title", "body", "state", "assignee", "link", "repo", "author")


def apply_change(tenant_id: str, card: Card | None, change: CardChange) -> Card:
    """Return the card after a change; a repeated change returns an equal card.

    A change strictly older than the card leaves the card's fields (real deliveries tie to the second), but adds and
    removes its labels all the same: those are relative. A field the card does not know yet is filled by an older change
    too. What is deleted outside stays deleted.
    """
    if card is None:
        card = Card(tenant_id=tenant_id, card_id=change.card_id, labels=with_labels((), change.opening_labels, ()))
    stale = card.changed_at is not None and change.at < card.changed_at
    said = {name: value for name in _FIELDS if (value := getattr(change, name)) is not None}
    fields = {name: value for name, value in said.items() if not (stale and getattr(card, name))}
    return replace(
        card,
        **fields,
        labels=with_labels(card.labels, change.labels_added, change.labels_removed),
        changed_at=card.changed_at if stale else change.at,
        archived_at=card.archived_at if stale or change.archived is None else _archived_at(card, change),
        deleted_at=card.deleted_at or (change.at if change.deletes else None),
    )


def _archived_at(card: Card, change: CardChange) -> datetime | None:
    return (card.archived_at or change.at) if change.archived else None


def with_labels(labels: Iterable[str], added: Iterable[str], removed: Iterable[str]) -> tuple[str, ...]:
    """Add and remove labels as they fold; a label keeps the spelling it first had."""
    kept = {label.casefold(): label for label in labels}
    for label in added:
        kept.setdefault(label.casefold(), label)
    for label in removed:
        kept.pop(label.casefold(), None)
    return tuple(kept.values())


def without_labels(card: Card, spent: Iterable[str]) -> Card | None:
    """Return the card without labels that fold like `spent`; None where it does not carry all of them.

    Folding is that of matching, so that a one-shot is the label that its rule matched, in every script.
    """
    wanted = frozenset(label.casefold() for label in spent)
    carried = frozenset(label.casefold() for label in card.labels)
    if not wanted <= carried:
        return None
    return replace(card, labels=tuple(label for label in card.labels if label.casefold() not in wanted))
