"""The drain on both stores: holes, poison, rules, races."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.drain_tenant import Step, drain_tenant
from outbox_core.application.enable_subscription import enable_subscription
from outbox_core.application.offer_drains import offer_drains
from outbox_core.application.offer_slices import offer_slices
from outbox_core.application.repair_undrained import repair_undrained
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.board import Card
from outbox_core.domain.errors import EventConflictError, InvalidInputError, TransientError
from outbox_core.domain.identity import join_key
from outbox_core.ports.hints import NoHints
from tests.harness.base import ACME
from tests.harness.examples import event, subscription
from tests.harness.faults import FaultyStore, When, transient_at, with_calls
from tests.simulation.play import append, cursor_of, drain, drain_whole, rows_of, run_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.harness.base import Harness

GRACE = timedelta(seconds=30)


@pytest.mark.promise("E03", "E04")
@pytest.mark.scenario(1, 4, 46)
def test_nothing_passes_a_held_number_and_its_late_writer_is_delivered_once(harness: Harness) -> None:
    """A writer takes a number and stalls; another commits the next one (watermill 311, protean 1088)."""
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    late = store.log.allocate(1)
    append(store, runtime, "b")
    assert drain(store, runtime).step is Step.WAITING
    assert cursor_of(harness, ACME) == 0
    assert rows_of(harness, ACME) == {}
    harness.advance(GRACE + timedelta(seconds=6))
    assert drain_whole(store, runtime).reached_seq == 2
    with pytest.raises(EventConflictError) as refused:
        store.log.insert([event(late.first_seq, "a", now=late.now)])
    assert refused.value.taken == {late.first_seq}
    append(store, runtime, "a")
    drain_whole(store, runtime)
    assert sorted(rows_of(harness, ACME)) == ["a|s", "b|s"]


@pytest.mark.promise("E03")
@pytest.mark.scenario(1)
def test_a_writer_that_arrives_within_the_grace_keeps_its_place(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    late = store.log.allocate(1)
    append(store, runtime, "b")
    drain(store, runtime)
    harness.advance(GRACE - timedelta(seconds=5))
    assert drain(store, runtime).step is Step.WAITING
    store.log.insert([event(late.first_seq, "a", now=late.now)])
    drain_whole(store, runtime)
    rows = rows_of(harness, ACME)
    assert {name: row["seq"] for name, row in rows.items()} == {"a|s": 1, "b|s": 2}


@pytest.mark.promise("E05")
@pytest.mark.scenario(2)
def test_the_age_of_a_hole_counts_from_first_sight_whatever_an_event_says(harness: Harness) -> None:
    """The event behind the hole carries a time of an hour ago (AxonFramework 4829)."""
    store, runtime = harness.acme, harness.runtime()
    store.log.allocate(1)
    behind = store.log.allocate(1)
    hour_ago = harness.now() - timedelta(hours=1)
    store.log.insert([event(behind.first_seq, "b", now=hour_ago)])
    assert drain(store, runtime).step is Step.WAITING
    harness.advance(timedelta(seconds=20))
    assert drain(store, runtime).step is Step.WAITING
    assert harness.raw("board_events", void=True) == []


@pytest.mark.promise("E03")
@pytest.mark.scenario(3)
def test_a_permanent_hole_is_let_go_of_on_time_with_one_warning_whoever_drains(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """Drained each second, by another process each time (Eventuous PR 588)."""
    store, runtime = harness.acme, harness.runtime(slice_time=timedelta(milliseconds=1))
    store.log.allocate(1)
    append(store, runtime, "b")
    seconds, began = 0, time.monotonic()
    while cursor_of(harness, ACME) == 0:
        drain_tenant(harness.other_process(timedelta(seconds=seconds)).tenant(ACME), runtime)
        harness.advance(timedelta(seconds=1))
        seconds += 1
        assert seconds < 45
    # Real time passes too on the real store.
    assert seconds <= 37
    assert seconds + time.monotonic() - began >= 30
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "tombstone" in warnings[0].getMessage()


@pytest.mark.promise("E03")
def test_two_holes_each_get_their_own_grace(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    store.log.allocate(1)
    append(store, runtime, "b")
    drain(store, runtime)
    harness.advance(timedelta(seconds=20))
    store.log.allocate(1)
    append(store, runtime, "d")
    drain(store, runtime)
    harness.advance(timedelta(seconds=12))
    assert drain(store, runtime).step is Step.WAITING
    assert cursor_of(harness, ACME) == 2
    harness.advance(timedelta(seconds=20))
    assert drain_whole(store, runtime).reached_seq == 4


@pytest.mark.promise("E03", "E05")
@pytest.mark.scenario(5, 49)
def test_a_tail_of_dead_numbers_costs_one_grace_and_ends(harness: Harness) -> None:
    """A hundred numbers die with their process (marten 2681)."""
    store, runtime = harness.acme, harness.runtime()
    append(store, runtime, "a")
    store.log.allocate(100)
    drain(store, runtime)
    harness.advance(GRACE + timedelta(seconds=6))
    assert drain_whole(store, runtime).reached_seq == 101
    assert store.log.clear_undrained(101)


@pytest.mark.promise("E07")
def test_history_does_not_fire_and_what_was_missing_then_does(harness: Harness) -> None:
    """A number below the horizon that arrives after the rule was answered for is no history."""
    store, runtime = harness.acme, harness.runtime()
    append(store, runtime, "history")
    late = store.log.allocate(1)
    append(store, runtime, "inserted")
    store.log.allocate(1)  # given out, never inserted: the horizon is what is inserted
    rule = add_subscription(store, subscription("s")).rule
    assert rule.horizon.highest == 3
    store.log.insert([event(late.first_seq, "late", now=late.now)])
    store.log.fill([4])
    append(store, runtime, "new")
    drain_whole(store, runtime)
    assert sorted(rows_of(harness, ACME)) == ["late|s", "new|s"]


@pytest.mark.promise("E07")
def test_a_rule_that_is_enabled_again_misses_what_happened_meanwhile(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    store.subscriptions.set_enabled("s", enabled=False)
    append(store, runtime, "meanwhile")
    assert enable_subscription(store, "s")
    append(store, runtime, "after")
    drain_whole(store, runtime)
    assert sorted(rows_of(harness, ACME)) == ["after|s"]


@pytest.mark.promise("E07")
def test_a_rule_that_is_made_again_is_the_first_one_and_another_under_its_id_is_refused(harness: Harness) -> None:
    """As a deployment does that says its rules each time: neither the horizon nor the switch of the first moves."""
    store, runtime = harness.acme, harness.runtime()
    given: dict[str, Any] = {
        "types": ("thing", "other"),
        "vars": {"to": ("a", "b"), "deep": {"n": 1}},
        "args_var": "event",
    }
    first = add_subscription(store, subscription("s", **given))
    append(store, runtime, "between")
    store.subscriptions.set_enabled("s", enabled=False)
    turned = {**given, "types": ("other", "thing")}
    again = add_subscription(store, subscription("s", **turned, origin="cli", created_by="ann"))
    assert (first.fresh, again.fresh) == (True, False)
    assert (again.rule.horizon, again.rule.enabled, again.rule.created_by) == (first.rule.horizon, False, "")
    kept = harness.raw("trigger_subscriptions")
    for other, said in (
        ({"bot_id": "second"}, r"bot_id is 'bot', not 'second'; remove it first"),
        ({"types": ()}, r"types are \['other', 'thing'\], not \[\]"),
        ({"vars": {"to": ["a"], "deep": {"n": 1}, "more": 1}}, "vars differ in more; vars differ in to;"),
        ({"vars": {"to": ["a", "b"], "deep": {"n": True}}}, "vars differ in deep"),
        ({"args_var": ""}, "args_var is 'event', not ''"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            add_subscription(store, subscription("s", **{**given, **other}))
    assert harness.raw("trigger_subscriptions") == kept


@pytest.mark.promise("E07")
def test_a_rule_whose_answer_was_lost_is_made_once(harness: Harness) -> None:
    faulty = FaultyStore(harness.store, transient_at("subscriptions.add", When.AFTER))
    with pytest.raises(TransientError):
        add_subscription(faulty.tenant(ACME), subscription("s"))
    append(harness.acme, harness.runtime(), "after")
    again = add_subscription(harness.acme, subscription("s"))
    assert (again.fresh, again.rule.horizon.highest) == (False, 0)


def test_a_rule_that_cannot_be_read_is_not_taken_for_the_one_that_is_given(harness: Harness) -> None:
    add_subscription(harness.acme, subscription("s"))
    harness.change("trigger_subscriptions", "acme|s", bot_id=None)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        add_subscription(harness.acme, subscription("s"))


@pytest.mark.promise("E07")
@pytest.mark.parametrize("call", ["progress.load", "log.horizon"])
def test_a_read_error_creates_no_rule(harness: Harness, call: str) -> None:
    faulty = FaultyStore(harness.store, transient_at(call))
    with pytest.raises(TransientError):
        add_subscription(faulty.tenant(ACME), subscription("s"))
    assert harness.raw("trigger_subscriptions") == []


@pytest.mark.promise("E08")
@pytest.mark.scenario(14)
def test_an_event_that_does_not_decode_parks_at_once_and_blocks_nobody(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """An undecodable document among good ones (CAP)."""
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", "broken", "c")
    harness.change("board_events", join_key(ACME, "broken"), type=17)
    drain_whole(store, runtime)
    rows = rows_of(harness, ACME)
    assert sorted(rows) == ["#event|acme|broken", "a|s", "c|s"]
    dead = rows["#event|acme|broken"]
    assert (dead["state"], dead["kind"], dead["seq"]) == ("failed", "dead_event", 2)
    assert "type" in dead["last_error"]
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["ERROR"]


@pytest.mark.promise("E10")
@pytest.mark.parametrize(
    "call",
    ["subscriptions.enabled", "cards.standing", "log.read_after", "effects.check", "effects.materialize"],
)
def test_a_transient_error_leaves_no_row_and_no_cursor_move_and_the_next_tick_does_all(
    harness: Harness, call: str
) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    with store.transactions.begin() as transaction:
        store.cards.put(Card(tenant_id=ACME, card_id="c1"), transaction)
        transaction.commit()
    append(store, runtime, "a")
    append(store, runtime, "b", source="board", subject="c1")
    with pytest.raises(TransientError):
        drain_tenant(FaultyStore(harness.store, transient_at(call)).tenant(ACME), runtime)
    assert rows_of(harness, ACME) == {}
    assert cursor_of(harness, ACME) == 0
    drain_whole(store, runtime)
    assert sorted(rows_of(harness, ACME)) == ["a|s", "b|s"]


@pytest.mark.promise("E11")
def test_events_of_a_gone_card_are_skipped_and_recorded_but_not_those_that_tell_of_it(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    with store.transactions.begin() as transaction:
        store.cards.put(Card(tenant_id=ACME, card_id="gone", deleted_at=harness.now()), transaction)
        transaction.commit()
    append(store, runtime, "labeled", source="board", subject="gone", action="labeled")
    append(store, runtime, "deleted", source="board", subject="gone", action="deleted")
    append(store, runtime, "unknown", source="board", subject="never-seen", action="labeled")
    append(store, runtime, "free", source="app", subject="free text")
    drain_whole(store, runtime)
    assert sorted(rows_of(harness, ACME)) == ["deleted|s", "free|s"]
    (entry,) = harness.journal()
    assert entry["skips"] == [{"seq": 1, "reason": "card_gone"}, {"seq": 3, "reason": "card_gone"}]
    assert (entry["first_seq"], entry["last_seq"], entry["rows"]) == (1, 4, 2)


@pytest.mark.promise("E12")
def test_a_forged_row_under_the_same_key_parks_and_freezes_nobody(harness: Harness) -> None:
    seen: list[str] = []
    store = harness.acme
    runtime = harness.runtime({"bot": lambda run: seen.append(run.effect_id)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", "b")
    now = harness.now()
    forged = {"_id": join_key(ACME, "a", "s"), "tenant_id": ACME, "state": "pending", "seq": 1, "event_id": "other"}
    times = {"not_before": now, "created_at": now, "due_at": now}
    harness.put_raw("trigger_effects", {**forged, **times, "sub_id": "s", "kind": "launch", "attributes": {}})
    drain_whole(store, runtime)
    run_whole(store, runtime)
    assert harness.row(join_key(ACME, "a", "s"))["state"] == "failed"
    assert seen == [join_key(ACME, "b", "s")]


@pytest.mark.promise("E12", "E13")
def test_a_row_that_is_claimed_or_done_is_not_reset_by_another_drain(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime({"bot": lambda run: None})  # noqa: ARG005 - a bot's signature
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    drain_whole(store, runtime)
    run_whole(store, runtime)
    before = rows_of(harness, ACME)
    harness.change("trigger_cursors", ACME, seq=0)
    drain_whole(store, runtime)
    assert rows_of(harness, ACME) == before
    assert before["a|s"]["state"] == "done"


@pytest.mark.promise("E13")
@pytest.mark.scenario(60)
def test_a_drain_that_lost_the_race_reads_again_and_harms_nothing(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    stale = store.progress.load()
    store.log.allocate(1)
    drain(store, runtime)
    moved = store.progress.load()
    assert moved.rev > stale.rev
    assert not store.progress.commit(stale, seq=stale.seq, marks=(), poison=stale.poison, entry=None)
    assert store.progress.load().marks == moved.marks


@pytest.mark.promise("E03", "E04")
def test_a_writer_that_lands_just_before_its_number_is_filled_is_read_and_delivered(harness: Harness) -> None:
    """The cursor moves over numbers that were read, not over those that a fill has answered for."""
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    late = store.log.allocate(1)
    append(store, runtime, "b")
    drain(store, runtime)
    harness.advance(GRACE + timedelta(seconds=6))

    def land_then_fill(seqs: Sequence[int]) -> int:
        if late.first_seq in seqs:
            store.log.insert([event(late.first_seq, "a", now=late.now)])
        return store.log.fill(seqs)

    drain_whole(with_calls(store, "log", fill=land_then_fill), runtime)
    assert sorted(rows_of(harness, ACME)) == ["a|s", "b|s"]


@pytest.mark.promise("E15")
def test_a_dead_event_whose_drain_lost_the_cursor_is_logged_once(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    store, runtime = harness.acme, harness.runtime()
    append(store, runtime, "broken")
    harness.change("board_events", join_key(ACME, "broken"), type=5)
    with pytest.raises(TransientError):
        drain_tenant(FaultyStore(harness.store, transient_at("progress.commit")).tenant(ACME), runtime)
    assert drain_whole(store, runtime).reached_seq == 1
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["ERROR"]


OVERSIZED = tuple(f"{number:04d}-{'x' * 40}" for number in range(300))
"""Labels that no row has room for: an event that carries them fails each time a rule matches it."""


@pytest.mark.promise("E15")
@pytest.mark.scenario(54)
def test_two_adjacent_poison_events_park_after_twenty_ticks_and_hasten_for_nobody(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """Four drains within a second count as one tick."""
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    allocation = store.log.allocate(4)
    store.log.insert(
        [
            event(seq, f"e{seq}", now=allocation.now, labels=OVERSIZED if seq in {2, 3} else ())
            for seq in allocation.seqs
        ]
    )
    assert drain(store, runtime).step is Step.BLOCKED
    assert sorted(rows_of(harness, ACME)) == ["e1|s"]
    for _ in range(4):
        drain(store, runtime)
    assert store.progress.load().poison.counts == {2: 1, 3: 1}
    for tick in range(2, 20):
        harness.advance(timedelta(seconds=6))
        assert drain(store, runtime).step is Step.BLOCKED, tick
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    harness.advance(timedelta(seconds=6))
    drain_whole(store, runtime)
    rows = rows_of(harness, ACME)
    assert sorted(rows) == ["#event|acme|e2", "#event|acme|e3", "e1|s", "e4|s"]
    assert rows["#event|acme|e2"]["state"] == "failed"
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2
    assert store.progress.load().poison.counts == {}


@pytest.mark.promise("E15")
def test_an_outage_is_not_counted_as_poison(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    for _ in range(25):
        with pytest.raises(TransientError):
            drain_tenant(FaultyStore(harness.store, transient_at("effects.materialize")).tenant(ACME), runtime)
        harness.advance(timedelta(seconds=6))
    assert store.progress.load().poison.counts == {}
    drain_whole(store, runtime)
    assert sorted(rows_of(harness, ACME)) == ["a|s"]


@pytest.mark.promise("E16")
def test_disabling_the_last_rule_strands_neither_events_nor_rows(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime({"bot": lambda run: None})  # noqa: ARG005 - a bot's signature
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    drain_whole(store, runtime)
    append(store, runtime, "b")
    store.subscriptions.set_enabled("s", enabled=False)
    harness.hints.sent.clear()
    assert offer_drains(harness.store, runtime) == 1
    assert offer_slices(harness.store, runtime) == 1
    (_, _, drain_token), (_, _, slice_token) = harness.hints.sent
    report = drain_tenant(store, runtime, drain_token)
    assert report is not None
    assert report.step is Step.CAUGHT_UP
    assert run_slice(store, runtime, slice_token) is not None
    assert rows_of(harness, ACME)["a|s"]["outcome"] == "subscription_disabled"


@pytest.mark.promise("E16")
def test_a_slow_tick_finds_a_tenant_whose_flag_is_wrong(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    append(store, runtime, "a")
    harness.change("event_sequences", ACME, undrained=False)
    assert offer_drains(harness.store, runtime) == 0
    assert repair_undrained(harness.store, runtime) == 1
    harness.advance(timedelta(seconds=10))
    assert offer_drains(harness.store, runtime) == 1


@pytest.mark.promise("E16")
@pytest.mark.scenario(61)
def test_what_is_appended_while_a_drain_clears_the_flag_is_drained_by_it(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    clears = 0
    log = store.log

    class Racing:
        def __getattr__(self, name: str) -> object:
            return getattr(log, name)

        def clear_undrained(self, reached_seq: int) -> bool:
            nonlocal clears
            clears += 1
            if clears == 1:
                append(store, runtime, "b")
            return log.clear_undrained(reached_seq)

    racing = FaultyStore(harness.store).tenant(ACME)
    object.__setattr__(racing, "log", Racing())
    report = drain(racing, runtime)
    assert (report.step, report.reached_seq, clears) == (Step.CAUGHT_UP, 2, 2)
    assert sorted(rows_of(harness, ACME)) == ["a|s", "b|s"]


@pytest.mark.promise("E17")
def test_each_of_two_moves_in_one_tick_is_matched_by_what_it_recorded(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("to-b", subject_states=("B",), labels=("red",)))
    add_subscription(store, subscription("to-c", subject_states=("C",)))
    append(store, runtime, "m1", state="B", from_state="A", labels=("red",))
    append(store, runtime, "m2", state="C", from_state="B")
    drain_whole(store, runtime)
    rows = rows_of(harness, ACME)
    assert sorted(rows) == ["m1|to-b", "m2|to-c"]
    assert rows["m2|to-c"]["attributes"]["snapshot"]["from_state"] == "B"


@pytest.mark.promise("E19")
def test_an_event_that_carries_a_run_launches_nothing(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", run_id="run-1")
    drain_whole(store, runtime)
    assert rows_of(harness, ACME) == {}
    assert harness.journal()[0]["skips"] == [{"seq": 1, "reason": "observational"}]


@pytest.mark.promise("E47")
def test_a_batch_with_many_rules_is_cut_and_completes_also_after_it_was_lost_at_the_cursor(harness: Harness) -> None:
    store = harness.acme
    runtime = harness.runtime(batch_rows=500, slice_time=timedelta(seconds=10))
    for number in range(100):
        add_subscription(store, subscription(f"s{number:03d}"))
    append(store, runtime, *(f"e{number:02d}" for number in range(20)))
    lost = FaultyStore(harness.store, transient_at("progress.commit", When.BEFORE))
    with pytest.raises(TransientError):
        drain_tenant(lost.tenant(ACME), runtime)
    assert len(rows_of(harness, ACME)) == 500
    drain_whole(store, runtime)
    assert len(rows_of(harness, ACME)) == 2_000
    assert [entry["rows"] for entry in harness.journal()] == [500, 500, 500, 500]


@pytest.mark.promise("E47")
def test_no_more_of_a_batch_is_matched_than_it_takes(harness: Harness) -> None:
    """Matching all 200 events against 4,000 rules for each 5,000 rows took 44 s a batch, beyond its drain's slot."""
    store = FaultyStore(harness.store)
    runtime = harness.runtime(batch_rows=30, slice_time=timedelta(seconds=10))
    for number in range(10):
        add_subscription(harness.acme, subscription(f"s{number}"))
    append(harness.acme, runtime, *(f"e{number:02d}" for number in range(20)))
    drain_whole(store.tenant(ACME), runtime)
    assert store.calls.count("effects.check") == len(rows_of(harness, ACME)) == 200


def test_an_append_hints_only_where_it_turned_the_tenant_undrained(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    append(store, runtime, "a")
    append(store, runtime, "b")
    assert harness.hints.sent == [("turn", ACME, None)]
    drain_whole(store, runtime)
    append(store, runtime, "c")
    assert harness.hints.sent == [("turn", ACME, None)] * 2


def test_a_hint_that_is_not_taken_leaves_no_slot_held(harness: Harness) -> None:
    store, runtime = harness.acme, replace(harness.runtime(), hints=NoHints())
    append(store, runtime, "a")
    assert offer_drains(harness.store, runtime) == 0
    assert drain(store, runtime).step is Step.CAUGHT_UP


def test_a_doubled_drain_message_runs_once(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    append(store, runtime, "a")
    offer_drains(harness.store, runtime)
    token = harness.hints.sent[-1][2]
    assert drain_tenant(store, runtime, token) is not None
    assert drain_tenant(store, runtime, token) is None
    assert drain_tenant(store, runtime, "forged") is None
