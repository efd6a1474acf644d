"""Rename a column, and take its cards along."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.change_column import ColumnChanged, change_columns
from outbox_core.application.enter_column import require_column_of
from outbox_core.domain.board_input import require_column, require_columns
from outbox_core.domain.event import STATE_RENAME

if TYPE_CHECKING:
    from outbox_core.domain.board import Board
    from outbox_core.domain.board_input import Cause
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


def rename_column(
    store: TenantStore, runtime: Runtime, board_id: str, column: str, name: str, cause: Cause
) -> ColumnChanged:
    """Rename a column; each of its cards moves along in the same transaction, with the reason `state_rename` (E18).

    A column that is called so already is left as it is. Raises BoardNotFoundError where there is no such board or
    column, and InvalidInputError where another column has the name, or more than MAX_COLUMN_CARDS cards stand in it.
    """
    require_column(name)

    def decide(board: Board) -> tuple[Board, str]:
        require_column_of(board, column)
        renamed = require_columns(name if one == column else one for one in board.columns)
        return replace(board, columns=renamed), name

    return change_columns(store, runtime, board_id, column, cause, decide, reason=STATE_RENAME)
