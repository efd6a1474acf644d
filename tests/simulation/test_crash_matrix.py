"""The crash matrix on both stores: whatever dies, stalls or wakes wherever, the oracle finds every promise kept.

Every point of every play on the twin; on MongoDB, which takes its time, one point for each call of each play, and every
point with OUTBOX_CRASH_MATRIX=full.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from outbox_core.ports.maintenance import Maintenance
from tests.harness.faults import PORTS, When, port_methods
from tests.simulation.crash.every_play import PLAYS
from tests.simulation.crash.matrix import READS, Covered, Mode, MongoStage, Point, TwinStage, chosen, points_of, strike
from tests.simulation.crash.plays import MEMORY, MONGO, Play
from tests.simulation.crash.scene import RUN, SETTLE
from tests.simulation.crash.summary import note

if TYPE_CHECKING:
    from tests.harness.on_mongo import MongoHarness
    from tests.simulation.crash.matrix import Stage

FULL = os.environ.get("OUTBOX_CRASH_MATRIX") == "full"

FOR_PEOPLE = "for people: nothing is decided by it"
NOT_STRUCK = {
    "effects.next_due": FOR_PEOPLE,
    "effects.get": FOR_PEOPLE,
    "effects.list": FOR_PEOPLE,
    "effects.newest": FOR_PEOPLE,
    "effects.counts": FOR_PEOPLE,
    "subscriptions.all": FOR_PEOPLE,
    "boards.all": FOR_PEOPLE,
    "cards.listed": FOR_PEOPLE,
    "stream.floor": FOR_PEOPLE,
    "consumers.letter": FOR_PEOPLE,
    "consumers.lags": FOR_PEOPLE,
    "consumers.oldest_unacknowledged": FOR_PEOPLE,
    "audit.rows": FOR_PEOPLE,
    "maintenance.pending_schema": FOR_PEOPLE,
    "maintenance.now": "asked to warn of a process's wrong clock: no row hangs on it",
    "effects.is_due": "asked as the last of four slots falls free, to hint: a sweep covers it",
}
"""The reading calls that no play makes, and why that is right."""

REPEAT_POINTS = {
    f"{When.BEFORE.value} {RUN}",  # That of a neighbour in its batch, or of one who is about to begin.
    f"{When.AFTER.value} {RUN}",
    f"{When.BEFORE.value} {SETTLE}",
    # While a neighbour still runs, its heart renews and ends the slice.
    *(f"{when.value} {call}" for when in When for call in ("effects.renew", "effects.release", "slots.extend")),
}
"""Where a plain bot may be repeated: after it ended and before its settle landed, or while a stalled one was at it."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Of thousands of deaths the log tells thousands of lines, which would hide what a failure says."""
    caplog.set_level(logging.CRITICAL, "outbox")


@pytest.fixture(scope="module")
def twin_stage() -> TwinStage:
    """One for all plays: what a play begins with is made once."""
    return TwinStage()


def played(stage: Stage, play: Play, points: list[Point]) -> Covered:
    covered = Covered()
    for point in points:
        covered.add(point, strike(stage, play, point))
    unnamed = covered.repeated.keys() - REPEAT_POINTS
    assert not unnamed, f"{play.name}: repeated at a point that no promise names"
    return covered


def each(store: str) -> list[object]:
    return [
        # By this name a part of the suite can be chosen, as of those that have both stores in turn.
        pytest.param(play, id=f"{store}-{play.name}".replace(" ", "-"), marks=play.mark)
        for play in PLAYS
        if store in play.stores
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("play", each(MEMORY))
def test_who_dies_or_stalls_at_any_call_leaves_every_promise_kept_on_the_twin(
    request: pytest.FixtureRequest, twin_stage: TwinStage, play: Play
) -> None:
    covered = played(twin_stage, play, points_of(twin_stage, play))
    modes = [mode for mode in Mode if play.claims or mode is not Mode.FENCED]
    # What an operator does is one call or two.
    assert min(covered.points[mode.name.lower()] for mode in modes) >= (8 if play.watchers is None else 2)
    note(request, MEMORY, covered)


@pytest.mark.timeout(3_600 if FULL else 600)
@pytest.mark.parametrize("play", each(MONGO))
def test_who_dies_or_stalls_at_a_call_leaves_every_promise_kept_on_mongodb(
    request: pytest.FixtureRequest, mongo_harness: MongoHarness, play: Play
) -> None:
    stage = MongoStage(mongo_harness)
    points = points_of(stage, play)
    covered = played(stage, play, points if FULL else chosen(play, points))
    assert covered.points.total() >= (2 if play.watchers is None else 1)
    note(request, MONGO, covered)


@pytest.mark.parametrize("store", [MEMORY, MONGO])
def test_every_call_of_every_port_is_struck_or_says_why_not(
    request: pytest.FixtureRequest, store: str, twin_stage: TwinStage
) -> None:
    """The calls come from the Protocols: a new one that no play makes fails here, and counts as one that writes."""
    struck = set()
    for play in PLAYS:
        if store in play.stores:
            only_mongo = MEMORY not in play.stores
            stage: Stage = MongoStage(request.getfixturevalue("mongo_harness")) if only_mongo else twin_stage
            points = points_of(stage, play)
            struck |= {point.call for point in (points if store == MEMORY else chosen(play, points))}
    calls = {f"{port}.{name}" for port, protocol in PORTS.items() for name in port_methods(protocol)}
    calls |= {f"maintenance.{name}" for name in port_methods(Maintenance)} | {"transaction.commit"}
    if store == MEMORY:
        calls -= {"transactions.adopt"}  # The twin has no sessions.
    assert calls >= READS, "READS names a call that no port has"
    assert NOT_STRUCK.keys() <= READS, "only what writes nothing may be left out"
    assert calls - struck == NOT_STRUCK.keys()


@pytest.mark.parametrize("call", sorted({"effects.settle", "progress.commit", "log.insert"}))
def test_a_play_that_is_not_the_same_each_time_is_told_and_not_passed_over(twin_stage: TwinStage, call: str) -> None:
    with pytest.raises(AssertionError, match="not the same each time"):
        strike(twin_stage, PLAYS[0], Point(1_000, call, When.AFTER, Mode.ALONE))
