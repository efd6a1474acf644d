"""Delete a card: the one flow that does, whoever asks for it here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.change_card import CardChanged, Telling, change_card
from outbox_core.application.record_lifecycle import deletion_time
from outbox_core.domain.errors import CardNotFoundError

if TYPE_CHECKING:
    from outbox_core.domain.board import Card
    from outbox_core.domain.board_input import Cause
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction


def delete_card(store: TenantStore, runtime: Runtime, card_id: str, cause: Cause) -> CardChanged:
    """Mark the card deleted, append `deleted` with the card as it was, audit it, and tell the lifecycle stream (L01).

    All of it commits together, or nothing does. An archived card may be deleted too. `deleted_at` is the server's
    time, and always later than the card's last one, so that two deletions of a card never share it. A repeat writes
    nothing, and returns the card with the same `deleted_at`. Raises CardNotFoundError where there never was such a
    card, and ObserverActedError inside an observer (L08).
    """

    def decide(card: Card | None, transaction: Transaction) -> tuple[Card, tuple[Telling, ...]]:
        del transaction
        if card is None:
            raise CardNotFoundError(f"there is no card {card_id!r}")
        if card.gone:
            return card, ()
        deleted_at = deletion_time(card, store.log.head().now)
        return replace(card, deleted_at=deleted_at, last_deleted_at=deleted_at), (Telling(action="deleted"),)

    return change_card(store, runtime, card_id, cause, decide)
