"""How many MongoDB commands an effect costs: a number that is exact on any machine."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.drain_tenant import Step, drain_tenant
from outbox_core.application.run_slice import run_slice
from outbox_core.application.run_turn import run_turn
from tests.harness.examples import subscription
from tests.simulation.play import append, drain, run_whole

if TYPE_CHECKING:
    from tests.harness.on_mongo import MongoHarness

COUNTED = ("find", "update", "findAndModify", "insert", "delete", "aggregate", "getMore")


def commands(harness: MongoHarness) -> int:
    counted = harness.database.client.admin.command("serverStatus")["metrics"]["commands"]
    return sum(int(counted[name]["total"]) for name in COUNTED)


def test_a_lone_effect_costs_two_commands_to_append_and_ten_to_drain_and_run(mongo_harness: MongoHarness) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime({"bot": lambda run: None})  # noqa: ARG005
    add_subscription(store, subscription("s"))
    append(store, runtime, "first")
    run_turn(store, runtime)
    counts = [commands(mongo_harness)]
    append(store, runtime, "lone")
    counts.append(commands(mongo_harness))
    run_turn(store, runtime, mongo_harness.hints.sent[-1][2])
    counts.append(commands(mongo_harness))
    assert [after - before for before, after in pairwise(counts)] == [2, 10]
    assert mongo_harness.acme.effects.counts() == {"done:delivered": 2}


def test_by_ticks_alone_a_lone_effect_costs_seven_to_drain_and_nine_to_run(mongo_harness: MongoHarness) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime({"bot": lambda run: None})  # noqa: ARG005
    add_subscription(store, subscription("s"))
    append(store, runtime, "first")
    drain(store, runtime)
    run_whole(store, runtime)
    append(store, runtime, "lone")
    counts = [commands(mongo_harness)]
    drain_tenant(store, runtime)
    counts.append(commands(mongo_harness))
    run_slice(store, runtime, mongo_harness.hints.sent[-1][2])
    counts.append(commands(mongo_harness))
    assert [after - before for before, after in pairwise(counts)] == [7, 9]
    assert mongo_harness.acme.effects.counts() == {"done:delivered": 2}


def test_two_thousand_effects_in_full_batches_cost_a_twentieth_of_a_command_each(mongo_harness: MongoHarness) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime({"bot": lambda run: None})  # noqa: ARG005
    add_subscription(store, subscription("s"))
    append(store, runtime, "first")
    run_turn(store, runtime)
    before = commands(mongo_harness)
    append(store, runtime, *(f"e{number}" for number in range(1_000)))
    append(store, runtime, *(f"f{number}" for number in range(1_000)))
    token, turns = None, 0
    while (report := run_turn(store, runtime, token)) is not None:
        turns += 1
        if report.drained.step is Step.CAUGHT_UP:
            break
        token = mongo_harness.hints.sent[-1][2]
    spent = commands(mongo_harness) - before
    assert turns == 11
    assert spent / 2_000 <= 0.05
    assert mongo_harness.acme.effects.counts() == {"done:delivered": 2_001}
