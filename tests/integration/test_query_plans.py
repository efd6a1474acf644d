"""Each hot query by its index: what MongoDB examined, from its own profiler and its own plans."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from bson.datetime_ms import DatetimeMS

from outbox_core.adapters.mongo.edges import DUE, MALFORMED
from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.offer_drains import offer_drains
from outbox_core.application.offer_slices import offer_slices
from outbox_core.application.repair_undrained import repair_undrained
from tests.harness.base import ACME
from tests.harness.examples import claim, done, ids_of, materialize, subscription
from tests.simulation.play import append, drain, drain_whole, run_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.database import Database

    from outbox_core.domain.effect import Settlement
    from tests.harness.on_mongo import MongoHarness

LEASE = timedelta(seconds=60)
LIVE = ["pending", "claimed"]


@contextmanager
def profiled(database: Database[dict[str, Any]], found: list[dict[str, Any]]) -> Iterator[None]:
    """Collect what the server notes down of each operation of the block."""
    database.command("profile", 2)
    try:
        yield
    finally:
        database.command("profile", 0)
        found.extend(database["system.profile"].find({"ns": {"$not": {"$regex": "system.profile"}}}))
        database.drop_collection("system.profile")


def crowd(harness: MongoHarness, live: int) -> None:
    """Put in many live rows of one tenant, all due."""
    now = harness.now()
    rows = [
        {
            "_id": f"{ACME}|e{number:06d}|crowd",
            "tenant_id": ACME,
            "state": "pending",
            "event_id": f"e{number:06d}",
            "sub_id": "crowd",
            "seq": number + 1,
            "attributes": {"source": "app", "type": "thing"},
            "claims": 0,
            "attempts": 0,
            "not_before": now,
            "created_at": now,
        }
        for number in range(live)
    ]
    harness.database["trigger_effects"].insert_many(rows, ordered=False)


def stages(plan: dict[str, Any]) -> list[str]:
    """Return the names of a plan's stages."""
    inner = [plan["inputStage"]] if "inputStage" in plan else plan.get("inputStages", [])
    return [plan["stage"], *(name for stage in inner for name in stages(stage))]


@pytest.mark.promise("E25")
@pytest.mark.scenario(56)
def test_claiming_settling_renewing_and_releasing_examine_only_their_own_rows(mongo_harness: MongoHarness) -> None:
    """A batch of 200 among 60,000 live rows; unhinted, the planner reads every live row of the tenant."""
    crowd(mongo_harness, 60_000)
    effects = mongo_harness.acme.effects
    found: list[dict[str, Any]] = []
    with profiled(mongo_harness.database, found):
        held = claim(mongo_harness.acme, 200, LEASE)
        ids = ids_of(held)
        effects.renew(held, ids, LEASE)
        effects.release(held, ids[:50])
        settlements: dict[str, Settlement] = {effect_id: done() for effect_id in ids[50:]}
        effects.settle(held, settlements)
        in_a_crowd = claim(mongo_harness.acme, 200, LEASE, crowded=True)
    assert (len(ids), len(in_a_crowd.effects)) == (200, 200)
    examined = [(op["op"], op.get("docsExamined"), op.get("nMatched", op.get("nreturned"))) for op in found]
    assert [op for op, _, _ in examined] == [
        *("query", "update", "query", "update", "update", "update"),
        *("query", "update", "query"),
    ]
    # One row more than is claimed tells whether others are due; in a crowd a claim looks at four times as many.
    assert [docs for _, docs, _ in examined] == [201, 200, 200, 200, 50, 150, 800, 200, 200], examined
    # Unhinted it may go well once: the planner's choice hangs on what it tried before.
    assert [op["command"].get("hint") for op in found if "sort" not in op["command"]] == [{"_id": 1}] * 7


def test_due_candidates_come_in_order_from_the_live_index_without_a_sort(mongo_harness: MongoHarness) -> None:
    crowd(mongo_harness, 3_000)
    query = {"tenant_id": ACME, "state": {"$in": LIVE}, **DUE}
    cursor = mongo_harness.database["trigger_effects"].find(query).sort([("not_before", 1)]).limit(200)
    explained = cursor.explain()
    names = stages(explained["queryPlanner"]["winningPlan"])
    assert "SORT_MERGE" in names
    assert not {"SORT", "COLLSCAN"} & set(names)
    assert explained["executionStats"]["totalDocsExamined"] <= 201


def test_rows_that_are_never_due_are_found_without_reading_the_others(mongo_harness: MongoHarness) -> None:
    crowd(mongo_harness, 3_000)
    mongo_harness.change("trigger_effects", f"{ACME}|e000007|crowd", not_before="soon")
    query = {"tenant_id": ACME, "state": {"$in": LIVE}, **MALFORMED}
    explained = mongo_harness.database["trigger_effects"].find(query).limit(200).explain()
    assert explained["executionStats"]["nReturned"] == 1
    assert explained["executionStats"]["totalDocsExamined"] <= 2


@pytest.mark.promise("E16")
def test_finding_due_tenants_walks_over_tenants_and_not_over_rows(mongo_harness: MongoHarness) -> None:
    crowd(mongo_harness, 3_000)
    for number in range(50):
        materialize(mongo_harness.store.tenant(f"t{number}"), 3, now=mongo_harness.now())
    found: list[dict[str, Any]] = []
    with profiled(mongo_harness.database, found):
        assert len(mongo_harness.store.maintenance.due_tenants()) == 51
    assert [op["op"] for op in found] == ["command"] * 4
    assert all("DISTINCT_SCAN" in op["planSummary"] for op in found)
    assert sum(op["keysExamined"] for op in found) <= 4 * 2 * 51


def test_no_use_case_reads_a_whole_collection(mongo_harness: MongoHarness) -> None:
    """The server refuses every plan that would."""
    admin = mongo_harness.database.client.admin
    runtime = mongo_harness.runtime({"bot": lambda run: None})  # noqa: ARG005 - a bot's signature
    store = mongo_harness.acme
    admin.command("setParameter", 1, notablescan=True)
    try:
        add_subscription(store, subscription("s"))
        append(store, runtime, "a", "b")
        append(store, runtime, "a")
        store.log.allocate(1)
        drain_whole_after_the_grace(mongo_harness)
        run_whole(store, runtime)
        mongo_harness.hints.sent.clear()
        offer_drains(mongo_harness.store, runtime)
        offer_slices(mongo_harness.store, runtime)
        repair_undrained(mongo_harness.store, runtime)
        assert store.effects.counts() == {"done:delivered": 2}
        assert len(store.effects.list(state="done")) == 2
        assert store.effects.next_due() is None
        assert store.subscriptions.set_enabled("s", enabled=False)
        assert store.subscriptions.remove("s")
    finally:
        admin.command("setParameter", 1, notablescan=False)


def drain_whole_after_the_grace(harness: MongoHarness) -> None:
    """Drain a log that ends in a dead number; time moves by updates that read everything, so outside the check."""
    admin = harness.database.client.admin
    assert drain(harness.acme, harness.runtime()).reached_seq == 3
    admin.command("setParameter", 1, notablescan=False)
    harness.advance(timedelta(seconds=36))
    admin.command("setParameter", 1, notablescan=True)
    drain_whole(harness.acme, harness.runtime())


@pytest.mark.promise("E45")
def test_a_row_that_is_due_after_the_last_year_is_swept_and_parks(mongo_harness: MongoHarness) -> None:
    """Nothing else of its tenant is due, so only the sweep can bring a claim to it."""
    (effect_id,) = materialize(mongo_harness.acme, 1, now=mongo_harness.now())
    mongo_harness.change("trigger_effects", effect_id, not_before=DatetimeMS(900_000_000_000_000))
    assert mongo_harness.acme.effects.next_due() is None
    assert mongo_harness.store.maintenance.due_tenants() == [ACME]
    run_whole(mongo_harness.acme, mongo_harness.runtime())
    assert mongo_harness.row(effect_id)["state"] == "failed"
    assert mongo_harness.store.maintenance.due_tenants() == []
