"""The twin and MongoDB take the same random steps with the stream, its consumers and their letters, and stay equal."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from outbox_core.domain.consumer import Lease, Start
from outbox_core.domain.lifecycle_event import UnreadableEvent
from tests.harness.lifecycle import deletion
from tests.simulation.two_stores import UNIT, TwoStores, comparable, run_in_lockstep

if TYPE_CHECKING:
    from datetime import datetime

    from outbox_core.domain.lifecycle_event import StreamEntry
    from outbox_core.ports.consumers import Consumers
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Document, Harness
    from tests.harness.on_mongo import MongoDatabases

COLLECTIONS = (
    "lifecycle_sequences",
    "lifecycle_outbox",
    "lifecycle_consumer_cursors",
    "lifecycle_dead_letters",
    "run_audit",
)
TENANTS, CONSUMERS, OWNERS = ("acme", "other"), ("cache", "feed"), ("worker-1", "worker-2")
DURATIONS = st.sampled_from([UNIT * count for count in (1, 3, 6)])
TENANT = st.sampled_from(("acme", "acme", "other"))
CONSUMER = st.sampled_from(("cache", "cache", "feed"))
FORGED: tuple[dict[str, Any], ...] = (
    {"last_acked_sequence": -1},
    {"last_acked_sequence": "five"},
    {"last_acked_sequence": 99},
    {"fence": "many"},
    {"start": "later"},
    {"failing": {"event_id": 17}},
    {"registered_at": None},
    {"stopped_for": "by hand"},
    {"of_a_later_version": {"x": 1}},
)


class LifecycleLockstep(TwoStores):
    """Each rule is one call of a port, made on both stores."""

    def __init__(self, databases: MongoDatabases) -> None:
        super().__init__(databases, COLLECTIONS)
        self.told = 0
        self.leases: list[tuple[str, Lease, Lease]] = []
        self.reconciled: list[Lease] = []

    # --- the stream ---

    @rule(tenant=TENANT, commits=st.sampled_from([True, True, True, False]), again=st.sampled_from([0, 0, 0, 1]))
    def tell(self, tenant: str, *, commits: bool, again: int) -> None:
        self.told += 1 - again

        def append(one: Harness) -> object:
            store = one.store.tenant(tenant)
            with store.transactions.begin() as transaction:
                event = store.stream.append(deletion(self.told), transaction)
                store.audit.record(event, "ann", "why", transaction)
                if commits:
                    transaction.commit()
                return event

        self.both(append)

    @rule(
        tenant=TENANT, up_to=st.integers(0, 4), older=st.sampled_from([timedelta(0), UNIT * 3]), limit=st.integers(1, 2)
    )
    def prune(self, tenant: str, up_to: int, older: timedelta, limit: int) -> None:
        self.both(lambda one: one.store.tenant(tenant).stream.prune(up_to, older, limit))
        self.both(lambda one: one.store.tenant(tenant).consumers.prune_letters(older, limit))

    @rule(tenant=TENANT, after=st.integers(0, 4), consumer=CONSUMER)
    def look(self, tenant: str, after: int, consumer: str) -> None:
        self.both(lambda one: one.store.tenant(tenant).stream.read_after(after, 2))
        self.both(lambda one: one.store.tenant(tenant).stream.floor())
        self.both(lambda one: one.store.tenant(tenant).consumers.look(consumer))
        self.both(lambda one: one.store.tenant(tenant).consumers.lags())
        self.both(lambda one: one.store.tenant(tenant).consumers.oldest_unacknowledged())
        self.both(lambda one: one.store.maintenance.lifecycle_tenants("", 5))

    # --- operators ---

    @rule(tenant=TENANT, consumer=CONSUMER, start=st.sampled_from(Start))
    def register(self, tenant: str, consumer: str, start: Start) -> None:
        self.both(lambda one: one.store.tenant(tenant).consumers.register(consumer, start, "ann"))

    @rule(
        tenant=TENANT,
        consumer=CONSUMER,
        what=st.sampled_from(["retire", "skip", "require_reconcile", "pause", "resume", "resume"]),
    )
    def operate(self, tenant: str, consumer: str, what: str) -> None:
        def call(consumers: Consumers) -> object:
            if what in {"pause", "resume"}:
                return consumers.set_paused([consumer], paused=what == "pause")
            return getattr(consumers, what)(consumer, "ann", "why")

        self.both(lambda one: call(one.store.tenant(tenant).consumers))

    @rule(tenant=TENANT, number=st.integers(0, 2), what=st.sampled_from(["ask_replay", "ask_replay", "resolve"]))
    def settle_a_letter(self, tenant: str, number: int, what: str) -> None:
        consumer, event_id = self._letter(tenant, number)
        self.both(lambda one: getattr(one.store.tenant(tenant).consumers, what)(consumer, event_id, "ann", "why"))

    @rule(tenant=TENANT, consumer=CONSUMER, forged=st.sampled_from(FORGED))
    def forge(self, tenant: str, consumer: str, forged: dict[str, Any]) -> None:
        if self.twin.raw("lifecycle_consumer_cursors", _id=f"{tenant}|{consumer}"):
            self.both(lambda one: one.change("lifecycle_consumer_cursors", f"{tenant}|{consumer}", **forged))

    # --- under a lease ---

    @rule(tenant=TENANT, consumer=CONSUMER, owner=st.sampled_from(OWNERS), duration=DURATIONS)
    def lease(self, tenant: str, consumer: str, owner: str, duration: timedelta) -> None:
        on_twin, on_mongo = self.both(lambda one: one.store.tenant(tenant).consumers.lease(consumer, owner, duration))
        if isinstance(on_twin, Lease):
            self.leases.append((tenant, on_twin, on_mongo))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), delay=DURATIONS, what=st.sampled_from(["renew", "fail", "begin", "stop", "rest", "idle"]))
    def write(self, data: st.DataObject, delay: timedelta, what: str) -> None:
        tenant, leases = self._drawn(data)

        def call(one: Harness) -> object:
            consumers, lease = one.store.tenant(tenant).consumers, leases[one.name]
            if what in {"rest", "idle"}:
                return consumers.rest(lease, idle=what == "idle", delay=delay)
            if what == "fail":
                return consumers.fail(lease, event_id="e1", attempts=2, delay=delay, failure_class="ValueError")
            if what == "renew":
                return consumers.renew(lease, delay)
            return consumers.begin(lease) if what == "begin" else consumers.stop(lease, "why")

        self.both(call)

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        further=st.integers(0, 2),
        stale=st.sampled_from([False, False, True]),
        superseded=st.sampled_from([(), (), ("e1", "e2")]),
        inside=st.sampled_from([None, True, False]),
    )
    def acknowledge(
        self, data: st.DataObject, further: int, superseded: tuple[str, ...], *, stale: bool, inside: bool | None
    ) -> None:
        tenant, leases = self._drawn(data)
        read = self._cursor(tenant, leases) if not stale else leases[self.twin.name].consumer.cursor
        moved = {"read": read, "sequence": max(0, read or 0) + further, "superseded": superseded}

        def call(one: Harness) -> object:
            store, lease = one.store.tenant(tenant), leases[one.name]
            if inside is None:
                return store.consumers.acknowledge(lease, **moved)  # type: ignore[arg-type] # by name
            with store.transactions.begin() as transaction:
                store.consumers.acknowledge_in(transaction, lease, **moved)  # type: ignore[arg-type] # by name
                if inside:
                    transaction.commit()
            return None

        self.both(call)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), unreadable=st.sampled_from([False, False, True]))
    def park(self, data: st.DataObject, *, unreadable: bool) -> None:
        tenant, leases = self._drawn(data)
        read = self._cursor(tenant, leases)

        def call(one: Harness) -> object:
            store, lease = one.store.tenant(tenant), leases[one.name]
            entry = _entry(store, max(0, read or 0), unreadable=unreadable)
            if entry is None:
                return None
            return store.consumers.park(lease, entry, read=read, attempts=10, failure_class="ValueError")

        self.both(call)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), number=st.integers(0, 2), what=st.sampled_from(["replayed", "in", "undone", "failed"]))
    def replay(self, data: st.DataObject, number: int, what: str) -> None:
        tenant, leases = self._drawn(data)
        _, event_id = self._letter(tenant, number)

        def call(one: Harness) -> object:
            store, lease = one.store.tenant(tenant), leases[one.name]
            if what == "replayed":
                return store.consumers.replayed(lease, event_id, why="observed")
            if what == "failed":
                return store.consumers.replay_failed(lease, event_id, failure_class="ValueError")
            with store.transactions.begin() as transaction:
                store.consumers.replayed_in(transaction, lease, event_id, why="observed")
                if what == "in":
                    transaction.commit()
            return None

        self.both(call)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), head=st.integers(0, 3))
    def reconcile(self, data: st.DataObject, head: int) -> None:
        tenant, leases = self._drawn(data)
        # A poll reconciles once: MongoDB knows a repeat by its lease, the twin has no lost answers.
        if leases[self.twin.name] in self.reconciled:
            return
        self.reconciled.append(leases[self.twin.name])
        self.both(
            lambda one: one.store.tenant(tenant).consumers.reconciled(leases[one.name], head=head, why="it was told to")
        )

    # --- pace and time ---

    @rule(tenant=TENANT)
    def wake(self, tenant: str) -> None:
        self.both(lambda one: one.store.tenant(tenant).consumers.wake(CONSUMERS))

    @rule(hold=DURATIONS)
    def due(self, hold: timedelta) -> None:
        self.both(lambda one: sorted(one.store.maintenance.due_consumers(CONSUMERS, hold, 10)))

    @rule(delta=DURATIONS)
    def advance(self, delta: timedelta) -> None:
        self.both(lambda one: one.advance(delta))

    # --- what is drawn, and what is compared ---

    def _drawn(self, data: st.DataObject) -> tuple[str, dict[str, Lease]]:
        """Draw one of the last leases so far, stale ones included."""
        tenant, on_twin, on_mongo = data.draw(st.sampled_from(self.leases[-3:]))
        return tenant, {self.twin.name: on_twin, self.mongo.name: on_mongo}

    def _cursor(self, tenant: str, leases: dict[str, Lease]) -> int | None:
        """Return how far the leased consumer is now."""
        found = self.twin.store.tenant(tenant).consumers.look(leases[self.twin.name].consumer.consumer_id).consumer
        return None if found is None else found.cursor

    def _letter(self, tenant: str, number: int) -> tuple[str, str]:
        """Return which letter is meant, one that is not there where there are fewer."""
        letters = self.twin.store.tenant(tenant).consumers.letters()
        return (letters[number].consumer_id, letters[number].event_id) if number < len(letters) else ("cache", "none")

    def shape(self, collection: str, documents: list[Document], now: datetime) -> Any:  # noqa: ANN401 - any document
        """Leave out what a store keeps for itself: times of writes, ids that are drawn, and what holds nothing."""
        shaped = []
        for document in documents:
            if copy := document.get("event"):
                # It is no row of its own: its time is not moved along with those of rows.
                document = {**document, "event": {name: copy[name] for name in copy if name != "occurred_at"}}  # noqa: PLW2901
            left_out = {"updated_at", "numbered_at", "offer", *({"_id"} if collection == "run_audit" else ())}
            kept = {name: value for name, value in document.items() if name not in left_out and value not in (None, "")}
            shaped.append(comparable(kept, now))
        return sorted(shaped, key=repr) if collection == "run_audit" else shaped


def _entry(store: TenantStore, after: int, *, unreadable: bool) -> StreamEntry | None:
    found = store.stream.read_after(after, 1).entries
    if not found:
        return None
    first = found[0]
    return UnreadableEvent(first.sequence, first.event_id, "why", unknown=False) if unreadable else first


@pytest.mark.promise("L04", "L06", "L07", "L10", "L11", "L13", "L14")
def test_the_twin_and_mongodb_answer_and_store_the_same_of_consumers_whatever_is_done(
    harness_databases: MongoDatabases,
) -> None:
    class Machine(LifecycleLockstep):
        def __init__(self) -> None:
            super().__init__(harness_databases)

    run_in_lockstep(Machine, 6)
