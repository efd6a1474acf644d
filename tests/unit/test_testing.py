"""What OutboxTest tells a test of one's own bots; the examples of docs/testing.md run elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from outbox_core import DefinitiveError, RetryLater
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import OutboxError
from outbox_core.domain.limits import Limits
from outbox_core.testing import OutboxTest, Ran

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.domain.bot import Run


def outbox_with(function: Callable[..., object], **more: object) -> OutboxTest:
    outbox = OutboxTest(bots={"act": function}, **more)  # type: ignore[arg-type] # passed on
    outbox.subscribe("orders", "act", types=["order"])
    return outbox


def test_nothing_runs_but_by_the_call_and_what_ran_is_returned() -> None:
    calls: list[str] = []

    def act(run: Run) -> dict[str, int]:
        calls.append(run.event.event_id)
        return {"n": len(calls)}

    outbox = outbox_with(act)
    appended = outbox.append(type="order")
    outbox.append(type="visitor")
    assert calls == []
    with pytest.raises(AssertionError, match="0 rows wait; undrained tenants: test"):
        outbox.assert_quiet()
    (ran,) = outbox.drain_and_run_all()
    assert calls == [appended.event_id]
    assert ran == Ran(
        effect_id=f"test|{appended.event_id}|orders",
        tenant="test",
        event_id=appended.event_id,
        kind="launch",
        sub_id="orders",
        bot_id="act",
        state="done",
        outcome="delivered",
        attempts=0,
        claims=1,
        error="",
        result={"n": 1},
        due=None,
    )
    assert outbox.drain_and_run_all() == []
    assert outbox.effect() == ran
    outbox.assert_quiet()


def test_time_moves_by_the_test_alone_and_only_forward() -> None:
    start = datetime(2031, 5, 6, 7, tzinfo=UTC)
    outbox = outbox_with(lambda _: None, start=start)
    outbox.append(type="order")
    outbox.drain_and_run_all()
    assert outbox.now == start
    outbox.advance(timedelta(days=1, seconds=1))
    assert outbox.now == start + timedelta(days=1, seconds=1)
    with pytest.raises(ValueError, match="time goes forward"):
        outbox.advance(timedelta(seconds=-1))


def test_a_failure_waits_through_its_backoff_and_parks_after_its_budget() -> None:
    def act(run: Run) -> None:
        times.append(outbox.now)
        raise ValueError(f"try {run.attempt}")

    times: list[datetime] = []
    outbox = outbox_with(act, limits=Limits(max_effect_attempts=4))
    outbox.append(type="order")
    (ran,) = outbox.drain_and_run_all()
    assert (ran.waits, ran.dead, ran.delivered, ran.error) == (True, False, False, "ValueError: try 1")
    outbox.advance(timedelta(seconds=14))
    assert outbox.drain_and_run_all() == []
    outbox.advance(timedelta(seconds=1))
    assert [ran.attempts for ran in outbox.drain_and_run_all()] == [2]
    (last,) = outbox.run_to_the_end()
    assert (last.dead, last.attempts, last.error) == (True, 4, "ValueError: try 4")
    assert [later - earlier for earlier, later in pairwise(times)] == [
        timedelta(seconds=seconds) for seconds in (15, 30, 60)
    ]
    assert outbox.dead_letters == [last]
    outbox.assert_dead("act", says="try 4")
    outbox.assert_quiet()


def test_run_to_the_end_says_what_still_waits_when_it_gives_up() -> None:
    def act(_: Run) -> None:
        raise RetryLater(timedelta(hours=20), "the shop is closed")

    outbox = outbox_with(act)
    outbox.append(type="order", event_id="1")
    with pytest.raises(AssertionError, match=r"still waiting after 10:00:00:\ntest\|1\|orders: .*the shop is closed"):
        outbox.run_to_the_end(within=timedelta(hours=10))


def test_a_bot_that_nobody_knows_leaves_its_row_waiting_and_says_so() -> None:
    outbox = outbox_with(lambda _: None)
    outbox.subscribe("unknown", "typo", types=["order"])
    outbox.append(type="order")
    outbox.drain_and_run_all()
    waits = outbox.effect(bot_id="typo")
    assert waits.waits
    assert waits.error == "this worker does not know the bot 'typo'"
    assert outbox.effect(sub_id="orders").delivered


def test_a_transactional_bots_append_is_there_exactly_if_it_did_not_raise() -> None:
    fails = [True, False]

    def act(run: Run) -> None:
        assert run.transaction is not None
        assert run.transaction.session is None
        run.transaction.append(type="invoice")
        if fails.pop(0):
            raise ValueError

    outbox = outbox_with(Bot(bot_id="act", function=act, transactional=True))  # type: ignore[arg-type] # a Bot as well
    outbox.append(type="order")
    outbox.drain_and_run_all()
    assert outbox.events("invoice") == []
    outbox.run_to_the_end()
    assert [event.attributes.type for event in outbox.events()] == ["order", "invoice"]


def test_what_a_bot_appends_runs_in_the_same_call_and_other_tenants_are_seen() -> None:
    def act(run: Run) -> None:
        if run.tenant == "test":
            outbox.outbox.append("second", type="order")

    outbox = outbox_with(act)
    outbox.outbox.subscribe("second", "orders", "act", types=["order"])
    outbox.append(type="order")
    assert [ran.tenant for ran in outbox.drain_and_run_all()] == ["test", "second"]
    outbox.assert_delivered("act", times=2)


def test_one_that_makes_work_without_end_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox_core.local._MOST_ROUNDS", 20)

    def act(_: Run) -> None:
        outbox.append(type="order")

    outbox = outbox_with(act)
    outbox.append(type="order")
    with pytest.raises(OutboxError, match="no end of work: "):
        outbox.drain_and_run_all()


def test_an_assertion_that_fails_lists_every_row() -> None:
    def act(run: Run) -> None:
        if run.event.event_id == "2":
            raise DefinitiveError("no address")

    outbox = outbox_with(act)
    with pytest.raises(AssertionError, match="one effect was expected, there are 0:\nthere is no effect"):
        outbox.effect()
    outbox.append(type="order", event_id="1")
    outbox.append(type="order", event_id="2")
    outbox.drain_and_run_all()
    both = r"\ntest\|1\|orders: act done delivered, 0 spent\ntest\|2\|orders: act failed , 1 spent, .*no address$"
    with pytest.raises(AssertionError, match=f"act delivered: 1 times, not 2{both}"):
        outbox.assert_delivered("act", times=2)
    with pytest.raises(AssertionError, match=f"act dead saying 'other': 0 times, not 1{both}"):
        outbox.assert_dead("act", says="other")
    with pytest.raises(AssertionError, match=f"there are 2:{both}"):
        outbox.effect()
