"""Change a board's columns, and give the cards of one of them another one, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outbox_core.application.change_card import Telling, card_event
from outbox_core.application.run_patiently import run_patiently
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.identity import fitting_id
from outbox_core.domain.limits import MAX_COLUMN_CARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.board import Board, Card
    from outbox_core.domain.board_input import Cause
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


@dataclass(frozen=True, slots=True)
class ColumnChanged:
    """A board as it is now, and how many cards moved along."""

    board: Board
    cards: int


def change_columns(
    store: TenantStore,
    runtime: Runtime,
    board_id: str,
    column: str,
    cause: Cause,
    decide: Callable[[Board], tuple[Board, str]],
    *,
    reason: str,
) -> ColumnChanged:
    """Store the board that `decide` returns, and move the cards of `column` to the one that it names.

    Archived cards move along; deleted ones stay, and `restore_card` finds them a column. Raises what `decide` raises,
    InvalidInputError where the cause gives a reason or an event id of its own (each card has its own event, and the
    reason is a machine's), and TransientError where the store did not answer for GAP_GRACE.
    """
    if cause.reason or cause.event_id:
        raise InvalidInputError("a change of columns takes no reason and no event id: each of its cards has its own")
    wrote: list[ColumnChanged] = []

    def body(transaction: OutboxTransaction) -> ColumnChanged:
        board = store.boards.get(board_id, transaction.transaction)
        if wrote and wrote[-1].board.columns == board.columns:
            # The commit whose answer was lost had happened.
            return ColumnChanged(board, wrote[-1].cards)
        changed, into = decide(board)
        if changed == board:
            return ColumnChanged(board, 0)
        cards = _cards_of(store, board, column, transaction)
        if cards and not into:
            raise InvalidInputError(
                f"column {column!r} of board {board_id!r} holds {len(cards)} cards; name the column that takes them"
            )
        # Ids of each try's own: a try that had happened, and that others undid since, must not silence this one.
        operation = runtime.entropy.token()
        wrote.append(ColumnChanged(store.boards.put(changed, transaction.transaction), len(cards)))
        for card in cards:
            moved = store.cards.put(replace(card, state=into), transaction.transaction)
            event_id = fitting_id(f"{operation}.{card.card_id}")
            transaction.append_event(card_event(event_id, cause, Telling(action="moved", reason=reason), card, moved))
        return wrote[-1]

    return run_patiently(store, runtime, body)


def _cards_of(store: TenantStore, board: Board, column: str, transaction: OutboxTransaction) -> Sequence[Card]:
    cards = store.cards.in_column(board.board_id, column, transaction.transaction, MAX_COLUMN_CARDS + 1)
    if len(cards) > MAX_COLUMN_CARDS:
        raise InvalidInputError(
            f"column {column!r} of board {board.board_id!r} holds more than {MAX_COLUMN_CARDS:,} cards, which is what "
            "can move along in one transaction; move or delete some first"
        )
    return cards
