"""Rows that a worker does not know, on both stores: left alone, told of, and in nobody's way (E23)."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.identity import join_key
from outbox_core.domain.rarely import Rarely
from tests.harness.base import ACME
from tests.harness.examples import attributes, event, new_effect, subscription
from tests.simulation.play import append, drain_whole, run_whole

if TYPE_CHECKING:
    from outbox_core.domain.bot import Run
    from tests.harness.base import Harness
    from tests.harness.on_mongo import MongoHarness


def alarms(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.promise("E23")
@pytest.mark.scenario(15)
def test_rows_that_a_worker_does_not_know_wait_for_another_and_raise_one_alarm_each_kind(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """A kind, a mode and a bot of a newer version; three rows wait for the bot."""
    store, older = harness.acme, harness.runtime({})
    for sub_id in ("bot-1", "bot-2", "bot-3", "mode", "kind"):
        add_subscription(store, subscription(sub_id, bot_id="y"))
    append(store, older, "a")
    drain_whole(store, older)
    harness.change("trigger_subscriptions", join_key(ACME, "mode"), mode="from-the-future")
    harness.change("trigger_effects", join_key(ACME, "a", "kind"), kind="unheard-of")
    for _ in range(8):
        run_whole(store, older)
        if harness.row(join_key(ACME, "a", "mode"))["created_at"] > harness.now() - older.limits.unknown_kind_alarm:
            assert alarms(caplog) == []
        harness.advance(timedelta(minutes=3))
    told = alarms(caplog)
    assert len(told) == 3, told
    for what in ("the bot 'y'", "the mode 'from-the-future'", "the kind 'unheard-of'"):
        assert sum(f"this worker does not know {what}" in line for line in told) == 1
    rows = harness.raw("trigger_effects", tenant_id=ACME)
    assert {(row["state"], row["attempts"]) for row in rows} == {("pending", 0)}
    seen: list[str] = []
    harness.advance(timedelta(minutes=10))
    run_whole(store, harness.runtime({"y": lambda run: seen.append(run.effect_id)}))
    assert sorted(seen) == [join_key(ACME, "a", f"bot-{number}") for number in (1, 2, 3)]


def test_what_is_said_rarely_is_said_again_after_an_hour_and_does_not_fill_the_memory() -> None:
    said = Rarely()
    assert [said.is_time("a", 0.0), said.is_time("a", 3_599.0), said.is_time("b", 3_599.0)] == [True, False, True]
    assert said.is_time("a", 3_600.0)
    for number in range(5_000):
        assert said.is_time(f"hostile {number}", 3_700.0)
    assert len(said._said_at) == 1_000


def hidden(harness: MongoHarness, count: int) -> None:
    """Write rows that nobody knows, all due before one good row; then let slices run."""
    store, ran = harness.acme, list[str]()
    add_subscription(store, subscription("good", bot_id="x"))
    now = harness.now()
    (first,) = harness_document(harness)
    rows = ({**first, "_id": f"{ACME}|unknown-{n}|#later", "event_id": f"unknown-{n}"} for n in range(count))
    collection = harness.database["trigger_effects"]
    collection.delete_many({})
    batch: list[dict[str, object]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == 5_000:
            collection.insert_many(batch, ordered=False)
            batch = []
    store.log.insert([event(1, "good", now=now)])
    store.effects.materialize([new_effect(1, "good", event_id="good", bot_id="x")], harness.now())

    def bot(run: Run) -> None:
        ran.append(run.event.event_id)

    # A slice goes on to the tail of the queue; here nobody else stands in it.
    runtime = replace(harness.runtime({"x": bot}), said=Rarely())
    for _ in range(count // 200 + 10):
        report = run_slice(store, runtime)
        harness.change("tenant_slots", ACME, slice=[])
        assert report is not None
        if ran:
            break
    assert ran == ["good"]
    assert collection.count_documents({"kind": "later", "attempts": 0, "state": "pending"}) == count


def harness_document(harness: MongoHarness) -> list[dict[str, object]]:
    """One row of a kind that nobody knows, as a newer version would write it; due for an hour."""
    effect = new_effect(1, "#later", kind="launch", attributes=attributes())
    harness.acme.effects.materialize([effect], harness.now() - timedelta(hours=1))
    return [{**row, "kind": "later"} for row in harness.raw("trigger_effects", tenant_id=ACME)]


@pytest.mark.promise("E23")
@pytest.mark.scenario(26)
def test_twenty_thousand_rows_that_nobody_knows_do_not_hide_the_one_behind_them(mongo_harness: MongoHarness) -> None:
    hidden(mongo_harness, 20_000)


@pytest.mark.long
@pytest.mark.promise("E23")
@pytest.mark.timeout(400)
def test_a_hundred_thousand_rows_that_nobody_knows_do_not_hide_the_one_behind_them(
    mongo_harness: MongoHarness,
) -> None:
    hidden(mongo_harness, 100_000)
