"""Transactions on a replica set."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pymongo
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Primary

from outbox_core.adapters.mongo.client import DURABLE, database_of
from outbox_core.adapters.mongo.errors import (
    DRIVER_ERRORS,
    RunAgainError,
    as_outbox_error,
    is_contention,
    translated,
)
from outbox_core.domain.errors import (
    ContentionError,
    EventConflictError,
    InvalidInputError,
    InvariantError,
    UnclearCommitError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.client_session import ClientSession
    from pymongo.database import Database

    from outbox_core.adapters.mongo.callers_session import CallersSessions
    from outbox_core.domain.limits import Limits
    from outbox_core.ports.transactions import Transaction


class MongoTransaction:
    """Implements ports.transactions.Transaction over one session."""

    def __init__(self, database: Database[dict[str, Any]], session: ClientSession, limits: Limits) -> None:
        self._database = database
        self._session = session
        self._limits = limits
        self._committed = False

    @property
    def session(self) -> ClientSession:
        """The driver's session."""
        return self._session

    @property
    def database(self) -> Database[dict[str, Any]]:
        """The driver's database handle."""
        return self._database

    def commit(self) -> None:
        """See the port."""
        if self._committed:
            return
        _require_open(self._session)
        give_up = time.monotonic() + 2 * self._limits.op_timeout.total_seconds()
        while True:
            try:
                self._session.commit_transaction()
            except DRIVER_ERRORS as error:
                if is_contention(error):
                    raise as_outbox_error(error) from error
                # Whatever else it says, it may have happened, and may be open still: a commit may be sent again, and
                # is answered by what became of it.
                if time.monotonic() >= give_up:
                    raise UnclearCommitError("the answer to a commit was lost") from error
                time.sleep(0.05)
            else:
                self._committed = True
                return


class AdoptedTransaction:
    """Implements ports.transactions.Transaction over a caller's session and its client."""

    def __init__(self, database: Database[dict[str, Any]], session: ClientSession) -> None:
        self._database = database
        self._session = session

    @property
    def session(self) -> ClientSession:
        """The caller's session."""
        return self._session

    @property
    def database(self) -> Database[dict[str, Any]]:
        """This store's database, by the caller's client: a session works by the client that started it alone."""
        return self._database

    def commit(self) -> None:
        """See the port."""
        raise InvariantError("a caller's own transaction is committed by the caller alone")


class MongoTransactions:
    """Implements ports.transactions.Transactions."""

    def __init__(self, database: Database[dict[str, Any]], limits: Limits, callers: CallersSessions) -> None:
        self._database = database
        self._limits = limits
        self._callers = callers

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        """See the port."""
        with translated():
            session = self._database.client.start_session()
        try:
            # Leaving the session's block undoes what is not committed.
            with session:
                session.start_transaction(
                    read_concern=ReadConcern("snapshot"), write_concern=DURABLE, read_preference=Primary()
                )
                yield MongoTransaction(self._database, session, self._limits)
        except DRIVER_ERRORS as error:
            if is_contention(error):
                raise as_outbox_error(error) from error
            raise

    @contextmanager
    def adopt(self, session: object) -> Iterator[Transaction]:
        """See the port."""
        # The caller's client may have no time-out of its own.
        with pymongo.timeout(self._limits.op_timeout.total_seconds()):
            fit = self._callers.require_fit(session)
            try:
                yield AdoptedTransaction(database_of(fit.client, self._database.name), fit)
            except (ContentionError, EventConflictError) as error:
                raise RunAgainError(f"the session's transaction was undone; run it again: {error}") from error


def session_of(transaction: Transaction | None) -> ClientSession | None:
    """Return the session of a transaction of this store, None for none.

    Raises InvalidInputError where the transaction's body has ended it: what is written under its session then would
    stand alone, a done mark beside writes that were undone.
    """
    if transaction is None:
        return None
    session: ClientSession = transaction.session
    _require_open(session)
    return session


def _require_open(session: ClientSession) -> None:
    if not session.in_transaction:
        raise InvalidInputError("the transaction was ended by its own body; only the outbox commits or aborts it")
