"""The boards of one tenant on boards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from outbox_core.adapters.mongo.documents import StoredDocument, Whole, decode, decode_leniently, raw, why_invalid
from outbox_core.adapters.mongo.errors import DUPLICATE_KEY, translated
from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.adapters.mongo.transactions import session_of
from outbox_core.domain.board import Binding, Board
from outbox_core.domain.errors import BoardNotFoundError, ContentionError, DefinitiveError, InvalidInputError
from outbox_core.domain.identity import join_key, require_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bson.raw_bson import RawBSONDocument
    from pymongo.client_session import ClientSession
    from pymongo.database import Database

    from outbox_core.ports.transactions import Transaction


class StoredBinding(StoredDocument):
    """`binding` of a board."""

    kind: str
    target: str


class BoardDocument(StoredDocument):
    """A board in boards."""

    tenant_id: str
    board_id: str
    columns: list[str] = Field(default_factory=list)
    binding: StoredBinding | None = None
    version: Whole = 0


class MongoBoards:
    """Implements ports.boards.Boards."""

    def __init__(self, database: Database[dict[str, Any]], tenant_id: str) -> None:
        self._tenant = tenant_id
        self._boards = database["boards"]

    def get(self, board_id: str, transaction: Transaction | None = None) -> Board:
        """See the port."""
        with translated():
            found = self._boards.find_one({"_id": self._key(board_id)}, session=session_of(transaction))
        if found is None:
            raise BoardNotFoundError(f"tenant {self._tenant} has no board {board_id!r}")
        return _board(found)

    def put(self, board: Board, transaction: Transaction) -> Board:
        """See the port; the first version is an insert, every later one an update of the version that was read."""
        require_own(self._tenant, board.tenant_id, "a board")
        stored = replace(board, version=board.version + 1)
        if not self._write(board, _document(stored), session_of(transaction)):
            raise ContentionError(f"board {board.board_id} was written meanwhile")
        return stored

    def all(self) -> Sequence[Board]:
        """See the port."""
        with translated():
            return [_board(found) for found in self._boards.find({"tenant_id": self._tenant}).sort("board_id", 1)]

    def bindings(self, board_ids: Iterable[str]) -> Mapping[str, Binding | str]:
        """See the port; nothing but the bindings is read, undecoded, so that no other board is stopped by one."""
        keys = {self._key(board_id): board_id for board_id in board_ids}
        query = {"_id": {"$in": list(keys)}, "binding": {"$ne": None}}
        with translated():
            documents = list(raw(self._boards).find(query, {"binding": 1}))
        return {keys[decode_leniently(document)["_id"]]: _binding(document) for document in documents}

    def _write(self, board: Board, document: dict[str, Any], session: ClientSession | None) -> bool:
        key = self._key(board.board_id)
        if board.version:
            query = {"_id": key, "tenant_id": self._tenant, "version": board.version}
            with translated():
                return self._boards.update_one(query, {"$set": document}, session=session).matched_count == 1
        rejections = insert_all(self._boards, [{"_id": key, **document}], session)
        if any(rejection.code != DUPLICATE_KEY for rejection in rejections):
            raise InvalidInputError(f"board {board.board_id} cannot be stored: {rejections[0].reason}")
        return not rejections

    def _key(self, board_id: str) -> str:
        return join_key(self._tenant, board_id)


def _document(board: Board) -> dict[str, Any]:
    bound = board.binding
    return {
        "tenant_id": board.tenant_id,
        "board_id": board.board_id,
        "columns": list(board.columns),
        "binding": None if bound is None else {"kind": bound.kind, "target": bound.target},
        "version": board.version,
    }


def _binding(document: RawBSONDocument) -> Binding | str:
    """Return the binding, or why it cannot be read."""
    try:
        bound = StoredBinding.model_validate(decode(document)["binding"])
    except ValueError as error:
        return why_invalid(error)
    return Binding(kind=bound.kind, target=bound.target)


def _board(document: dict[str, Any]) -> Board:
    try:
        stored = BoardDocument.model_validate(document)
    except ValueError as error:
        raise DefinitiveError(f"board {document.get('board_id')!r} is malformed: {why_invalid(error)}") from error
    bound = stored.binding
    return Board(
        tenant_id=stored.tenant_id,
        board_id=stored.board_id,
        columns=tuple(stored.columns),
        binding=None if bound is None else Binding(kind=bound.kind, target=bound.target),
        version=stored.version,
    )
