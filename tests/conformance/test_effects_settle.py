"""What ports.effect_outbox promises of settling, on both stores."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.effect import Claim
from outbox_core.domain.effect_lifecycle import Attempts, Flag, NotBefore
from outbox_core.domain.errors import ClaimLostError, InvariantError
from outbox_core.domain.limits import DONE_TTL, MAX_RESULT_BYTES
from outbox_core.ports.effect_outbox import Settled
from tests.harness.examples import SETTLING, by_edge, claim, dead_event, done, ids_of, materialize, run_record

if TYPE_CHECKING:
    from outbox_core.domain.effect_lifecycle import Edge
    from tests.harness.base import Harness

LEASE = timedelta(seconds=60)
OVER = timedelta(seconds=61)
DELAY = timedelta(minutes=7)


@pytest.mark.promise("E26", "E35")
@pytest.mark.parametrize("edge", SETTLING, ids=lambda edge: edge.name)
def test_each_edge_writes_what_the_table_says(harness: Harness, edge: Edge) -> None:
    (effect_id,) = materialize(harness.acme, 1, now=harness.now())
    claim(harness.acme, 1, LEASE)
    harness.advance(OVER)
    held = claim(harness.acme, 1, LEASE)
    before, earliest = harness.row(effect_id), harness.now()
    settlement = by_edge(edge, DELAY)
    assert harness.acme.effects.settle(held, {effect_id: settlement}).owned == {effect_id}
    after, latest = harness.row(effect_id), harness.now()
    spent = before["attempts"] + (1 if edge.attempts is Attempts.SPEND else 0)
    assert (after["state"], after["attempts"], after["claims"]) == (edge.target.value, spent, before["claims"])
    assert after["claim_id"] == held.claim_id
    assert earliest <= after["updated_at"] <= latest
    match edge.not_before:
        case NotBefore.DELAY:
            assert earliest + DELAY <= after["not_before"] <= latest + DELAY
        case _:
            assert after["not_before"] == before["not_before"]
    assert after["runs_alone"] is (edge.runs_alone is not Flag.CLEAR)
    assert isinstance(after.get("done_at"), datetime) is (edge.done_at is Flag.SET)
    assert isinstance(after.get("waiting_since"), datetime) is (edge.waiting is Flag.SET)
    assert after.get("outcome") == (settlement.outcome or None)
    assert after.get("last_error") == (settlement.error or None)
    untouched = set(before) - {
        "state",
        "attempts",
        "not_before",
        "updated_at",
        "runs_alone",
        "done_at",
        "waiting_since",
    }
    assert {name: after[name] for name in untouched} == {name: before[name] for name in untouched}


@pytest.mark.promise("E33")
def test_waiting_since_keeps_the_first_time_a_bot_asked_to_be_retried_later(harness: Harness) -> None:
    (effect_id,) = materialize(harness.acme, 1, now=harness.now())
    first = claim(harness.acme, 1, LEASE)
    assert first.effects[0].waiting_since is None
    for _ in range(2):
        held = claim(harness.acme, 1, LEASE) if harness.row(effect_id)["state"] == "pending" else first
        harness.acme.effects.settle(held, {effect_id: by_edge(lifecycle.RETRY_LATER, timedelta(seconds=5))})
        harness.advance(timedelta(seconds=6))
    (effect,) = (last := claim(harness.acme, 1, LEASE)).effects
    assert effect.waiting_since is not None
    assert timedelta(seconds=12) <= last.claimed_at - effect.waiting_since < timedelta(seconds=17)
    assert (effect.attempts, effect.claims) == (0, 3)


@pytest.mark.promise("E26", "E35")
def test_a_batch_of_different_outcomes_is_settled_in_one_call(harness: Harness) -> None:
    written = materialize(harness.acme, len(SETTLING), now=harness.now())
    held = claim(harness.acme, 20, LEASE, "$worker")
    settlements = {
        effect_id: by_edge(edge, DELAY * number, f"$error{number}")
        for number, (effect_id, edge) in enumerate(zip(written, SETTLING, strict=True))
    }
    settled = harness.acme.effects.settle(held, settlements)
    assert settled == Settled(frozenset(written), frozenset())
    for effect_id, edge in zip(written, SETTLING, strict=True):
        row = harness.row(effect_id)
        assert row["state"] == edge.target.value
        # A text that looks like a field of the store's language is a text.
        assert row.get("last_error") == (settlements[effect_id].error or None)
        assert row["claimed_by"] == "$worker"
    assert harness.acme.effects.settle(held, {}).owned == set()


@pytest.mark.promise("E26")
@pytest.mark.scenario(8, 25)
@pytest.mark.parametrize("edge", SETTLING, ids=lambda edge: edge.name)
def test_a_stale_workers_late_settle_changes_nothing_and_is_counted(harness: Harness, edge: Edge) -> None:
    """Scenario 8: a recovery acts on a stale list. Scenario 25: what was finished meanwhile stays done."""
    running, finished = materialize(harness.acme, 2, now=harness.now())
    stale = claim(harness.acme, 10, LEASE)
    harness.advance(OVER)
    claim(harness.acme, 1, LEASE)
    second = claim(harness.acme, 1, LEASE)
    (last,) = ids_of(second)
    harness.acme.effects.settle(second, {last: done(run_record(harness.now(), result="new"))})
    before = harness.raw("trigger_effects"), harness.raw("runs")
    late = replace(by_edge(edge, DELAY), run=run_record(harness.now(), result="late"))
    settled = harness.acme.effects.settle(stale, dict.fromkeys((running, finished), late))
    assert settled == Settled(frozenset(), frozenset({running, finished}))
    rows, runs = harness.raw("trigger_effects"), harness.raw("runs", _id=last)
    assert rows == before[0]
    assert [run["result"] for run in runs] == ["new"]
    assert (harness.row(last)["claim_id"], harness.row(last)["state"]) == (second.claim_id, "done")


@pytest.mark.promise("E26")
@pytest.mark.parametrize("edge", [edge for edge in SETTLING if edge.target != "pending"], ids=lambda edge: edge.name)
def test_a_settle_whose_reply_was_lost_is_told_from_one_that_was_fenced_out(harness: Harness, edge: Edge) -> None:
    mine, theirs = materialize(harness.acme, 2, now=harness.now())
    held = claim(harness.acme, 10, LEASE)
    settlements = {mine: by_edge(edge), theirs: by_edge(edge)}
    assert harness.acme.effects.settle(held, {mine: settlements[mine]}).owned == {mine}
    before = harness.row(mine)
    harness.change("trigger_effects", theirs, claim_id="another")
    settled = harness.acme.effects.settle(held, settlements)
    assert settled == Settled(frozenset({mine}), frozenset({theirs}))
    assert harness.row(mine) == before


@pytest.mark.promise("E26")
def test_a_claim_needs_an_id(harness: Harness) -> None:
    now = harness.now()
    with pytest.raises(InvariantError):
        Claim(claim_id="", worker="w", effects=(), claimed_at=now, lease_ends=0.0, more=False)


@pytest.mark.promise("E26")
def test_a_row_that_was_released_or_retried_is_not_settled_by_the_same_claim_again(harness: Harness) -> None:
    released, retried = materialize(harness.acme, 2, now=harness.now())
    held = claim(harness.acme, 10, LEASE)
    harness.acme.effects.release(held, [released])
    harness.acme.effects.settle(held, {retried: by_edge(lifecycle.RETRY, DELAY)})
    settled = harness.acme.effects.settle(held, {released: done(), retried: done()})
    assert settled == Settled(frozenset(), frozenset({released, retried}))
    assert harness.acme.effects.counts() == {"pending": 2}


# --- run records ---


@pytest.mark.promise("E37")
def test_a_run_record_tells_what_a_launch_came_to(harness: Harness) -> None:
    (effect_id,) = materialize(harness.acme, 1, now=harness.now())
    held = claim(harness.acme, 1, LEASE)
    now = harness.now()
    harness.acme.effects.settle(held, {effect_id: done(run_record(now, result={"$n": [1, None]}))})
    run = harness.acme.effects.get(effect_id)["run"]
    expected = {
        "bot_id": "bot",
        "args": {"a": 1},
        "started_at": now,
        "finished_at": now,
        "result": {"$n": [1, None]},
        "error": None,
        "claims": 1,
        "claim_id": held.claim_id,
        "tenant_id": "acme",
    }
    assert {name: run[name] for name in expected} == expected


@pytest.mark.promise("E37")
def test_a_result_over_its_bound_is_not_kept_and_the_record_says_so(harness: Harness) -> None:
    first, second = materialize(harness.acme, 2, now=harness.now())
    held = claim(harness.acme, 2, LEASE)
    fits, too_long = "x" * (MAX_RESULT_BYTES - 2), "x" * MAX_RESULT_BYTES
    runs = {first: run_record(harness.now(), result=fits), second: run_record(harness.now(), result=too_long)}
    harness.acme.effects.settle(held, {effect_id: done(run) for effect_id, run in runs.items()})
    kept, dropped = (harness.acme.effects.get(effect_id)["run"] for effect_id in (first, second))
    assert (kept["result"], kept["result_dropped"]) == (fits, False)
    assert (dropped["result"], dropped["result_dropped"]) == (None, True)
    assert harness.acme.effects.finished_runs([first, second]) == {first, second}


@pytest.mark.promise("E26", "E37")
def test_a_run_record_is_written_by_a_newer_or_the_same_claim_alone(harness: Harness) -> None:
    (effect_id,) = materialize(harness.acme, 1, now=harness.now())
    effects = harness.acme.effects
    old = claim(harness.acme, 1, LEASE)

    def settle(held: Claim, result: str, edge: Edge = lifecycle.RETRY) -> None:
        run = run_record(harness.now(), result=result)
        effects.settle(held, {effect_id: replace(by_edge(edge), run=run)})

    def written() -> str:
        return str(harness.raw("runs", _id=effect_id)[0]["result"])

    settle(old, "old")
    assert written() == "old"
    settle(old, "old again")
    assert written() == "old again"
    new = claim(harness.acme, 1, LEASE)
    settle(new, "new", lifecycle.DONE)
    assert written() == "new"
    settle(old, "late")
    assert written() == "new"
    forged = replace(new, claim_id="another", effects=new.effects)
    settle(forged, "forged")
    assert written() == "new"


@pytest.mark.promise("E37")
def test_a_finished_run_is_known_whatever_became_of_its_row(harness: Harness) -> None:
    fine, failed, fresh = materialize(harness.acme, 3, now=harness.now())
    held = claim(harness.acme, 10, LEASE)
    now = harness.now()
    harness.acme.effects.settle(
        held,
        {
            fine: done(run_record(now)),
            failed: replace(by_edge(lifecycle.RETRY), run=run_record(now, error="boom")),
        },
    )
    assert harness.acme.effects.finished_runs([fine, failed, fresh, "acme|none|sub"]) == {fine}
    assert harness.acme.effects.finished_runs([]) == frozenset()


# --- inside a transaction ---


@pytest.mark.promise("E37")
def test_a_settle_inside_a_transaction_is_seen_exactly_if_it_commits(harness: Harness) -> None:
    (effect_id,) = materialize(harness.acme, 1, now=harness.now())
    held = claim(harness.acme, 1, LEASE)
    settlement = done(run_record(harness.now(), result=1))
    before = harness.row(effect_id)
    with harness.acme.transactions.begin() as transaction:
        harness.acme.effects.settle_in(transaction, held, effect_id, settlement)
        assert harness.row(effect_id) == before
    assert (harness.row(effect_id), harness.raw("runs")) == (before, [])
    with harness.acme.transactions.begin() as transaction:
        harness.acme.effects.settle_in(transaction, held, effect_id, settlement)
        transaction.commit()
    assert (harness.row(effect_id)["state"], harness.raw("runs")[0]["result"]) == ("done", 1)
    assert (harness.row(effect_id)["claim_id"], harness.row(effect_id)["state"]) == (held.claim_id, "done")


@pytest.mark.promise("E26", "E37")
@pytest.mark.parametrize("newer_run", [False, True])
def test_a_transaction_of_a_claim_that_lost_its_row_is_refused(harness: Harness, newer_run: bool) -> None:  # noqa: FBT001 - a case
    (effect_id,) = materialize(harness.acme, 1, now=harness.now())
    stale = claim(harness.acme, 1, LEASE)
    harness.advance(OVER)
    holder = claim(harness.acme, 1, LEASE)
    if newer_run:
        harness.acme.effects.settle(holder, {effect_id: done(run_record(harness.now(), result="new"))})
    before = harness.row(effect_id), harness.raw("runs")
    with harness.acme.transactions.begin() as transaction, pytest.raises(ClaimLostError):
        harness.acme.effects.settle_in(transaction, stale, effect_id, done(run_record(harness.now(), result="late")))
    assert (harness.row(effect_id), harness.raw("runs")) == before


# --- time to live ---


@pytest.mark.promise("E39")
@pytest.mark.scenario(16)
def test_done_rows_leave_after_a_week_and_live_and_failed_ones_never(harness: Harness) -> None:
    """Scenario 16: a purge runs while a row is in progress; the row stays."""
    finished, failed, working = materialize(harness.acme, 3, now=harness.now())
    held = claim(harness.acme, 10, LEASE)
    settlements = {finished: done(run_record(harness.now())), failed: by_edge(lifecycle.FAIL)}
    harness.acme.effects.settle(held, settlements)
    materialize(harness.acme, 1, now=harness.now(), first=9)
    harness.acme.effects.materialize([dead_event()], harness.now())
    # As forged or replayed by hand: a done time on rows that are not done.
    for effect_id in (failed, working, "acme|e9|sub"):
        harness.change("trigger_effects", effect_id, done_at=harness.now())
    harness.advance(DONE_TTL - timedelta(minutes=5))
    if harness.name == "memory":
        harness.expire_now()
        assert harness.row(finished)["state"] == "done"
    harness.advance(timedelta(minutes=6))
    harness.expire_now()
    left = {row["_id"]: row["state"] for row in harness.raw("trigger_effects")}
    assert left == {
        failed: "failed",
        working: "claimed",
        "acme|e9|sub": "pending",
        "acme|#event|broken": "failed",
    }
    assert len(harness.raw("runs")) == 1
