"""The harness of the real store."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pymongo.read_concern import ReadConcern

from outbox_core.adapters.mongo.client import connect
from outbox_core.adapters.mongo.store import MongoStore
from outbox_core.domain.limits import Limits
from tests.harness.base import Document, Harness
from tests.harness.surroundings import CountingEntropy, MovableClock
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.database import Database

    from outbox_core.ports.runtime import Clock, Entropy
    from outbox_core.ports.store import Store

_LOCAL = ReadConcern("local")

_NESTED_TIMES = {"trigger_cursors": ("marks", "drain", "journal"), "tenant_slots": ("slice",)}
"""Lists of documents that hold times, by collection."""

_INNER_TIMES = {"lifecycle_consumer_cursors": ("failing",)}
"""Documents within documents that hold times, by collection."""

_IDENTITIES = ("deleted_at", "last_deleted_at")
"""Times that are a deletion's identity: its event's id says them too, so they stay as they are."""


class MongoHarness(Harness):
    """A database of a real replica set, emptied for each test.

    `$$NOW` cannot be moved, so `advance` moves every stored time the other way; nothing of that is in the product.
    """

    name = "mongo"

    def __init__(
        self, database: Database[dict[str, Any]], limits: Limits | None = None, entropy: Entropy | None = None
    ) -> None:
        super().__init__(limits, entropy)
        self.database = database
        self.local_clock = MovableClock()
        self.clock = self.local_clock
        self.store = self._store_with(self.clock)
        self._moved = timedelta(0)

    def _store_with(self, clock: Clock) -> Store:
        return MongoStore(self.database, self.limits, clock, self.entropy)

    def now(self) -> datetime:
        (found,) = self.database.aggregate([{"$documents": [{"now": "$$NOW"}]}])
        now: datetime = found["now"]
        return now

    def advance(self, delta: timedelta) -> None:
        self.local_clock.advance(delta)
        self._move_times(-delta)

    def step_server_clock_back(self, delta: timedelta) -> None:
        self._move_times(delta)

    def _move_times(self, delta: timedelta) -> None:
        delta_ms = int(delta.total_seconds() * 1_000)
        for name in self.database.list_collection_names():
            if name != "schema_versions":
                inner = {field: _moved_inside(f"${field}", delta_ms) for field in _INNER_TIMES.get(name, ())}
                lists = inner | {field: _moved_in_list(f"${field}", delta_ms) for field in _NESTED_TIMES.get(name, ())}
                self.database[name].update_many(
                    {}, [{"$replaceWith": _moved("$$ROOT", delta_ms)}, *([{"$set": lists}] if lists else [])]
                )

    def put_raw(self, collection: str, document: Document) -> None:
        self.database[collection].replace_one({"_id": document["_id"]}, document, upsert=True)

    def raw(self, collection: str, **equal: object) -> list[Document]:
        # As it is on the primary: what need not be on a majority is seen as well.
        return list(self.database.get_collection(collection, read_concern=_LOCAL).find(equal).sort("_id", 1))

    def expire_now(self) -> None:
        passes = _ttl_passes(self.database)
        # The pass that runs at the moment may have looked at our rows before they were over age.
        wait_until(lambda: _ttl_passes(self.database) >= passes + 2, timeout=30, what="the TTL monitor")


class MongoDatabases:
    """A database with its schema, made once and emptied for each test."""

    def __init__(self, url: str, name: str) -> None:
        # An error that a fail point invents changes nothing at the server, so that only the driver's next look ends it.
        self._database = connect(f"{url}&heartbeatFrequencyMS=500", name, Limits())
        store = MongoStore(self._database, Limits(), MovableClock(), CountingEntropy())
        store.maintenance.ensure_schema()
        self._schema = frozenset(self._database.list_collection_names())

    def empty(self) -> Database[dict[str, Any]]:
        """Return the database with every document gone, its schema there, and no collection that a test made."""
        for name in self._database.list_collection_names():
            if name not in self._schema:
                self._database.drop_collection(name)
            elif name != "schema_versions":
                self._database[name].delete_many({})
        return self._database

    def close(self) -> None:
        self._database.client.drop_database(self._database.name)
        self._database.client.close()


def mongo_databases(url: str, name: str) -> Iterator[MongoDatabases]:
    """Give the databases of a test session and close them after it."""
    databases = MongoDatabases(url, name)
    yield databases
    databases.close()


def _moved(document: str, delta_ms: int) -> dict[str, Any]:
    """Return the document with every time at its top moved."""
    moves = {"$and": [{"$eq": [{"$type": "$$one.v"}, "date"]}, {"$not": {"$in": ["$$one.k", _IDENTITIES]}}]}
    value = {"$cond": [moves, {"$add": ["$$one.v", delta_ms]}, "$$one.v"]}
    fields = {"$map": {"input": {"$objectToArray": document}, "as": "one", "in": {"k": "$$one.k", "v": value}}}
    return {"$arrayToObject": fields}


def _moved_in_list(field: str, delta_ms: int) -> dict[str, Any]:
    documents = {"$map": {"input": field, "as": "item", "in": _moved("$$item", delta_ms)}}
    return {"$cond": [{"$isArray": field}, documents, "$$REMOVE"]}


def _moved_inside(field: str, delta_ms: int) -> dict[str, Any]:
    kind = {"$type": field}
    unmoved = {"$cond": [{"$eq": [kind, "missing"]}, "$$REMOVE", field]}
    return {"$cond": [{"$eq": [kind, "object"]}, _moved(field, delta_ms), unmoved]}


def _ttl_passes(database: Database[dict[str, Any]]) -> int:
    passes: int = database.client.admin.command("serverStatus")["metrics"]["ttl"]["passes"]
    return passes
