"""A three-member replica set whose primary steps down, is killed, or had what nobody else has."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import pytest
import redis
from pymongo.write_concern import WriteConcern

from outbox_core.adapters.mongo.client import connect
from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.append_events import append_events
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.run_in_transaction import run_in_transaction
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import TransientError
from outbox_core.domain.limits import Limits
from tests.acceptance.stack import running_stack
from tests.cluster.failpoints import failing, write_concern_error
from tests.cluster.proxy import Side
from tests.cluster.striker import Striker, listened
from tests.harness.base import ACME
from tests.harness.examples import claim, ids_of, materialize, new_event, subscription
from tests.harness.faults import with_calls
from tests.harness.on_mongo import MongoHarness
from tests.oracle import Evidence, Execution, Promise, Rule, database_reader, judge
from tests.simulation.play import append, cursor_of, drain_whole, rows_of, run_whole
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.bot import Run
    from outbox_core.domain.event import Event
    from outbox_core.embedded import EmbeddedRedis
    from outbox_core.ports.store import TenantStore
    from tests.acceptance.stack import Stack
    from tests.cluster.replica_set import Member, ReplicaSet

pytestmark = pytest.mark.slow

LIMITS = Limits(op_timeout=timedelta(seconds=1))
LEASE = timedelta(seconds=60)
ON_ITS_DISK = WriteConcern(w=1, j=True)
"""Without the journal a primary that is killed has nothing to roll back when it comes again."""


@pytest.fixture
def on_three(replica_set: ReplicaSet, database_name: str) -> Iterator[MongoHarness]:
    """The harness over the three members; whoever waits in it waits really, since elections take real time."""
    harness = MongoHarness(connect(replica_set.url, database_name, LIMITS), LIMITS)
    harness.local_clock.sleeps_really = True
    harness.store.maintenance.ensure_schema()
    yield harness
    harness.database.client.close()


def held_by(member: Member, harness: MongoHarness, collection: str, **equal: object) -> list[dict[str, Any]]:
    """Return the documents that one member has, whatever a majority holds."""
    return list(member.client[harness.database.name][collection].find(equal))


def in_a_free_slot(store: TenantStore) -> TenantStore:
    """Return the store with slots that are always free and write nothing: to take one needs a majority already."""
    return with_calls(store, "slots", take=lambda *_: "token", give_back=lambda *_: False, extend=lambda *_: True)


@pytest.mark.promise("E44")
def test_every_acknowledged_event_survives_a_killed_primary_and_is_there_once(
    replica_set: ReplicaSet, on_three: MongoHarness
) -> None:
    ran: list[Execution] = []
    store = on_three.acme
    runtime = on_three.runtime({"bot": lambda run: ran.append(Execution(effect_id=run.effect_id))})
    add_subscription(store, subscription("s"))
    acknowledged: list[str] = []
    over = threading.Event()

    def write(writer: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            append(store, runtime, f"w{writer}-{number}")
            acknowledged.append(f"w{writer}-{number}")

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, writer) for writer in range(4)]
        try:
            wait_until(lambda: len(acknowledged) >= 40, what="writers at work")
            killed = replica_set.kill_primary()
            before = len(acknowledged)
            replica_set.await_primary()
            wait_until(lambda: len(acknowledged) >= before + 40, 30, "writers at work on the new primary")
        finally:
            over.set()
        for writer in writers:
            writer.result()
    replica_set.restart(killed)
    replica_set.await_all_healthy()
    for member in replica_set.members:
        stored = [one["event_id"] for one in held_by(member, on_three, "board_events") if "void" not in one]
        assert sorted(stored) == sorted(acknowledged)
    # An allocation whose answer was lost leaves its number missing; a drain notes it down, and it comes of age.
    drain_tenant(store, runtime)
    on_three.advance(timedelta(seconds=36))
    drain_whole(store, runtime)
    run_whole(store, runtime)
    evidence = Evidence(
        tenant=ACME, rules=(Rule(sub_id="s"),), acknowledged=frozenset(acknowledged), executions=tuple(ran)
    )
    figures = judge(database_reader(on_three.database, ACME), evidence).require()
    assert (figures.events, figures.attempts) == (len(acknowledged), 0)


@pytest.mark.promise("E44", "E03", "E04")
def test_no_cursor_passes_an_event_that_a_failover_rolls_back_and_its_number_heals(
    replica_set: ReplicaSet, on_three: MongoHarness
) -> None:
    """Two writers have their numbers when the secondaries stop; one dies with the primary, the other sends again."""
    store, runtime = on_three.acme, on_three.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "before")
    drain_whole(store, runtime)
    (dead_number,) = store.log.allocate(1).seqs
    has_number, cut = threading.Event(), threading.Event()

    def insert_once_cut(events: Sequence[Event]) -> None:
        has_number.set()
        cut.wait(20)
        store.log.insert(events)

    living = with_calls(store, "log", insert=insert_once_cut)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(append_events, living, runtime, [new_event("resent")])
        assert has_number.wait(20)
        with replica_set.unreplicated() as primary:
            cut.set()
            doomed = primary.client[on_three.database.name].get_collection("board_events", write_concern=ON_ITS_DISK)
            wait_until(lambda: doomed.count_documents({"event_id": "resent"}), 10, "a write that no majority has")
            (template,) = held_by(primary, on_three, "board_events", event_id="resent")
            dead = {**template, "_id": f"{ACME}|dead", "event_id": "dead", "seq": dead_number}
            doomed.insert_one(dead)
            assert [one["seq"] for one in held_by(primary, on_three, "board_events")] == [1, 3, 2]
            assert store.log.read_after(1, 10) == []
            with pytest.raises(TransientError):
                drain_tenant(in_a_free_slot(store), runtime)
            assert {row["event_id"] for row in held_by(primary, on_three, "trigger_effects")} == {"before"}
            assert [one["seq"] for one in held_by(primary, on_three, "trigger_cursors")] == [1]
            rollbacks = primary.rollbacks()
            primary.kill()
        elected = replica_set.await_primary()
        assert held_by(elected, on_three, "board_events", event_id="dead") == []
        (appended,) = writing.result(30)
    assert (appended.seq, appended.duplicate) == (3, False)
    drain_tenant(store, runtime)
    assert cursor_of(on_three, ACME) == 1, "the number of the writer that died is missing, and not yet over age"
    on_three.advance(timedelta(seconds=36))
    drain_whole(store, runtime)
    assert cursor_of(on_three, ACME) == 3
    assert sorted(rows_of(on_three, ACME)) == ["before|s", "resent|s"]
    replica_set.restart(primary)
    replica_set.await_all_healthy()
    assert primary.rollbacks() > rollbacks, "the old primary had something to roll back"
    (filled,) = held_by(primary, on_three, "board_events", seq=dead_number)
    assert filled["void"] is True


class Answers:
    """A store on the three members, and a way to lose the answer to one of its commands by a step-down."""

    def __init__(self, replica_set: ReplicaSet, db_name: str) -> None:
        self._replica_set = replica_set
        self.striker = Striker()
        limits = Limits()
        self.harness = MongoHarness(listened(replica_set.url, db_name, self.striker, limits), limits)
        self.harness.local_clock.sleeps_really = True

    @contextmanager
    def lost(self, command: str, collection: str = "") -> Iterator[None]:
        """The next such command happens; its answer is cut off, the primary steps down before its sender goes on."""
        primary = self._replica_set.primary()
        stepped_down: list[Member] = []
        with primary.proxy.cutting(command, Side.REPLY, times=0) as cut:

            def place(_: str) -> None:
                cut.times = 1

            def step_down(_: str) -> None:
                stepped_down.append(self._replica_set.step_down())

            self.striker.strike(command, place, step_down, collection=collection)
            yield
        assert cut.struck == [command]
        assert stepped_down == [primary]
        assert self._replica_set.await_primary() is not primary


@pytest.fixture
def answers(replica_set: ReplicaSet, database_name: str) -> Iterator[Answers]:
    """A store whose answers may be lost."""
    lossy = Answers(replica_set, database_name)
    lossy.harness.store.maintenance.ensure_schema()
    yield lossy
    lossy.harness.database.client.close()


@pytest.mark.promise("E12", "E44")
@pytest.mark.scenario(45)
def test_rows_that_only_the_killed_primary_had_appear_again_since_the_cursor_had_not_moved(
    replica_set: ReplicaSet, answers: Answers
) -> None:
    """New rows: no write error, only a write-concern error; then the primary is killed: they are gone (measured).

    A drain that took that for success would move the cursor on the new primary, past what is not there.
    """
    harness = answers.harness
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", "b", "c")
    were_there: list[int] = []
    with replica_set.unreplicated() as primary:

        def fail_over(_: str) -> None:
            were_there.append(len(held_by(primary, harness, "trigger_effects")))
            primary.kill()
            replica_set.replicate()

        answers.striker.strike("insert", lambda _: None, fail_over, collection="trigger_effects")
        # The error comes at once, and the server waits for nobody: the rows are on the primary alone.
        with failing(primary.client, ["insert"], write_concern_error(64)), pytest.raises(TransientError):
            drain_tenant(in_a_free_slot(store), runtime)
    assert were_there == [3]
    elected = replica_set.await_primary()
    assert held_by(elected, harness, "trigger_effects") == []
    assert cursor_of(harness, ACME) == 0
    drain_whole(store, runtime)
    assert cursor_of(harness, ACME) == 3
    assert sorted(rows_of(harness, ACME)) == ["a|s", "b|s", "c|s"]


@pytest.mark.promise("E02", "E12", "E26", "E37", "E43", "E46")
@pytest.mark.scenario(34)
def test_each_answer_that_a_step_down_takes_is_found_out_on_the_new_primary(answers: Answers) -> None:
    """An append, rows, a claim, a settle and two commits have happened; whoever sent them is not told (measured)."""
    harness, ran = answers.harness, list[Execution]()
    store = harness.acme

    def plain(run: Run) -> None:
        ran.append(Execution(effect_id=run.effect_id, attempt=run.attempt))

    def transactional(run: Run) -> None:
        assert run.transaction is not None
        files = run.transaction.database["files"]
        files.insert_one({"tenant_id": ACME, "effect_id": run.effect_id}, session=run.transaction.session)

    runtime = harness.runtime(
        {"plain": plain, "whole": Bot(bot_id="whole", function=transactional, transactional=True)}
    )
    add_subscription(store, subscription("p", bot_id="plain", types=("thing",)))
    add_subscription(store, subscription("t", bot_id="whole", types=("paid",)))

    with answers.lost("insert", "board_events"):
        (first,) = append_events(store, runtime, [new_event("a")])
    assert (first.seq, first.duplicate) == (1, False)

    def body(transaction: OutboxTransaction) -> None:
        transaction.append_event(new_event("b"))

    with answers.lost("commitTransaction"):
        run_in_transaction(store, runtime, body)
    with answers.lost("insert", "trigger_effects"):
        drain_tenant(store, runtime)
    drain_whole(store, runtime)
    harness.change("tenant_slots", ACME, slice=[])
    harness.change("trigger_cursors", ACME, drain=[])

    with answers.lost("update", "trigger_effects"):
        held = claim(store, 10, LEASE)
    assert ids_of(held) == [f"{ACME}|a|p", f"{ACME}|b|p"]
    assert store.effects.release(held, ids_of(held)) == 2

    with answers.lost("insert", "runs"):
        report = run_slice(store, runtime)
    assert report is not None
    assert (report.settled, report.fenced_out) == (2, 0)

    append(store, runtime, "c", type="paid")
    drain_whole(store, runtime)
    harness.change("tenant_slots", ACME, slice=[])
    harness.change("trigger_cursors", ACME, drain=[])
    with answers.lost("commitTransaction"):
        # A slice that ends before its row's turn, on a busy machine, gives it back.
        run_whole(store, runtime)

    counted = harness.database["files"]
    rules = (
        Rule(sub_id="p", types=frozenset({"thing"})),
        Rule(
            sub_id="t",
            types=frozenset({"paid"}),
            promise=Promise.EXACTLY_ONCE,
            count=lambda effect_id: counted.count_documents({"effect_id": effect_id}),
        ),
    )
    evidence = Evidence(tenant=ACME, rules=rules, acknowledged=frozenset("abc"), executions=tuple(ran))
    figures = judge(database_reader(harness.database, ACME), evidence).require()
    assert (figures.effects, figures.attempts, figures.repeats) == ({"done:delivered": 3}, 0, 0)


@pytest.mark.promise("E43", "E44")
def test_a_claim_that_died_with_the_primary_holds_no_row_and_the_next_one_takes_them(
    replica_set: ReplicaSet, on_three: MongoHarness
) -> None:
    """The update is on the old primary alone, where a local read finds its rows."""
    store, clock = on_three.acme, on_three.local_clock
    ids = materialize(store, 3, now=on_three.now())
    with replica_set.unreplicated() as primary:
        claimed, pauses = list[int](), list[float]()

        def fail_over(seconds: float) -> None:
            """First comes the wait until the write is surely over, then the pause after a look that told nothing."""
            clock.advance(timedelta(seconds=seconds))
            pauses.append(seconds)
            if len(pauses) == 2:
                claimed.append(len(held_by(primary, on_three, "trigger_effects", state="claimed")))
                primary.kill()
                replica_set.replicate()

        clock.sleep = fail_over  # type: ignore[method-assign] # where the claim waits
        held = claim(store, 10, LEASE)
    assert claimed == [3]
    assert ids_of(held) == []
    assert ids_of(claim(store, 10, LEASE)) == ids


@pytest.fixture
def stack_on_three(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    replica_set: ReplicaSet,
    redis_server: EmbeddedRedis,
    database_name: str,
) -> Iterator[Stack]:
    """A deployment on the three members."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    # An operation that times out where three servers share a busy machine is no failover.
    patient = {"OUTBOX_OP_TIMEOUT": "3s", "OUTBOX_GAP_GRACE": "5s", "OUTBOX_EFFECT_LEASE": "16s"}
    with running_stack(
        tmp_path, monkeypatch, mongo_url=replica_set.url, broker_url=redis_server.url, database=database_name, **patient
    ) as stack:
        yield stack


class Load:
    """Appends an event every few milliseconds, and the same one again for as long as its answer is unclear."""

    def __init__(self, stack: Stack, tenant: str) -> None:
        self._stack = stack
        self._tenant = tenant
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._append)
        self._seen_done = 0
        self.acknowledged: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _append(self) -> None:
        number = 0
        while not self._over.wait(0.02):
            number += 1
            event_id = f"e{number}"
            while True:
                try:
                    self._stack.outbox.append(self._tenant, type="order", event_id=event_id)
                except TransientError:
                    continue
                self.acknowledged.append(event_id)
                break

    def goes_on(self, count: int = 10) -> None:
        """Wait until so many more are acknowledged, and so many more effects done."""
        appended, done = len(self.acknowledged) + count, self._done() + count
        wait_until(lambda: len(self.acknowledged) >= appended and self._done() >= done, 90, "work goes on")

    def _done(self) -> int:
        with suppress(TransientError):
            self._seen_done = self._stack.states(self._tenant).get("done:delivered", 0)
        return self._seen_done


def executions(stack: Stack) -> tuple[Execution, ...]:
    """Return what the bots noted down of themselves."""
    starts, ends = ([tuple(line.split()) for line in stack._lines(name)] for name in ("starts", "runs"))
    return tuple(
        Execution(effect_id=effect, attempt=int(attempt), actor=pid, ended=(effect, attempt, pid) in ends)
        for effect, attempt, pid in starts
    )


def waits(stack: Stack, tenant: str, moments: Mapping[str, datetime]) -> dict[str, float]:
    """Return the seconds from each moment to the next effect that was done."""
    done = sorted(row["done_at"] for row in stack.outbox.tenant(tenant).effects.list(limit=100_000))
    return {what: min((at - then).total_seconds() for at in done if at >= then) for what, then in moments.items()}


@pytest.mark.timeout(400)
@pytest.mark.promise("C07", "E44", "E37")
def test_a_primary_that_steps_down_is_killed_and_is_long_away_under_load_loses_and_doubles_nothing(
    stack_on_three: Stack, replica_set: ReplicaSet, record_property: Callable[[str, object], None]
) -> None:
    """Nor does it end a worker, nor spend an attempt, nor park a row."""
    stack, moments = stack_on_three, dict[str, datetime]()
    stack.subscribe("acme", "note-it", sub_id="noted")
    stack.subscribe("acme", "count-it", sub_id="counted")
    worker, beat = stack.worker(processes=2), stack.beat()
    with Load(stack, "acme") as load:
        load.goes_on()
        replica_set.step_down(hand_over=False)
        moments["step-down"] = datetime.now(UTC)
        load.goes_on()
        killed = replica_set.kill_primary()
        moments["kill"] = datetime.now(UTC)
        load.goes_on()
        others = replica_set.secondaries()
        for member in others:
            member.kill()
        time.sleep(4)  # An outage has a length: longer than an operation may take, and than the grace.
        moments["majority back"] = datetime.now(UTC)
        for member in [killed, *others]:
            replica_set.restart(member)
        load.goes_on()
    wait_until(lambda: stack.all_done("acme", 2 * len(load.acknowledged)), 60, "all rows done")

    assert [process.poll() for process in (worker, beat)] == [None, None]
    database = connect(replica_set.url, stack.outbox.settings.mongo_db, stack.outbox.settings.limits)
    seen = Counter(one["effect_id"] for one in database["counted"].find())
    rules = (
        Rule(sub_id="noted", repeats=1),
        Rule(sub_id="counted", promise=Promise.EXACTLY_ONCE, count=lambda effect_id: seen[effect_id]),
    )
    evidence = Evidence(
        tenant="acme", rules=rules, acknowledged=frozenset(load.acknowledged), executions=executions(stack)
    )
    figures = judge(database_reader(database, "acme"), evidence).require()
    database.client.close()
    record_property("figures", f"{figures}; {waits(stack, 'acme', moments)}")
    assert figures.attempts == 0
