"""The boards of one tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outbox_core.domain.board import Binding, Board
    from outbox_core.ports.transactions import Transaction


class Boards(Protocol):
    """Every call may raise TransientError."""

    def get(self, board_id: str, transaction: Transaction | None = None) -> Board:
        """Return the board; raise BoardNotFoundError where there is none."""
        ...

    def put(self, board: Board, transaction: Transaction) -> Board:
        """Store the board over the version that it carries, and return it with the next one.

        Raises ContentionError where another write came first.
        """
        ...

    def all(self) -> Sequence[Board]:
        """Return every board, by id."""
        ...

    def bindings(self, board_ids: Iterable[str]) -> Mapping[str, Binding | str]:
        """Return what each of these boards is bound to, or why that cannot be read, in one read.

        Unbound and unknown boards are left out. A damaged board costs itself alone.
        """
        ...
