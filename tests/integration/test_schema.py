"""The schema: numbered steps in one list, and nothing in the database that no step made (L20)."""

from __future__ import annotations

import ast
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.errors import WriteError

from outbox_core.adapters.mongo import schema
from outbox_core.adapters.mongo.client import connect
from outbox_core.adapters.mongo.schema import STEPS, apply_steps, pending_steps
from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.offer_drains import offer_drains
from outbox_core.application.offer_slices import offer_slices
from outbox_core.application.repair_undrained import repair_undrained
from outbox_core.domain.board import Board, Card
from outbox_core.domain.limits import Limits
from outbox_core.ports.drain_progress import JOURNAL_ITEMS
from tests.harness.examples import subscription
from tests.harness.lifecycle import begun, tell_many
from tests.simulation.play import append, drain_whole, run_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo.database import Database

    from outbox_core.embedded import EmbeddedMongo
    from tests.harness.on_mongo import MongoHarness

    Databases = Callable[[str], Database[dict[str, Any]]]

ADAPTERS = Path(schema.__file__).parent
RECORD = "schema_versions"


@pytest.fixture
def databases(mongo_server: EmbeddedMongo, database_name: str) -> Iterator[Databases]:
    """Empty databases by a short name, gone after the test."""
    made: dict[str, Database[dict[str, Any]]] = {}

    def named(name: str) -> Database[dict[str, Any]]:
        return made.setdefault(name, connect(mongo_server.url, f"{database_name}_{name}", Limits()))

    yield named
    for database in made.values():
        database.client.drop_database(database.name)
        database.client.close()


def described(database: Database[dict[str, Any]]) -> dict[str, Any]:
    """What the server says of each collection: its options, the validator among them, and its indexes."""
    return {
        found["name"]: (found["options"], database[found["name"]].index_information())
        for found in database.list_collections()
    }


def unregistered(database: Database[dict[str, Any]]) -> set[str]:
    """Collections and indexes that no step made."""
    registered = {
        (collection.name, index)
        for step in STEPS
        for collection in step.collections
        for index in ("_id_", *(model.document["name"] for model in collection.indexes))
    } | {(RECORD, "_id_")}
    present = {(name, index) for name, (_, indexes) in described(database).items() for index in indexes}
    return {f"{name}.{index}" for name, index in present - registered}


@pytest.mark.promise("L20")
def test_steps_are_numbered_from_one_and_each_has_a_name_of_its_own() -> None:
    assert [step.number for step in STEPS] == list(range(1, len(STEPS) + 1))
    assert len({step.name for step in STEPS}) == len(STEPS)


@pytest.mark.promise("L20")
def test_a_fresh_database_and_one_upgraded_step_by_step_are_equal(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, upgraded = databases("fresh"), databases("upgraded")
    assert list(apply_steps(fresh)) == [step.name for step in STEPS]
    for released, step in enumerate(STEPS, start=1):
        monkeypatch.setattr(schema, "STEPS", STEPS[:released])
        assert list(apply_steps(upgraded)) == [step.name]
    assert described(upgraded) == described(fresh)
    assert [found["_id"] for found in upgraded[RECORD].find().sort("_id", 1)] == [step.number for step in STEPS]


@pytest.mark.promise("L20")
def test_a_second_run_does_nothing(databases: Databases) -> None:
    database = databases("twice")
    apply_steps(database)
    before, recorded = described(database), list(database[RECORD].find())
    assert list(pending_steps(database)) == []
    assert list(apply_steps(database)) == []
    assert described(database) == before
    assert list(database[RECORD].find()) == recorded


@pytest.mark.promise("L20")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_whose_process_died_before_it_was_recorded_is_done_again(
    databases: Databases, step: schema.Step
) -> None:
    database = databases("died")
    apply_steps(database)
    whole = described(database)
    database[RECORD].delete_one({"_id": step.number})
    earlier = {each.name for other in STEPS if other.number < step.number for each in other.collections}
    for collection in step.collections:
        if collection.name in earlier or collection is step.collections[0]:
            for model in collection.indexes:
                database[collection.name].drop_index(model.document["name"])
        else:
            database[collection.name].drop()
    assert list(pending_steps(database)) == [step.name]
    assert list(apply_steps(database)) == [step.name]
    assert described(database) == whole


@pytest.mark.promise("L20")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_is_recorded_only_once_it_is_done(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, step: schema.Step
) -> None:
    database = databases("interrupted")
    whole = schema._ensure

    def ensure(into: Database[dict[str, Any]], collection: schema.Collection) -> None:
        if collection == step.collections[-1]:
            raise KeyboardInterrupt
        whole(into, collection)

    monkeypatch.setattr(schema, "_ensure", ensure)
    with pytest.raises(KeyboardInterrupt):
        apply_steps(database)
    assert list(pending_steps(database)) == [each.name for each in STEPS if each.number >= step.number]


@pytest.mark.promise("E16", "E39")
def test_the_indexes_of_what_is_busy_hold_nothing_that_is_not(databases: Databases) -> None:
    """A claim, a sweep and a drain tick cost what is due, however long the history and the list of tenants are."""
    database = databases("busy")
    apply_steps(database)
    states = ["pending", "claimed", *["done"] * 20, *["failed"] * 10]
    database["trigger_effects"].insert_many(
        [{"_id": f"a|{number}|s", "tenant_id": "a", "state": state} for number, state in enumerate(states)]
    )
    database["event_sequences"].insert_many(
        [{"_id": f"t{number}", "tenant_id": f"t{number}", "undrained": number == 0} for number in range(10)]
    )
    keys = {name: database.command("validate", name)["keysPerIndex"] for name in ("trigger_effects", "event_sequences")}
    assert keys["trigger_effects"] == {"_id_": 32, "live": 2, "done_ttl": 20, "failed": 10}
    assert keys["event_sequences"] == {"_id_": 10, "undrained": 1}


@pytest.mark.promise("L20")
def test_collections_that_were_there_before_their_step_receive_its_validators_and_indexes(databases: Databases) -> None:
    fresh, used = databases("fresh"), databases("used")
    apply_steps(fresh)
    used["trigger_effects"].insert_one({"_id": "a|b|c", "tenant_id": "a"})
    used["ticks"].insert_one({"_id": "drain"})
    apply_steps(used)
    assert described(used) == described(fresh)


@pytest.mark.promise("L20", "L21")
def test_the_server_refuses_a_tenants_document_that_names_no_tenant(databases: Databases) -> None:
    database = databases("refusing")
    apply_steps(database)
    names = [each.name for step in STEPS for each in step.collections if each.of_tenant]
    for name in names:
        for tenant in ({}, {"tenant_id": ""}, {"tenant_id": 7}):
            with pytest.raises(WriteError) as refused:
                database[name].insert_one({"_id": "x", "seq": 1, **tenant})
            assert refused.value.code == 121
    assert set(names) >= {"board_events", "trigger_effects", "runs", "trigger_subscriptions"}


@pytest.mark.promise("L20")
def test_whatever_no_step_made_is_found(databases: Databases) -> None:
    database = databases("stray")
    apply_steps(database)
    assert unregistered(database) == set()
    database["trigger_effects"].create_index("bot_id", name="by_bot")
    database.create_collection("leftovers")
    assert unregistered(database) == {"trigger_effects.by_bot", "leftovers._id_"}


@pytest.mark.promise("L20")
def test_running_everything_makes_nothing_that_no_step_made(mongo_harness: MongoHarness) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime({"bot": lambda _run: {"ran": True}})
    add_subscription(store, subscription())
    append(store, runtime, "e1", "e2")
    store.log.fill(store.log.allocate(JOURNAL_ITEMS).seqs)
    with store.transactions.begin() as transaction:
        store.cards.put(Card(tenant_id="acme", card_id="c"), transaction)
        store.boards.put(Board(tenant_id="acme", board_id="b"), transaction)
        transaction.commit()
    drain_whole(store, runtime)
    append(store, runtime, "e3")
    drain_whole(store, runtime)
    run_whole(store, runtime)
    for tick in (offer_drains, offer_slices, repair_undrained):
        tick(mongo_harness.store, runtime)
    mongo_harness.advance(timedelta(minutes=1))
    (told,) = tell_many(store, 1)
    assert store.consumers.park(begun(store), told, read=0, attempts=10, failure_class="KeyError")
    written = {name for name in described(mongo_harness.database) if mongo_harness.raw(name)}
    assert written == {each.name for step in STEPS for each in step.collections} | {RECORD}
    assert unregistered(mongo_harness.database) == set()


@pytest.mark.promise("L20")
def test_only_the_steps_make_collections_and_indexes() -> None:
    makes = {"create_collection", "create_index", "create_indexes"}
    makers = {
        path.name
        for path in ADAPTERS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in makes
    }
    assert makers == {"schema.py"}
