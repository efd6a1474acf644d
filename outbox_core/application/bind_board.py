"""Bind a board to where its moves are reflected, or to nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.run_patiently import run_patiently

if TYPE_CHECKING:
    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.board import Binding, Board
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


def bind_board(store: TenantStore, runtime: Runtime, board_id: str, binding: Binding | None) -> Board:
    """Store what the board is bound to; the same again writes nothing. Raises BoardNotFoundError.

    Moves that are drained from now on are owed a projection. Those that wait already go where the board is bound when
    their turn comes; without a binding they have nowhere to go, and fail (E22).
    """

    def body(transaction: OutboxTransaction) -> Board:
        board = store.boards.get(board_id, transaction.transaction)
        if board.binding == binding:
            return board
        return store.boards.put(replace(board, binding=binding), transaction.transaction)

    return run_patiently(store, runtime, body)
