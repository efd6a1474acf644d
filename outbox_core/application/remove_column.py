"""Remove a column, and move its cards to another one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.change_column import ColumnChanged, change_columns
from outbox_core.application.enter_column import require_column_of
from outbox_core.domain.board_input import require_columns
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import STATE_DELETE

if TYPE_CHECKING:
    from outbox_core.domain.board import Board
    from outbox_core.domain.board_input import Cause
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


def remove_column(
    store: TenantStore, runtime: Runtime, board_id: str, column: str, into: str, cause: Cause
) -> ColumnChanged:
    """Remove a column; each of its cards moves to `into` in the same transaction, with the reason `state_delete` (E18).

    `into` may be "" for a column without cards. Raises BoardNotFoundError where there is no such board or column, and
    InvalidInputError for a board's last column, for cards with nowhere to go, or for more than MAX_COLUMN_CARDS.
    """
    if into == column:
        raise InvalidInputError(f"column {column!r} cannot take its own cards when it is removed; name another one")

    def decide(board: Board) -> tuple[Board, str]:
        require_column_of(board, column)
        if into:
            require_column_of(board, into)
        left = require_columns(one for one in board.columns if one != column)
        return replace(board, columns=left), into

    return change_columns(store, runtime, board_id, column, cause, decide, reason=STATE_DELETE)
