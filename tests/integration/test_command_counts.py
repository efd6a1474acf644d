"""How many MongoDB commands an effect costs: a number that is exact on any machine."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.run_slice import run_slice
from tests.harness.examples import subscription
from tests.simulation.play import append, drain, run_whole

if TYPE_CHECKING:
    from tests.harness.on_mongo import MongoHarness

COUNTED = ("find", "update", "findAndModify", "insert", "delete", "aggregate", "getMore")


def commands(harness: MongoHarness) -> int:
    counted = harness.database.client.admin.command("serverStatus")["metrics"]["commands"]
    return sum(int(counted[name]["total"]) for name in COUNTED)


def test_a_lone_effect_costs_two_commands_to_append_ten_to_drain_and_ten_to_run(mongo_harness: MongoHarness) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime({"bot": lambda run: None})  # noqa: ARG005
    add_subscription(store, subscription("s"))
    append(store, runtime, "first")
    drain(store, runtime)
    run_whole(store, runtime)
    counts = [commands(mongo_harness)]
    append(store, runtime, "lone")
    counts.append(commands(mongo_harness))
    drain_tenant(store, runtime)
    counts.append(commands(mongo_harness))
    run_slice(store, runtime, mongo_harness.hints.sent[-1][2])
    counts.append(commands(mongo_harness))
    spent = [after - before for before, after in pairwise(counts)]
    assert spent == [2, 10, 10]
    assert mongo_harness.acme.effects.counts() == {"done:delivered": 2}


def test_two_hundred_effects_cost_no_more_commands_than_a_lone_one(mongo_harness: MongoHarness) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime({"bot": lambda run: None}, event_batch=201)  # noqa: ARG005
    add_subscription(store, subscription("s"))
    append(store, runtime, "first")
    drain(store, runtime)
    run_whole(store, runtime)
    before = commands(mongo_harness)
    append(store, runtime, *(f"e{number}" for number in range(199)))
    drain_tenant(store, runtime)
    run_slice(store, runtime, mongo_harness.hints.sent[-1][2])
    assert commands(mongo_harness) - before == 22
    assert mongo_harness.acme.effects.counts() == {"done:delivered": 200}
