"""The harness: one way to set up, look into and move the time of either store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.domain.limits import Limits
from outbox_core.ports.runtime import Runtime
from tests.harness.surroundings import CountingEntropy, KnownBots, KnownProjectors, RecordingHints, SkewedClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from outbox_core.domain.bot import Bot
    from outbox_core.ports.runtime import Clock, Entropy
    from outbox_core.ports.store import Store, TenantStore

ACME, OTHER = "acme", "other"

Document = dict[str, Any]


class Harness(ABC):
    """One store and what surrounds it. `clock` is the local process's; `store` is its handle of the database."""

    name: str
    clock: Clock
    store: Store

    def __init__(self, limits: Limits | None = None, entropy: Entropy | None = None) -> None:
        self.limits = limits or Limits()
        self.entropy: Entropy = entropy or CountingEntropy()
        self.hints = RecordingHints()

    @property
    def acme(self) -> TenantStore:
        """The handle of the tenant that most tests use."""
        return self.store.tenant(ACME)

    @property
    def other(self) -> TenantStore:
        """The handle of another tenant."""
        return self.store.tenant(OTHER)

    def runtime(
        self,
        bots: Mapping[str, Bot | Callable[..., object]] | None = None,
        *,
        projectors: Mapping[str, Callable[..., object]] | None = None,
        worker: str = "worker-1",
        writer: str = "writer-1",
        stopping: Callable[[], bool] | None = None,
        clock: Clock | None = None,
        **limits: Any,  # noqa: ANN401 - limits by their names
    ) -> Runtime:
        """Return surroundings for a use case; their hints are `self.hints`."""
        return Runtime(
            clock=clock or self.clock,
            entropy=self.entropy,
            hints=self.hints,
            bots=KnownBots(bots or {}),
            projectors=KnownProjectors(projectors or {}),
            limits=replace(self.limits, **limits),
            worker=worker,
            writer=writer,
            stopping=stopping or (lambda: False),
        )

    def other_process(self, skew: timedelta = timedelta(0)) -> Store:
        """Return a handle of the same database as another process has it, whose own clock is `skew` away."""
        return self._store_with(SkewedClock(self.clock, skew))

    @abstractmethod
    def _store_with(self, clock: Clock) -> Store: ...

    @abstractmethod
    def now(self) -> datetime:
        """Return the server's time."""

    @abstractmethod
    def advance(self, delta: timedelta) -> None:
        """Let time pass for the server and for the local process, at no real time."""

    @abstractmethod
    def step_server_clock_back(self, delta: timedelta) -> None:
        """Let the server's clock alone step back, as it may at a failover."""

    @abstractmethod
    def put_raw(self, collection: str, document: Document) -> None:
        """Put a document in, over the one under its `_id`, past every port."""

    @abstractmethod
    def raw(self, collection: str, **equal: object) -> list[Document]:
        """Return the documents of a collection whose fields equal these, by `_id`."""

    @abstractmethod
    def expire_now(self) -> None:
        """Let the store remove what is past its time to live."""

    def journal(self) -> list[Document]:
        """Return the entries of all drains, those that stand on a cursor still as well; the older ones first."""
        kept = [entry for cursor in self.raw("trigger_cursors") for entry in cursor.get("journal", ())]
        found = {entry["_id"]: entry for entry in [*self.raw("drain_journal"), *kept]}
        return sorted(found.values(), key=lambda entry: (entry["tenant_id"], int(entry["last_seq"])))

    def row(self, effect_id: str) -> Document:
        """Return the stored row of one effect."""
        (row,) = self.raw("trigger_effects", _id=effect_id)
        return row

    def change(self, collection: str, identity: object, **fields: object) -> None:
        """Overwrite fields of one document, past every port."""
        (document,) = self.raw(collection, _id=identity)
        self.put_raw(collection, {**document, **fields})
