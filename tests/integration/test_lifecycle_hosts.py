"""Hosting consumers in a process: two threads under one id, faults that are nobody's, and a worker's limits."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core import LifecycleConsumer, Observation, Observer, Outbox
from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.bots import ObserverRegistry, observer
from outbox_core.domain.consumer import Poll, Start
from outbox_core.domain.errors import ConfigurationError
from outbox_core.domain.limits import Limits
from tests.simulation.observing import Cache, watched
from tests.simulation.observing import observer as observing
from tests.waiting import wait_until

if TYPE_CHECKING:
    from outbox_core.embedded import EmbeddedMongo
    from tests.harness.base import Harness


@pytest.mark.promise("L07")
def test_of_two_threads_of_one_process_under_one_consumer_id_one_works(harness: Harness) -> None:
    """A wake-up that came twice to a pool of threads."""
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 2)
    polls: list[Poll] = []

    def second(_: Observation) -> None:
        thread = threading.Thread(target=lambda: polls.append(observe_lifecycle(store, runtime, observing(cache)).poll))
        thread.start()
        thread.join()

    cache.on_call = second
    assert observe_lifecycle(store, runtime, observing(cache)).poll is Poll.OBSERVED
    assert polls == [Poll.BUSY, Poll.BUSY]
    assert cache.ids == ["-c1", "-c2"]


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
