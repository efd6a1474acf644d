"""Local mode: what an append calls for has run when it returns, in one process, without services."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import outbox_core.local
from outbox_core import Outbox, RetryLater, bot, projector
from outbox_core.adapters.memory.clock import MemoryClock
from outbox_core.bots import projectors, registry
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import ConfigurationError, InvalidInputError, OutboxError
from outbox_core.local import LocalOutbox, choose_bots

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.domain.bot import Run
    from outbox_core.domain.projector import Projection


def local(
    function: Callable[..., object], *, transactional: bool = False, clock: MemoryClock | None = None
) -> LocalOutbox:
    """Return one with a rule that launches the function for each order."""
    outbox = LocalOutbox(bots={"act": Bot(bot_id="act", function=function, transactional=transactional)}, clock=clock)
    outbox.subscribe("acme", "orders", "act", types=["order"])
    return outbox


def test_an_append_returns_when_what_it_called_for_has_run_in_the_calling_thread() -> None:
    ran: list[tuple[str, int]] = []
    outbox = Outbox.local(bots={"act": lambda run: ran.append((run.event.event_id, threading.get_ident()))})
    outbox.subscribe("acme", "orders", "act", types=["order"])
    outbox.append("acme", type="order", event_id="1")
    assert ran == [("1", threading.get_ident())]
    outbox.append("acme", type="order", event_id="1")
    outbox.append("acme", type="order", event_id="2")
    outbox.append("acme", type="visitor")
    assert [event_id for event_id, _ in ran] == ["1", "2"]
    assert outbox.tenant("acme").effects.counts() == {"done:delivered": 2}
    outbox.settle_all()
    assert len(ran) == 2


def test_what_a_bot_appends_is_worked_when_the_bot_is_done_and_before_the_first_append_returns() -> None:
    said: list[str] = []

    def act(run: Run) -> None:
        number = int(run.event.event_id)
        said.append(f"{number} begins")
        if number < 3:
            outbox.append("acme", type="order", event_id=str(number + 1))
        outbox.settle_all()
        said.append(f"{number} ends")

    outbox = local(act)
    outbox.append("acme", type="order", event_id="1")
    assert said == ["1 begins", "1 ends", "2 begins", "2 ends", "3 begins", "3 ends"]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_row_that_fails_is_tried_again_by_settle_all_once_it_is_due(transactional: bool) -> None:  # noqa: FBT001 - a parameter
    tries: list[int] = []
    clock = MemoryClock(frozen=True)

    def act(run: Run) -> None:
        tries.append(run.attempt)
        if transactional:
            assert run.transaction is not None
            run.transaction.append(type="tried")
        if len(tries) == 1:
            raise ValueError
        if len(tries) == 2:
            raise RetryLater(timedelta(hours=3))

    outbox = local(act, transactional=transactional, clock=clock)
    outbox.append("acme", type="order")
    outbox.settle_all()
    assert tries == [1]
    clock.advance(timedelta(seconds=20))
    outbox.settle_all()
    assert tries == [1, 2]
    clock.advance(timedelta(hours=3))
    outbox.settle_all()
    assert tries == [1, 2, 2]
    assert outbox.tenant("acme").effects.counts() == {"done:delivered": 1}
    assert outbox.tenant("acme").log.head().last_seq == (2 if transactional else 1)


def test_an_append_in_a_transaction_calls_for_nothing_before_its_commit() -> None:
    ran: list[str] = []
    outbox = local(lambda run: ran.append(run.event.event_id))

    def body(transaction: object) -> None:
        transaction.append(type="order", event_id="1")  # type: ignore[attr-defined] # an OutboxTransaction
        assert ran == []

    outbox.run_in_transaction("acme", body)
    assert ran == ["1"]


def test_many_threads_lose_no_event_and_run_none_twice() -> None:
    ran: list[str] = []
    outbox = local(lambda run: ran.append(run.event.event_id))

    def append(thread: int) -> None:
        for number in range(25):
            outbox.append("acme", type="order", event_id=f"{thread}-{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(8)))
    assert sorted(ran) == sorted(f"{thread}-{number}" for thread in range(8) for number in range(25))
    assert outbox.tenant("acme").effects.counts() == {"done:delivered": 200}


def test_settle_all_waits_for_another_thread_that_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, begun, waits = threading.Event(), threading.Event(), threading.Event()

    def act(_: Run) -> None:
        begun.set()
        assert ends.wait(10)

    outbox = local(act)
    free = outbox._turns._free
    wait_for = free.wait_for

    def waiting(condition: Callable[[], bool]) -> bool:
        waits.set()
        return wait_for(condition)

    monkeypatch.setattr(free, "wait_for", waiting)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(outbox.append, "acme", type="order", event_id="1")
        assert begun.wait(10)
        # It does not wait: the first thread does it.
        assert pool.submit(outbox.append, "acme", type="order", event_id="2").result(10).seq == 2
        settles = pool.submit(outbox.settle_all)
        assert waits.wait(10)
        assert not first.done()
        assert not settles.done()
        ends.set()
        settles.result(10)
    assert outbox.tenant("acme").effects.counts() == {"done:delivered": 2}


def test_one_that_makes_work_as_fast_as_it_is_done_is_left_and_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox_core.local, "_MOST_TURNS", 20)
    monkeypatch.setattr(outbox_core.local, "_MOST_ROUNDS", 20)

    def act(_: Run) -> None:
        outbox.append("acme", type="order")

    outbox = local(act)
    with caplog.at_level(logging.ERROR):
        outbox.append("acme", type="order")
    assert ["20 turns in one go" in record.getMessage() for record in caplog.records] == [True]
    assert outbox.tenant("acme").log.head().last_seq in range(5, 22)
    with pytest.raises(OutboxError, match="as fast as it is done"):
        outbox.settle_all()


def test_an_interrupt_from_the_keyboard_leaves_the_outbox_usable() -> None:
    ran: list[str] = []

    def act(run: Run) -> None:
        ran.append(run.event.event_id)
        if len(ran) == 1:
            raise KeyboardInterrupt

    outbox = local(act)
    with pytest.raises(KeyboardInterrupt):
        outbox.append("acme", type="order", event_id="1")
    outbox.append("acme", type="order", event_id="2")
    outbox.settle_all()
    # The first row is claimed until its lease is over.
    assert ran == ["1", "2"]


@pytest.mark.promise("E36", "E22")
def test_boards_work_on_it_with_their_one_shots_and_projections() -> None:
    ran: list[str] = []
    moved: list[tuple[str, str]] = []
    outbox = Outbox.local(
        bots={"act": lambda run: ran.append(run.event.attributes.subject)},
        projectors={"mirror": lambda move: moved.append((move.target, move.event.attributes.snapshot.state))},
    )
    outbox.subscribe("acme", "go", "act", sources=["board"], labels=["go"], consume_labels=["go"])
    outbox.subscribe("acme", "stamp", "act", sources=["board"], labels=["kept"], mode="board")
    boards = outbox.boards("acme")
    boards.create_board("b", ["todo", "doing"])
    boards.bind("b", "mirror", "their board")
    boards.create_card("b", "a card", card_id="c", labels=["go", "kept"])
    boards.move_card("c", "doing")
    assert ran == ["c"]
    assert moved[-1] == ("their board", "doing")
    assert boards.card("c").labels == ("kept",)
    assert boards.card("c").bot == "act"
    boards.label_card("c", add=["go"])
    assert ran == ["c", "c"]
    with pytest.raises(InvalidInputError, match="consume_labels takes a list of texts"):
        outbox.subscribe("acme", "letters", "act", sources=["board"], labels=["go"], consume_labels="go")


def test_a_session_is_refused_by_name() -> None:
    outbox = local(lambda _: None)
    with pytest.raises(InvalidInputError, match="the in-memory store takes none"):
        outbox.append("acme", session=object(), type="order")
    assert outbox.tenant("acme").log.head().last_seq == 0


def test_a_function_that_is_registered_keeps_its_declaration() -> None:
    def act(_: Run) -> None: ...

    bot("local-registered", transactional=True)(act)
    try:
        (listed,) = choose_bots([act])
        (named,) = choose_bots({"local-registered": act})
        (stand_in,) = choose_bots({"other": act})
    finally:
        del registry._bots["local-registered"]
    assert listed.transactional
    assert named.transactional
    assert (stand_in.bot_id, stand_in.transactional) == ("other", False)
    assert choose_bots(None) is registry


@pytest.mark.promise("O06")
def test_what_is_no_bot_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigurationError, match="is not registered; decorate it with @bot"):
        Outbox.local(bots=[print])
    with pytest.raises(ConfigurationError, match="'act': 7 is no function"):
        Outbox.local(bots={"act": 7})  # type: ignore[arg-type] # what is refused
    with pytest.raises(ConfigurationError, match="bots: takes a list of bots"):
        Outbox.local(bots=print)  # type: ignore[arg-type] # what is refused


@pytest.mark.promise("O06")
def test_what_is_no_projector_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigurationError, match="is not registered; decorate it with @projector"):
        Outbox.local(projectors=[print])
    with pytest.raises(ConfigurationError, match="'page': 7 is no function"):
        Outbox.local(projectors={"page": 7})  # type: ignore[arg-type] # what is refused
    with pytest.raises(ConfigurationError, match="projectors: takes a list"):
        Outbox.local(projectors=print)  # type: ignore[arg-type] # what is refused


def test_projectors_are_given_as_a_list_of_registered_functions_as_bots_are() -> None:
    seen: list[tuple[str, str]] = []

    def page(move: Projection) -> None:
        seen.append((move.target, move.event.attributes.snapshot.state))

    try:
        projector("local-page")(page)
        outbox = Outbox.local(bots=[], projectors=[page])
    finally:
        projectors._projectors.pop("local-page", None)
    boards = outbox.boards("acme")
    boards.create_board("b", ["todo", "done"])
    boards.bind("b", "local-page", "there")
    boards.create_card("b", "A card", card_id="c")
    boards.move_card("c", "done")
    assert seen == [("there", "done")]
    with pytest.raises(InvalidInputError, match="limit must be a number from 1 to 10,000, not -1"):
        boards.cards("b", limit=-1)


def test_several_events_are_appended_by_the_keywords_of_append_in_one_block_of_numbers() -> None:
    outbox = Outbox.local(bots=[])
    first, again, second = outbox.append_many(
        "acme",
        [{"type": "order", "event_id": "1"}, {"type": "order", "event_id": "1"}, {"type": "order", "subject": "17"}],
    )
    assert (first.seq, again.seq) == (1, 1)
    assert second.seq > first.seq
    with pytest.raises(InvalidInputError, match="events: 'colour' is no word of an event; use type, action"):
        outbox.append_many("acme", [{"type": "order"}, {"type": "order", "colour": "red"}])
    with pytest.raises(InvalidInputError, match="events: takes dicts of what append takes, not 'type'"):
        outbox.append_many("acme", {"type": "order"})  # type: ignore[dict-item] # what is refused
    with pytest.raises(InvalidInputError, match="a source and a type"):
        outbox.append_many("acme", [{"type": "order"}, {"type": ""}])
    assert outbox.tenant("acme").log.head().last_seq == second.seq


def test_the_environment_of_a_deployment_does_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_MONGO_URL", "nonsense")
    monkeypatch.setenv("OUTBOX_GITHUB_SECRET", "secret")
    assert Outbox.local().settings.github_secret is None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_a_bot_forks_begins_empty_and_idle_and_the_parent_keeps_what_it_has() -> None:
    ran: list[str] = []
    statuses: list[int] = []

    def act(run: Run) -> None:
        ran.append(run.event.event_id)
        if len(ran) == 1:
            child = os.fork()
            if child == 0:
                outbox.subscribe("acme", "orders", "act", types=["order"])
                first = outbox.append("acme", type="order", event_id="of-the-child").seq == 1
                os._exit(0 if first and ran == ["1", "of-the-child"] else 1)
            statuses.append(os.waitpid(child, 0)[1])

    outbox = local(act)
    outbox.append("acme", type="order", event_id="1")
    assert statuses == [0]
    assert outbox.append("acme", type="order", event_id="2").seq == 2
    assert ran == ["1", "2"]
