"""When a poll is offered to a consumer, and when not: the consumers' tick, and what wakes one before it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.application.offer_polls import offer_polls, wake_consumers
from outbox_core.domain.consumer import Poll, Start
from outbox_core.domain.delivery import retry_delay
from outbox_core.ports.hints import NoHints
from tests.harness.lifecycle import CURSORS, row, tell_many
from tests.simulation.observing import Cache, cursor, delete, observer, poll_to_rest, put_cards, watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_core.domain.observer import Observer
    from outbox_core.ports.runtime import Runtime
    from tests.harness.base import Harness

TICK, FAR = timedelta(seconds=20), timedelta(minutes=2)


class Known:
    """The observers of a process."""

    def __init__(self, *known: Observer) -> None:
        self._known = {one.consumer_id: one for one in known}

    def get(self, consumer_id: str) -> Observer | None:
        return self._known.get(consumer_id)

    def ids(self) -> Sequence[str]:
        return tuple(self._known)


def knowing(harness: Harness, *known: Observer) -> Runtime:
    return replace(harness.runtime(slice_time=timedelta(seconds=4)), observers=Known(*known))


def tick(harness: Harness, runtime: Runtime, after: timedelta = TICK) -> list[tuple[str, str | None]]:
    """Let time pass and a tick come; return whom it offered a poll."""
    harness.advance(after)
    harness.hints.sent.clear()
    offered = offer_polls(harness.store, runtime)
    assert offered == len(harness.hints.sent)
    return [(tenant, consumer) for _, tenant, consumer in harness.hints.sent]


def woken(harness: Harness, runtime: Runtime) -> list[str | None]:
    harness.hints.sent.clear()
    assert wake_consumers(harness.acme, runtime) == len(harness.hints.sent)
    return [consumer for _, _, consumer in harness.hints.sent]


@pytest.mark.promise("L15")
@pytest.mark.scenario(22)
def test_44_idle_consumers_are_polled_ever_less_often_and_one_that_fails_is_not_idle(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes, with tenants paused: polling decays with jitter, errors are not idle (seen at: Fusion PR 3471)."""
    drawn = itertools.cycle((0.8, 1.2, 0.9, 1.1, 1.0))
    monkeypatch.setattr(harness.entropy, "jitter", lambda: next(drawn))
    names = [f"cache-{letter}" for letter in "abcdefghijk"]
    tenants = [harness.store.tenant(f"t{number}") for number in range(4)]
    failing = Cache("c1")
    runtime = knowing(harness, *(observer(Cache(), name) for name in names), observer(failing, "failing"))
    for store, name in itertools.product(tenants, names):
        store.consumers.register(name, Start.BEGINNING, "test")
        observe_lifecycle(store, runtime, observer(Cache(), name))
    watched(harness.acme, runtime, 1, consumer="failing")
    tries = 0
    for _ in range(30):
        offered = tick(harness, runtime)
        # An idle consumer costs no message at all.
        assert set(offered) <= {("acme", "failing")}
        for _ in offered:
            report = observe_lifecycle(harness.acme, runtime, observer(failing, "failing"))
            tries += report.failed
            assert report.wait == retry_delay(tries)
    # 5, 15, 25, 35, 45, 55 and then 60 s each: at every tick it would have been 30 times, or more.
    polls = [row(store, name).idle_polls for store, name in itertools.product(tenants, names)]
    assert len(polls) == 44
    assert 7 <= min(polls) <= max(polls) <= 14
    due = {row(store, name).next_poll_at for store, name in itertools.product(tenants, names)}
    assert len(due) > 5, "they would all come at once"
    # After 1, 5, 30 and 300 s, at the ticks that follow.
    assert tries == len(failing.told) == 5
    assert row(harness.acme, "failing").idle_polls == 0

    for store in (*tenants, harness.acme):
        store.consumers.set_paused(None, paused=True)
    before = harness.raw(CURSORS, tenant_id="t0")
    assert tick(harness, runtime, FAR) == []
    for one in harness.raw(CURSORS):
        assert one["paused_at"] is not None
    assert [one["idle_polls"] for one in harness.raw(CURSORS, tenant_id="t0")] == [one["idle_polls"] for one in before]
    failing.fails.clear()
    assert harness.acme.consumers.set_paused(None, paused=False) == ["failing"]
    # Due at once, it has nothing to do before its next try, and that is no idleness either.
    assert tick(harness, runtime) == []
    assert row(harness.acme, "failing").idle_polls == 0
    assert tick(harness, runtime, timedelta(minutes=15)) == [("acme", "failing")]


@pytest.mark.promise("L15")
def test_an_idle_consumer_is_offered_a_poll_once_something_happens_and_is_quick_again_after_it(
    harness: Harness,
) -> None:
    store, cache = harness.acme, Cache()
    runtime = knowing(harness, observer(cache))
    put_cards(store, "c1")
    store.consumers.register("cache", Start.BEGINNING, "test")
    observe_lifecycle(store, runtime, observer(cache))
    for _ in range(6):
        assert tick(harness, runtime, FAR) == []
    assert row(store).idle_polls >= 6
    delete(store, runtime, "c1")
    assert tick(harness, runtime, FAR) == [("acme", "cache")]
    assert observe_lifecycle(store, runtime, observer(cache)).observed == 1
    assert row(store).idle_polls == 0
    assert tick(harness, runtime, harness.limits.consumer_poll + timedelta(seconds=1)) == []
    assert row(store).idle_polls == 1


@pytest.mark.promise("L15", "L22")
def test_polls_are_offered_of_known_observers_alone_and_once_by_however_many_beats(harness: Harness) -> None:
    store, runtime = harness.acme, knowing(harness, observer(Cache()))
    watched(store, harness.runtime(), 1)
    store.consumers.register("strange", Start.BEGINNING, "test")
    assert tick(harness, knowing(harness)) == []
    assert tick(harness, runtime) == [("acme", "cache")]
    assert tick(harness, runtime, timedelta(0)) == []
    # A worker that knows another observer has a tick of its own.
    assert tick(harness, knowing(harness, observer(Cache(), "strange")), timedelta(0)) == [("acme", "strange")]


@pytest.mark.promise("L17")
def test_an_offer_and_a_wake_up_that_are_lost_are_made_again(harness: Harness) -> None:
    store, cache = harness.acme, Cache()
    lossy = replace(knowing(harness, observer(cache)), hints=NoHints())
    runtime = knowing(harness, observer(cache))
    watched(store, harness.runtime(), 2)
    harness.advance(TICK)
    assert offer_polls(harness.store, lossy) == 0
    assert wake_consumers(store, lossy) == 0
    assert tick(harness, runtime, harness.limits.slot_hold + timedelta(seconds=1)) == [("acme", "cache")]
    poll_to_rest(harness, store, runtime, observer(cache))
    assert cache.ids == ["-c1", "-c2"]


@pytest.mark.promise("L17")
def test_a_wake_up_that_is_doubled_or_late_changes_nothing(harness: Harness) -> None:
    store, cache = harness.acme, Cache()
    runtime = knowing(harness, observer(cache))
    watched(store, harness.runtime(), 1)
    assert woken(harness, runtime) == woken(harness, runtime) == ["cache"]
    assert [observe_lifecycle(store, runtime, observer(cache)).poll for _ in range(2)] == [Poll.OBSERVED, Poll.IDLE]
    stored = harness.raw(CURSORS)
    assert woken(harness, runtime) == []
    assert observe_lifecycle(store, runtime, observer(cache)).poll is Poll.IDLE
    assert (harness.raw(CURSORS), cache.ids, cursor(store)) == (stored, ["-c1"], 1)


@pytest.mark.promise("L17", "L09", "L14")
def test_a_wake_up_leaves_alone_who_waits_for_a_retry_works_is_paused_or_retired(harness: Harness) -> None:
    store, names = harness.acme, ["failing", "paused", "retired", "works", "idle"]
    runtime = knowing(harness, *(observer(Cache("c1"), name) for name in names))
    for name in names:
        store.consumers.register(name, Start.BEGINNING, "test")
    tell_many(store, 1)
    put_cards(store, "c9")
    delete(store, runtime, "c9")
    failing = Cache("c9")
    assert observe_lifecycle(store, runtime, observer(failing, "failing")).poll is Poll.RETRYING
    store.consumers.set_paused(["paused"], paused=True)
    store.consumers.retire("retired", "ann", "")
    assert store.consumers.lease("works", "worker-2", harness.limits.consumer_lease)
    assert woken(harness, runtime) == ["idle"]
    harness.advance(harness.limits.consumer_lease + timedelta(seconds=1))
    assert woken(harness, runtime) == ["idle", "works"]


@pytest.mark.promise("L15", "L17")
def test_a_lease_that_ends_further_ahead_than_any_may_is_nobodys_for_a_tick_and_a_wake_up_too(harness: Harness) -> None:
    """It was written before the server's clock stepped back."""
    store, cache = harness.acme, Cache()
    runtime = knowing(harness, observer(cache))
    watched(store, harness.runtime(), 1)
    assert store.consumers.lease("cache", "dead", harness.limits.consumer_lease)
    assert woken(harness, runtime) == []
    harness.change(CURSORS, "acme|cache", lease_until=harness.now() + timedelta(hours=1))
    assert woken(harness, runtime) == ["cache"]
    assert tick(harness, runtime) == [("acme", "cache")]
    poll_to_rest(harness, store, runtime, observer(cache))
    assert cache.ids == ["-c1"]
