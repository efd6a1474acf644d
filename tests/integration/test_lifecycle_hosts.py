"""Hosting consumers in a process: two threads under one id, faults that are nobody's, and a worker's limits."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core import LifecycleConsumer, Observation, Observer, Outbox
from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.application.offer_polls import offer_polls
from outbox_core.bots import ObserverRegistry, observer
from outbox_core.domain.consumer import Poll, Start
from outbox_core.domain.errors import ConfigurationError
from outbox_core.domain.limits import Limits
from tests.simulation.observing import Cache, delete, poll_to_rest, put_cards, watched
from tests.simulation.observing import observer as observing
from tests.waiting import wait_until

if TYPE_CHECKING:
    from outbox_core.embedded import EmbeddedMongo
    from tests.harness.base import Harness
    from tests.harness.on_mongo import MongoHarness


@pytest.mark.promise("L07")
def test_of_two_threads_of_one_process_under_one_consumer_id_one_works(harness: Harness) -> None:
    """A wake-up that came twice to a pool of threads."""
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 2)
    polls: list[Poll] = []

    def second(_: Observation) -> None:
        cache.on_call = lambda _: None
        thread = threading.Thread(target=lambda: polls.append(observe_lifecycle(store, runtime, observing(cache)).poll))
        thread.start()
        thread.join()

    cache.on_call = second
    assert observe_lifecycle(store, runtime, observing(cache)).poll is Poll.OBSERVED
    assert polls == [Poll.BUSY]
    assert cache.ids == ["-c1", "-c2"]


COUNTED = ("find", "update", "findAndModify", "insert", "delete", "aggregate", "getMore")


def commands(harness: MongoHarness) -> int:
    counted = harness.database.client.admin.command("serverStatus")["metrics"]["commands"]
    return sum(int(counted[name]["total"]) for name in COUNTED)


@pytest.mark.long
@pytest.mark.promise("L15")
@pytest.mark.scenario(22)
def test_minutes_of_ticks_with_44_idle_consumers_send_no_message_and_with_paused_tenants_write_nothing(
    mongo_harness: MongoHarness,
) -> None:
    """Each of 44 idle consumers was polled for ever, as fast as a busy one (seen at: Fusion PR 3471)."""
    harness, known = mongo_harness, ObserverRegistry()
    tenants = [harness.store.tenant(f"t{number}") for number in range(4)]
    for number in range(11):
        known.add(observing(Cache(), f"role-{chr(97 + number)}"))
    runtime = replace(harness.runtime(), observers=known)
    for store in tenants:
        put_cards(store, "c1")
        delete(store, runtime, "c1")
        for consumer_id in known.ids():
            store.consumers.register(consumer_id, Start.BEGINNING, "test")
            cache = known.get(consumer_id)
            assert cache is not None
            poll_to_rest(harness, store, runtime, cache)
    harness.hints.sent.clear()

    def minutes(number: int) -> tuple[int, int]:
        """Tick every five seconds; return what that cost: commands, and how often a consumer was looked at."""
        cost, looked = 0, idle_polls(harness)
        for _ in range(12 * number):
            harness.advance(runtime.limits.consumer_poll)
            before = commands(harness)
            assert offer_polls(harness.store, runtime) == 0
            cost += commands(harness) - before
        return cost, idle_polls(harness) - looked

    minutes(2)
    cost, looked = minutes(1)
    assert harness.hints.sent == []
    # Five for a tick at most, however many consumers there are; each is looked at about once a minute by now.
    assert cost <= 12 * 5
    assert 35 <= looked <= 60
    for store in tenants:
        store.consumers.set_paused(None, paused=True)
    # The tick's own document is read and set, and the due ones are asked for: nobody is.
    assert minutes(1) == (12 * 3, 0)
    assert harness.hints.sent == []


def idle_polls(harness: MongoHarness) -> int:
    return sum(row["idle_polls"] for row in harness.raw("lifecycle_consumer_cursors"))


@pytest.mark.promise("L05", "L07")
def test_a_row_that_a_killed_process_left_in_an_open_transaction_keeps_no_other_tenant_waiting(
    mongo_harness: MongoHarness,
) -> None:
    harness = mongo_harness
    held, *others = [harness.store.tenant(f"t{number}") for number in range(3)]
    for store in (held, *others):
        watched(store, harness.runtime(), 1)
    lease = held.consumers.lease("cache", "killed", timedelta(milliseconds=1))
    assert lease is not None
    assert held.consumers.begin(lease)
    hold = harness.limits.slot_hold
    with held.transactions.begin() as transaction:
        # Killed before its commit: nothing ends this at the server until the server itself does.
        held.consumers.acknowledge_in(transaction, lease, read=0, sequence=1)
        began = time.monotonic()
        offered = harness.store.maintenance.due_consumers(["cache"], hold, 100)
        assert time.monotonic() - began < harness.limits.op_timeout.total_seconds() - 2
        assert sorted(offered) == [("t1", "cache"), ("t2", "cache")]
    assert list(harness.store.maintenance.due_consumers(["cache"], hold, 100)) == [("t0", "cache")]


@pytest.mark.promise("L05")
def test_a_thread_that_hosts_a_consumer_outlives_a_fault_that_is_nobodys(
    mongo_server: EmbeddedMongo,
    database_name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, text in {"MONGO_URL": mongo_server.url, "MONGO_DB": database_name, "CONSUMER_POLL": "50ms"}.items():
        monkeypatch.setenv(f"OUTBOX_{name}", text)
    outbox = Outbox.from_settings()
    outbox.ensure_schema()
    outbox.boards("acme").create_board("bugs", ["todo"])
    outbox.boards("acme").create_card("bugs", "A card", card_id="c1")
    told: list[str] = []
    cache = Observer(consumer_id="cache", function=lambda one: told.append(one.event.task_id), start=Start.BEGINNING)
    consumer = LifecycleConsumer(outbox, "acme", cache)
    consumer.register()
    ask, faults = outbox.tenant, iter([RuntimeError("no more threads")])

    def tenant(name: str) -> Any:  # noqa: ANN401 - a handle
        if (fault := next(faults, None)) is not None:
            raise fault
        return ask(name)

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR, "outbox.lifecycle"):
        patched.setattr(outbox, "tenant", tenant)
        with consumer:
            wait_until(lambda: caplog.records, 10, "the fault is logged")
            outbox.boards("acme").delete_card("c1")
            wait_until(lambda: told == ["c1"], 10, "it goes on")
    outbox.close()


def test_an_observer_that_may_take_longer_than_the_deployment_allows_is_refused_by_a_worker() -> None:
    def observe(told: Observation) -> None:
        raise NotImplementedError(told)

    known, limits = ObserverRegistry(), Limits(max_time_limit=timedelta(minutes=10))
    known.add(Observer(consumer_id="short", function=observe, start=Start.BEGINNING))
    known.check(limits)
    assert known.longest_limit(limits) == limits.effect_time_limit
    known.add(
        Observer(consumer_id="cache", function=observe, start=Start.LATEST, reconcile=observe)  # type: ignore[arg-type]
    )
    assert known.longest_limit(limits) == timedelta(minutes=10)
    known.add(Observer(consumer_id="long", function=observe, start=Start.BEGINNING, time_limit=timedelta(minutes=11)))
    with pytest.raises(ConfigurationError, match=r"observer 'long': time_limit 11m is above MAX_TIME_LIMIT \(10m\)"):
        known.check(limits)
    with pytest.raises(ConfigurationError, match="above 0"):
        observer("never", start="beginning", time_limit=timedelta(0))(observe)
