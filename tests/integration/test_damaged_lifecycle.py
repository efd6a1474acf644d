"""Documents of lifecycle observation that somebody has damaged by hand: each costs itself alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument

from outbox_core.domain.consumer import LetterState
from outbox_core.domain.lifecycle_event import LifecycleEvent, UnreadableEvent
from tests.harness.base import ACME
from tests.harness.lifecycle import CURSORS, LEASE, LETTERS, begun, register, tell_many

if TYPE_CHECKING:
    from tests.harness.on_mongo import MongoHarness

OUTBOX = "lifecycle_outbox"


def put_broken_text(harness: MongoHarness, collection: str, document: dict[str, Any], field: str) -> None:
    """Store a document over the one under its id, with bytes that are no text in one field."""
    whole = bson.encode({**document, field: "XXXX"})
    broken: Any = RawBSONDocument(whole.replace(b"XXXX", b"\xff\xfe\xff\xfe"))
    harness.database[collection].delete_one({"_id": document["_id"]})
    harness.database[collection].insert_one(broken)


@pytest.mark.promise("L04", "L10")
@pytest.mark.parametrize("number", [2.0, Decimal128("2")], ids=["double", "decimal"])
def test_an_event_under_a_number_of_another_type_is_no_hole(mongo_harness: MongoHarness, number: object) -> None:
    told = tell_many(mongo_harness.acme, 3)
    mongo_harness.change(OUTBOX, f"{ACME}|{told[1].event_id}", sequence=number)
    entries = mongo_harness.acme.stream.read_after(0, 10).entries
    assert [entry.sequence for entry in entries] == [1, 2, 3]
    assert mongo_harness.acme.stream.floor() == 1
    assert mongo_harness.acme.stream.prune(3, -LEASE, 10) == 3


@pytest.mark.promise("L04")
@pytest.mark.parametrize("number", [3.0, Decimal128("3")], ids=["double", "decimal"])
def test_a_counter_of_another_type_is_read_as_its_number(mongo_harness: MongoHarness, number: object) -> None:
    store = mongo_harness.acme
    tell_many(store, 3)
    mongo_harness.change("lifecycle_sequences", ACME, last_sequence=number)
    register(store)
    assert (store.stream.head(), store.consumers.look("cache").head, store.consumers.lags()) == (3, 3, {"cache": 3})


@pytest.mark.promise("L10")
@pytest.mark.parametrize("field", ["task_id", "event_id"])
def test_an_event_of_broken_bytes_or_of_a_time_that_no_clock_reaches_is_unreadable_alone(
    mongo_harness: MongoHarness, field: str
) -> None:
    tell_many(mongo_harness.acme, 4)
    documents = mongo_harness.raw(OUTBOX)
    put_broken_text(mongo_harness, OUTBOX, documents[1], field)
    mongo_harness.change(OUTBOX, documents[2]["_id"], deleted_at=DatetimeMS(900_000_000_000_000))
    entries = mongo_harness.acme.stream.read_after(0, 10).entries
    assert [type(entry) for entry in entries] == [LifecycleEvent, UnreadableEvent, UnreadableEvent, LifecycleEvent]
    assert [entry.sequence for entry in entries] == [1, 2, 3, 4]


@pytest.mark.promise("L13")
def test_a_consumer_of_broken_bytes_stops_nobody_else_and_can_be_retired(mongo_harness: MongoHarness) -> None:
    consumers = mongo_harness.acme.consumers
    for name in ("broken", "whole"):
        register(mongo_harness.acme, name)
    (document, _) = mongo_harness.raw(CURSORS)
    put_broken_text(mongo_harness, CURSORS, document, "stopped_for")
    assert [(one.consumer_id, one.cursor) for one in consumers.all()] == [("broken", -1), ("whole", None)]
    looked = consumers.look("broken").consumer
    assert looked is not None
    assert looked.stopped_for.startswith("its row does not decode")
    assert consumers.lease("broken", "worker-1", LEASE) is None
    assert consumers.retire("broken", "ann", "beyond repair")
    assert consumers.all()[0].retired_at is not None


@pytest.mark.promise("L10")
def test_a_letter_of_broken_bytes_hides_no_other(mongo_harness: MongoHarness) -> None:
    store = mongo_harness.acme
    taken = begun(store)
    for event in tell_many(store, 3):
        assert store.consumers.park(taken, event, read=event.sequence - 1, attempts=10, failure_class="KeyError")
    put_broken_text(mongo_harness, LETTERS, mongo_harness.raw(LETTERS)[1], "failure_class")
    assert [letter.sequence for letter in store.consumers.letters(state=LetterState.UNRESOLVED)] == [1, 3]
    assert store.consumers.retire("cache", "ann", "")
