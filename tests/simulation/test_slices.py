"""Slices on both stores: what a bot says, what a rule has become, leases, budgets and neighbours."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.drain_tenant import Step
from outbox_core.application.offer_slices import offer_slices
from outbox_core.application.run_slice import run_slice
from outbox_core.application.run_turn import run_turn
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import (
    ClaimLostError,
    ContentionError,
    DefinitiveError,
    RetryLater,
    TransientError,
    UnclearCommitError,
)
from outbox_core.domain.identity import join_key
from outbox_core.domain.limits import DONE_TTL
from outbox_core.domain.pace import Pace
from outbox_core.ports.slots import Lane
from tests.harness.base import ACME, OTHER
from tests.harness.examples import append as append_raw
from tests.harness.examples import claim, done, ids_of, materialize, run_record, subscription
from tests.harness.faults import Death, Fault, FaultyStore, When, transient_at, with_calls
from tests.harness.surroundings import SkewedClock
from tests.simulation.play import append, drain, drain_whole, run_whole, until_all_settled
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from outbox_core.domain.bot import Run
    from outbox_core.domain.effect import Claim
    from tests.harness.base import Harness
    from tests.harness.twin import TwinHarness

LEASE = timedelta(seconds=60)


def owed(harness: Harness, *event_ids: str, **rule: Any) -> list[str]:  # noqa: ANN401 - of a subscription
    """Leave one pending row for each event, for the bot `bot`; return their ids."""
    store, runtime = harness.acme, harness.runtime()
    if not harness.raw("trigger_subscriptions", tenant_id=ACME):
        add_subscription(store, subscription("s", **rule))
    append(store, runtime, *event_ids)
    drain_whole(store, runtime)
    harness.change("tenant_slots", ACME, slice=[])
    return [join_key(ACME, event_id, "s") for event_id in event_ids]


def states(harness: Harness) -> dict[str, str]:
    return {row["event_id"]: row["state"] for row in harness.raw("trigger_effects", tenant_id=ACME)}


def counting(runs: Counter[str], then: Callable[[Run], Any] = lambda _: None) -> Callable[..., Any]:
    def bot(run: Run, **_: object) -> Any:  # noqa: ANN401 - a bot's result
        runs[run.event.event_id] += 1
        return then(run)

    return bot


def raising(error: Exception | type[Exception]) -> Callable[..., Any]:
    def bot(_: Run) -> None:
        raise error

    return bot


@pytest.mark.promise("E35")
def test_what_a_bot_returns_is_kept_and_its_row_says_delivered(harness: Harness) -> None:
    def bot(run: Run, greeting: str, event: Mapping[str, Any]) -> object:
        return [greeting, event["type"], event["data"], run.attempt, run.tenant]

    add_subscription(harness.acme, subscription("s", vars={"greeting": "hello"}, args_var="event"))
    (effect_id,) = owed(harness, "a")
    run_whole(harness.acme, harness.runtime({"bot": bot}))
    row = harness.acme.effects.get(effect_id)
    assert (row["state"], row["outcome"], row["claims"], row["attempts"]) == ("done", "delivered", 1, 0)
    assert row["run"]["result"] == ["hello", "thing", {}, 1, ACME]
    assert row["run"]["error"] is None
    assert row["run"]["args"] == {"greeting": "hello"}


@pytest.mark.promise("E37")
def test_a_result_that_is_too_large_is_dropped_and_one_that_is_no_json_parks(harness: Harness) -> None:
    large, odd = owed(harness, "large", "odd")
    bot = counting(Counter(), lambda run: "x" * 70_000 if run.event.event_id == "large" else {1, 2})
    run_whole(harness.acme, harness.runtime({"bot": bot}))
    assert harness.acme.effects.get(large)["run"]["result"] is None
    assert harness.acme.effects.get(large)["run"]["result_dropped"] is True
    assert harness.row(odd)["state"] == "failed"
    assert "JSON" in harness.row(odd)["last_error"]


@pytest.mark.promise("E33")
@pytest.mark.scenario(11)
def test_a_row_that_fails_is_tried_once_a_backoff_by_all_workers_together_and_parks_after_five(
    harness: Harness,
) -> None:
    """Twelve workers sweep; one attempt per backoff in the whole cluster (CAP 1797)."""
    runs: Counter[str] = Counter()
    (effect_id,) = owed(harness, "a")
    runtime = harness.runtime({"bot": counting(runs, raising(ValueError("no")))})
    for attempt, backoff in enumerate((15, 30, 60, 120), start=1):
        for _ in range(12):
            run_slice(harness.acme, runtime)
        assert runs["a"] == attempt
        row = harness.row(effect_id)
        assert (row["state"], row["attempts"]) == ("pending", attempt)
        assert row["last_error"] == "ValueError: no"
        assert timedelta(seconds=backoff - 2) < row["not_before"] - harness.now() <= timedelta(seconds=backoff)
        harness.advance(timedelta(seconds=backoff))
    run_whole(harness.acme, runtime)
    row = harness.row(effect_id)
    assert (runs["a"], row["state"], row["attempts"]) == (5, "failed", 5)
    harness.advance(timedelta(days=400))
    assert harness.row(effect_id)["state"] == "failed"


@pytest.mark.promise("E33")
def test_an_error_text_is_cut_and_a_definitive_error_parks_at_once(harness: Harness) -> None:
    (effect_id,) = owed(harness, "a")
    run_whole(harness.acme, harness.runtime({"bot": raising(DefinitiveError("x" * 10_000))}))
    row = harness.row(effect_id)
    assert row["state"] == "failed"
    assert len(row["last_error"]) == 2_000


@pytest.mark.promise("E33")
@pytest.mark.scenario(13)
def test_a_target_that_is_down_for_an_hour_parks_nothing_where_the_bot_says_later(harness: Harness) -> None:
    """(open-bank-oss PR 4163)"""
    down, runs = [True], Counter[str]()

    def then(_: Run) -> None:
        if down[0]:
            raise RetryLater(timedelta(minutes=5), "down")

    names = [f"e{number}" for number in range(20)]
    owed(harness, *names)
    runtime = harness.runtime({"bot": counting(runs, then)})
    for _ in range(12):
        run_whole(harness.acme, runtime)
        harness.advance(timedelta(minutes=5))
    assert {row["attempts"] for row in harness.raw("trigger_effects")} == {0}
    down[0] = False
    run_whole(harness.acme, runtime)
    assert set(states(harness).values()) == {"done"}


@pytest.mark.promise("E33")
def test_a_bot_that_says_later_for_more_than_a_day_fails(harness: Harness) -> None:
    (effect_id,) = owed(harness, "a")
    runtime = harness.runtime({"bot": raising(RetryLater(timedelta(hours=30)))})
    run_whole(harness.acme, runtime)
    row = harness.row(effect_id)
    assert row["not_before"] - row["waiting_since"] == timedelta(hours=24)
    harness.advance(timedelta(hours=24, seconds=1))
    run_whole(harness.acme, runtime)
    assert harness.row(effect_id)["state"] == "failed"
    assert "later" in harness.row(effect_id)["last_error"]


@pytest.mark.promise("E34", "E35")
@pytest.mark.scenario(20)
@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ("remove", "subscription_not_found"),
        ("disable", "subscription_disabled"),
        ("edit", "subscription_no_longer_matches"),
    ],
)
def test_a_rule_that_was_removed_disabled_or_edited_drops_what_is_queued_with_its_reason(
    harness: Harness, change: str, outcome: str
) -> None:
    """A subscription is deleted with rows queued (svix 1511)."""
    (effect_id,) = owed(harness, "a")
    match change:
        case "remove":
            harness.acme.subscriptions.remove("s")
        case "disable":
            harness.acme.subscriptions.set_enabled("s", enabled=False)
        case _:
            harness.change("trigger_subscriptions", join_key(ACME, "s"), match={"types": ["something else"]})
    runs: Counter[str] = Counter()
    run_whole(harness.acme, harness.runtime({"bot": counting(runs)}))
    row = harness.row(effect_id)
    assert (row["state"], row["outcome"], runs) == ("done", outcome, Counter())


@pytest.mark.promise("E34")
@pytest.mark.parametrize("call", ["subscriptions.get", "log.get", "effects.finished_runs"])
def test_a_read_that_fails_before_the_run_gives_the_rows_back_at_no_cost(harness: Harness, call: str) -> None:
    (effect_id,) = owed(harness, "a")
    # A row that was claimed before: of a first claim nobody asks for a finished run.
    harness.acme.effects.release(claim(harness.acme, 1, LEASE), [effect_id])
    runs: Counter[str] = Counter()
    runtime = harness.runtime({"bot": counting(runs)})
    with pytest.raises(TransientError):
        run_slice(FaultyStore(harness.store, transient_at(call)).tenant(ACME), runtime)
    row = harness.row(effect_id)
    assert (row["state"], row["attempts"], runs["a"]) == ("pending", 0, 0)
    run_whole(harness.acme, runtime)
    assert (harness.row(effect_id)["state"], runs["a"]) == ("done", 1)


@pytest.mark.promise("E34")
def test_a_rule_that_cannot_be_read_retries_and_drops_nothing(harness: Harness) -> None:
    (effect_id,) = owed(harness, "a")
    harness.change("trigger_subscriptions", join_key(ACME, "s"), vars=17)
    run_whole(harness.acme, harness.runtime({"bot": raising(AssertionError)}))
    row = harness.row(effect_id)
    assert (row["state"], row["attempts"]) == ("pending", 1)
    assert "vars" in row["last_error"]


@pytest.mark.promise("E21", "O08")
def test_a_row_without_a_kind_is_a_launch_and_unknown_fields_survive_every_write(harness: Harness) -> None:
    runs: Counter[str] = Counter()
    (effect_id,) = owed(harness, "a")
    row = harness.row(effect_id)
    for name in ("kind", "due_at", "runs_alone", "trace", "attempts"):
        row.pop(name)
    harness.put_raw("trigger_effects", {**row, "from_the_future": {"deep": [1]}})
    run_whole(harness.acme, harness.runtime({"bot": counting(runs)}))
    after = harness.row(effect_id)
    assert (after["state"], runs["a"], after["from_the_future"]) == ("done", 1, {"deep": [1]})
    (fresh,) = owed(harness, "b")
    assert harness.row(fresh)["kind"] == "launch"


@pytest.mark.promise("E24")
def test_a_row_under_another_tenants_key_is_refused_and_recorded(harness: Harness) -> None:
    runs: Counter[str] = Counter()
    add_subscription(harness.other, subscription("s", tenant=OTHER))
    (effect_id,) = owed(harness, "a")
    forged_id = join_key(OTHER, "a", "s")
    harness.put_raw("trigger_effects", {**harness.row(effect_id), "_id": forged_id})
    run_whole(harness.acme, harness.runtime({"bot": counting(runs)}))
    row = harness.row(forged_id)
    assert (row["state"], runs["a"]) == ("failed", 1)
    assert OTHER in row["last_error"]


@pytest.mark.promise("E24")
def test_another_tenants_rule_of_the_same_id_runs_nothing(harness: Harness) -> None:
    (effect_id,) = owed(harness, "a")
    harness.acme.subscriptions.remove("s")
    add_subscription(harness.other, subscription("s", tenant=OTHER))
    run_whole(harness.acme, harness.runtime({"bot": raising(AssertionError)}))
    assert harness.row(effect_id)["outcome"] == "subscription_not_found"


def test_a_bot_or_kind_that_this_worker_does_not_know_is_passed_over_at_no_cost(harness: Harness) -> None:
    bot_row, kind_row = owed(harness, "a", "b")
    harness.change("trigger_effects", kind_row, kind="from-the-future")
    run_whole(harness.acme, harness.runtime({}))
    for effect_id in (bot_row, kind_row):
        row = harness.row(effect_id)
        assert (row["state"], row["attempts"]) == ("pending", 0)
        assert timedelta(seconds=13) < row["not_before"] - harness.now() <= timedelta(seconds=15)


@pytest.mark.promise("E27")
def test_a_row_whose_lease_is_over_before_its_turn_is_not_run(harness: Harness) -> None:
    """The first bot takes longer than the lease while no renewal gets through."""
    runs: Counter[str] = Counter()

    def then(_: Run) -> None:
        harness.advance(LEASE + timedelta(seconds=1))

    owed(harness, "a", "b")
    faulty = FaultyStore(harness.store, transient_at("effects.renew", times=1_000))
    run_slice(faulty.tenant(ACME), harness.runtime({"bot": counting(runs, then)}, slice_time=timedelta(seconds=19)))
    assert runs == Counter({"a": 1})
    assert harness.row(join_key(ACME, "b", "s"))["claims"] == 1


@pytest.mark.promise("E26")
@pytest.mark.scenario(8, 25)
def test_a_stale_workers_late_settle_changes_nothing_and_is_counted(harness: Harness) -> None:
    """A bot outlives its lease; another worker runs the row meanwhile; the first one wakes (dbos-transact-py 742)."""
    runs: Counter[str] = Counter()
    (effect_id,) = owed(harness, "a")

    def then(run: Run) -> str:
        if runs["a"] == 1:
            harness.advance(LEASE + timedelta(seconds=1))
            run_whole(harness.acme, harness.runtime({"bot": counting(runs, lambda _: "second")}, worker="worker-2"))
        return f"attempt {run.attempt}"

    faulty = FaultyStore(harness.store, transient_at("effects.renew", times=1_000))
    report = run_slice(faulty.tenant(ACME), harness.runtime({"bot": counting(runs, then)}))
    assert report is not None
    assert (report.settled, report.fenced_out) == (0, 1)
    row = harness.acme.effects.get(effect_id)
    assert (row["state"], row["claimed_by"], row["run"]["result"], row["attempts"]) == ("done", "worker-2", "second", 1)


@pytest.mark.promise("E26")
@pytest.mark.parametrize("times", [1, 3])
def test_a_settle_whose_answer_was_lost_is_told_from_one_that_was_fenced_out(harness: Harness, times: int) -> None:
    (effect_id,) = owed(harness, "a")
    faulty = FaultyStore(harness.store, transient_at("effects.settle", When.AFTER, times))
    report = run_slice(faulty.tenant(ACME), harness.runtime({"bot": counting(Counter())}))
    assert report is not None
    assert (report.settled, report.fenced_out) == (1, 0)
    assert harness.row(effect_id)["state"] == "done"


@pytest.mark.promise("E28", "E29")
@pytest.mark.scenario(33)
def test_a_bot_that_kills_its_process_parks_itself_and_costs_each_neighbour_one_attempt_in_all(
    harness: Harness,
) -> None:
    """(secator 1284)"""
    runs: Counter[str] = Counter()

    process: list[FaultyStore] = []

    def then(run: Run) -> None:
        if run.event.event_id == "e05":
            # The process dies with its bot: none of its later calls reach the store.
            process[-1].dead = True
            raise Death

    names = [f"e{number:02d}" for number in range(12)]
    owed(harness, *names)
    runtime = harness.runtime({"bot": counting(runs, then)})
    for _ in range(40):
        process.append(FaultyStore(harness.store))
        with suppress(Death):
            run_slice(process[-1].tenant(ACME), runtime)
        harness.advance(LEASE + timedelta(seconds=1))
    rows = {row["event_id"]: row for row in harness.raw("trigger_effects")}
    killer = rows.pop("e05")
    assert (killer["state"], runs["e05"]) == ("failed", 5)
    assert "budget" in killer["last_error"]
    assert {row["state"] for row in rows.values()} == {"done"}
    assert all(row["attempts"] <= 1 for row in rows.values())


@pytest.mark.promise("E30")
def test_neither_lease_over_nor_pending_rows_starve_under_a_steady_stream_of_the_others(harness: Harness) -> None:
    runs: Counter[str] = Counter()
    old = owed(harness, "o1", "o2", "o3")
    claim(harness.acme, 3, LEASE)
    harness.advance(LEASE + timedelta(seconds=1))
    upto = [0]
    runtime = harness.runtime({"bot": counting(runs)}, claim_batch=2, stopping=lambda: sum(runs.values()) >= upto[0])
    for number in range(8):
        owed(harness, f"n{number}a", f"n{number}b")
        upto[0] += 1
        run_slice(harness.acme, runtime)
    assert all(harness.row(effect_id)["state"] == "done" for effect_id in old)
    assert runs["n0a"] == 1


@pytest.mark.promise("E31")
@pytest.mark.scenario(7)
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_worker_whose_clock_is_an_hour_off_neither_steals_nor_keeps_a_lease(harness: Harness, hours: int) -> None:
    """(occurrent 659)"""
    runs: Counter[str] = Counter()
    owed(harness, "a")
    held = claim(harness.acme, 1, LEASE)
    assert ids_of(held)
    skew = timedelta(hours=hours)
    skewed = harness.other_process(skew).tenant(ACME)
    runtime = harness.runtime({"bot": counting(runs)}, clock=SkewedClock(harness.clock, skew))
    run_slice(skewed, runtime)
    assert runs == Counter()
    harness.advance(LEASE + timedelta(seconds=1))
    run_slice(skewed, runtime)
    assert runs == Counter({"a": 1})


@pytest.mark.promise("E37")
def test_a_launch_whose_run_finished_is_recognised_and_not_repeated(harness: Harness) -> None:
    (effect_id,) = owed(harness, "a")
    first = claim(harness.acme, 1, LEASE)
    with pytest.raises(TransientError):
        FaultyStore(harness.store, transient_at("effects.settle", When.BEFORE)).tenant(ACME).effects.settle(
            first, {effect_id: done()}
        )
    harness.acme.effects.settle(first, {effect_id: done(run_record(harness.now(), result="once"))})
    harness.change("trigger_effects", effect_id, state="claimed", done_at=None)
    harness.advance(LEASE + timedelta(seconds=1))
    run_whole(harness.acme, harness.runtime({"bot": raising(AssertionError)}))
    row = harness.acme.effects.get(effect_id)
    assert (row["state"], row["run"]["result"], row["attempts"]) == ("done", "once", 1)


@pytest.mark.promise("E37")
def test_a_first_claim_asks_for_no_finished_run_and_any_other_does(harness: Harness) -> None:
    owed(harness, "a", "b")
    watched = FaultyStore(harness.store)
    runtime = harness.runtime({"bot": raising(ValueError("no"))})
    run_slice(watched.tenant(ACME), runtime)
    assert "effects.finished_runs" not in watched.calls
    harness.advance(timedelta(seconds=30))
    run_slice(watched.tenant(ACME), runtime)
    assert watched.calls.count("effects.finished_runs") == 1


@pytest.mark.promise("E37", "E39")
@pytest.mark.parametrize("lost", ["the row, for a drain", "the row, for a turn", "the row's count of claims"])
def test_a_finished_run_is_recognised_although_its_row_does_not_tell_of_it(harness: Harness, lost: str) -> None:
    """A week after it is done a row leaves, and where a cursor was lost the log is drained again: its run is there."""
    (effect_id,) = owed(harness, "a")
    runs: Counter[str] = Counter()
    runtime = harness.runtime({"bot": counting(runs)})
    run_whole(harness.acme, runtime)
    if lost == "the row's count of claims":
        harness.change("trigger_effects", effect_id, state="pending", claims=None, done_at=None)
        harness.advance(LEASE + timedelta(seconds=1))
    else:
        harness.advance(DONE_TTL + timedelta(minutes=1))
        harness.expire_now()
        assert harness.raw("trigger_effects") == []
        harness.change("trigger_cursors", ACME, seq=0)
        if lost == "the row, for a turn":
            run_turn(harness.acme, runtime)
        else:
            drain_whole(harness.acme, harness.runtime())
    harness.change("tenant_slots", ACME, slice=[])
    run_whole(harness.acme, runtime)
    row = harness.acme.effects.get(effect_id)
    assert (row["state"], row["outcome"], runs["a"]) == ("done", "delivered", 1)


@pytest.mark.promise("E37")
@pytest.mark.scenario(57, 63)
def test_write_conflicts_of_a_transactional_bot_spend_no_attempt(harness: Harness) -> None:
    runs: Counter[str] = Counter()

    def then(_: Run) -> None:
        if runs["a"] <= 5:
            raise ContentionError("another one wrote the card")

    (effect_id,) = owed(harness, "a")
    bot = Bot(bot_id="bot", function=counting(runs, then), transactional=True)
    runtime = harness.runtime({"bot": bot})
    for _ in range(6):
        run_whole(harness.acme, runtime)
        harness.advance(timedelta(seconds=2))
    row = harness.row(effect_id)
    assert (row["state"], row["attempts"], runs["a"]) == ("done", 0, 6)


@pytest.mark.promise("E37")
def test_a_transactional_bot_that_raises_leaves_nothing_and_appends_what_it_said_only_when_done(
    harness: Harness,
) -> None:
    runs: Counter[str] = Counter()

    def then(run: Run) -> None:
        assert run.transaction is not None
        run.transaction.append(type="filed", event_id=f"filed-{runs['a']}")
        if runs["a"] == 1:
            raise ValueError

    (effect_id,) = owed(harness, "a", types=("thing",))
    runtime = harness.runtime({"bot": Bot(bot_id="bot", function=counting(runs, then), transactional=True)})
    run_whole(harness.acme, runtime)
    assert harness.raw("board_events", type="filed") == []
    harness.advance(timedelta(seconds=20))
    run_whole(harness.acme, runtime)
    (filed,) = harness.raw("board_events", type="filed")
    assert (filed["event_id"], harness.row(effect_id)["state"]) == ("filed-2", "done")


@pytest.mark.promise("E37")
@pytest.mark.scenario(50)
def test_a_transactional_bot_that_lost_its_row_commits_nothing(mongo_harness: Harness) -> None:
    """Not on the twin: its transactions are serial, so nothing can take a row during one."""
    harness = mongo_harness
    runs: Counter[str] = Counter()

    def then(run: Run) -> None:
        assert run.transaction is not None
        run.transaction.append(type="filed", event_id=f"filed-{runs['a']}")
        if runs["a"] == 1:
            # Whatever took the row: its claim is another one now.
            harness.change("trigger_effects", run.effect_id, claim_id="another")

    owed(harness, "a", types=("thing",))
    runtime = harness.runtime({"bot": Bot(bot_id="bot", function=counting(runs, then), transactional=True)})
    run_slice(harness.acme, runtime)
    assert harness.raw("board_events", type="filed") == []
    assert harness.raw("runs") == []


@pytest.mark.promise("E40")
@pytest.mark.scenario(9)
def test_one_raising_bot_does_not_stop_its_batch(harness: Harness) -> None:
    """The first of ten raises (dbos-transact-py 546)."""

    def then(run: Run) -> None:
        if run.event.event_id == "e0":
            raise ValueError

    owed(harness, *(f"e{number}" for number in range(10)))
    run_slice(harness.acme, harness.runtime({"bot": counting(Counter(), then)}))
    assert Counter(states(harness).values()) == {"done": 9, "pending": 1}


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.promise("E40")
@pytest.mark.parametrize(
    "error", [OSError("no file caf\udce9"), RetryLater(timedelta(0), "\udce9"), UnspeakableError()]
)
def test_an_error_whose_text_no_store_can_hold_costs_its_neighbours_nothing(harness: Harness, error: Exception) -> None:
    """A file's name that is not valid Unicode reaches an error's text with a lone surrogate in it."""

    def then(run: Run) -> None:
        if run.event.event_id == "b":
            raise error

    ids = owed(harness, "a", "b", "c")
    run_slice(harness.acme, harness.runtime({"bot": counting(Counter(), then)}))
    assert states(harness) == {"a": "done", "b": "pending", "c": "done"}
    assert harness.row(ids[1])["last_error"]


@pytest.mark.promise("E40")
@pytest.mark.scenario(12, 27)
def test_a_full_batch_of_rows_that_always_fail_does_not_hide_a_fresh_one(harness: Harness) -> None:
    """(MassTransit PR 6216, river 1318)"""

    def then(run: Run) -> None:
        if run.event.event_id.startswith("bad"):
            raise ValueError

    owed(harness, *(f"bad{number:03d}" for number in range(200)))
    owed(harness, "good")
    runtime = harness.runtime({"bot": counting(Counter(), then)}, slice_time=timedelta(seconds=10))
    run_slice(harness.acme, runtime)
    assert states(harness)["good"] == "done"
    assert offer_slices(harness.store, runtime) == 0  # nothing is due: the workers idle until the backoff


@pytest.mark.promise("E40")
def test_a_due_retry_is_not_hidden_by_a_steady_stream_of_fresh_rows(harness: Harness) -> None:
    runs: Counter[str] = Counter()

    def then(run: Run) -> None:
        if run.event.event_id == "retry" and runs["retry"] == 1:
            raise ValueError

    owed(harness, "retry")
    upto = [1]
    bots = {"bot": counting(runs, then)}
    runtime = harness.runtime(bots, claim_batch=1, stopping=lambda: sum(runs.values()) >= upto[0])
    run_slice(harness.acme, runtime)
    for number in range(6):
        owed(harness, f"f{number}a", f"f{number}b", f"f{number}c")
        harness.advance(timedelta(seconds=4))
    # It became due after the rows of the first four rounds and before the others, and is taken in that order.
    for more, runs_of_retry in ((12, 1), (1, 2)):
        upto[0] += more
        harness.change("tenant_slots", ACME, slice=[])
        run_slice(harness.acme, runtime)
        assert runs["retry"] == runs_of_retry
    assert Counter(states(harness).values()) == {"done": 13, "pending": 6}


@pytest.mark.promise("E41")
@pytest.mark.scenario(28, 58)
def test_a_shutdown_gives_unrun_rows_back_at_their_old_place_and_charges_nothing(harness: Harness) -> None:
    """SIGTERM while a batch is half done (solid_queue 568, pgqueuer 693)."""
    runs: Counter[str] = Counter()
    owed(harness, *(f"e{number}" for number in range(10)))
    due = {row["_id"]: row["not_before"] for row in harness.raw("trigger_effects")}
    runtime = harness.runtime({"bot": counting(runs)}, stopping=lambda: sum(runs.values()) >= 4)
    run_slice(harness.acme, runtime)
    rows = harness.raw("trigger_effects")
    assert Counter(row["state"] for row in rows) == {"done": 4, "pending": 6}
    assert all(row["attempts"] == 0 for row in rows)
    assert all(row["not_before"] == due[row["_id"]] for row in rows if row["state"] == "pending")


@pytest.mark.promise("E41")
@pytest.mark.scenario(58)
def test_a_slices_end_gives_back_what_one_long_bot_would_hold(harness: Harness) -> None:
    """The heart releases the rest and settles what is done, while the bot still runs."""
    going, release = threading.Event(), threading.Event()

    def then(run: Run) -> None:
        if run.event.event_id == "e1":
            going.set()
            assert release.wait(20)

    owed(harness, *(f"e{number}" for number in range(10)))
    runtime = harness.runtime({"bot": counting(Counter(), then)})
    thread = threading.Thread(target=run_slice, args=(harness.acme, runtime))
    thread.start()
    assert going.wait(20)
    harness.advance(timedelta(seconds=2))
    wait_until(
        lambda: Counter(states(harness).values()) == {"done": 1, "claimed": 1, "pending": 8},
        timeout=20,
        what="the heart's release",
    )
    release.set()
    thread.join()
    assert Counter(states(harness).values()) == {"done": 2, "pending": 8}


@pytest.mark.promise("E41")
def test_a_claim_takes_about_as_many_rows_of_slow_bots_as_its_slice_can_run(twin: TwinHarness) -> None:
    """What is claimed and given back at each slice's end costs a claim each time: of 200 rows about 20 run."""
    owed(twin, *(f"e{number:03d}" for number in range(300)))
    slow = twin.runtime({"bot": lambda _: twin.advance(timedelta(milliseconds=50))})
    claimed = []
    while "pending" in states(twin).values():
        twin.change("tenant_slots", ACME, slice=[])
        report = run_slice(twin.acme, slow)
        assert report is not None
        claimed.append(report.claimed)
    # The first claim of all cannot know, and takes a whole batch.
    assert (claimed[0], sum(claimed)) == (200, 300)
    assert max(claimed[1:]) <= 40
    assert set(states(twin).values()) == {"done"}


@pytest.mark.promise("E41")
@pytest.mark.parametrize("when", list(When))
def test_a_release_that_fails_is_sent_again_so_that_no_row_waits_for_its_lease(harness: Harness, when: When) -> None:
    """A failover at a slice's end, or at a shutdown, would cost each row of the batch an attempt."""
    going, release, stop = threading.Event(), threading.Event(), threading.Event()

    def then(_: Run) -> None:
        going.set()
        assert release.wait(20)
        stop.set()

    owed(harness, *(f"e{number}" for number in range(5)))
    failing = FaultyStore(harness.store, transient_at("effects.release", when, times=2))
    runtime = harness.runtime({"bot": counting(Counter(), then)}, stopping=stop.is_set)
    thread = threading.Thread(target=run_slice, args=(failing.tenant(ACME), runtime))
    thread.start()
    assert going.wait(20)
    for tries in range(1, 4):
        harness.advance(timedelta(seconds=2))
        wait_until(lambda seen=tries: failing.calls.count("effects.release") >= seen, what="the heart's next try")  # type: ignore[misc]
    wait_until(lambda: Counter(states(harness).values()) == {"claimed": 1, "pending": 4}, what="the heart's release")
    release.set()
    thread.join()

    going.clear()
    failing = FaultyStore(harness.store, transient_at("effects.release", when, times=2))
    stop.clear()
    # Another process, for which these rows are not slow ones yet, of which it would claim one alone.
    run_slice(failing.tenant(ACME), replace(runtime, pace=Pace()))
    assert failing.struck
    rows = harness.raw("trigger_effects", tenant_id=ACME)
    assert Counter((row["state"], row["attempts"]) for row in rows) == {("done", 0): 2, ("pending", 0): 3}


def test_a_heart_renews_what_a_long_bot_has_in_hand(harness: Harness) -> None:
    going, release = threading.Event(), threading.Event()

    def then(_: Run) -> None:
        going.set()
        assert release.wait(20)

    (effect_id,) = owed(harness, "a")
    runtime = harness.runtime({"bot": counting(Counter(), then)})
    thread = threading.Thread(target=run_slice, args=(harness.acme, runtime))
    thread.start()
    assert going.wait(20)

    def left() -> timedelta:
        left: timedelta = harness.row(effect_id)["not_before"] - harness.now()
        return left

    for _ in range(2):
        harness.advance(timedelta(seconds=21))
        wait_until(lambda: left() > timedelta(seconds=55), timeout=20, what="a renewal")
    release.set()
    thread.join()
    row = harness.row(effect_id)
    assert (row["state"], row["claims"], row["attempts"]) == ("done", 1, 0)


@pytest.mark.promise("E25")
def test_a_slice_whose_slot_is_used_or_forged_ends_at_once(harness: Harness) -> None:
    owed(harness, "a")
    runtime = harness.runtime({"bot": counting(Counter())})
    offer_slices(harness.store, runtime)
    token = harness.hints.sent[-1][2]
    assert run_slice(harness.acme, runtime, token) is not None
    assert run_slice(harness.acme, runtime, token) is None
    assert run_slice(harness.acme, runtime, "forged") is None


@pytest.mark.promise("E45")
@pytest.mark.scenario(14)
@pytest.mark.parametrize("broken", [{"not_before": None}, {"not_before": "soon"}, {"seq": "one"}, {"attributes": 5}])
def test_a_row_that_is_malformed_parks_with_its_error_and_its_batch_goes_on(
    harness: Harness, broken: dict[str, Any]
) -> None:
    """(CAP, its Mongo store)"""
    bad, *good = owed(harness, "a", "b", "c")
    harness.change("trigger_effects", bad, **broken)
    runtime = harness.runtime({"bot": counting(Counter())})
    until_all_settled(harness, harness.acme, runtime)
    run_slice(harness.acme, runtime)
    assert harness.row(bad)["state"] == "failed"
    assert "malformed" in harness.row(bad)["last_error"]
    assert all(harness.row(effect_id)["state"] == "done" for effect_id in good)


def test_a_full_claim_offers_another_slice_so_that_other_workers_take_a_share(harness: Harness) -> None:
    owed(harness, *(f"e{number}" for number in range(5)))
    harness.hints.sent.clear()
    run_slice(harness.acme, harness.runtime({"bot": counting(Counter())}, claim_batch=2))
    assert ("slice", ACME) in {(kind, tenant) for kind, tenant, _ in harness.hints.sent}


def test_a_slice_that_ends_with_rows_due_puts_itself_back_with_its_slot(harness: Harness) -> None:
    owed(harness, *(f"e{number}" for number in range(5)))
    runs: Counter[str] = Counter()
    first = harness.runtime({"bot": counting(runs)}, stopping=lambda: sum(runs.values()) >= 2)
    report = run_slice(harness.acme, first)
    assert report is not None
    assert report.more
    kind, tenant, token = harness.hints.sent[-1]
    assert (kind, tenant) == ("slice", ACME)
    again = run_slice(harness.acme, harness.runtime({"bot": counting(runs)}), token)
    assert again is not None
    assert (again.settled, again.more) == (3, False)


def test_an_event_missing_from_the_log_parks_its_row(harness: Harness) -> None:
    (effect_id,) = owed(harness, "a")
    harness.change("trigger_effects", effect_id, event_id="b", _id=effect_id)
    append_raw(harness.acme, "z")
    run_whole(harness.acme, harness.runtime({"bot": counting(Counter())}))
    assert harness.row(effect_id)["state"] == "failed"


@pytest.mark.promise("E26", "E37")
def test_a_transactional_bot_whose_row_is_another_claims_already_is_not_run_and_its_worker_is_told(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    runs: Counter[str] = Counter()
    (effect_id,) = owed(harness, "a")

    def lose_then_renew(held: Claim, effect_ids: Iterable[str], lease: timedelta) -> int:
        harness.change("trigger_effects", effect_id, claim_id="another")
        return harness.acme.effects.renew(held, effect_ids, lease)

    runtime = harness.runtime({"bot": Bot(bot_id="bot", function=counting(runs), transactional=True)})
    report = run_slice(with_calls(harness.acme, "effects", renew=lose_then_renew), runtime)
    assert not runs
    assert harness.row(effect_id)["claim_id"] == "another"
    assert report is not None
    assert (report.settled, report.fenced_out) == (0, 1)
    assert f"effect {effect_id} was claimed by another worker; nothing is written" in caplog.text


@pytest.mark.promise("E37")
def test_a_transactional_bots_lease_reaches_beyond_its_limit_from_its_start(harness: Harness) -> None:
    """Nothing renews it while it runs: that would undo its transaction."""
    left: list[timedelta] = []

    def then(_: Run) -> None:
        left.append(harness.row(effect_id)["not_before"] - harness.now())

    (effect_id,) = owed(harness, "a")
    bot = Bot(bot_id="bot", function=counting(Counter(), then), transactional=True, time_limit=timedelta(seconds=40))
    run_slice(harness.acme, harness.runtime({"bot": bot}, effect_lease=timedelta(seconds=25)))
    assert len(left) == 1
    assert timedelta(seconds=53) < left[0] <= timedelta(seconds=55)


@pytest.mark.promise("E37")
@pytest.mark.parametrize("when", When)
def test_a_launch_whose_commit_is_unclear_is_neither_a_failure_nor_lost_to_another(
    harness: Harness, when: When, caplog: pytest.LogCaptureFixture
) -> None:
    """What became of it the next claim of the row sees, or that there is none."""
    runs: Counter[str] = Counter()
    (effect_id,) = owed(harness, "a")
    runtime = harness.runtime({"bot": Bot(bot_id="bot", function=counting(runs), transactional=True)})
    unclear = FaultyStore(harness.store, Fault("transaction.commit", when, UnclearCommitError))
    report = run_slice(unclear.tenant(ACME), runtime)
    assert report is not None
    assert (report.settled, report.fenced_out) == (0, 0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (harness.row(effect_id)["state"], harness.row(effect_id)["attempts"]) == (
        "done" if when is When.AFTER else "claimed",
        0,
    )


@pytest.mark.promise("E37")
@pytest.mark.parametrize("error", [ClaimLostError, ContentionError, TransientError])
def test_a_number_that_an_undone_launch_had_taken_is_filled_at_once(harness: Harness, error: type[Exception]) -> None:
    """Else the tenant's drain would wait a grace for it."""

    def then(run: Run) -> None:
        assert run.transaction is not None
        run.transaction.append(type="filed", event_id="filed")

    owed(harness, "a", types=("thing",))
    runtime = harness.runtime({"bot": Bot(bot_id="bot", function=counting(Counter(), then), transactional=True)})
    undone = FaultyStore(harness.store, Fault("effects.settle_in", When.BEFORE, error))
    run_slice(undone.tenant(ACME), runtime)
    assert undone.struck
    report = drain(harness.acme, runtime)
    assert (report.step, report.reached_seq) == (Step.CAUGHT_UP, 2)


@pytest.mark.promise("E42")
def test_a_slice_that_fails_gives_its_slot_back(harness: Harness) -> None:
    owed(harness, "a")
    failing = FaultyStore(harness.store, transient_at("effects.claim_due"))
    with pytest.raises(TransientError):
        run_slice(failing.tenant(ACME), harness.runtime())
    hold, cap = harness.limits.slot_hold, harness.limits.tenant_slots
    assert None not in [harness.acme.slots.take(Lane.SLICE, hold) for _ in range(cap)]


@pytest.mark.promise("E45")
def test_a_slice_goes_on_after_a_claim_that_could_only_park(harness: Harness) -> None:
    """More broken rows than a claim looks for must not wait for as many sweeps."""
    for effect_id in materialize(harness.acme, harness.limits.claim_batch + 1, now=harness.now()):
        harness.change("trigger_effects", effect_id, not_before="soon")
    run_slice(harness.acme, harness.runtime())
    assert set(states(harness).values()) == {"failed"}
