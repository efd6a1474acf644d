"""Take a card off its board's view, and keep it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.change_card import CardChanged, Telling, change_card, require_standing

if TYPE_CHECKING:
    from outbox_core.domain.board import Card
    from outbox_core.domain.board_input import Cause
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction


def archive_card(store: TenantStore, runtime: Runtime, card_id: str, cause: Cause) -> CardChanged:
    """Archive the card, and append `archived`; an archived one is left as it is. Raises CardNotFoundError."""

    def decide(card: Card | None, transaction: Transaction) -> tuple[Card, tuple[Telling, ...]]:
        del transaction
        standing = require_standing(card, card_id)
        if standing.archived_at is not None:
            return standing, ()
        return replace(standing, archived_at=store.log.head().now), (Telling(action="archived"),)

    return change_card(store, runtime, card_id, cause, decide)
