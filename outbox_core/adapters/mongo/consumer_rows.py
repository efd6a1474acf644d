"""What every part of the consumers shares: their collections, their keys, a fenced write and a short transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pymongo import ReturnDocument

from outbox_core.adapters.mongo.audit import fresh_key, write_audit
from outbox_core.adapters.mongo.client import CODEC
from outbox_core.adapters.mongo.consumer_edges import edge_filter
from outbox_core.adapters.mongo.documents import decode_leniently, raw
from outbox_core.adapters.mongo.errors import translated
from outbox_core.adapters.mongo.lifecycle_documents import consumer_of
from outbox_core.adapters.mongo.transactions import session_of
from outbox_core.domain.errors import (
    ConsumerNotFoundError,
    ConsumerRetiredError,
    ContentionError,
    InvariantError,
    LeaseLostError,
)
from outbox_core.domain.identity import join_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from bson.raw_bson import RawBSONDocument
    from pymongo.collection import Collection
    from pymongo.database import Database

    from outbox_core.adapters.mongo.transactions import MongoTransactions
    from outbox_core.domain.consumer import Consumer, Lease
    from outbox_core.domain.delivery import Edge
    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Clock, Entropy
    from outbox_core.ports.transactions import Transaction

_T = TypeVar("_T")

CURSORS = "lifecycle_consumer_cursors"
LETTERS = "lifecycle_dead_letters"

BY_ID = [("_id", 1)]
"""Every write over a known id names this index: the planner could take the tenant's, and read all of its rows."""

_PAUSE = 0.02
_PAUSE_MAX = 0.5


class ConsumerRows:
    """The consumers of one tenant on lifecycle_consumer_cursors and lifecycle_dead_letters."""

    def __init__(
        self,
        database: Database[dict[str, Any]],
        tenant_id: str,
        limits: Limits,
        clock: Clock,
        entropy: Entropy,
        transactions: MongoTransactions,
    ) -> None:
        self._database = database
        self._tenant = tenant_id
        self._limits = limits
        self._clock = clock
        self._entropy = entropy
        self._transactions = transactions
        self._cursors = database[CURSORS]
        self._letters = database[LETTERS]

    def _key(self, consumer_id: str) -> str:
        return join_key(self._tenant, consumer_id)

    def _read(self, consumer_id: str, transaction: Transaction | None = None) -> Consumer | None:
        cursors: Collection[dict[str, Any]] = self._cursors if transaction is None else transaction.database[CURSORS]
        query = {"_id": self._key(consumer_id), "tenant_id": self._tenant}
        with translated():
            found = raw(cursors).find_one(query, session=session_of(transaction), hint=BY_ID)
        return None if found is None else consumer_of(found)

    def _require_standing(self, consumer_id: str, transaction: Transaction) -> Consumer:
        """Return the row; raise where there is none, or it is retired."""
        found = self._require(consumer_id, transaction)
        if found.retired_at is not None:
            raise ConsumerRetiredError(f"consumer {consumer_id!r} is retired; register it again to bring it back")
        return found

    def _require(self, consumer_id: str, transaction: Transaction) -> Consumer:
        found = self._read(consumer_id, transaction)
        if found is None:
            raise ConsumerNotFoundError(f"tenant {self._tenant} has no consumer {consumer_id!r}")
        return found

    # One write of a row.

    def _move(
        self,
        edge: Edge,
        lease: Lease,
        update: list[dict[str, Any]],
        *,
        read: int | None = None,
        done: Callable[[Consumer], bool] = lambda _row: False,
        given_back: bool = False,
    ) -> bool:
        """Write a row under its lease; where it matched nothing, say whether a first try of this very write did."""
        query = edge_filter(edge, self._tenant, self._key(lease.consumer.consumer_id), lease, read)
        with translated():
            if self._cursors.update_one(query, update, hint=BY_ID).matched_count:
                return True
        return self._was_done(lease, done, given_back=given_back)

    def _was_done(self, lease: Lease, done: Callable[[Consumer], bool], *, given_back: bool = False) -> bool:
        row = self._read(lease.consumer.consumer_id)
        owner = "" if given_back else lease.consumer.lease_owner
        held = row is not None and row.retired_at is None and (row.fence, row.lease_owner) == (lease.fence, owner)
        return held and row is not None and done(row)

    def _move_in(
        self,
        transaction: Transaction,
        edge: Edge,
        consumer_id: str,
        update: list[dict[str, Any]],
        *,
        lease: Lease | None = None,
        read: int | None = None,
    ) -> datetime | None:
        """Write a row in a transaction, and return the server's time; None where it matched nothing."""
        found = self._change_in(transaction, edge, consumer_id, update, lease=lease, read=read)
        return None if found is None else written_at(found)

    def _change_in(
        self,
        transaction: Transaction,
        edge: Edge,
        consumer_id: str,
        update: list[dict[str, Any]],
        *,
        lease: Lease | None = None,
        read: int | None = None,
        upsert: bool = False,
    ) -> RawBSONDocument | None:
        query = edge_filter(edge, self._tenant, self._key(consumer_id), lease, read)
        cursors: Collection[dict[str, Any]] = transaction.database[CURSORS]
        with translated():
            return raw(cursors).find_one_and_update(
                query,
                update,
                upsert=upsert,
                return_document=ReturnDocument.AFTER,
                hint=BY_ID,
                session=session_of(transaction),
            )

    def _audit(  # noqa: PLR0913 - the fields of a row
        self,
        transaction: Transaction,
        edge_code: str,
        consumer_id: str,
        at: datetime,
        detail: Mapping[str, str | int],
        *,
        by: str = "",
        why: str = "",
        key: str = "",
    ) -> bool:
        """Write the audit row that commits with a change; False where one is there under its key."""
        return write_audit(
            transaction,
            self._tenant,
            key=key or fresh_key(),
            code=edge_code,
            subject=consumer_id,
            at=at,
            by=by,
            why=why,
            detail={"consumer_id": consumer_id, **detail},
        )

    def _under_lease(self, write: Callable[[Transaction], None]) -> bool:
        """Run a short transaction; False where it raised LeaseLostError, and is undone."""
        try:
            self._transact(write)
        except LeaseLostError:
            return False
        return True

    def _transact(self, write: Callable[[Transaction], _T]) -> _T:
        """Run a short transaction of this store's own; `write` may run more than once, and what it raises undoes it.

        A commit whose answer was lost raises UnclearCommitError: the same call then finds what it did.
        """
        give_up = self._clock.monotonic() + self._limits.op_timeout.total_seconds()
        pause = _PAUSE
        while True:
            try:
                with self._transactions.begin() as transaction:
                    answer = write(transaction)
                    transaction.commit()
                    return answer
            except ContentionError:
                if self._clock.monotonic() >= give_up:
                    raise
            self._clock.sleep(pause * self._entropy.jitter())
            pause = min(2 * pause, _PAUSE_MAX)


def written_at(document: RawBSONDocument) -> datetime:
    """Return the server's time of the write that has just returned this row, however damaged the rest of it is."""
    found = decode_leniently(document).get("updated_at")
    if found is None:
        raise InvariantError("a row was written without its time")
    at: datetime = found.as_datetime(CODEC)
    return at


def end_of(prefix: str) -> str:
    """Return the first text after all that begin with a prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
