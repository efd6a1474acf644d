"""Transactions of one tenant on the twin."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from outbox_core.adapters.memory.database import MemoryTransaction
from outbox_core.domain.errors import InvalidInputError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from outbox_core.adapters.memory.database import MemoryDatabase
    from outbox_core.ports.transactions import Transaction


class MemoryTransactions:
    """Implements ports.transactions.Transactions."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        """See the port."""
        with self._database.lock:
            transaction = self._database.begin()
        try:
            yield transaction
        finally:
            transaction.undo()

    def adopt(self, session: object) -> AbstractContextManager[Transaction]:
        """Refuse: this store has no sessions."""
        raise InvalidInputError(
            f"session: the in-memory store takes none, and this is a {type(session).__name__}; "
            "append with run_in_transaction, or in a bot with run.transaction.append"
        )


def inside(transaction: Transaction | None) -> MemoryTransaction | None:
    """Return a transaction as this store's own; raise InvariantError for another store's."""
    if transaction is None or isinstance(transaction, MemoryTransaction):
        return transaction
    raise InvariantError(f"a {type(transaction).__name__} on the in-memory store")
