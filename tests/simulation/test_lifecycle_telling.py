"""Whom a process tells of what it has committed, and that it tells nobody of what it has not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.application.lease_heart import LeaseHeart
from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.application.reconcile_consumer import RECONCILING
from outbox_core.consumers import Consumers
from outbox_core.domain.consumer import Poll
from outbox_core.domain.errors import TransientError
from outbox_core.lifecycle import LifecycleConsumer
from outbox_core.ports.runtime import NoOutlets
from tests.harness.base import ACME
from tests.harness.faults import Fault, FaultyStore, When, with_calls
from tests.harness.lifecycle import row
from tests.simulation.observing import Cache, cursor, delete, observer, poll_to_rest, put_cards, restore, watched

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from outbox_core.domain.lifecycle_event import LifecycleEvent
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness

OVER = timedelta(seconds=16)


class Told(NoOutlets):
    """Keeps what was told."""

    def __init__(self) -> None:
        self.events: list[LifecycleEvent] = []

    def committed(self, event: LifecycleEvent) -> None:
        self.events.append(event)


def telling(harness: Harness) -> tuple[Runtime, Told]:
    told = Told()
    return replace(harness.runtime(), outlets=told), told


@pytest.mark.promise("L02")
def test_a_delete_that_was_undone_and_then_found_done_by_another_is_told_by_the_other_alone(harness: Harness) -> None:
    """Its first commit did not happen; when it tried again the card was deleted already."""
    put_cards(harness.acme, "c1")
    mine, told = telling(harness)
    theirs, others = telling(harness)

    def forestall() -> None:
        delete(harness.acme, theirs, "c1")

    faulty = FaultyStore(
        harness.store,
        Fault("transaction.commit", When.BEFORE, TransientError),
        Fault("log.fill", When.BEFORE, None, then=forestall),
    )
    delete(faulty.tenant(ACME), mine, "c1")
    assert faulty.struck
    assert (len(others.events), told.events) == (1, [])
    assert harness.acme.stream.head() == 1


@pytest.mark.promise("L02")
def test_a_delete_whose_first_commit_did_not_happen_is_told_once_as_it_is_stored(harness: Harness) -> None:
    put_cards(harness.acme, "c1")
    runtime, told = telling(harness)
    faulty = FaultyStore(harness.store, Fault("transaction.commit", When.BEFORE, TransientError, times=2))
    delete(faulty.tenant(ACME), runtime, "c1")
    delete(harness.acme, runtime, "c1")
    assert told.events == list(harness.acme.stream.read_after(0, 10).entries)
    restore(harness.acme, runtime, "c1")
    assert told.events == list(harness.acme.stream.read_after(0, 10).entries)


def without_heart(store: TenantStore) -> TenantStore:
    """Return the handle of a process that stalls whole: its heart beats no more either."""
    return with_calls(store, "consumers", renew=lambda *_: False)


def _stalls(harness: Harness) -> Runtime:
    return harness.runtime(worker="stalled")


@pytest.mark.promise("L07", "L11")
def test_a_letter_is_not_observed_by_who_stalled_beyond_its_lease(harness: Harness) -> None:
    store, cache = harness.acme, Cache("c1")
    watched(store, harness.runtime(), 1)
    poll_to_rest(harness, store, harness.runtime(), observer(cache))
    (letter,) = store.consumers.letters()
    cache.told, cache.fails = [], set()
    assert store.consumers.ask_replay("cache", letter.event_id, "ann", "")

    def stall(*asked: object) -> Mapping[str, datetime]:
        harness.advance(OVER)
        return harness.acme.cards.deletions(*asked)  # type: ignore[arg-type] # as it was called

    stalled = without_heart(with_calls(store, "cards", deletions=stall))
    assert observe_lifecycle(stalled, _stalls(harness), observer(cache)).poll is Poll.LOST
    assert not cache.told
    assert observe_lifecycle(store, harness.runtime(), observer(cache)).replayed == 1


@pytest.mark.promise("L07", "L12")
def test_nothing_is_reconciled_by_who_stalled_beyond_its_lease(harness: Harness) -> None:
    """It would take the cards of one moment for those of another, beside who reconciles now."""
    store, cache = harness.acme, Cache()
    watched(store, harness.runtime(), 1)
    store.consumers.require_reconcile("cache", "ann", "")

    def stall(*asked: int) -> object:
        harness.advance(OVER)
        return harness.acme.stream.read_after(*asked)

    stalled = without_heart(with_calls(store, "stream", read_after=stall))
    assert observe_lifecycle(stalled, _stalls(harness), observer(cache)).poll is Poll.LOST
    assert not cache.reconciled
    found = row(store)
    assert found.failing is None or found.failing.event_id != RECONCILING
    assert observe_lifecycle(store, harness.runtime(), observer(cache)).reconciled
    assert cursor(store) == 1


@pytest.mark.promise("L15")
def test_a_poll_that_waits_for_a_retry_says_how_far_behind_it_is(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache("c1")
    watched(store, runtime, 3)
    assert [observe_lifecycle(store, runtime, observer(cache)).lag for _ in range(2)] == [3, 3]


@pytest.mark.promise("L05")
@pytest.mark.parametrize("more", [{}, {"idempotent": True}, {"transactional": True}], ids=["plain", "batch", "own"])
def test_a_store_that_takes_longer_than_a_slice_to_answer_lets_each_poll_observe_something(
    harness: Harness, more: dict[str, bool]
) -> None:
    store, cache = harness.acme, Cache()
    watched(store, harness.runtime(), 3)

    def slow(*asked: int) -> object:
        harness.advance(2 * harness.limits.slice_time)
        return harness.acme.stream.read_after(*asked)

    slowly = with_calls(store, "stream", read_after=slow)
    one = observer(cache, idempotent=more.get("idempotent", False), transactional=more.get("transactional", False))
    for number in range(1, 4):
        observe_lifecycle(slowly, harness.runtime(), one)
        assert len(cache.told) >= number
    assert cursor(store) == 3


@pytest.mark.promise("L06")
@pytest.mark.parametrize("transactional", [False, True], ids=["idempotent", "transactional"])
def test_a_batch_ends_with_its_slice_and_what_was_observed_is_acknowledged(
    harness: Harness, *, transactional: bool
) -> None:
    store, cache = harness.acme, Cache()
    watched(store, harness.runtime(), 3)
    cache.on_call = lambda _: harness.advance(2 * harness.limits.slice_time) if harness.name == "memory" else None
    one = observer(cache, idempotent=not transactional, transactional=transactional)
    slices = timedelta(seconds=1) if harness.name == "memory" else timedelta(microseconds=1)
    report = observe_lifecycle(store, harness.runtime(slice_time=slices), one)
    assert (report.observed, report.more, len(cache.told), cursor(store)) == (1, True, 1, 1)


@pytest.mark.promise("L07", "L14")
def test_a_heart_whose_renewal_is_refused_lets_nothing_begin_any_more(harness: Harness) -> None:
    """An operator has taken the lease away: by its time it would hold for seconds yet."""
    store, runtime = harness.acme, harness.runtime()
    watched(store, runtime, 1)
    taken = store.consumers.lease("cache", "worker", runtime.limits.consumer_lease)
    assert taken is not None
    with LeaseHeart(store, runtime, taken, runtime.clock.monotonic()) as heart:
        with heart.quiet(OVER) as held:
            assert held
        assert heart.holds
        store.consumers.retire("cache", "ann", "")
        assert heart.holds
        with heart.quiet(OVER) as held:
            assert not held
        assert not heart.holds


@pytest.mark.promise("L15")
@pytest.mark.parametrize("why", ["paused", "retired", "stopped", "idle"])
def test_a_hosted_consumer_that_has_nothing_to_do_looks_ever_less_often(harness: Harness, why: str) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 1)
    poll_to_rest(harness, store, runtime, observer(cache))
    if why == "paused":
        store.consumers.set_paused(None, paused=True)
    elif why == "retired":
        store.consumers.retire("cache", "ann", "")
    elif why == "stopped":
        store.consumers.require_reconcile("cache", "ann", "")
    hosted = LifecycleConsumer(Hosting(harness, runtime), ACME, observer(cache, reconcile=None))  # type: ignore[arg-type] # what it asks of an Outbox
    waits = [hosted._poll() for _ in range(9)]
    wanted = [harness.limits.idle_delay(polls) for polls in range(9)]
    assert waits == wanted
    assert waits[-1] == harness.limits.consumer_idle_cap
    assert cache.ids == ["-c1"]


class Hosting:
    """What a hosted consumer asks of an Outbox."""

    def __init__(self, harness: Harness, runtime: Runtime) -> None:
        self.runtime, self.settings, self._harness = runtime, runtime, harness

    def consumers(self, tenant: str) -> Consumers:
        return Consumers(self._harness.store.tenant(tenant))

    def tenant(self, tenant: str) -> TenantStore:
        return self._harness.store.tenant(tenant)
