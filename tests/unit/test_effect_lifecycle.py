"""The state machine of an effect: the table itself, and which edge an outcome takes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.effect import (
    DELIVERED,
    Delivered,
    Dropped,
    DropReason,
    Effect,
    Failed,
    Hung,
    Outcome,
    PassedOver,
    Postponed,
    Refused,
    RunRecord,
    Settlement,
    bounded,
    settlement,
)
from outbox_core.domain.effect_lifecycle import EDGES, LIVE, Attempts, Edge, Fence, Flag, Guard, NotBefore, State
from outbox_core.domain.limits import MAX_ERROR_CHARS, Limits
from tests.harness.examples import attributes

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LIMITS = Limits()


def _effect(*, attempts: int = 0, waited: timedelta = timedelta(0), asked: datetime | None = None) -> Effect:
    return Effect(
        effect_id="acme|e1|sub",
        owner="acme",
        tenant_id="acme",
        seq=1,
        event_id="e1",
        kind="launch",
        attributes=attributes(),
        sub_id="sub",
        bot_id="bot",
        attempts=attempts,
        claims=attempts + 1,
        due_at=NOW,
        created_at=NOW - waited,
        waiting_since=asked,
        trace={},
    )


def _settle(outcome: Outcome, effect: Effect | None = None, jitter: float = 1.0) -> Settlement:
    return settlement(effect or _effect(), outcome, NOW, LIMITS, jitter)


# --- the table ---


def test_each_edge_has_a_name_of_its_own_and_stands_in_the_list() -> None:
    constants = {value.name for value in vars(lifecycle).values() if isinstance(value, Edge)}
    names = [edge.name for edge in EDGES]
    assert len(set(names)) == len(names)
    assert set(names) == constants


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.name)
@pytest.mark.parametrize(
    "holds",
    [
        lambda e: e.fence is not Fence.HOLD or e.sources == (State.CLAIMED,),
        lambda e: e.fence is not Fence.MINT or (e.target is State.CLAIMED and e.not_before is NotBefore.LEASE),
        lambda e: e.target is not State.CLAIMED or e.not_before is NotBefore.LEASE or e.sources == (State.CLAIMED,),
        lambda e: (e.done_at is Flag.SET) == (e.target is State.DONE),
        lambda e: e.done_at is not Flag.CLEAR,
        lambda e: State.DONE not in e.sources,
        lambda e: e.target in LIVE or not e.sources or e.not_before is NotBefore.KEEP,
        lambda e: (
            not (e.target is State.PENDING and e.sources) or e.not_before in {NotBefore.DELAY, NotBefore.GIVEN_BACK}
        ),
        lambda e: (e.guard is Guard.LEASE_OVER) <= (e.attempts is Attempts.SPEND and e.runs_alone is Flag.SET),
        lambda e: e.fence is not Fence.NONE or not e.sources or e.guard is Guard.MALFORMED,
        lambda e: e.promise.startswith("E"),
    ],
    ids=[
        "only a claim holds a fence",
        "a fresh claim has a lease",
        "whatever becomes claimed has a lease",
        "done rows alone get a done time",
        "no row loses one here",
        "done is final",
        "a settled row keeps its due time",
        "a row that comes back has a due time",
        "a reclaim spends a try and runs alone",
        "only what is malformed moves without a fence",
        "each edge serves a promise",
    ],
)
def test_every_edge_is_legal(edge: Edge, holds: Callable[[Edge], bool]) -> None:
    assert holds(edge)


@pytest.mark.promise("E33", "E28")
def test_attempts_are_spent_by_a_lost_lease_and_by_failure_alone() -> None:
    spending = {edge.name for edge in EDGES if edge.attempts is Attempts.SPEND}
    assert spending == {"reclaim", "retry", "fail"}


def test_the_diagram_shows_each_edge_from_each_of_its_states() -> None:
    lines = lifecycle.diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    for edge in EDGES:
        for source in edge.sources or ("[*]",):
            start = f"    {source} --> {edge.target}: {edge.name}"
            assert sum(line == start or line.startswith(start + " ") for line in lines[1:]) == 1
    assert len(lines) - 1 == sum(max(1, len(edge.sources)) for edge in EDGES)


# --- from outcome to edge ---


@pytest.mark.promise("E35")
def test_a_delivered_effect_is_done_and_says_so() -> None:
    run = RunRecord(bot_id="bot", args={}, started_at=NOW, finished_at=NOW)
    assert _settle(Delivered(run)) == Settlement(edge=lifecycle.DONE, outcome=DELIVERED, run=run)
    assert _settle(Delivered(None)).run is None


@pytest.mark.promise("E35", "E34")
@pytest.mark.parametrize("reason", DropReason)
def test_a_dropped_effect_is_done_with_its_reason(reason: DropReason) -> None:
    assert _settle(Dropped(reason)) == Settlement(edge=lifecycle.DROP, outcome=reason.value)
    assert reason.value != DELIVERED


@pytest.mark.promise("E33")
@pytest.mark.parametrize(("attempts", "seconds"), [(0, 15), (1, 30), (2, 60), (3, 120)])
@pytest.mark.parametrize("jitter", [0.8, 1.0, 1.2])
def test_the_backoff_doubles_and_varies_by_a_fifth(attempts: int, seconds: int, jitter: float) -> None:
    settled = _settle(Failed("boom"), _effect(attempts=attempts), jitter)
    assert settled.edge is lifecycle.RETRY
    assert settled.delay == timedelta(seconds=seconds) * jitter
    assert settled.error == "boom"


@pytest.mark.promise("E33")
def test_the_backoff_has_a_cap() -> None:
    patient = Limits(max_effect_attempts=20)
    settled = settlement(_effect(attempts=15), Failed("boom"), NOW, patient, 1.0)
    assert settled.delay == timedelta(minutes=10)


@pytest.mark.promise("E33")
def test_the_fifth_failure_parks() -> None:
    edges = [_settle(Failed("boom"), _effect(attempts=attempts)).edge for attempts in range(6)]
    assert edges == [lifecycle.RETRY] * 4 + [lifecycle.FAIL] * 2


@pytest.mark.promise("E33")
def test_a_definitive_failure_parks_at_once_with_its_run() -> None:
    run = RunRecord(bot_id="bot", args={}, started_at=NOW, finished_at=NOW, error="gone")
    assert _settle(Failed("gone", definitive=True, run=run)) == Settlement(edge=lifecycle.FAIL, error="gone", run=run)


@pytest.mark.promise("E33")
@pytest.mark.scenario(13)
def test_a_bot_that_asks_to_be_retried_later_is_heard_for_a_day_and_no_longer() -> None:
    """Scenario 13: the dependency of every bot is down for an hour; rows are not all parked by it."""
    later = Postponed(timedelta(hours=1), "down")
    first = _settle(later)
    assert (first.edge, first.delay) == (lifecycle.RETRY_LATER, timedelta(hours=1))
    almost = _settle(later, _effect(attempts=4, asked=NOW - timedelta(hours=23, minutes=30)))
    assert (almost.edge, almost.delay) == (lifecycle.RETRY_LATER, timedelta(minutes=30))
    over = _settle(later, _effect(asked=NOW - timedelta(hours=24)))
    assert over.edge is lifecycle.FAIL
    assert "down" in over.error
    assert _settle(Postponed(timedelta(days=9), "down")).delay == timedelta(hours=24)


@pytest.mark.promise("E23")
@pytest.mark.parametrize(
    ("waited", "delay"),
    [
        (timedelta(0), timedelta(seconds=15)),
        (timedelta(seconds=-5), timedelta(seconds=15)),
        (timedelta(minutes=3), timedelta(minutes=3)),
        (timedelta(hours=3), timedelta(minutes=10)),
    ],
)
@pytest.mark.scenario(15, 26)
def test_what_this_worker_does_not_know_is_passed_over_for_as_long_as_it_has_waited(
    waited: timedelta, delay: timedelta
) -> None:
    """Scenarios 15 and 26: an old worker meets a new kind; left alone, no attempt spent."""
    settled = _settle(PassedOver("unknown bot"), _effect(waited=waited))
    assert (settled.edge, settled.delay) == (lifecycle.PASS_OVER, delay)


@pytest.mark.promise("E24", "E29")
def test_another_tenants_row_is_refused_and_a_hung_one_parked() -> None:
    assert _settle(Refused("another tenant's")).edge is lifecycle.REFUSE
    hung = _settle(Hung(), _effect(attempts=5))
    assert hung.edge is lifecycle.PARK_HUNG
    assert "6 times" in hung.error


@pytest.mark.promise("E33")
@pytest.mark.parametrize(
    "outcome",
    [
        Failed("x" * 9_000),
        Failed("x" * 9_000, definitive=True),
        Postponed(timedelta(hours=1), "x" * 9_000),
        Refused("x" * 9_000),
        PassedOver("x" * 9_000),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_no_error_text_is_longer_than_its_bound(outcome: Outcome) -> None:
    assert len(_settle(outcome).error) == MAX_ERROR_CHARS
    assert bounded("short") == "short"
