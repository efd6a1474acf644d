"""The twin's database: collections of documents, unique indexes, one lock, and transactions.

A stored document is never changed in place: a write puts another one under its id. A transaction therefore reads a
snapshot by copying the collections' tables alone, and keeps its writes to itself until it commits.

As in MongoDB, what an open transaction has written is held: a second transaction that writes there meets contention at
once, and a write outside of any waits behind it, which here means a TransientError at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from datetime import datetime
from threading import RLock
from typing import TYPE_CHECKING, Any

from outbox_core.domain.effect_lifecycle import State
from outbox_core.domain.errors import ContentionError, TransientError
from outbox_core.domain.limits import DONE_TTL, RUN_TTL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox_core.adapters.memory.clock import MemoryClock

Document = dict[str, Any]
Table = dict[Hashable, Any]

UNIQUE: dict[str, tuple[tuple[str, ...], ...]] = {
    "board_events": (("tenant_id", "event_id"), ("tenant_id", "seq")),
    "lifecycle_outbox": (("tenant_id", "event_id"), ("tenant_id", "sequence")),
}
"""The unique indexes besides the one on `_id`, by collection."""

TIME_TO_LIVE = {
    "trigger_effects": ("done_at", DONE_TTL, State.DONE),
    "runs": ("finished_at", RUN_TTL, None),
}
"""How long documents stay, from which field on, and in which state."""


class MemoryDatabase:
    """The documents of all tenants. Every use of it stands under `lock`, which one thread may take repeatedly."""

    def __init__(self, clock: MemoryClock) -> None:
        self.clock = clock
        self.lock = RLock()
        self._tables: defaultdict[str, Table] = defaultdict(dict)
        self._holders: dict[tuple[str, Hashable], MemoryTransaction] = {}

    def begin(self) -> MemoryTransaction:
        """Open a transaction on what is stored now."""
        return MemoryTransaction(self, {name: dict(table) for name, table in self._tables.items()})

    def documents(self, collection: str) -> Mapping[Hashable, Document]:
        """Return the documents of a collection by `_id`, without what is not committed."""
        return self._tables[collection]

    def get(self, collection: str, key: Hashable, transaction: MemoryTransaction | None = None) -> Document | None:
        """Return the document under an id; in a transaction, of its snapshot and its own writes."""
        if transaction is None:
            return self._tables[collection].get(key)
        document: Document | None = transaction.read(collection, key)
        return document

    def entry(
        self, collection: str, transaction: MemoryTransaction | None = None, /, **unique: Hashable
    ) -> Hashable | None:
        """Return the id that a unique index has under these values; in a transaction, that it sees there."""
        table, values = _index(collection, tuple(unique)), tuple(unique.values())
        key: Hashable | None = (
            self._tables[table].get(values) if transaction is None else transaction.read(table, values)
        )
        return key

    def insert(
        self, collection: str, document: Document, transaction: MemoryTransaction | None = None
    ) -> tuple[str, ...] | None:
        """Store a new document; return the key pattern of the unique index that refused it, None where it is stored.

        An index is asked for what is stored now, whatever a transaction's snapshot says.
        """
        entries: list[tuple[tuple[str, ...], str, Hashable, Any]] = [(("_id",), collection, document["_id"], document)]
        for pattern in UNIQUE.get(collection, ()):
            values = tuple(document.get(name) for name in pattern)
            entries.append((pattern, _index(collection, pattern), values, document["_id"]))
        for pattern, table, key, _value in entries:
            if key in self._tables[table] or (transaction is not None and transaction.wrote(table, key)):
                return pattern
        for _pattern, table, key, _value in entries:
            self._require_free(table, key, transaction)
        for _pattern, table, key, value in entries:
            self._write(table, key, value, transaction)
        return None

    def put(self, collection: str, document: Document, transaction: MemoryTransaction | None = None) -> None:
        """Store a document over the one under its `_id`, or where there is none; unique keys stay what they are."""
        self._require_free(collection, document["_id"], transaction)
        self._write(collection, document["_id"], document, transaction)

    def delete(self, collection: str, key: Hashable) -> bool:
        """Remove a document and its index entries; say whether it was there."""
        document = self._tables[collection].pop(key, None)
        if document is None:
            return False
        for pattern in UNIQUE.get(collection, ()):
            self._tables[_index(collection, pattern)].pop(tuple(document.get(name) for name in pattern), None)
        return True

    def expire(self, now: datetime) -> None:
        """Remove what is past its time to live, as MongoDB's TTL indexes do by themselves."""
        for collection, (field, lives, state) in TIME_TO_LIVE.items():
            over = [
                key
                for key, document in self._tables[collection].items()
                if (state is None or document.get("state") == state)
                and isinstance(since := document.get(field), datetime)
                and since + lives <= now
            ]
            for key in over:
                self.delete(collection, key)

    def apply(self, transaction: MemoryTransaction) -> None:
        """Make everything visible that a transaction wrote."""
        for (table, key), value in transaction.writes.items():
            self._tables[table][key] = value

    def let_go(self, transaction: MemoryTransaction) -> None:
        """Hold nothing for a transaction any more."""
        for written in transaction.writes:
            self._holders.pop(written, None)

    def _require_free(self, table: str, key: Hashable, transaction: MemoryTransaction | None) -> None:
        """Raise where another transaction holds a key, or has written it since this one's snapshot."""
        holder = self._holders.get((table, key))
        if transaction is None:
            if holder is not None:
                raise TransientError(f"{table}: this write waits behind an open transaction")
        elif (holder is not None and holder is not transaction) or transaction.misses(table, key, self._tables[table]):
            transaction.undo()
            raise ContentionError(f"{table}: another transaction wrote here first")

    def _write(self, table: str, key: Hashable, value: object, transaction: MemoryTransaction | None) -> None:
        if transaction is None:
            self._tables[table][key] = value
        else:
            transaction.write(table, key, value)
            self._holders[table, key] = transaction


class MemoryTransaction:
    """An open transaction: the snapshot that it reads, and what it wrote."""

    def __init__(self, database: MemoryDatabase, snapshot: Mapping[str, Table]) -> None:
        self.writes: dict[tuple[str, Hashable], Any] = {}
        self._database = database
        self._snapshot = snapshot
        self._undone = False
        self._committed = False

    @property
    def session(self) -> None:
        """There is none: the twin's transactions are this object."""
        return

    @property
    def database(self) -> None:
        """There is none that a caller could write to."""
        return

    def commit(self) -> None:
        """Make every write visible at once; raise ContentionError where the transaction was undone before."""
        with self._database.lock:
            if self._committed:
                return
            if self._undone:
                raise ContentionError("the transaction was undone before its commit")
            self._database.apply(self)
            self._database.let_go(self)
            self._committed = True

    def undo(self) -> None:
        """Forget every write, unless it was committed."""
        with self._database.lock:
            if not self._committed:
                self._database.let_go(self)
                self.writes.clear()
                self._undone = True

    def read(self, table: str, key: Hashable) -> Any:  # noqa: ANN401 - a document, or an index's id
        """Return what the transaction sees under a key, None where it sees nothing."""
        if (table, key) in self.writes:
            return self.writes[table, key]
        return self._snapshot.get(table, {}).get(key)

    def wrote(self, table: str, key: Hashable) -> bool:
        """Say whether the transaction itself wrote under a key."""
        return (table, key) in self.writes

    def misses(self, table: str, key: Hashable, stored: Table) -> bool:
        """Say whether somebody has written under a key since the snapshot, so that a write here would lose theirs."""
        return self._undone or self._snapshot.get(table, {}).get(key) is not stored.get(key)

    def write(self, table: str, key: Hashable, value: object) -> None:
        """Note a write down for the commit."""
        self.writes[table, key] = value


def _index(collection: str, pattern: tuple[str, ...]) -> str:
    return f"{collection} by {', '.join(pattern)}"
