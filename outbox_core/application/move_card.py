"""Move a card to another column of its board."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.change_card import CardChanged, Telling, change_card, require_standing
from outbox_core.application.enter_column import enter_column, require_column_of
from outbox_core.domain.board_input import require_column
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import WATCHDOG

if TYPE_CHECKING:
    from outbox_core.domain.board import Card
    from outbox_core.domain.board_input import Cause
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction


def move_card(
    store: TenantStore, runtime: Runtime, card_id: str, column: str, cause: Cause, *, watchdog: bool = False
) -> CardChanged:
    """Move the card, and append `moved`; a card that stands there already is left, and nothing is appended.

    `watchdog` says that an automation moves it, by its own clock or rule: that launches nothing, and a bound board is
    still told (E18). Raises CardNotFoundError, BoardNotFoundError where the board has no such column, and
    InvalidInputError for an archived card.
    """
    require_column(column)
    if watchdog and cause.reason:
        raise InvalidInputError("a watchdog gives no reason of its own")

    def decide(card: Card | None, transaction: Transaction) -> tuple[Card, tuple[Telling, ...]]:
        standing = require_standing(card, card_id)
        if standing.archived_at is not None:
            raise InvalidInputError(f"card {card_id!r} is archived; restore it first")
        if not standing.board:
            raise InvalidInputError(f"card {card_id!r} stands on no board, so it cannot be moved on one")
        board = store.boards.get(standing.board, transaction)
        if standing.state == column:
            require_column_of(board, column)
            return standing, ()
        entered = enter_column(store, board, column, transaction)
        return replace(standing, state=entered), (Telling(action="moved", reason=WATCHDOG if watchdog else ""),)

    return change_card(store, runtime, card_id, cause, decide)
