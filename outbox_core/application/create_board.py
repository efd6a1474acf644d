"""Make a board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.application.run_patiently import run_patiently
from outbox_core.domain.board import Board
from outbox_core.domain.board_input import require_columns
from outbox_core.domain.errors import BoardNotFoundError, InvalidInputError
from outbox_core.domain.identity import require_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.board import Binding
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


def create_board(
    store: TenantStore, runtime: Runtime, board_id: str, columns: Iterable[str], binding: Binding | None = None
) -> Board:
    """Store a board with its columns in this order; the same board again is left as it is, and returned.

    Raises InvalidInputError where a column is no name, or the board exists and is another one.
    """
    require_id(board_id, "board")
    named = require_columns(columns)

    def body(transaction: OutboxTransaction) -> Board:
        try:
            found = store.boards.get(board_id, transaction.transaction)
        except BoardNotFoundError:
            made = Board(tenant_id=store.tenant_id, board_id=board_id, columns=named, binding=binding)
            return store.boards.put(made, transaction.transaction)
        if (found.columns, found.binding) != (named, binding):
            raise InvalidInputError(
                f"there is a board {board_id!r} already; its columns are {', '.join(found.columns)}"
            )
        return found

    return run_patiently(store, runtime, body)
