"""The heart on both stores: what is renewed, until when, and what the slice may count on."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.hand import Hand
from outbox_core.application.heart import Heart
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.bot import Bot
from tests.harness.base import ACME
from tests.harness.examples import claim, done, materialize, subscription
from tests.harness.faults import FaultyStore, transient_at
from tests.simulation.play import append, drain_whole
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.domain.bot import Run
    from tests.harness.base import Harness

LEASE = timedelta(seconds=60)
BEAT = timedelta(seconds=11)
"""A little more than the heart's period: a third of a slot's hold."""


@contextmanager
def long_bot(harness: Harness, store: FaultyStore, *event_ids: str, limit: timedelta | None = None) -> Iterator[None]:
    """Run a slice whose last row's bot runs as long as the block; it has ended when the block is left."""
    events = event_ids or ("a",)
    going, release = threading.Event(), threading.Event()

    def function(run: Run) -> None:
        if run.event.event_id != events[-1]:
            return
        going.set()
        assert release.wait(20)

    add_subscription(harness.acme, subscription())
    runtime = harness.runtime({"bot": Bot(bot_id="bot", function=function, time_limit=limit)})
    append(harness.acme, runtime, *events)
    drain_whole(harness.acme, runtime)
    thread = threading.Thread(target=run_slice, args=(store.tenant(ACME), runtime))
    thread.start()
    try:
        assert going.wait(20)
        yield
    finally:
        release.set()
        thread.join()


def beat(harness: Harness, store: FaultyStore) -> None:
    """Let the heart beat once more; a beat ends with the slot's extension."""
    beats = store.calls.count("slots.extend")
    harness.advance(BEAT)
    wait_until(lambda: store.calls.count("slots.extend") > beats, timeout=20, what="a beat")


@pytest.mark.promise("E32")
def test_a_row_is_renewed_until_its_own_bots_limit_and_not_beyond(harness: Harness) -> None:
    store = FaultyStore(harness.store)
    with long_bot(harness, store, limit=timedelta(seconds=30)):
        for _ in range(2):
            beat(harness, store)
        assert store.calls.count("effects.renew") == 2
        for _ in range(3):
            beat(harness, store)
        assert store.calls.count("effects.renew") == 2
    (row,) = harness.raw("trigger_effects")
    assert (row["state"], row["attempts"]) == ("done", 0)


@pytest.mark.promise("E42")
def test_a_slice_that_lasts_keeps_its_slot(harness: Harness) -> None:
    store = FaultyStore(harness.store)
    with long_bot(harness, store):
        for _ in range(4):
            beat(harness, store)
        (slots,) = harness.raw("tenant_slots")
        assert [slot["until"] > harness.now() for slot in slots["slice"]] == [True]


@pytest.mark.promise("E32")
def test_an_outcome_is_written_within_the_lease_that_was_renewed_last(harness: Harness) -> None:
    """The first lease is long over when the store does not answer to the settle."""
    store = FaultyStore(harness.store, transient_at("effects.settle", times=3))
    with long_bot(harness, store):
        for _ in range(6):
            beat(harness, store)
    assert store.struck
    (row,) = harness.raw("trigger_effects")
    assert (row["state"], row["claims"]) == ("done", 1)


@pytest.mark.promise("E26")
def test_an_outcome_that_the_heart_could_not_write_is_written_at_the_end(harness: Harness) -> None:
    store = FaultyStore(harness.store, transient_at("effects.settle"))
    with long_bot(harness, store, "a", "b"):
        harness.advance(timedelta(seconds=2))
        wait_until(lambda: store.struck, timeout=20, what="the heart's try")
    assert [(row["state"], row["claims"]) for row in harness.raw("trigger_effects")] == [("done", 1), ("done", 1)]


@pytest.mark.promise("E32")
def test_what_waits_runs_or_is_decided_is_renewed_and_nothing_else(harness: Harness) -> None:
    ids = materialize(harness.acme, 4, now=harness.now())
    hand = Hand(claim(harness.acme, 4, LEASE), harness.clock, LEASE)
    for effect_id, decided in ((ids[0], done()), (ids[1], None)):
        hand.start(effect_id, LEASE)
        hand.finish(effect_id, decided)
    hand.start(ids[2], LEASE)
    assert sorted(hand.to_renew()) == [ids[0], ids[2], ids[3]]
    hand.leave_out(ids[2])
    assert sorted(hand.to_renew()) == [ids[0], ids[3]]


@pytest.mark.promise("E27")
def test_a_lease_that_was_renewed_for_some_rows_alone_is_not_counted_on(harness: Harness) -> None:
    ids = materialize(harness.acme, 2, now=harness.now())
    hand = Hand(claim(harness.acme, 2, LEASE), harness.clock, LEASE)
    heart = Heart(
        harness.acme, harness.runtime(), hand, slice_ends=0.0, write_decided=lambda: None, extend_slot=lambda: None
    )
    first = hand.lease_ends
    heart._renew(harness.clock.monotonic() + 10)
    renewed = hand.lease_ends
    assert renewed > first
    harness.change("trigger_effects", ids[0], claim_id="another")
    heart._renew(harness.clock.monotonic() + 20)
    assert hand.lease_ends == renewed


@pytest.mark.promise("E27", "E32")
def test_what_runs_beyond_its_limit_has_not_the_lease_that_those_who_wait_were_given(harness: Harness) -> None:
    """Stalled before its launch, it would else run beside the worker that took it over."""
    ids = materialize(harness.acme, 2, now=harness.now())
    hand = Hand(claim(harness.acme, 2, LEASE), harness.clock, LEASE)
    heart = Heart(
        harness.acme, harness.runtime(), hand, slice_ends=0.0, write_decided=lambda: None, extend_slot=lambda: None
    )
    assert hand.start(ids[0], timedelta(seconds=30))
    harness.advance(timedelta(seconds=20))
    heart._renew(harness.clock.monotonic())
    harness.advance(timedelta(seconds=45))
    over = [hand.lease_is_over]
    heart._renew(harness.clock.monotonic())
    harness.advance(timedelta(seconds=20))
    over.append(hand.lease_is_over)
    assert hand.start(ids[1], LEASE)
    assert [*over, hand.lease_is_over] == [False, True, False]
