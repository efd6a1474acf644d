"""A document that somebody damages by hand, in each collection: it harms at most itself, and a repair mends it."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st
from pymongo.errors import WriteError

from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.application.prune_lifecycle import prune_lifecycle
from outbox_core.domain.consumer import Start
from outbox_core.domain.errors import OutboxError
from outbox_core.domain.observer import Observer
from tests.fuzz.door import COLLECTIONS, Door
from tests.fuzz.hostile import damaged, require_one_clear_line, servers_values
from tests.fuzz.profile import inputs, tried
from tests.harness.base import ACME, OTHER
from tests.harness.on_mongo import MongoHarness
from tests.simulation.observing import delete, put_cards
from tests.simulation.play import append

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.base import Document
    from tests.harness.on_mongo import MongoDatabases

pytestmark = [
    pytest.mark.promise("E08", "E12", "E16", "E24", "E45", "L21"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]

NOT_UTF8 = "@@not-utf8@@"
"""What is written as bytes that are no text; a shell cannot, but another driver can."""

VALUES = servers_values | st.just(NOT_UTF8)
SHARED = {"ticks", "schema_versions"}
"""Collections that belong to no tenant."""

LENIENT = CodecOptions(
    document_class=RawBSONDocument,
    unicode_decode_error_handler="replace",
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)
MOST_LOOKS = 12
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class World:
    """Two tenants in the middle of their work, on the real store."""

    def __init__(self, harness: MongoHarness) -> None:
        self.harness = harness
        self.door = Door(harness)
        self.runtime = self.door.runtime
        self.outbox = self.door.outbox
        self.complaints: list[str] = []
        boards = self.outbox.boards(ACME)
        boards.create_board("b", ["todo", "done"])
        boards.create_card("b", "t", card_id="c", labels=["a"], event_id="first")
        self.door.work_out()
        boards.label_card("c", add=["z"], event_id="second")
        self.outbox.drain_tenant(ACME)
        harness.database["drain_journal"].insert_many(harness.journal())
        append(harness.acme, self.runtime, "third")
        self.seen: list[tuple[str, str]] = []
        self.observer = Observer(
            consumer_id="cache",
            function=lambda told: self.seen.append((told.tenant, told.event.task_id)),
            reconcile=lambda given: self.seen.extend((given.tenant, "") for _ in given.cards),
            start=Start.BEGINNING,
        )
        for tenant in (ACME, OTHER):
            store = harness.store.tenant(tenant)
            put_cards(store, "parked", "gone")
            store.consumers.register("cache", Start.BEGINNING, "")
            delete(store, self.runtime, "parked", "gone")
            lease = store.consumers.lease("cache", "worker", timedelta(seconds=15))
            assert lease is not None
            (entry,) = store.stream.read_after(0, 1).entries
            assert store.consumers.park(lease, entry, read=None, attempts=10, failure_class="ValueError")
            assert store.consumers.rest(lease, idle=False, delay=timedelta(0))
        self.tick()

    def tick(self) -> None:
        """Let beat's ticks come, and play what they offer. No tick may fail: all tenants wait for it."""
        self.harness.hints.sent.clear()
        self.harness.database["ticks"].update_many({"next_at": {"$type": "date"}}, {"$set": {"next_at": EPOCH}})
        self.outbox._offers = self.harness.hints
        self.outbox.drain_tick()
        self.outbox.repair_undrained()
        self.outbox.sweep_tick()
        for tenant in (ACME, OTHER):
            with self.told(spare=tenant == ACME):
                observe_lifecycle(self.harness.store.tenant(tenant), self.runtime, self.observer)
        prune_lifecycle(self.harness.store, self.runtime)
        for kind, tenant, token in list(self.harness.hints.sent):
            if kind not in {"drain", "turn", "slice"}:
                continue
            work = {"drain": self.outbox.drain_tenant, "turn": self.outbox.run_turn, "slice": self.outbox.run_slice}
            with self.told(spare=tenant == ACME):
                work[kind](tenant, token)

    @contextmanager
    def told(self, *, spare: bool = True) -> Iterator[None]:
        """Let what belongs to the damaged tenant be refused, in one clear line; nothing else may be raised."""
        try:
            yield
        except OutboxError as error:
            if not spare:
                raise
            require_one_clear_line(error)
            self.complaints.append(str(error))

    def look_at_all(self) -> None:
        """Ask and change what an application and a person ask and change."""
        store, boards = self.harness.acme, self.outbox.boards(ACME)
        calls: list[Callable[[], object]] = [
            lambda: append(store, self.runtime, "meanwhile"),
            lambda: boards.move_card("c", "done", event_id="moved"),
            lambda: boards.label_card("c", add=["b"]),
            lambda: boards.board("b"),
            lambda: boards.card("c"),
            lambda: boards.cards("b"),
            store.boards.all,
            store.subscriptions.all,
            store.subscriptions.enabled,
            lambda: store.subscriptions.get(["all"]),
            lambda: self.outbox.subscribe(ACME, "another", "bot", types=["never"]),
            lambda: boards.delete_card("c"),
            lambda: boards.restore_card("c"),
            store.consumers.all,
            lambda: self.outbox.consumers(ACME).state(),
            store.consumers.letters,
            store.audit.rows,
            lambda: store.consumers.set_paused(["nobody"], paused=True),
            store.effects.counts,
            store.effects.list,
            store.effects.newest,
            store.effects.next_due,
            lambda: store.log.get(["first", "third"]),
            lambda: self.outbox.ingest_github(ACME, {"X-GitHub-Event": "ping", "X-GitHub-Delivery": "d"}, b"{}"),
        ]
        for call in calls:
            with self.told():
                call()

    def mend(self, collection: str, identity: object, whole: Document) -> None:
        """Do what an operator would: set a counter right, put a document back or take it away."""
        documents = self.harness.database[collection]
        documents.delete_one({"_id": identity})
        if collection == "event_sequences":
            numbers = documents.database["board_events"].find({"tenant_id": ACME, "seq": {"$type": ["int", "long"]}})
            last = max(event["seq"] for event in numbers)
            documents.insert_one({**whole, "last_seq": last, "undrained": True})
        elif collection == "lifecycle_sequences":
            events = documents.database["lifecycle_outbox"].find({"tenant_id": ACME}, {"sequence": 1})
            documents.insert_one({**whole, "last_sequence": max(event["sequence"] for event in events)})
        elif collection == "board_events":
            self.harness.database["event_sequences"].update_one({"_id": ACME}, {"$set": {"undrained": True}})
        else:
            documents.insert_one(whole)

    def flows(self, tenant: str, event_id: str) -> bool:
        """Say whether an event appended now comes to its bot, by ticks."""
        append(self.harness.store.tenant(tenant), self.runtime, event_id)
        for _ in range(MOST_LOOKS):
            self.tick()
            if any(seen[:2] == (tenant, event_id) for seen in self.door.seen):
                return True
        return False

    def observes(self, tenant: str, card_id: str) -> bool:
        """Say whether a card that is deleted now is told to the tenant's consumer, or comes by reconciling."""
        store = self.harness.store.tenant(tenant)
        put_cards(store, card_id)
        delete(store, self.runtime, card_id)
        for _ in range(MOST_LOOKS):
            self.tick()
            found = store.consumers.look("cache").consumer
            if (tenant, card_id) in self.seen or (found is not None and found.cursor == store.stream.head()):
                return True
            self.harness.advance(timedelta(minutes=16))
        return False


def put(harness: MongoHarness, collection: str, document: Document) -> bool:
    """Write a document as it stands; False where MongoDB itself, or its validator, would not have it."""
    try:
        encoded = bson.encode(document).replace(NOT_UTF8.encode(), b"\xff" * len(NOT_UTF8))
        raw = RawBSONDocument(encoded, LENIENT)
        harness.database[collection].replace_one({"_id": document["_id"]}, raw, upsert=True)
    except (WriteError, bson.errors.InvalidDocument, bson.errors.InvalidStringData, OverflowError):
        return False
    return True


@contextmanager
def whole_again(harness: MongoHarness, collection: str) -> Iterator[None]:
    """Put back what outlives a test."""
    stored = list(harness.database[collection].find())
    try:
        yield
    finally:
        harness.database[collection].delete_many({})
        harness.database[collection].insert_many(stored)


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_a_damaged_document_harms_at_most_itself_and_its_repair_mends_all(
    collection: str, harness_databases: MongoDatabases
) -> None:
    @inputs(2)
    @given(data=st.data())
    def judge(data: st.DataObject) -> None:
        world = World(MongoHarness(harness_databases.empty()))
        with whole_again(world.harness, "schema_versions"):
            damage_one(world, data)

    def damage_one(world: World, data: st.DataObject) -> None:
        harness = world.harness
        query = {} if collection in SHARED else {"tenant_id": ACME}
        stored = list(harness.database[collection].find(query).sort("_id", 1))
        assert stored, "there is nothing to damage"
        whole: dict[str, Any] = data.draw(st.sampled_from(stored))
        broken = data.draw(damaged(deepcopy(whole), VALUES, keep=("_id",)))
        if not put(harness, collection, broken):
            tried[f"document of {collection}: refused by MongoDB"] += 1
            return
        tried[f"document of {collection}: damaged"] += 1
        for _ in range(2):
            world.tick()
            world.look_at_all()
        assert world.flows(OTHER, "theirs.too"), "another tenant waits"
        theirs = harness.raw("trigger_effects", tenant_id=OTHER)
        assert {row["state"] for row in theirs} == {"done"}
        assert world.observes(OTHER, "theirs"), "another tenant's consumer waits"
        if collection not in SHARED:
            world.mend(collection, whole["_id"], whole)
            harness.advance(timedelta(minutes=2))
            assert world.flows(ACME, "after.the.repair"), f"its own tenant still waits; it said {world.complaints}"
            if collection.startswith("lifecycle") or collection == "run_audit":
                assert world.observes(ACME, "repaired"), f"its consumer still waits; it said {world.complaints}"

    judge()
