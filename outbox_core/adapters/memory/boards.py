"""The boards of one tenant on the twin: `boards`."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from outbox_core.adapters.memory.documents import Fields, storable_document
from outbox_core.adapters.memory.transactions import inside
from outbox_core.domain.board import Binding, Board
from outbox_core.domain.errors import BoardNotFoundError, ContentionError, InvalidInputError
from outbox_core.domain.identity import join_key, require_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outbox_core.adapters.memory.database import Document, MemoryDatabase
    from outbox_core.ports.transactions import Transaction

_BOARDS = "boards"


class MemoryBoards:
    """Implements ports.boards.Boards."""

    def __init__(self, database: MemoryDatabase, tenant_id: str) -> None:
        self._database = database
        self._tenant_id = tenant_id

    def get(self, board_id: str, transaction: Transaction | None = None) -> Board:
        """See the port."""
        with self._database.lock:
            document = self._database.get(_BOARDS, self._key(board_id), inside(transaction))
        if document is None:
            raise BoardNotFoundError(f"tenant {self._tenant_id} has no board {board_id!r}")
        return _board(document)

    def put(self, board: Board, transaction: Transaction) -> Board:
        """See the port."""
        require_own(self._tenant_id, board.tenant_id, "a board")
        key, opened = self._key(board.board_id), inside(transaction)
        stored = replace(board, version=board.version + 1)
        try:
            document = storable_document({"_id": key, **asdict(stored)})
        except ValueError as error:
            raise InvalidInputError(f"board {board.board_id} cannot be stored: {error}") from error
        with self._database.lock:
            before = self._database.get(_BOARDS, key, opened)
            if (0 if before is None else before["version"]) != board.version:
                if opened is not None:
                    opened.undo()
                raise ContentionError(f"board {board.board_id} was written meanwhile")
            self._database.put(_BOARDS, {**(before or {}), **document}, opened)
        return stored

    def all(self) -> Sequence[Board]:
        """See the port."""
        with self._database.lock:
            documents = [
                one for one in self._database.documents(_BOARDS).values() if one["tenant_id"] == self._tenant_id
            ]
        return sorted((_board(document) for document in documents), key=lambda board: board.board_id)

    def bindings(self, board_ids: Iterable[str]) -> Mapping[str, Binding | str]:
        """See the port."""
        with self._database.lock:
            found = {board_id: self._database.get(_BOARDS, self._key(board_id)) for board_id in board_ids}
        bound = {board_id: document.get("binding") for board_id, document in found.items() if document is not None}
        return {board_id: _binding(stored) for board_id, stored in bound.items() if stored is not None}

    def _key(self, board_id: str) -> str:
        return join_key(self._tenant_id, board_id)


def _binding(stored: object) -> Binding | str:
    """Return the binding, or why it cannot be read."""
    try:
        fields = Fields(stored, "binding")
        return Binding(kind=fields.text("kind", None), target=fields.text("target", None))
    except ValueError as error:
        return str(error)


def _board(document: Document) -> Board:
    fields, bound = Fields(document), document.get("binding")
    return Board(
        tenant_id=fields.text("tenant_id", None),
        board_id=fields.text("board_id", None),
        columns=fields.texts("columns"),
        binding=None if bound is None else Binding(kind=bound["kind"], target=bound["target"]),
        version=fields.count("version"),
    )
