"""A notice and a sink that hang or fail: bounded, dropped while one hangs, and nobody else's matter."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from outbox_core.adapters.outlets import ProcessOutlets
from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.domain.consumer import Poll, PollReport, Start
from outbox_core.domain.errors import ObserverActedError
from outbox_core.domain.lifecycle_event import CARD_DELETED, LifecycleEvent, Standing
from outbox_core.domain.observer import observing
from outbox_core.ports.runtime import Runtime
from tests.harness.surroundings import CountingEntropy, KnownBots, RecordingHints
from tests.harness.twin import TwinHarness
from tests.simulation.observing import Cache, cursor, delete, observer, put_cards
from tests.waiting import wait_until

BOUND = timedelta(milliseconds=300)
GENEROUS_S = 6.0
REPORT = PollReport(tenant_id="acme", consumer_id="cache", poll=Poll.IDLE)


def event(number: int = 1) -> LifecycleEvent:
    at = datetime(2026, 11, 30, 15, 0, tzinfo=UTC)
    return LifecycleEvent(
        event_type=CARD_DELETED,
        task_id=f"c{number}",
        deleted_at=at,
        prior_column="todo",
        prior_status=Standing.ACTIVE,
        writer_process_id="writer",
        tenant_id="acme",
        sequence=number,
        occurred_at=at,
    )


class Hanging:
    """Foreign code that hangs until it is let go; `calls` are those that began, `ended` those that came back."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.ended: list[object] = []
        self.go = threading.Event()

    def __call__(self, told: object) -> None:
        self.calls.append(told)
        self.go.wait(60)
        self.ended.append(told)


def outlet_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "outbox-outlet"]


def surroundings(harness: TwinHarness, outlets: ProcessOutlets) -> Runtime:
    return Runtime(
        clock=harness.clock,
        entropy=CountingEntropy(),
        hints=RecordingHints(),
        bots=KnownBots({}),
        outlets=outlets,
    )


@pytest.mark.promise("L16")
def test_a_sink_that_hangs_is_waited_for_once_then_dropped_at_once_and_called_again_when_it_ends() -> None:
    sink = Hanging()
    outlets = ProcessOutlets(BOUND, sink=sink)
    before = len(outlet_threads())
    began = time.monotonic()
    for _ in range(200):
        outlets.polled(REPORT)
    assert time.monotonic() - began < GENEROUS_S, "each was waited for: 200 bounds are 60 s"
    assert (len(sink.calls), len(outlet_threads()) - before) == (1, 1)
    sink.go.set()
    wait_until(lambda: len(outlet_threads()) == before)
    outlets.polled(REPORT)
    wait_until(lambda: len(sink.ended) == 2)


@pytest.mark.promise("L16")
def test_nothing_is_observed_late_although_the_sink_hangs_at_each_poll() -> None:
    harness, sink, cache = TwinHarness(), Hanging(), Cache()
    runtime = surroundings(harness, ProcessOutlets(BOUND, sink=sink))
    store, ids = harness.acme, [f"c{number}" for number in range(30)]
    put_cards(store, *ids)
    store.consumers.register("cache", Start.BEGINNING, "test")
    began = time.monotonic()
    for number, card_id in enumerate(ids, 1):
        delete(store, runtime, card_id)
        assert observe_lifecycle(store, runtime, observer(cache)).observed == 1
        assert cursor(store) == number
    assert time.monotonic() - began < GENEROUS_S
    assert (len(cache.told), len(sink.calls)) == (30, 1)
    sink.go.set()


@pytest.mark.promise("L16", "L02")
def test_a_delete_whose_notice_hangs_returns_within_its_bound_and_listeners_have_heard_it_already() -> None:
    harness, notice = TwinHarness(), Hanging()
    outlets = ProcessOutlets(BOUND, notice=notice)
    heard: list[str] = []
    outlets.listen(lambda told: heard.append(f"{told.task_id} before {len(notice.calls)} notices"))
    runtime = surroundings(harness, outlets)
    put_cards(harness.acme, "c1", "c2")
    began = time.monotonic()
    delete(harness.acme, runtime, "c1", "c2")
    assert time.monotonic() - began < GENEROUS_S
    assert heard == ["c1 before 0 notices", "c2 before 1 notices"]
    assert len(notice.calls) == 1
    assert harness.acme.stream.head() == 2
    notice.go.set()


@pytest.mark.promise("L16")
@pytest.mark.parametrize("error", [ValueError("secret text"), RuntimeError(), KeyError("x")])
def test_a_sink_and_a_notice_that_fail_are_logged_by_class_and_called_again(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    called: list[object] = []

    def fail(told: object) -> None:
        called.append(told)
        raise error

    outlets = ProcessOutlets(timedelta(seconds=GENEROUS_S), notice=fail, sink=fail)
    with caplog.at_level(logging.WARNING, "outbox.lifecycle"):
        for _ in range(2):
            outlets.polled(REPORT)
            outlets.committed(event())
    assert len(called) == 4
    assert len(caplog.records) == 4
    assert all(type(error).__name__ in record.getMessage() for record in caplog.records)
    assert "secret text" not in caplog.text


@pytest.mark.promise("L16")
def test_a_process_that_may_start_no_thread_drops_the_call_and_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []
    outlets = ProcessOutlets(timedelta(seconds=GENEROUS_S), sink=called.append)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "outbox.lifecycle"):
        patched.setattr(threading.Thread, "start", refused)
        outlets.polled(REPORT)
    assert "can't start new thread" in caplog.text
    outlets.polled(REPORT)
    assert called == [REPORT]


@pytest.mark.promise("L02", "L16")
def test_a_listener_that_fails_or_leaves_stops_no_other_and_each_hears_the_event_as_it_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outlets = ProcessOutlets(BOUND)
    heard: list[tuple[str, LifecycleEvent]] = []

    def fail(_: object) -> None:
        raise ValueError

    outlets.listen(fail)
    leave = outlets.listen(lambda told: heard.append(("left", told)))
    outlets.listen(lambda told: heard.append(("stayed", told)))
    with caplog.at_level(logging.ERROR, "outbox.lifecycle"):
        outlets.committed(event(1))
        leave()
        leave()
        outlets.committed(event(2))
    assert heard == [("left", event(1)), ("stayed", event(1)), ("stayed", event(2))]
    assert len(caplog.records) == 2


@pytest.mark.promise("L08")
def test_nobody_is_notified_from_inside_an_observer() -> None:
    notified: list[object] = []
    outlets = ProcessOutlets(BOUND, notice=notified.append)
    with observing("cache"), pytest.raises(ObserverActedError):
        outlets.committed(event())
    assert not notified
