"""Let a card enter a column, so that no rename or removal of that column can miss it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.domain.errors import BoardNotFoundError

if TYPE_CHECKING:
    from outbox_core.domain.board import Board
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction


def enter_column(store: TenantStore, board: Board, column: str, transaction: Transaction) -> str:
    """Return the column, "" being the board's first one; raise BoardNotFoundError where the board does not have it.

    The board is written, unchanged: a transaction that renames the column, and therefore does not see a card that
    enters it at the same time, collides with this one on the board. Cards that enter a board so run one by one.
    """
    entered = column or next(iter(board.columns), "")
    require_column_of(board, entered)
    store.boards.put(board, transaction)
    return entered


def require_column_of(board: Board, column: str) -> None:
    """Raise BoardNotFoundError where the board has no such column."""
    if column not in board.columns:
        has = ", ".join(board.columns) or "none"
        raise BoardNotFoundError(f"board {board.board_id!r} has no column {column!r}; it has {has}")
