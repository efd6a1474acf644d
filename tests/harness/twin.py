"""The harness of the in-memory twin."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from outbox_core.adapters.memory.clock import MemoryClock
from outbox_core.adapters.memory.database import UNIQUE
from outbox_core.adapters.memory.documents import storable_document
from outbox_core.adapters.memory.store import MemoryStore
from tests.harness.base import Document, Harness

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Clock, Entropy
    from outbox_core.ports.store import Store


class TwinHarness(Harness):
    """The twin on a frozen clock."""

    name = "memory"

    def __init__(self, limits: Limits | None = None, entropy: Entropy | None = None) -> None:
        super().__init__(limits, entropy)
        self.server_clock = MemoryClock(frozen=True)
        self.clock = self.server_clock
        self._twin = MemoryStore(self.limits, clock=self.server_clock, entropy=self.entropy)
        self.store = self._twin

    def _store_with(self, clock: Clock) -> Store:
        return MemoryStore(
            self.limits, clock=self.server_clock, entropy=self.entropy, local=clock, database=self._twin.database
        )

    def now(self) -> datetime:
        return self.server_clock.now()

    def advance(self, delta: timedelta) -> None:
        self.server_clock.advance(delta)

    def step_server_clock_back(self, delta: timedelta) -> None:
        self.server_clock.advance(-delta)

    def put_raw(self, collection: str, document: Document) -> None:
        database = self._twin.database
        with database.lock:
            if collection not in UNIQUE and database.get(collection, document["_id"]) is not None:
                # It keeps its place: of one due time, rows are claimed in the order of their birth.
                database.put(collection, storable_document(document))
                return
            database.delete(collection, document["_id"])
            if database.insert(collection, storable_document(document)) is not None:
                raise AssertionError(f"{collection}: a unique index refuses {document}")

    def raw(self, collection: str, **equal: object) -> list[Document]:
        database = self._twin.database
        with database.lock:
            found: list[dict[str, Any]] = [
                document
                for document in database.documents(collection).values()
                if all(document.get(name) == value for name, value in equal.items())
            ]
        return deepcopy(sorted(found, key=lambda document: str(document["_id"])))

    def expire_now(self) -> None:
        with self._twin.database.lock:
            self._twin.database.expire(self.now())
