"""Add labels to a card, and take labels off it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.change_card import CardChanged, Telling, change_card, require_standing
from outbox_core.domain.board import with_labels
from outbox_core.domain.board_input import require_labels
from outbox_core.domain.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outbox_core.domain.board import Card
    from outbox_core.domain.board_input import Cause
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction


def label_card(
    store: TenantStore,
    runtime: Runtime,
    card_id: str,
    cause: Cause,
    *,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
) -> CardChanged:
    """Change the labels by what is added and removed alone, so that concurrent edits converge.

    Appends one `labeled` with all that was added and one `unlabeled` with all that was removed, each with the labels as
    they are after both; a label that the card carries, compared with its case folded, is not added again. Raises
    CardNotFoundError, and InvalidInputError where a label is both added and removed, or the card would carry too many.
    """
    added, removed = require_labels(add), require_labels(remove)
    require_labels((*added, *removed), needed=True)
    both = _folded(added) & _folded(removed)
    if both:
        raise InvalidInputError(f"label {min(both)!r} is both added and removed; choose one")

    def decide(card: Card | None, transaction: Transaction) -> tuple[Card, tuple[Telling, ...]]:
        del transaction
        standing = require_standing(card, card_id)
        labels = with_labels(standing.labels, added, removed)
        require_labels(labels)
        new = [label for label in labels if label not in standing.labels]
        old = [label for label in standing.labels if label not in labels]
        tellings = (
            *([Telling(action="labeled", data={"labels_added": new})] if new else []),
            *([Telling(action="unlabeled", data={"labels_removed": old})] if old else []),
        )
        return replace(standing, labels=labels), tellings

    return change_card(store, runtime, card_id, cause, decide)


def _folded(labels: Iterable[str]) -> frozenset[str]:
    return frozenset(label.casefold() for label in labels)
