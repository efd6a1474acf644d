"""Each command of a whole play is struck by each fault; nothing is lost or doubled, and no attempt is spent.

The commands are counted, not listed: one undisturbed play tells how many there are. The driver retries nothing here, so
that what reaches the product is each fault by itself. OUTBOX_TEST_FAULTS=all strikes each command with each fault; by
default some commands meet some of them, and every write of rows loses its answer.
"""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient, common

from outbox_core.adapters.mongo.store import MongoStore
from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.append_events import append_events
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.offer_drains import offer_drains
from outbox_core.application.offer_slices import offer_slices
from outbox_core.application.repair_undrained import repair_undrained
from outbox_core.application.run_in_transaction import run_in_transaction
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.board import Card
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import TransientError
from outbox_core.domain.limits import Limits
from tests.cluster.failpoints import NETWORK_ERROR, Placed, failing, refused, write_concern_error
from tests.cluster.proxy import Cut, Proxy, ProxyThread, Side
from tests.cluster.striker import Sent, Striker, listened
from tests.harness.base import ACME
from tests.harness.examples import new_event, subscription
from tests.harness.on_mongo import MongoDatabases, MongoHarness
from tests.oracle import Evidence, Execution, Promise, Rule, database_reader, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pymongo.database import Database

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.bot import Run
    from outbox_core.embedded import EmbeddedMongo

WHOLE = os.environ.get("OUTBOX_TEST_FAULTS") == "all"

FAILS_ON_PURPOSE = 1
"""The one attempt that a bot of the play spends; a fault of the store spends none."""

REPLY_LOST = "its answer is lost"
CUT_BEFORE = "its connection is cut before it arrives"
FAULTS: dict[str, dict[str, Any] | Side] = {
    REPLY_LOST: Side.REPLY,
    CUT_BEFORE: Side.REQUEST,
    "network error": NETWORK_ERROR,
    "no primary (10107)": refused(10107),
    "stepped down (189)": refused(189),
    "interrupted by a change of state (11602)": refused(11602),
    "host unreachable (6)": refused(6),
    "time limit (262)": refused(262),
    "time limit (50)": refused(50),
    "an error that nobody knows (9999)": refused(9999),
    "no majority in time (64)": write_concern_error(64),
    "done, then shut down (91)": write_concern_error(91),
}


@dataclass(frozen=True, slots=True)
class Bench:
    """A server behind a proxy, the product's handle through it, and one past it."""

    server: MongoClient[dict[str, Any]]
    proxy: Proxy
    striker: Striker
    through: Database[dict[str, Any]]
    databases: MongoDatabases


@pytest.fixture(scope="module")
def bench(mongo_server: EmbeddedMongo) -> Iterator[Bench]:
    """A driver that looks at its server again at once: by itself it waits for half a second after each error."""
    with ExitStack() as ends:
        patched = ends.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.005)
        thread = ends.enter_context(ProxyThread())
        proxy = Proxy(thread, lambda: mongo_server.port)
        ends.callback(proxy.close)
        name = f"faults_{uuid.uuid4().hex}"
        databases = MongoDatabases(mongo_server.url, name)
        ends.callback(databases.close)
        striker, limits = Striker(), Limits()
        # One member, asked by its proxy's address: with directConnection the driver does not go by the set's own.
        url = f"mongodb://{proxy.address}/?directConnection=true&serverMonitoringMode=poll"
        database = listened(url, name, striker, limits, retries=False)
        ends.callback(database.client.close)
        server: MongoClient[dict[str, Any]] = ends.enter_context(MongoClient(mongo_server.url, appname="test"))
        yield Bench(server, proxy, striker, database, databases)


class Play:
    """Everything once: appends, a transaction, ticks, drains, slices of five bots, one told to stop in the middle."""

    def __init__(self, bench: Bench) -> None:
        self.harness = MongoHarness(bench.databases.empty())
        # What the product sends goes by the faults, what the test does goes past them.
        store = MongoStore(bench.through, self.harness.limits, self.harness.clock, self.harness.entropy)
        self.harness.store = store
        self.executions: list[Execution] = []
        self.acknowledged: list[str] = []
        self.raised: list[TransientError] = []
        self._stops_after = 3
        bots: dict[str, Bot | Callable[..., object]] = {
            "plain": self._plain,
            "fails-once": self._fails_once,
            "whole": Bot(bot_id="whole", function=self._whole, transactional=True),
        }
        self.store = self.harness.acme
        self.runtime = self.harness.runtime(bots, claim_batch=4)
        self.stopping = self.harness.runtime(bots, claim_batch=4, stopping=self._told_to_stop)

    def _told_to_stop(self) -> bool:
        self._stops_after -= 1
        return self._stops_after < 0

    def _plain(self, run: Run) -> None:
        self.executions.append(Execution(effect_id=run.effect_id, attempt=run.attempt))

    def _fails_once(self, run: Run) -> None:
        failed = run.attempt == 1
        self.executions.append(Execution(effect_id=run.effect_id, attempt=run.attempt, failed=failed))
        if failed:
            raise ValueError

    def _whole(self, run: Run) -> None:
        assert run.transaction is not None
        files = run.transaction.database["files"]
        files.insert_one({"tenant_id": ACME, "effect_id": run.effect_id}, session=run.transaction.session)
        run.transaction.append(type="filed", event_id=f"filed-{run.event.event_id}")

    def prepare(self) -> None:
        """Set up what is there before the faults."""
        store = self.store
        add_subscription(store, subscription("p", bot_id="plain", types=("thing",)))
        add_subscription(store, subscription("f", bot_id="fails-once", types=("flaky",)))
        add_subscription(store, subscription("t", bot_id="whole", types=("paid",)))
        add_subscription(
            store, subscription("once", bot_id="plain", sources=("board",), labels=("go",), consume_labels=("go",))
        )
        with store.transactions.begin() as transaction:
            store.cards.put(Card(tenant_id=ACME, card_id="c1", labels=("go", "keep"), version=0), transaction)
            transaction.commit()

    def again(self, call: Callable[[], object]) -> None:
        """Call until it answers, as a caller or the next tick does; nothing but TransientError may come."""
        for _ in range(5):
            try:
                call()
            except TransientError as error:
                self.raised.append(error)
                # What is held by an end that nobody heard of is over.
                self.harness.advance(timedelta(seconds=31))
            else:
                return
        raise AssertionError(f"it does not heal: {self.raised}")

    def play(self) -> None:
        """Play all of it once."""
        store, runtime = self.store, self.runtime
        self.append(new_event("a1"), new_event("a2"), new_event("f1", type="flaky"), new_event("a3"))
        self.append(new_event("t1", type="paid"), new_event("t2", type="paid"))
        self.append(new_event("l1", type="labeled", source="board", subject="c1", labels=("go",)))
        self.again(lambda: run_in_transaction(store, runtime, self._in_transaction))
        self.acknowledged.append("x1")
        self.again(lambda: repair_undrained(self.harness.store, runtime))
        self.again(lambda: offer_drains(self.harness.store, runtime))
        self.harness.change("trigger_cursors", ACME, drain=[])
        self.again(lambda: drain_tenant(store, runtime))
        self.again(lambda: offer_slices(self.harness.store, runtime))
        self.harness.change("tenant_slots", ACME, slice=[])
        self.again(lambda: run_slice(store, self.stopping))
        for _ in range(4):
            self.again(lambda: run_slice(store, runtime))

    def append(self, *events: Any) -> None:  # noqa: ANN401 - new events
        self.again(lambda: append_events(self.store, self.runtime, events))
        self.acknowledged += [event.event_id for event in events]

    @staticmethod
    def _in_transaction(transaction: OutboxTransaction) -> None:
        transaction.append_event(new_event("x1"))

    def rest(self) -> None:
        """Let ticks come and time pass until nothing is owed."""
        for _ in range(20):
            repair_undrained(self.harness.store, self.runtime)
            drain_tenant(self.store, self.runtime)
            report = run_slice(self.store, self.runtime)
            (counter,) = self.harness.raw("event_sequences")
            if (
                counter["undrained"] is False
                and report is not None
                and not report.more
                and self.store.effects.next_due() is None
            ):
                return
            self.harness.advance(timedelta(seconds=36))
        raise AssertionError("it does not come to rest")

    def judge(self) -> int:
        """Let the oracle judge; return how many attempts were spent."""
        files = self.harness.database["files"]
        rules = (
            Rule(sub_id="p", types=frozenset({"thing"})),
            Rule(sub_id="f", types=frozenset({"flaky"})),
            Rule(sub_id="once", types=frozenset({"labeled"})),
            Rule(
                sub_id="t",
                types=frozenset({"paid"}),
                promise=Promise.EXACTLY_ONCE,
                count=lambda effect_id: files.count_documents({"effect_id": effect_id}),
            ),
        )
        evidence = Evidence(
            tenant=ACME,
            rules=rules,
            acknowledged=frozenset(self.acknowledged),
            bots_append=frozenset({"filed"}),
            executions=tuple(self.executions),
        )
        figures = judge(database_reader(self.harness.database, ACME), evidence).require()
        assert figures.events == 10
        assert self.store.cards.get("c1").labels == ("keep",)
        return figures.attempts


def undisturbed(bench: Bench) -> list[Sent]:
    """Play once without a fault; return the commands."""
    play = Play(bench)
    play.prepare()
    bench.striker.strike(0, lambda _: None)
    play.play()
    sent = list(bench.striker.sent)
    assert play.raised == []
    play.rest()
    assert play.judge() == FAILS_ON_PURPOSE
    return sent


def points_of(sent: Sequence[Sent]) -> list[tuple[int, str]]:
    """Return which command meets which fault: a part of them, in turn; on demand, each meets all that it can.

    Every write of rows loses its answer: a claim, a settle or a release that is not found again waits for its lease.
    """
    points: list[tuple[int, str]] = []
    for number, command in enumerate(sent, start=1):
        fit = [said for said, fault in FAULTS.items() if command.durable or not is_of_writes(fault)]
        if WHOLE:
            points += [(number, said) for said in fit]
        elif command.durable and command.collection == "trigger_effects":
            points.append((number, REPLY_LOST))
        elif number % (6 if command.reads else 3) == 0:
            points.append((number, fit[len(points) % len(fit)]))
    return points


def is_of_writes(fault: dict[str, Any] | Side) -> bool:
    """Say whether only a write that waits for a majority can suffer this."""
    return isinstance(fault, dict) and "writeConcernError" in fault


def struck(bench: Bench, number: int, fault: dict[str, Any] | Side) -> Play | None:
    """Play with one fault at one command, then to rest; None where this play, on a busy machine, sent fewer."""
    play = Play(bench)
    play.prepare()
    cuts, placed = list[Cut](), list[Placed]()
    with ExitStack() as ends:

        def place(command: str) -> None:
            if isinstance(fault, Side):
                cuts.append(ends.enter_context(bench.proxy.cutting(command, fault)))
            else:
                # Without the labels that the server would add, nobody but the product can tell that it may try again.
                placed.append(ends.enter_context(failing(bench.server, [command], {**fault, "errorLabels": []})))

        bench.striker.strike(number, place)
        play.play()
        reached = bool(bench.striker.struck)
        bench.striker.strike(0, lambda _: None)
    if not reached:
        return None
    assert sum(len(cut.struck) for cut in cuts) + sum(point.hits for point in placed) == 1, "the fault struck"
    play.rest()
    return play


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.promise("E10", "E12", "E14", "E26", "E36", "E37", "E43", "E46")
def test_each_fault_at_each_command_of_a_whole_play_raises_transient_or_heals_and_loses_and_doubles_nothing(
    bench: Bench, record_property: Callable[[str, object], None]
) -> None:
    sent = undisturbed(bench)
    points, broken, raised, unreached = points_of(sent), list[str](), 0, 0
    for number, said in points:
        where = f"command {number}, {sent[number - 1].name} {sent[number - 1].collection}, {said}"
        try:
            play = struck(bench, number, FAULTS[said])
            if play is None:
                unreached += 1
                continue
            # What a bot's own write meets, and nobody knows as passing, is its own error.
            allowed = FAILS_ON_PURPOSE + (sent[number - 1].collection == "files")
            if (attempts := play.judge()) > allowed:
                broken.append(f"{where}: {attempts} attempts were spent")
        except Exception as error:  # noqa: BLE001 - every point is told, whatever went wrong at one
            broken.append(f"{where}: {type(error).__name__}: {error}"[:1_000])
        else:
            raised += bool(play.raised)
    record_property("points", f"{len(points)} faults at {len(sent)} commands; {raised} were raised, the others healed")
    assert broken == []
    assert unreached <= len(points) / 5
