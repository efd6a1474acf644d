"""The timer that ends bots: whatever they are doing, never later, and without harm to the store's connections."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.adapters.mongo.client import connect
from outbox_core.adapters.mongo.interrupt import may_interrupt
from outbox_core.adapters.mongo.store import MongoStore
from outbox_core.adapters.system import SignalInterrupt, SystemClock, SystemEntropy
from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.append_events import append_events
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import BotOverstayedError
from outbox_core.domain.limits import Limits
from outbox_core.ports.hints import NoHints
from outbox_core.ports.runtime import Runtime
from tests.harness.examples import new_event, subscription
from tests.harness.surroundings import KnownBots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox_core.domain.bot import Run
    from outbox_core.embedded import EmbeddedMongo
    from outbox_core.ports.store import TenantStore

LIMIT = timedelta(milliseconds=300)


def spin() -> None:
    while True:
        pass


def sleep() -> None:
    time.sleep(30)


def wait_on_a_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def wait_on_a_lock() -> None:
    threading.Event().wait(30)


def swallow_every_exception() -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(30)


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """A handler of somebody else's, and what reached it."""
    heard: list[int] = []
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    try:
        yield heard
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


@pytest.mark.promise("E32")
@pytest.mark.parametrize("busy", [spin, sleep, wait_on_a_socket, wait_on_a_lock, swallow_every_exception])
def test_code_that_overstays_is_interrupted_whatever_it_does(busy: Callable[[], None]) -> None:
    began = time.monotonic()
    with pytest.raises(BotOverstayedError, match=r"^overstayed its limit of 0\.3s$"), SignalInterrupt().limit(LIMIT):
        busy()
    assert 0.25 < time.monotonic() - began < 3


@pytest.mark.promise("E32")
def test_nothing_is_raised_after_the_block_and_what_was_set_before_is_put_back(alarms: list[int]) -> None:
    mine = signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 0.6, 7)
    with SignalInterrupt().limit(timedelta(milliseconds=200)):
        pass
    assert signal.getsignal(signal.SIGALRM) is mine
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < left <= 0.6
    assert interval == pytest.approx(7)
    time.sleep(0.8)
    assert alarms == [signal.SIGALRM]


@pytest.mark.promise("E32")
def test_an_alarm_that_comes_as_the_block_ends_is_either_raised_within_it_or_not_at_all(alarms: list[int]) -> None:
    """Thousands of blocks as long as their limit: the timer never outlives one."""
    outcomes = {True: 0, False: 0}
    interrupt = SignalInterrupt()
    for step in range(4_000):
        duration = 0.000_02 + (step % 100) * 0.000_001
        overstayed = False
        try:
            with interrupt.limit(timedelta(seconds=duration)):
                until = time.perf_counter() + 0.000_05
                while time.perf_counter() < until:
                    pass
        except BotOverstayedError:
            overstayed = True
        outcomes[overstayed] += 1
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert outcomes[True] > 100, outcomes
    assert alarms == []


@pytest.mark.promise("E32")
def test_in_a_thread_that_is_not_the_main_one_the_block_does_nothing() -> None:
    ended: list[str] = []

    def work() -> None:
        with SignalInterrupt().limit(timedelta(milliseconds=10)):
            time.sleep(0.1)
        ended.append("by itself")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == ["by itself"]


@pytest.mark.promise("E32")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_the_process_passes(error: type[BaseException], alarms: list[int]) -> None:
    with pytest.raises(error), SignalInterrupt().limit(LIMIT):
        raise error
    time.sleep(0.4)
    assert alarms == []


class Deployment:
    """One tenant on a real database, worked in the test's main thread as a prefork child does."""

    def __init__(self, mongo: EmbeddedMongo, database: str, **limits: Any) -> None:  # noqa: ANN401 - limits by name
        self.limits = Limits(**{"effect_time_limit": LIMIT, "transactional_time_limit": LIMIT, **limits})
        clock, entropy = SystemClock(), SystemEntropy()
        self.database = connect(mongo.url, database, self.limits)
        store = MongoStore(self.database, self.limits, clock, entropy)
        store.maintenance.ensure_schema()
        self.tenant: TenantStore = store.tenant("acme")
        self.surroundings: dict[str, Any] = {
            "clock": clock,
            "entropy": entropy,
            "hints": NoHints(),
            "limits": self.limits,
        }

    def runtime(self, *bots: Bot) -> Runtime:
        return Runtime(
            **self.surroundings,
            bots=KnownBots({bot.bot_id: bot for bot in bots}),
            interrupt=SignalInterrupt(may_interrupt),
        )

    def owe(self, runtime: Runtime, bot_id: str, *event_ids: str) -> None:
        add_subscription(self.tenant, subscription(bot_id, bot_id=bot_id))
        append_events(self.tenant, runtime, [new_event(event_id) for event_id in event_ids])
        drain_tenant(self.tenant, runtime)

    def rows(self) -> list[dict[str, Any]]:
        return list(self.database["trigger_effects"].find().sort("_id", 1))

    def make_due(self) -> None:
        """Let the backoff pass."""
        self.database["trigger_effects"].update_many({"state": "pending"}, [{"$set": {"not_before": "$$NOW"}}])


@pytest.fixture
def deployment(mongo_server: EmbeddedMongo, database_name: str) -> Iterator[Deployment]:
    made = Deployment(mongo_server, database_name)
    yield made
    made.database.client.drop_database(database_name)
    made.database.client.close()


@pytest.mark.promise("E32")
def test_a_bot_that_never_returns_spends_its_attempts_and_parks_while_others_run(deployment: Deployment) -> None:
    ran: list[str] = []

    def bot(run: Run) -> None:
        ran.append(run.event.event_id)
        if run.event.event_id == "a":
            swallow_every_exception()

    runtime = deployment.runtime(Bot(bot_id="bot", function=bot))
    deployment.owe(runtime, "bot", "a", "b")
    for attempt in range(1, deployment.limits.max_effect_attempts + 1):
        run_slice(deployment.tenant, runtime)
        overstaying, other = deployment.rows()
        assert (overstaying["attempts"], overstaying["state"]) == (attempt, "failed" if attempt == 5 else "pending")
        assert overstaying["last_error"] == "overstayed its limit of 0.3s"
        assert (other["state"], other["attempts"]) == ("done", 0)
        deployment.make_due()
    run_slice(deployment.tenant, runtime)
    assert sorted(ran) == ["a"] * 5 + ["b"]
    record = deployment.tenant.effects.get(deployment.rows()[0]["_id"])["run"]
    assert record["error"] == "overstayed its limit of 0.3s"


@pytest.mark.promise("E32", "E37")
@pytest.mark.parametrize("where", ["between its writes", "inside the driver", "waiting for the server"])
def test_a_transactional_bot_that_overstays_leaves_nothing_and_no_broken_connection(
    deployment: Deployment, where: str
) -> None:
    overstay = [True]

    def bot(run: Run) -> str:
        transaction = run.transaction
        assert transaction is not None
        written, session = transaction.database["written"], transaction.session
        written.insert_one({"effect": run.effect_id}, session=session)
        transaction.append(type="follow-up")
        if overstay[0]:
            if where == "between its writes":
                spin()
            while where == "inside the driver":
                written.find_one({}, session=session)
            list(written.find({"$where": "sleep(20000) || true"}, session=session))
        return "done"

    deployment.database["written"].insert_one({"stands": "before"})
    runtime = deployment.runtime(Bot(bot_id="bot", function=bot, transactional=True))
    deployment.owe(runtime, "bot", "a", "b")
    run_slice(deployment.tenant, runtime)
    assert [(row["state"], row["attempts"]) for row in deployment.rows()] == [("pending", 1)] * 2
    assert {row["last_error"] for row in deployment.rows()} == {"overstayed its limit of 0.3s"}
    assert deployment.database["written"].count_documents({"effect": {"$exists": True}}) == 0
    overstay[0] = False
    deployment.make_due()
    for _ in range(3):  # On the same connections; the first may find the old transactions' locks going.
        run_slice(deployment.tenant, runtime)
        deployment.make_due()
    assert [(row["state"], row["attempts"]) for row in deployment.rows()] == [("done", 1)] * 2
    assert deployment.database["written"].count_documents({"effect": {"$exists": True}}) == 2
    assert deployment.database["board_events"].count_documents({"type": "follow-up"}) == 2


# Hypothesis, where another test of the process uses it, listens to the collector: an interrupt there comes again later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.promise("E32")
def test_answers_are_never_mixed_up_after_hundreds_of_interrupts_in_the_driver(deployment: Deployment) -> None:
    numbers = deployment.database["numbers"]
    numbers.insert_many([{"_id": number, "text": f"text {number}"} for number in range(200)])
    interrupt, interrupted = SignalInterrupt(may_interrupt), 0
    for step in range(300):
        try:
            with interrupt.limit(timedelta(milliseconds=0.5 + step % 30 / 10)):
                while True:
                    for number in range(200):
                        found = numbers.find_one({"_id": number})
                        assert found == {"_id": number, "text": f"text {number}"}
        except BotOverstayedError:
            interrupted += 1
    assert interrupted == 300
    assert [document["_id"] for document in numbers.find().sort("_id", 1)] == list(range(200))
