"""Pruning the lifecycle streams of all tenants: what goes, what is kept, and whom a failure concerns."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.application.prune_lifecycle import Pruned, prune_lifecycle
from outbox_core.consumers import Consumers
from outbox_core.domain.consumer import LetterState, Poll, Start
from outbox_core.domain.errors import TransientError
from outbox_core.domain.limits import Limits
from tests.harness.faults import with_calls
from tests.harness.lifecycle import CURSORS, begun, deletion, register, tell, tell_many
from tests.simulation.observing import Cache, cursor, observer, poll_to_rest, put_cards, watched

if TYPE_CHECKING:
    from outbox_core.ports.store import Store, TenantStore
    from tests.harness.base import Harness

DAY, LONG = timedelta(days=1), Limits().lifecycle_retention + timedelta(minutes=1)


class Tenants:
    """A store some of whose tenants a test has changed."""

    def __init__(self, store: Store, **changed: TenantStore) -> None:
        self.maintenance = store.maintenance
        self._store, self._changed = store, changed

    def tenant(self, tenant_id: str) -> TenantStore:
        return self._changed.get(tenant_id) or self._store.tenant(tenant_id)


def prune(harness: Harness, store: Store | None = None, **limits: Any) -> Pruned | None:  # noqa: ANN401 - by name
    """Prune at the next tick."""
    harness.advance(harness.limits.prune_tick)
    return prune_lifecycle(store or harness.store, harness.runtime(**limits))


def left(store: TenantStore) -> list[int]:
    return [entry.sequence for entry in store.stream.read_after(store.stream.floor() - 1, 1_000).entries]


def level(store: TenantStore, *consumers: str, at: int | None = None) -> None:
    """Have consumers that have acknowledged up to a number."""
    for name in consumers:
        taken = begun(store, name)
        assert store.consumers.acknowledge(taken, read=0, sequence=store.stream.head() if at is None else at)
        assert store.consumers.rest(taken, idle=False, delay=timedelta(0))


@pytest.mark.promise("L13")
def test_what_is_old_and_acknowledged_by_all_goes_and_what_is_young_or_waited_for_stays(harness: Harness) -> None:
    store = harness.acme
    tell_many(store, 4)
    harness.advance(LONG)
    tell_many(store, 3, first=5)
    level(store, "far")
    level(store, "near", at=2)
    tell_many(harness.other, 2)
    level(harness.other, "far")
    assert prune(harness) == Pruned(2, 0)
    assert left(store) == [3, 4, 5, 6, 7]
    state = Consumers(store).state()
    assert (state.floor, state.prunable.held_by, state.lags) == (3, ("near",), {"far": 0, "near": 5})
    assert "near has acknowledged 2 of 7" in state.prunable.why
    store.consumers.retire("near", "ann", "gone")
    assert prune(harness) == Pruned(2, 0)
    assert left(store) == [5, 6, 7]
    assert left(harness.other) == [1, 2]
    harness.advance(LONG)
    assert prune(harness) == Pruned(5, 0)
    assert (store.stream.floor(), harness.other.stream.floor()) == (8, 3)


@pytest.mark.promise("L13")
@pytest.mark.scenario(17)
def test_rows_beyond_a_consumer_that_was_paused_for_longer_than_the_retention_stay(harness: Harness) -> None:
    """C is paused 8 days with a retention of 7, D has acknowledged all (seen at: FerroEHR #3330)."""
    store, runtime = harness.acme, harness.runtime()
    watched(store, runtime, 5, consumer="c")
    level(store, "d")
    level(store, "c", at=2)
    assert store.consumers.set_paused(["c"], paused=True) == ["c"]
    harness.advance(8 * DAY)
    assert prune(harness, lifecycle_retention=7 * DAY) == Pruned(2, 0)
    assert left(store) == [3, 4, 5]
    harness.advance(100 * DAY)
    assert prune(harness, lifecycle_retention=7 * DAY) == Pruned(0, 0)
    store.consumers.set_paused(["c"], paused=False)
    told = Cache()
    poll_to_rest(harness, store, runtime, observer(told, "c"))
    assert (told.ids, told.reconciled, cursor(store, "c")) == (["-c3", "-c4", "-c5"], [], 5)
    assert prune(harness, lifecycle_retention=7 * DAY) == Pruned(3, 0)


@pytest.mark.promise("L12")
@pytest.mark.scenario(18)
@pytest.mark.parametrize("gone", ["some", "all"])
@pytest.mark.parametrize("able", [True, False], ids=["reconciles", "stops"])
def test_a_cursor_below_the_retained_floor_is_told_so_and_never_reads_on_silently(
    harness: Harness, gone: str, *, able: bool
) -> None:
    """A cursor below the retained floor read on as if nothing were missing (seen at: technocore-chat PR 800)."""
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 6)
    put_cards(store, "live")
    level(store, "far")
    harness.advance(LONG)
    # The consumer has not begun: it is taken out of the reckoning, as a restored backup does it, then it is back.
    harness.change(CURSORS, "acme|cache", retired_at=harness.now())
    assert prune(harness, prune_batch=6 if gone == "all" else 4) == Pruned(6 if gone == "all" else 4, 0)
    harness.change(CURSORS, "acme|cache", retired_at=None, last_acked_sequence=1)
    cache.cards = {"c1", "c2", "live"}
    one = observer(cache) if able else observer(cache, reconcile=None)
    report = observe_lifecycle(store, runtime, one)
    assert not cache.told
    if able:
        assert (report.reconciled, cache.reconciled) == (True, ["events after 1 are gone"])
        assert (cache.cards, cursor(store)) == ({"live"}, 6)
        (row,) = store.audit.rows(code="lifecycle-observation:consumer-reconciled")
        assert row.why == "events after 1 are gone"
    else:
        assert (report.poll, cursor(store)) == (Poll.STOPPED, 1)
        (consumer,) = (row for row in store.consumers.all() if row.consumer_id == "cache")
        assert consumer.stopped_for == "events after 1 are gone"


@pytest.mark.promise("L12", "L13")
@pytest.mark.scenario(53)
def test_a_stream_that_was_pruned_whole_has_a_consumer_from_its_beginning_reconcile(harness: Harness) -> None:
    """A registration that raced the pruning, or came after it, found no row and took that for an empty stream."""
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    put_cards(store, "live")
    tell_many(store, 3)
    harness.advance(LONG)

    def before_the_rows_go(*told: Any) -> int:  # noqa: ANN401 - as it was called
        register(store)
        return harness.acme.stream.prune(*told)

    raced = with_calls(store, "stream", prune=before_the_rows_go)
    assert prune(harness, Tenants(harness.store, acme=raced)) == Pruned(3, 0)
    assert observe_lifecycle(store, runtime, observer(cache)).reconciled
    assert (cache.cards, cache.told, cursor(store)) == ({"live"}, [], 3)


@pytest.mark.promise("L13")
def test_a_delete_that_is_acknowledged_while_a_prune_looks_does_not_pass_for_a_cursor_that_cannot_be(
    harness: Harness,
) -> None:
    store = harness.acme
    tell_many(store, 3)
    level(store, "cache")
    harness.advance(LONG)
    real = store.stream.head

    def head() -> int:
        found = real()
        (event,) = tell(store, deletion(4))
        taken = store.consumers.lease("cache", "worker-2", timedelta(seconds=15))
        assert taken is not None
        assert store.consumers.acknowledge(taken, read=3, sequence=event.sequence)
        return found

    raced = with_calls(store, "stream", head=head)
    assert prune(harness, Tenants(harness.store, acme=raced)) == Pruned(3, 0)


@pytest.mark.promise("L13")
def test_a_prune_removes_no_more_than_its_batch_and_the_next_goes_on(harness: Harness) -> None:
    for store in (harness.acme, harness.other):
        tell_many(store, 4)
        level(store, "cache")
    harness.advance(LONG)
    assert [prune(harness, prune_batch=3) for _ in range(4)] == [Pruned(3, 0), Pruned(3, 0), Pruned(2, 0), Pruned(0, 0)]


@pytest.mark.promise("L13")
def test_of_two_ticks_at_once_one_prunes(harness: Harness) -> None:
    tell_many(harness.acme, 1)
    assert prune(harness) is not None
    assert prune_lifecycle(harness.store, harness.runtime()) is None


@pytest.mark.promise("L13")
def test_resolved_letters_go_after_the_retention_and_unresolved_ones_stay_with_their_event(harness: Harness) -> None:
    store = harness.acme
    taken = begun(store)
    first, second = tell_many(store, 2)
    for event in (first, second):
        assert store.consumers.park(taken, event, read=event.sequence - 1, attempts=10, failure_class="KeyError")
    harness.advance(LONG)
    assert store.consumers.resolve("cache", first.event_id, "ann", "seen to")
    # It is its resolution that has to be old, not the letter.
    assert prune(harness) == Pruned(2, 0)
    harness.advance(LONG)
    assert prune(harness) == Pruned(0, 1)
    (letter,) = store.consumers.letters()
    assert (letter.event_id, letter.event, letter.state) == (second.event_id, second, LetterState.UNRESOLVED)
    store.consumers.retire("cache", "ann", "")
    harness.advance(LONG)
    assert prune(harness) == Pruned(0, 1)


@pytest.mark.promise("L13")
def test_one_tenants_damaged_counter_keeps_no_other_from_being_pruned_and_is_told(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("acme", "beta", "gamma"):
        tell_many(harness.store.tenant(name), 2)
    harness.change("lifecycle_sequences", "acme", last_sequence="broken")
    harness.advance(LONG)
    with caplog.at_level(logging.ERROR, "outbox.lifecycle"):
        assert prune(harness) == Pruned(4, 0)
    (record,) = caplog.records
    assert "acme" in record.getMessage()


@pytest.mark.promise("L13")
def test_a_tenant_that_gets_no_answer_stops_no_other_and_a_store_that_answers_nobody_ends_the_prune(
    harness: Harness,
) -> None:
    names = [f"t{number}" for number in range(6)]
    for name in names:
        tell_many(harness.store.tenant(name), 1)
    harness.advance(LONG)
    asked: list[str] = []

    def silent(name: str) -> TenantStore:
        def prune_it(*_: object) -> int:
            asked.append(name)
            raise TransientError("no answer")

        return with_calls(harness.store.tenant(name), "stream", prune=prune_it)

    some = Tenants(harness.store, **{name: silent(name) for name in ("t0", "t1", "t3")})
    assert prune(harness, some) == Pruned(3, 0)
    with pytest.raises(TransientError):
        prune(harness, Tenants(harness.store, **{name: silent(name) for name in names}))
    assert asked == ["t0", "t1", "t3", "t0", "t1", "t2"]


@pytest.mark.promise("L10", "L12")
@pytest.mark.parametrize("able", [True, False], ids=["reconciles", "does not"])
def test_a_consumer_whose_row_does_not_decode_stands_alarms_once_and_waits_for_an_operator(
    harness: Harness, caplog: pytest.LogCaptureFixture, *, able: bool
) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 1)
    harness.change(CURSORS, "acme|cache", start="broken")
    one = observer(cache) if able else observer(cache, reconcile=None)
    with caplog.at_level(logging.ERROR, "outbox.lifecycle"):
        for _ in range(3):
            report = observe_lifecycle(store, runtime, one)
            assert (report.poll, report.wait) == (Poll.STOPPED, None)
            harness.advance(timedelta(seconds=61))
    (record,) = caplog.records
    assert "does not decode" in record.getMessage()
    assert not cache.told
    assert store.consumers.retire("cache", "ann", "broken")
    store.consumers.register("cache", Start.BEGINNING, "ann")
    assert observe_lifecycle(store, runtime, observer(cache)).reconciled


@pytest.mark.promise("L12")
def test_a_fence_that_is_no_number_is_mended_by_the_next_lease(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 2)
    harness.change(CURSORS, "acme|cache", fence="broken")
    poll_to_rest(harness, store, runtime, observer(cache))
    assert cache.ids == ["-c1", "-c2"]
