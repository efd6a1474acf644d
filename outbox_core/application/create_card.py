"""Put a new card on a board."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.change_card import CardChanged, Telling, change_card
from outbox_core.application.enter_column import enter_column
from outbox_core.domain.board import Card, with_labels
from outbox_core.domain.errors import InvalidInputError

if TYPE_CHECKING:
    from outbox_core.domain.board_input import CardDraft, Cause
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction


def create_card(store: TenantStore, runtime: Runtime, draft: CardDraft, cause: Cause) -> CardChanged:
    """Make the card, and append `created`.

    The same event id again makes no second card, also where the draft names no card id. Raises InvalidInputError where
    the card exists, deleted or not, and BoardNotFoundError where there is no such board or column.
    """
    named = replace(cause, event_id=cause.event_id or runtime.entropy.token())
    card_id = draft.card_id or named.event_id

    def decide(card: Card | None, transaction: Transaction) -> tuple[Card, tuple[Telling, ...]]:
        if card is not None:
            raise InvalidInputError(f"there is a card {card_id!r} already{'; it is deleted' if card.gone else ''}")
        board = store.boards.get(draft.board_id, transaction)
        made = Card(
            tenant_id=store.tenant_id,
            card_id=card_id,
            board=draft.board_id,
            state=enter_column(store, board, draft.column, transaction),
            title=draft.title,
            body=draft.body,
            labels=with_labels((), draft.labels, ()),
            assignee=draft.assignee,
            link=draft.link,
            author=cause.author,
        )
        return made, (Telling(action="created"),)

    return change_card(store, runtime, card_id, named, decide)
