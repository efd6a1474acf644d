"""A turn on both stores: what it drains is born claimed, and run by itself."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.drain_tenant import Step, drain_tenant
from outbox_core.application.offer_slices import offer_slices
from outbox_core.application.run_slice import run_slice
from outbox_core.application.run_turn import run_turn
from outbox_core.domain.errors import TransientError
from outbox_core.ports.hints import NoHints
from outbox_core.ports.slots import Lane
from tests.harness.base import ACME
from tests.harness.examples import subscription
from tests.harness.faults import Death, Fault, FaultyStore, When, transient_at
from tests.simulation.play import append, cursor_of, rows_of, run_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.application.run_turn import TurnReport
    from outbox_core.application.work_claim import SliceReport
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness
    from tests.harness.on_mongo import MongoHarness

BOT = {"bot": lambda run: None}  # noqa: ARG005 - a bot's signature


def turn(store: TenantStore, runtime: Runtime, token: str | None = None) -> TurnReport:
    """Take a turn; its drain's slot is free."""
    report = run_turn(store, runtime, token)
    assert report is not None
    return report


def worked(report: TurnReport) -> SliceReport:
    """Return the slice of a turn that had rows."""
    assert report.worked is not None
    return report.worked


@contextmanager
def rows_must(harness: MongoHarness, validator: dict[str, Any]) -> Iterator[None]:
    """Let the store refuse for good what does not hold this."""
    harness.database.command("collMod", "trigger_effects", validator=validator)
    try:
        yield
    finally:
        harness.database.command("collMod", "trigger_effects", validator={})


@pytest.mark.promise("E12", "E25")
def test_what_a_turn_drains_is_claimed_from_its_birth_run_once_and_settled(harness: Harness) -> None:
    runs: list[str] = []
    store, runtime = harness.acme, harness.runtime({"bot": lambda run: runs.append(run.effect_id)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", "b")
    assert harness.hints.sent == [("turn", ACME, None)]
    report = turn(store, runtime)
    assert (report.drained.step, report.drained.rows) == (Step.CAUGHT_UP, 2)
    assert (worked(report).claimed, worked(report).settled, worked(report).fenced_out) == (2, 2, 0)
    assert runs == ["acme|a|s", "acme|b|s"]
    rows = rows_of(harness, ACME)
    assert {(row["outcome"], row["claims"], row["attempts"]) for row in rows.values()} == {("delivered", 1, 0)}
    assert {(run["claims"], run["error"]) for run in harness.raw("runs")} == {(1, None)}
    assert cursor_of(harness, ACME) == 2
    assert run_turn(store, runtime) is not None
    assert len(runs) == 2


def test_a_turn_without_a_match_takes_no_slot_of_a_slice(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime(BOT)
    append(store, runtime, "a")
    report = turn(store, runtime)
    assert (report.drained.step, report.worked) == (Step.CAUGHT_UP, None)
    assert harness.raw("tenant_slots") == []


@pytest.mark.promise("E31")
def test_the_lease_of_a_newborn_row_is_the_servers_time_at_the_cursor_and_the_lease(harness: Harness) -> None:
    seen: list[dict[str, Any]] = []
    skewed = harness.other_process(timedelta(hours=1))
    store = harness.acme
    runtime = harness.runtime({"bot": lambda run: seen.append(dict(harness.row(run.effect_id)))})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    before = harness.now()
    turn(skewed.tenant(ACME), runtime)
    (row,) = seen
    lease = runtime.limits.effect_lease
    assert before <= row["not_before"] - lease <= harness.now()
    assert (row["state"], row["claims"], row["due_at"]) == ("claimed", 1, row["not_before"] - lease)
    assert row["claimed_by"] == runtime.worker


@pytest.mark.promise("E28")
def test_rows_of_a_turn_that_dies_are_taken_one_by_one_when_their_lease_is_over(harness: Harness) -> None:
    runs: list[str] = []
    store, runtime = harness.acme, harness.runtime({"bot": lambda run: runs.append(run.effect_id)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", "b")
    dies = FaultyStore(harness.store, Fault("progress.commit", When.AFTER))
    with pytest.raises(Death):
        run_turn(dies.tenant(ACME), runtime)
    assert run_slice(store, runtime) is not None
    assert runs == []
    harness.advance(runtime.limits.effect_lease + runtime.limits.slot_hold)
    run_whole(store, runtime)
    assert sorted(runs) == ["acme|a|s", "acme|b|s"]
    assert {row["attempts"] for row in rows_of(harness, ACME).values()} == {1}


@pytest.mark.promise("E10", "E41")
@pytest.mark.parametrize("call", ["progress.commit", "log.clear_undrained", "effects.materialize"])
def test_a_turn_that_meets_an_outage_gives_its_rows_back_unrun_and_at_once(harness: Harness, call: str) -> None:
    runs: list[str] = []
    store, runtime = harness.acme, harness.runtime({"bot": lambda run: runs.append(run.effect_id)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    with pytest.raises(TransientError):
        run_turn(FaultyStore(harness.store, transient_at(call, When.AFTER)).tenant(ACME), runtime)
    assert runs == []
    assert [(row["state"], row["attempts"]) for row in rows_of(harness, ACME).values()] == [("pending", 0)]
    run_whole(store, runtime)
    assert runs == ["acme|a|s"]
    turn(store, runtime)
    assert runs == ["acme|a|s"]
    assert harness.acme.slots.take(Lane.DRAIN, timedelta(seconds=1)) is not None


@pytest.mark.promise("E42")
def test_a_turn_that_finds_all_slots_taken_leaves_its_rows_pending(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime(BOT)
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    held = [store.slots.take(Lane.SLICE, runtime.limits.slot_hold) for _ in range(runtime.limits.tenant_slots)]
    assert None not in held
    report = turn(store, runtime)
    assert (report.drained.step, report.worked) == (Step.CAUGHT_UP, None)
    assert [row["state"] for row in rows_of(harness, ACME).values()] == ["pending"]


@pytest.mark.promise("E13", "E25")
def test_rows_that_another_drain_has_made_are_left_to_whoever_claims_them(harness: Harness) -> None:
    runs: list[str] = []
    store, runtime = harness.acme, harness.runtime({"bot": lambda run: runs.append(run.effect_id)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", "b")

    def another() -> None:
        harness.change("trigger_cursors", ACME, drain=[])
        assert drain_tenant(store, runtime) is not None

    raced = FaultyStore(harness.store, Fault("effects.materialize", When.BEFORE, error=None, then=another))
    report = turn(raced.tenant(ACME), runtime)
    assert worked(report).claimed == 0
    assert runs == []
    assert {row["state"] for row in rows_of(harness, ACME).values()} == {"pending"}
    run_whole(store, runtime)
    assert sorted(runs) == ["acme|a|s", "acme|b|s"]


def test_a_full_batch_is_run_and_the_next_one_handed_on_in_the_same_slot(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime(BOT, event_batch=2)
    add_subscription(store, subscription("s"))
    append(store, runtime, *"abcde")
    harness.hints.sent.clear()
    assert turn(store, runtime).drained.step is Step.ADVANCED
    ((kind, tenant, token),) = harness.hints.sent
    assert (kind, tenant) == ("turn", ACME)
    assert run_turn(store, runtime) is None
    assert turn(store, runtime, token).drained.reached_seq == 4
    token = harness.hints.sent[-1][2]
    assert turn(store, runtime, token).drained.step is Step.CAUGHT_UP
    assert store.effects.counts() == {"done:delivered": 5}
    assert store.slots.take(Lane.DRAIN, timedelta(seconds=1)) is not None


def test_a_turn_whose_hint_is_not_taken_leaves_the_rest_to_the_tick(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime(BOT, event_batch=2)
    add_subscription(store, subscription("s"))
    append(store, runtime, *"abc")
    turn(store, replace(runtime, hints=NoHints()))
    assert cursor_of(harness, ACME) == 2
    assert turn(store, runtime).drained.step is Step.CAUGHT_UP
    assert store.effects.counts() == {"done:delivered": 3}


def test_what_is_more_than_one_claim_is_left_pending_and_offered(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime(BOT, claim_batch=2)
    for number in range(3):
        add_subscription(store, subscription(f"s{number}"))
    append(store, runtime, "a")
    harness.hints.sent.clear()
    assert worked(turn(store, runtime)).settled == 2
    assert [kind for kind, _, _ in harness.hints.sent] == ["slice"]
    run_slice(store, runtime, harness.hints.sent[-1][2])
    assert store.effects.counts() == {"done:delivered": 3}


def test_of_a_slow_bots_rows_a_turn_holds_what_a_slice_can_run_and_offers_the_rest(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime(BOT)
    add_subscription(store, subscription("s"))
    runtime.pace.note(ACME, "bot", runtime.limits.slice_time.total_seconds() * 0.4)
    append(store, runtime, *"abcde")
    harness.hints.sent.clear()
    assert worked(turn(store, runtime)).claimed == 2
    assert [kind for kind, _, _ in harness.hints.sent] == ["slice"]
    assert store.effects.counts() == {"done:delivered": 2, "pending": 3}


@pytest.mark.promise("E30")
def test_a_steady_stream_of_turns_starves_no_row_that_was_due_before(harness: Harness) -> None:
    """All slots are taken by turns at every sweep; who leaves a full lane looks again."""
    runs: list[str] = []
    store, runtime = harness.acme, harness.runtime({"bot": lambda run: runs.append(run.effect_id)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "old")
    assert drain_tenant(store, runtime) is not None
    held = [store.slots.take(Lane.SLICE, runtime.limits.slot_hold) for _ in range(runtime.limits.tenant_slots - 2)]
    append(store, runtime, "new")
    harness.hints.sent.clear()

    def sweep(_: object) -> None:
        offer_slices(harness.store, runtime)
        harness.hints.sent.clear()

    busy = replace(runtime, bots=harness.runtime({"bot": sweep}).bots)
    turn(store, busy)
    assert None not in held
    assert [kind for kind, _, _ in harness.hints.sent] == ["slice"]
    run_slice(store, runtime, harness.hints.sent[-1][2])
    assert runs == ["acme|old|s"]


@pytest.mark.promise("E15", "E28")
def test_what_is_made_beside_a_refused_row_is_run_by_the_turn_that_made_it(mongo_harness: MongoHarness) -> None:
    """The store refuses a row for good by a rule of its own: only then does it tell what it took beside it."""
    runs: list[str] = []
    bots = {"bot": lambda run: runs.append(run.effect_id)}
    store, runtime = mongo_harness.acme, mongo_harness.runtime(bots, poison_ticks=1)
    for name in ("good", "refused"):
        add_subscription(store, subscription(name))
    append(store, runtime, "a", "b")
    with rows_must(mongo_harness, {"$or": [{"sub_id": {"$ne": "refused"}}, {"event_id": {"$ne": "b"}}]}):
        report = turn(store, runtime)
    assert sorted(runs) == ["acme|a|good", "acme|a|refused", "acme|b|good"]
    assert worked(report).settled == 3
    live = [row for row in mongo_harness.raw("trigger_effects") if row["state"] in {"pending", "claimed"}]
    assert live == []


@pytest.mark.promise("E26", "E27")
def test_a_turn_that_stalls_beyond_its_lease_runs_and_writes_nothing_more(harness: Harness) -> None:
    runs: list[str] = []
    store, runtime = harness.acme, harness.runtime({"bot": lambda run: runs.append(run.effect_id)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")

    def long_after() -> None:
        harness.advance(runtime.limits.effect_lease + timedelta(seconds=1))
        run_whole(store, runtime)

    stalls = FaultyStore(harness.store, Fault("progress.commit", When.AFTER, error=None, then=long_after))
    report = turn(stalls.tenant(ACME), runtime)
    assert runs == ["acme|a|s"]
    assert worked(report).settled == 0
    (row,) = rows_of(harness, ACME).values()
    assert (row["outcome"], row["claims"], row["attempts"]) == ("delivered", 2, 1)


@pytest.mark.promise("E15")
def test_a_row_left_by_a_batch_that_was_cut_is_run_under_the_rule_that_it_is_owed_to(
    mongo_harness: MongoHarness,
) -> None:
    """Beside `b`, which is refused, the row of `c` was made; the batch that is decided again ends before both."""
    runs: list[str] = []
    store = mongo_harness.acme
    runtime = mongo_harness.runtime({"bot": lambda run: runs.append(run.effect_id)})
    for name in "abc":
        add_subscription(store, subscription(name, types=(f"type-{name}",)))
    for name in "abc":
        append(store, runtime, name, type=f"type-{name}")
    with rows_must(mongo_harness, {"event_id": {"$ne": "b"}}):
        turn(store, runtime)
    assert sorted(runs) == ["acme|a|a", "acme|c|c"]
    assert {row["outcome"] for row in mongo_harness.raw("trigger_effects")} == {"delivered"}
    assert cursor_of(mongo_harness, ACME) == 1


def test_what_a_bot_does_to_its_arguments_is_seen_by_no_later_turn(harness: Harness) -> None:
    seen: list[list[str]] = []

    def bot(_run: object, names: list[str]) -> None:
        seen.append(list(names))
        names.append("another")

    store, runtime = harness.acme, harness.runtime({"bot": bot})
    add_subscription(store, subscription("s", vars={"names": ["first"]}))
    for event_id in "ab":
        append(store, runtime, event_id)
        turn(store, runtime)
    assert seen == [["first"], ["first"]]


@pytest.mark.promise("E34")
def test_a_turn_that_was_held_up_asks_again_what_the_rule_is(harness: Harness) -> None:
    runs: list[str] = []
    store, runtime = harness.acme, harness.runtime({"bot": lambda run: runs.append(run.effect_id)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")

    def slow() -> None:
        store.subscriptions.set_enabled("s", enabled=False)
        harness.advance(runtime.limits.slice_time)

    held_up = FaultyStore(harness.store, Fault("progress.commit", When.AFTER, error=None, then=slow))
    turn(held_up.tenant(ACME), runtime)
    assert runs == []
    assert rows_of(harness, ACME)["a|s"]["outcome"] == "subscription_disabled"


@pytest.mark.promise("E41", "C05")
def test_a_turn_of_a_worker_that_stops_claims_nothing(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime(BOT)
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    report = turn(store, replace(runtime, stopping=lambda: True))
    assert report.worked is None
    assert [(row["state"], row["claims"]) for row in rows_of(harness, ACME).values()] == [("pending", 0)]


@pytest.mark.promise("E31")
def test_a_turn_whose_cursor_came_late_ends_no_run_later_than_the_server_does(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime(BOT)
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")

    def pass_time() -> None:
        harness.advance(timedelta(seconds=5))

    slow = FaultyStore(harness.store, Fault("progress.enter", When.BEFORE, error=None, then=pass_time))
    turn(slow.tenant(ACME), runtime)
    (row,), (run,) = harness.raw("trigger_effects"), harness.raw("runs")
    assert row["created_at"] <= run["started_at"] <= run["finished_at"] <= row["done_at"]
