"""Bring a deleted or an archived card back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.change_card import CardChanged, Telling, change_card
from outbox_core.application.enter_column import enter_column
from outbox_core.domain.errors import BoardNotFoundError, CardNotFoundError

if TYPE_CHECKING:
    from datetime import datetime

    from outbox_core.domain.board import Card
    from outbox_core.domain.board_input import Cause
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction


def restore_card(store: TenantStore, runtime: Runtime, card_id: str, cause: Cause) -> CardChanged:
    """Undo deletion and archiving alike, and append `restored`; the lifecycle stream is told of an undone deletion.

    A card that is neither is left as it is; one whose column has gone meanwhile comes back in its board's first one.
    Raises CardNotFoundError where there never was such a card, and ObserverActedError inside an observer.
    """

    def decide(card: Card | None, transaction: Transaction) -> tuple[Card, tuple[Telling, ...]]:
        if card is None:
            raise CardNotFoundError(f"there is no card {card_id!r}")
        if not card.gone and card.archived_at is None:
            return card, ()
        state = _column_of(store, card, transaction) if card.gone else card.state
        back = replace(card, state=state, archived_at=None, deleted_at=None, last_deleted_at=_last_deletion(card))
        return back, (Telling(action="restored"),)

    return change_card(store, runtime, card_id, cause, decide)


def _column_of(store: TenantStore, card: Card, transaction: Transaction) -> str:
    """Return where the card comes back to. Columns do not take deleted cards along when they are renamed or removed."""
    try:
        board = store.boards.get(card.board, transaction)
    except BoardNotFoundError:
        return card.state
    if not board.columns:
        return card.state
    return enter_column(store, board, card.state if card.state in board.columns else "", transaction)


def _last_deletion(card: Card) -> datetime | None:
    """A deletion that came from outside has left no `last_deleted_at`."""
    known = [instant for instant in (card.deleted_at, card.last_deleted_at) if instant is not None]
    return max(known, default=None)
