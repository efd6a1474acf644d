"""Ticks, hints and slots on both stores: who is told that there is work, and what a drain leaves at its end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application import enough_waits as enough_module
from outbox_core.application import offer_drains as drains_module
from outbox_core.application import repair_undrained as repair_module
from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.drain_tenant import Step, drain_tenant
from outbox_core.application.offer_drains import offer_drains
from outbox_core.application.offer_slice import offer_slice
from outbox_core.application.offer_slices import offer_slices
from outbox_core.application.repair_undrained import repair_undrained
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.identity import join_key
from outbox_core.ports.hints import NoHints
from outbox_core.ports.slots import Lane
from tests.harness.base import ACME
from tests.harness.examples import event, materialize, subscription
from tests.harness.faults import FaultyStore, transient_at, with_calls
from tests.simulation.play import append, cursor_of, drain, drain_whole, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_core.application.drain_tenant import DrainReport
    from tests.harness.base import Harness

GRACE = timedelta(seconds=30)


@pytest.mark.promise("E16")
def test_a_hint_that_comes_as_the_flag_is_cleared_finds_the_drains_slot_free(harness: Harness) -> None:
    """Else the append that follows the clearing would wait for a tick."""
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    second: list[DrainReport | None] = []

    def clear_then_append(reached_seq: int) -> bool:
        cleared = store.log.clear_undrained(reached_seq)
        append(store, runtime, "b")
        second.append(drain_tenant(store, runtime))
        return cleared

    drain(with_calls(store, "log", clear_undrained=clear_then_append), runtime)
    assert len(second) == 1
    assert second[0] is not None
    assert sorted(rows_of(harness, ACME)) == ["a|s", "b|s"]


@pytest.mark.promise("E16")
def test_a_drain_that_must_end_as_more_is_appended_hints_for_it(harness: Harness) -> None:
    """The append does not: the flag is set still."""
    store, runtime = harness.acme, harness.runtime(stopping=lambda: True)
    append(store, runtime, "a")

    def append_then_clear(reached_seq: int) -> bool:
        append(store, runtime, "b")
        harness.hints.sent.clear()
        return store.log.clear_undrained(reached_seq)

    assert drain(with_calls(store, "log", clear_undrained=append_then_clear), runtime).reached_seq == 1
    assert harness.hints.sent == [("turn", ACME, None)]


@pytest.mark.promise("E13")
def test_a_drain_that_lost_at_a_cursor_which_has_not_moved_clears_no_flag(harness: Harness) -> None:
    """A peer that waited before a hole has only noted a mark: nobody else moves the cursor."""
    store, runtime = harness.acme, harness.runtime()
    append(store, runtime, "a")
    commits: list[bool] = []

    def commit_late(read: Any, **values: Any) -> bool:  # noqa: ANN401 - as the port
        if not commits:
            store.progress.commit(read, seq=read.seq, marks=(), poison=read.poison, entry=None)
        commits.append(store.progress.commit(read, **values))
        return commits[-1]

    assert drain(with_calls(store, "progress", commit=commit_late), runtime).step is Step.CAUGHT_UP
    assert commits == [False, True]
    assert cursor_of(harness, ACME) == 1


@pytest.mark.promise("E04")
def test_only_numbers_that_were_read_to_be_missing_are_filled(harness: Harness) -> None:
    """Beyond a full batch nothing was read."""
    store, runtime = harness.acme, harness.runtime(event_batch=3)
    allocation = store.log.allocate(9)
    store.log.insert([event(seq, now=allocation.now) for seq in allocation.seqs if seq != 2])
    filled: list[list[int]] = []

    def fill(seqs: Sequence[int]) -> int:
        filled.append(list(seqs))
        return store.log.fill(seqs)

    watched = with_calls(store, "log", fill=fill)
    drain(watched, runtime)
    assert filled == []
    harness.advance(GRACE + timedelta(seconds=6))
    assert drain_whole(watched, runtime).reached_seq == 9
    assert filled == [[2]]


@pytest.mark.promise("E16", "E42")
def test_a_drain_that_must_end_goes_on_at_the_tail_of_the_queue_with_its_slot(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime(event_batch=1, stopping=lambda: True)
    append(store, runtime, "a", "b", "c")
    assert drain(store, runtime).step is Step.ADVANCED
    kind, tenant, token = harness.hints.sent[-1]
    assert (kind, tenant) == ("turn", ACME)
    assert token is not None
    assert drain_tenant(store, runtime) is None
    next_one = drain_tenant(store, runtime, token)
    assert next_one is not None
    assert next_one.reached_seq == 2


@pytest.mark.promise("E03")
def test_a_drain_that_got_no_further_than_a_hole_leaves_it_to_the_tick(harness: Harness) -> None:
    """A hint would bring the next one at once, for as long as the grace."""
    store, runtime = harness.acme, harness.runtime()
    store.log.allocate(1)
    append(store, runtime, "b")
    harness.hints.sent.clear()
    assert drain(store, runtime).step is Step.WAITING
    assert harness.hints.sent == []


@pytest.mark.promise("E10")
def test_an_outage_as_a_slice_is_offered_costs_neither_a_drain_nor_a_slice_its_work(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime({"bot": lambda _run: None}, claim_batch=1)
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", "b")
    assert offer_drains(harness.store, runtime) == 1
    out = FaultyStore(harness.store, transient_at("slots.take", times=2)).tenant(ACME)
    drained = drain_tenant(out, runtime, harness.hints.sent[-1][2])
    assert drained is not None
    assert (drained.step, drained.rows) == (Step.CAUGHT_UP, 2)
    token = store.slots.take(Lane.SLICE, harness.limits.slot_hold)
    report = run_slice(out, runtime, token)
    assert report is not None
    assert report.settled == 2


@pytest.mark.promise("E16")
def test_ticks_reach_every_tenant_page_after_page(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drains_module, "_PAGE", 2)
    monkeypatch.setattr(repair_module, "_PAGE", 2)
    runtime, tenants = harness.runtime(), [f"t{number}" for number in range(5)]
    for tenant in tenants:
        append(harness.store.tenant(tenant), runtime, "a")
        harness.change("event_sequences", tenant, undrained=False)
    assert repair_undrained(harness.store, runtime) == 5
    harness.hints.sent.clear()
    assert offer_drains(harness.store, runtime) == 5
    assert [tenant for _, tenant, _ in harness.hints.sent] == tenants


@pytest.mark.promise("C04")
def test_a_tick_that_another_beat_has_just_done_offers_nothing(harness: Harness) -> None:
    runtime, limits = harness.runtime(), harness.limits
    append(harness.acme, runtime, "a")
    materialize(harness.acme, 1, now=harness.now())
    harness.change("event_sequences", ACME, undrained=False)
    assert [repair_undrained(harness.store, runtime), repair_undrained(harness.store, runtime)] == [1, 0]
    assert offer_drains(harness.store, runtime) == 1
    assert offer_slices(harness.store, runtime) == 1
    append(harness.other, runtime, "a")
    materialize(harness.other, 1, now=harness.now())
    harness.change("event_sequences", "other", undrained=True)
    assert [offer_drains(harness.store, runtime), offer_slices(harness.store, runtime)] == [0, 0]
    harness.advance(max(limits.drain_tick, limits.sweep_tick))
    assert [offer_drains(harness.store, runtime), offer_slices(harness.store, runtime)] == [1, 2]


@pytest.mark.promise("E42")
def test_a_tenant_whose_slots_are_all_taken_is_offered_no_further_slice(harness: Harness) -> None:
    runtime, hold, cap = harness.runtime(), harness.limits.slot_hold, harness.limits.tenant_slots
    offered = [offer_slice(harness.acme, runtime) for _ in range(cap + 1)]
    assert offered == [True] * cap + [False]
    assert len(harness.hints.sent) == cap
    assert harness.acme.slots.take(Lane.SLICE, hold) is None


@pytest.mark.promise("C06")
def test_while_more_waits_for_workers_than_the_due_could_have_made_ticks_offer_nothing_and_take_no_slot(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each SLOT_HOLD, as the slots of what waits end, each tenant would be offered once more."""
    runtime, limits = harness.runtime(), harness.limits
    append(harness.acme, runtime, "a")
    materialize(harness.acme, 1, now=harness.now())
    harness.hints.sent.clear()
    harness.hints.waits = {Lane.SLICE: 1_000, Lane.DRAIN: 1_000}
    assert [offer_drains(harness.store, runtime), offer_slices(harness.store, runtime)] == [0, 0]
    assert harness.hints.sent == []
    slots = [harness.acme.slots.take(Lane.SLICE, limits.slot_hold) for _ in range(limits.tenant_slots)]
    assert None not in slots
    for token in slots:
        harness.acme.slots.give_back(Lane.SLICE, str(token))
    harness.hints.waits = {Lane.SLICE: 999, Lane.DRAIN: 999}
    harness.advance(max(limits.drain_tick, limits.sweep_tick))
    assert [offer_drains(harness.store, runtime), offer_slices(harness.store, runtime)] == [1, 1]
    # As many as the due could have made are no surplus.
    monkeypatch.setattr(enough_module, "ENOUGH", 1)
    for waiting, offered in ((limits.tenant_slots, 0), (limits.tenant_slots - 1, 1)):
        harness.hints.waits = {Lane.SLICE: waiting}
        harness.advance(limits.sweep_tick)
        assert offer_slices(harness.store, runtime) == offered


@pytest.mark.promise("E42")
def test_an_offer_that_no_broker_takes_leaves_every_slot_free(harness: Harness) -> None:
    runtime, hold = replace(harness.runtime(), hints=NoHints()), harness.limits.slot_hold
    materialize(harness.acme, 1, now=harness.now())
    assert offer_slices(harness.store, runtime) == 0
    assert offer_slice(harness.acme, runtime) is False
    assert None not in [harness.acme.slots.take(Lane.SLICE, hold) for _ in range(harness.limits.tenant_slots)]


@pytest.mark.promise("E01", "E07")
def test_a_rule_that_was_answered_for_before_an_event_was_appended_sees_it(harness: Harness) -> None:
    """Both come while a drain is between its cursor and the log."""
    store, runtime = harness.acme, harness.runtime()
    append(store, runtime, "a")
    ruled: list[str] = []

    def rule_then_read(seq: int, limit: int) -> object:
        if not ruled:
            ruled.append(add_subscription(store, subscription("s")).rule.sub_id)
            append(store, runtime, "b")
        return store.log.read_after(seq, limit)

    drain(with_calls(store, "log", read_after=rule_then_read), runtime)
    assert cursor_of(harness, ACME) == 2
    assert sorted(rows_of(harness, ACME)) == ["b|s"]


@pytest.mark.promise("E42")
def test_an_offer_among_many_holds_its_slot_until_one_process_has_got_through_all_before_it(harness: Harness) -> None:
    """Else the messages at the end of a long queue are void each time, and their tenants starve."""
    tenants = [f"t{number:02}" for number in range(20)]
    for tenant in tenants:
        materialize(harness.store.tenant(tenant), 1, now=harness.now())
    runtime = harness.runtime()
    limits = runtime.limits
    assert offer_slices(harness.store, runtime) == 20
    _, last, token = harness.hints.sent[-1]
    ahead = (len(tenants) - 1) * limits.tenant_slots
    assert ahead * limits.slice_time > 2 * limits.slot_hold
    harness.advance(ahead * limits.slice_time)
    assert run_slice(harness.store.tenant(last), runtime, token) is not None
    # Alone in the queue it is free again after SLOT_HOLD, as where its message is lost.
    harness.advance(timedelta(minutes=10))
    for tenant in tenants[1:]:
        harness.change("trigger_effects", join_key(tenant, "e1", "sub"), state="failed")
    harness.hints.sent.clear()
    assert offer_slices(harness.store, runtime) == 1
    ((_, alone, token),) = harness.hints.sent
    harness.advance(limits.slot_hold + timedelta(seconds=1))
    assert run_slice(harness.store.tenant(alone), runtime, token) is None
