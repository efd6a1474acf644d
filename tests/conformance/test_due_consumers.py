"""What ports.maintenance promises of consumers: which are due for a poll, and which tenants have a stream."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.consumer import Start
from tests.harness.lifecycle import CURSORS, LEASE, begun, deletion, lease, register, row, tell, tell_many

if TYPE_CHECKING:
    from tests.harness.base import Harness

HOLD = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


def due(harness: Harness, *names: str, limit: int = 100) -> list[tuple[str, str]]:
    return sorted(harness.store.maintenance.due_consumers(names or ("cache",), HOLD, limit))


def level(harness: Harness, name: str = "cache") -> None:
    """Have a consumer that has acknowledged everything, and is due."""
    store = harness.acme
    taken = begun(store, name)
    assert store.consumers.acknowledge(taken, read=0, sequence=store.stream.head())
    assert store.consumers.rest(taken, idle=True, delay=timedelta(0))


@pytest.mark.promise("L15")
def test_a_consumer_with_something_to_observe_is_offered_once_until_its_hold_is_over(harness: Harness) -> None:
    tell_many(harness.acme, 2)
    register(harness.acme)
    assert due(harness) == [("acme", "cache")]
    assert due(harness) == []
    harness.advance(HOLD - SECOND)
    assert due(harness) == []
    harness.advance(2 * SECOND)
    assert due(harness) == [("acme", "cache")]


@pytest.mark.promise("L15")
@pytest.mark.scenario(22)
def test_an_idle_consumer_is_put_off_longer_and_longer_up_to_the_cap_and_never_offered(harness: Harness) -> None:
    """44 idle consumers polled for ten minutes as fast as busy ones (seen at: Fusion PR 3471)."""
    tell_many(harness.acme, 1)
    names = [f"cache-{letter}" for letter in "abcdefgh"]
    for name in names:
        level(harness, name)
    before = row(harness.acme, names[0]).idle_polls
    waits = []
    for step in range(9):
        assert due(harness, *names) == []
        rows = [row(harness.acme, name) for name in names]
        assert {one.idle_polls for one in rows} == {before + step + 1}
        now = harness.now()
        seconds = sorted((one.next_poll_at - now).total_seconds() for one in rows if one.next_poll_at)
        expected = harness.limits.idle_delay(before + step).total_seconds()
        assert 0.8 * expected - 2 <= seconds[0]
        assert seconds[-1] <= 1.2 * expected
        waits.append(expected)
        # Before they are due again nothing is written.
        stored = harness.raw(CURSORS)
        assert due(harness, *names) == []
        assert harness.raw(CURSORS) == stored
        harness.advance(timedelta(seconds=1.2 * expected + 1))
    assert waits[-1] == waits[-2] == harness.limits.consumer_idle_cap.total_seconds()
    assert waits[0] < waits[-1]


@pytest.mark.promise("L15")
def test_an_idle_consumer_is_offered_at_its_next_time_once_something_happened(harness: Harness) -> None:
    tell_many(harness.acme, 1)
    level(harness)
    assert due(harness) == []
    tell(harness.acme, deletion(2))
    harness.advance(timedelta(minutes=2))
    assert due(harness) == [("acme", "cache")]
    assert row(harness.acme).idle_polls == 0


@pytest.mark.promise("L12")
@pytest.mark.parametrize(
    "fields",
    [
        {"last_acked_sequence": None},
        {"last_acked_sequence": 99},
        {"last_acked_sequence": "three"},
        {"must_reconcile": True},
        {"next_poll_at": None, "last_acked_sequence": 0},
    ],
    ids=["none", "above the head", "no number", "told to", "no time"],
)
def test_a_consumer_that_must_reconcile_has_something_to_do(harness: Harness, fields: dict[str, object]) -> None:
    tell_many(harness.acme, 1)
    level(harness)
    harness.change(CURSORS, "acme|cache", **fields)
    assert due(harness) == [("acme", "cache")]


@pytest.mark.promise("L09", "L15")
def test_one_that_failed_is_put_off_to_its_next_try_and_is_not_idle(harness: Harness) -> None:
    tell_many(harness.acme, 1)
    taken = begun(harness.acme)
    consumers = harness.acme.consumers
    assert consumers.fail(taken, event_id="e", attempts=4, delay=timedelta(minutes=5), failure_class="KeyError")
    assert consumers.rest(taken, idle=False, delay=timedelta(0))
    assert due(harness) == []
    found = row(harness.acme)
    assert found.failing is not None
    assert (found.next_poll_at, found.idle_polls) == (found.failing.next_attempt_at, 0)
    harness.advance(timedelta(minutes=5, seconds=1))
    assert due(harness) == [("acme", "cache")]


@pytest.mark.promise("L11")
def test_one_with_a_letter_to_replay_is_due_although_nothing_else_is_to_do(harness: Harness) -> None:
    (event,) = tell_many(harness.acme, 1)
    taken, consumers = begun(harness.acme), harness.acme.consumers
    assert consumers.park(taken, event, read=0, attempts=10, failure_class="KeyError")
    assert consumers.rest(taken, idle=False, delay=timedelta(0))
    assert due(harness) == []
    assert consumers.ask_replay("cache", event.event_id, "ann", "")
    assert due(harness) == [("acme", "cache")]


@pytest.mark.promise("L14", "L15")
def test_what_is_retired_paused_stopped_leased_or_not_asked_for_is_left_alone(harness: Harness) -> None:
    tell_many(harness.acme, 1)
    consumers = harness.acme.consumers
    names = ("leased", "paused", "retired", "stopped", "stranger")
    for name in names:
        register(harness.acme, name)
    taken = lease(harness.acme, "stopped")
    assert consumers.stop(taken, "no function")
    assert consumers.rest(taken, idle=False, delay=timedelta(0))
    consumers.set_paused(["paused"], paused=True)
    consumers.retire("retired", "ann", "")
    lease(harness.acme, "leased")
    before = harness.raw(CURSORS)
    assert due(harness, *names[:-1]) == []
    assert harness.raw(CURSORS) == before
    harness.advance(LEASE + SECOND)
    assert due(harness, *names[:-1]) == [("acme", "leased")]


@pytest.mark.promise("L15")
def test_no_more_are_offered_than_asked_for_and_the_rest_stays_due(harness: Harness) -> None:
    for tenant in ("t1", "t2", "t3"):
        store = harness.store.tenant(tenant)
        tell_many(store, 1)
        store.consumers.register("cache", Start.BEGINNING, "ann")
        harness.advance(SECOND)
    assert [due(harness, limit=2), due(harness, limit=2)] == [[("t1", "cache"), ("t2", "cache")], [("t3", "cache")]]
    assert due(harness, "nobody") == []


def test_tenants_with_a_stream_are_told_in_pages(harness: Harness) -> None:
    for number in (3, 1, 2):
        tell_many(harness.store.tenant(f"t{number}"), 1)
    maintenance = harness.store.maintenance
    assert list(maintenance.lifecycle_tenants("", 2)) == ["t1", "t2"]
    assert list(maintenance.lifecycle_tenants("t2", 2)) == ["t3"]
    assert list(maintenance.lifecycle_tenants("t3", 2)) == []
