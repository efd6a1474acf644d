"""What the server or the way to it does wrong, placed by its own fail points."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.errors import AutoReconnect

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.append_events import append_events
from outbox_core.application.drain_tenant import Step, drain_tenant
from outbox_core.application.run_in_transaction import run_in_transaction
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import InvalidInputError, TransientError
from outbox_core.domain.identity import join_key
from tests.harness.base import ACME
from tests.harness.examples import claim, ids_of, materialize, new_event, subscription
from tests.integration.test_query_plans import profiled
from tests.simulation.play import append, cursor_of, drain, drain_whole, rows_of, run_whole, until_all_settled
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.bot import Run
    from tests.harness.on_mongo import MongoHarness

LEASE = timedelta(seconds=60)

WRITE_CONCERN_ERROR = {"writeConcernError": {"code": 64, "errmsg": "placed by a test"}}
"""The write happens; its answer says that it reached no majority."""

STEPPED_DOWN = {"writeConcernError": {"code": 189, "errmsg": "placed by a test"}}
"""The write happens; its answer says that the primary is none any more."""

LOST_BEFORE = {"closeConnection": True}
"""The connection closes before the command is looked at."""


@contextmanager
def failing(harness: MongoHarness, command: str, times: int, data: dict[str, Any]) -> Iterator[None]:
    admin = harness.database.client.admin
    settings = {"failCommands": [command], **data}
    admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=settings)
    try:
        yield
    finally:
        admin.command("configureFailPoint", "failCommand", mode="off")


@pytest.mark.promise("E43")
@pytest.mark.scenario(34)
def test_rows_of_a_claim_whose_answer_was_an_error_are_found_by_its_claim_id(mongo_harness: MongoHarness) -> None:
    """The update_many claimed, then a step-down took its answer."""
    ids = materialize(mongo_harness.acme, 5, now=mongo_harness.now())
    with failing(mongo_harness, "update", 1, STEPPED_DOWN):
        held = claim(mongo_harness.acme, 10, LEASE)
    assert ids_of(held) == ids


@pytest.mark.promise("E43")
def test_the_rows_of_an_unclear_claim_are_looked_for_once_a_majority_holds_what_the_primary_does(
    mongo_harness: MongoHarness,
) -> None:
    """A majority read does not wait: with both secondaries 8 s behind it found none of five rows that were claimed."""
    materialize(mongo_harness.acme, 5, now=mongo_harness.now())
    commands: list[dict[str, Any]] = []
    with profiled(mongo_harness.database, commands), failing(mongo_harness, "update", 1, WRITE_CONCERN_ERROR):
        claim(mongo_harness.acme, 10, LEASE)
    done = [one for one in commands if one["ns"].endswith("trigger_effects")]
    levels = [one.get("readConcern", {}).get("level") for one in done if one["op"] == "query"]
    assert levels == ["majority", "linearizable", "majority"]


@pytest.mark.promise("E43")
def test_a_claim_that_never_reached_the_server_leaves_its_rows_to_the_next_one(mongo_harness: MongoHarness) -> None:
    ids = materialize(mongo_harness.acme, 5, now=mongo_harness.now())
    with failing(mongo_harness, "update", 1, LOST_BEFORE):
        assert ids_of(claim(mongo_harness.acme, 10, LEASE)) == []
    assert ids_of(claim(mongo_harness.acme, 10, LEASE)) == ids


@pytest.mark.promise("E43")
@pytest.mark.scenario(51)
@pytest.mark.parametrize(("lands_after", "lands"), [(2.0, 3), (3.5, 0)])
def test_no_row_of_a_claim_that_lands_late_waits_for_its_lease(
    mongo_harness: MongoHarness, monkeypatch: pytest.MonkeyPatch, lands_after: float, lands: int
) -> None:
    """The client gives up; the write begins at the server after that. Too late for its own cutoff, it is void."""
    ids = materialize(mongo_harness.acme, 3, now=mongo_harness.now())
    store = mongo_harness.acme
    rows = store.effects._rows  # type: ignore[attr-defined] # the fault is placed inside the adapter
    landed: list[int] = []

    class Late:
        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method of a collection
            return getattr(rows, name)

        def update_many(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
            def land() -> None:
                time.sleep(lands_after)
                landed.append(rows.update_many(*args, **kwargs).modified_count)

            threading.Thread(target=land).start()
            raise AutoReconnect

    monkeypatch.setattr(store.effects, "_rows", Late())
    mongo_harness.local_clock.sleeps_really = True
    held = claim(store, 10, LEASE)
    assert landed == [lands]
    assert ids_of(held) == (ids if lands else [])
    assert {row["state"] for row in mongo_harness.raw("trigger_effects")} == {"claimed" if lands else "pending"}


@pytest.mark.promise("E12", "E10")
def test_a_write_concern_error_on_rows_is_never_taken_for_success(mongo_harness: MongoHarness) -> None:
    """No write error, only a write-concern error: the rows are there now, and a failover may remove them."""
    store, runtime = mongo_harness.acme, mongo_harness.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", "b")
    for new in (True, False):
        assert bool(rows_of(mongo_harness, ACME)) is not new
        with failing(mongo_harness, "insert", 1, WRITE_CONCERN_ERROR), pytest.raises(TransientError):
            drain_tenant(store, runtime)
        assert cursor_of(mongo_harness, ACME) == 0
    drain_whole(store, runtime)
    assert sorted(rows_of(mongo_harness, ACME)) == ["a|s", "b|s"]
    assert cursor_of(mongo_harness, ACME) == 2


@pytest.mark.promise("E12")
@pytest.mark.parametrize("data", [LOST_BEFORE, STEPPED_DOWN, {"errorCode": 189}, {"errorCode": 11600}])
def test_a_drain_in_a_network_error_or_a_step_down_completes_then_or_at_the_next_tick(
    mongo_harness: MongoHarness, data: dict[str, Any]
) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    # The driver may send a retryable write again by itself; where it gives up the cursor has not moved.
    with failing(mongo_harness, "insert", 2, data):
        try:
            drain_tenant(store, runtime)
        except TransientError:
            assert cursor_of(mongo_harness, ACME) == 0
    drain_whole(store, runtime)
    assert sorted(rows_of(mongo_harness, ACME)) == ["a|s"]
    assert cursor_of(mongo_harness, ACME) == 1


@pytest.mark.promise("E46")
@pytest.mark.scenario(47)
@pytest.mark.parametrize("command", ["insert", "findAndModify"])
@pytest.mark.parametrize("data", [WRITE_CONCERN_ERROR, LOST_BEFORE, {"errorCode": 189}])
def test_a_writer_that_lost_its_answer_has_one_event(
    mongo_harness: MongoHarness, command: str, data: dict[str, Any]
) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime()
    with failing(mongo_harness, command, 3, data):
        (first,) = append_events(store, runtime, [new_event("a")])
    (again,) = append_events(store, runtime, [new_event("a")])
    assert (again.seq, again.duplicate) == (first.seq, True)
    (stored,) = mongo_harness.raw("board_events", event_id="a")
    assert stored["seq"] == first.seq


@pytest.mark.promise("E46", "E01")
def test_writers_with_unclear_answers_have_each_event_once(mongo_harness: MongoHarness) -> None:
    """Eight writers, every third answer lost: each event once, under a number of its own."""
    store, runtime = mongo_harness.acme, mongo_harness.runtime()
    admin = mongo_harness.database.client.admin
    settings = {"failCommands": ["insert"], **WRITE_CONCERN_ERROR}
    admin.command("configureFailPoint", "failCommand", mode={"activationProbability": 0.33}, data=settings)

    def write(writer: int) -> None:
        for number in range(25):
            append(store, runtime, f"w{writer}-{number}")

    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
    finally:
        admin.command("configureFailPoint", "failCommand", mode="off")
    events = [event for event in mongo_harness.raw("board_events") if "void" not in event]
    assert len(events) == 200
    assert len({event["seq"] for event in events}) == 200


@pytest.mark.promise("E26")
@pytest.mark.parametrize("data", [WRITE_CONCERN_ERROR, LOST_BEFORE, {"errorCode": 189}])
def test_a_settle_in_trouble_is_sent_again_and_counts_what_is_ours(
    mongo_harness: MongoHarness, data: dict[str, Any]
) -> None:
    store, runs = mongo_harness.acme, Counter[str]()

    def bot(run: Run) -> None:
        runs[run.effect_id] += 1
        if len(runs) == 3:
            admin.command("configureFailPoint", "failCommand", mode={"times": 2}, data=settings)

    admin, settings = mongo_harness.database.client.admin, {"failCommands": ["update"], **data}
    runtime = mongo_harness.runtime({"bot": bot})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", "b", "c")
    drain_whole(store, runtime)
    report = run_slice(store, runtime)
    admin.command("configureFailPoint", "failCommand", mode="off")
    assert report is not None
    assert (report.settled, report.fenced_out) == (3, 0)
    assert {row["state"] for row in mongo_harness.raw("trigger_effects")} == {"done"}
    assert set(runs.values()) == {1}


@pytest.mark.promise("E37")
@pytest.mark.parametrize("lost", [1, 2])
def test_a_transactional_launch_whose_commit_answer_is_lost_happens_once(
    mongo_harness: MongoHarness, lost: int
) -> None:
    """The commit alone is sent again, never the body."""
    store, bodies = mongo_harness.acme, []

    def bot(run: Run) -> None:
        assert run.transaction is not None
        bodies.append(run.attempt)
        files = run.transaction.database["files"]
        files.insert_one({"tenant_id": ACME}, session=run.transaction.session)

    runtime = mongo_harness.runtime({"bot": Bot(bot_id="bot", function=bot, transactional=True)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    drain_whole(store, runtime)
    with failing(mongo_harness, "commitTransaction", lost, WRITE_CONCERN_ERROR):
        run_whole(store, runtime)
    until_all_settled(mongo_harness, store, runtime)
    assert len(mongo_harness.raw("files")) == 1
    assert bodies == [1]
    assert mongo_harness.row(join_key(ACME, "a", "s"))["outcome"] == "delivered"


@pytest.mark.promise("E46")
def test_a_long_list_that_is_appended_again_is_told_apart_in_commands_of_bounded_size(
    mongo_harness: MongoHarness,
) -> None:
    """60,000 duplicates in one command outlast the operation time-out, each time."""
    events = [new_event(f"e{number}") for number in range(2_500)]
    first = append_events(mongo_harness.acme, mongo_harness.runtime(), events)
    commands: list[dict[str, Any]] = []
    with profiled(mongo_harness.database, commands):
        again = append_events(mongo_harness.acme, mongo_harness.runtime(), [*events, new_event("fresh")])
    assert [appended.seq for appended in again[:-1]] == [appended.seq for appended in first]
    assert [appended.duplicate for appended in again] == [True] * 2_500 + [False]
    tried = [one for one in commands if one["op"] == "insert" and one["ns"].endswith("board_events")]
    assert 3 <= len(tried) <= 6
    assert max(one["responseLength"] for one in tried) < 300_000


@pytest.mark.promise("E37")
@pytest.mark.parametrize("ending", ["abort_transaction", "commit_transaction", "end_session"])
def test_a_bot_that_ends_its_transaction_itself_is_not_done_and_says_so(
    mongo_harness: MongoHarness, ending: str
) -> None:
    """What is written under its session then stands alone: a done mark beside writes that were undone."""
    store = mongo_harness.acme

    def bot(run: Run) -> None:
        assert run.transaction is not None
        files = run.transaction.database["files"]
        files.insert_one({"tenant_id": ACME}, session=run.transaction.session)
        run.transaction.append(type="filed", event_id="filed")
        getattr(run.transaction.session, ending)()

    runtime = mongo_harness.runtime({"bot": Bot(bot_id="bot", function=bot, transactional=True)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    drain_whole(store, runtime)
    run_whole(store, runtime)
    row = mongo_harness.row(join_key(ACME, "a", "s"))
    assert row["state"] == "failed"
    assert "ended by its own body" in row["last_error"]
    assert store.log.find(["filed"]) == {}


@pytest.mark.promise("E02")
@pytest.mark.parametrize("appends", [True, False])
def test_a_body_that_aborts_its_transaction_itself_is_refused_and_leaves_no_event(
    mongo_harness: MongoHarness, *, appends: bool
) -> None:
    store = mongo_harness.acme

    def body(transaction: OutboxTransaction) -> None:
        transaction.database["files"].insert_one({"tenant_id": ACME}, session=transaction.session)
        if appends:
            transaction.append(type="filed", event_id="filed")
        transaction.session.abort_transaction()

    with pytest.raises(InvalidInputError, match="ended by its own body"):
        run_in_transaction(store, mongo_harness.runtime(), body)
    assert store.log.find(["filed"]) == {}
    assert mongo_harness.raw("files") == []


@pytest.mark.promise("E37")
@pytest.mark.scenario(63)
def test_forty_transactional_effects_on_one_document_are_all_done_and_none_pays(mongo_harness: MongoHarness) -> None:
    store = mongo_harness.acme
    counters = mongo_harness.database["counters"]
    counters.insert_one({"_id": "card", "count": 0})

    def bot(run: Run) -> None:
        assert run.transaction is not None
        session = run.transaction.session
        found = run.transaction.database["counters"].find_one({"_id": "card"}, session=session)
        raised = {"$set": {"count": found["count"] + 1}}
        run.transaction.database["counters"].update_one({"_id": "card"}, raised, session=session)

    runtime = mongo_harness.runtime(
        {"bot": Bot(bot_id="bot", function=bot, transactional=True)}, claim_batch=5, slice_time=timedelta(seconds=3)
    )
    add_subscription(store, subscription("s"))
    append(store, runtime, *(f"e{number}" for number in range(40)))
    drain_whole(store, runtime)
    mongo_harness.change("tenant_slots", ACME, slice=[])
    for _ in range(10):
        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(run_slice, store, runtime)
        mongo_harness.advance(timedelta(seconds=31))
        if store.effects.next_due() is None:
            break
    rows = mongo_harness.raw("trigger_effects")
    assert {row["state"] for row in rows} == {"done"}
    assert {row["attempts"] for row in rows} == {0}
    assert counters.find_one({"_id": "card"})["count"] == 40  # type: ignore[index] # it is there


def beat(harness: MongoHarness) -> None:
    """Let a third of a lease pass for this process, and wait until its heart has beaten."""

    def ends() -> list[Any]:
        (slots,) = harness.raw("tenant_slots", _id=ACME)
        return [slot["until"] for slot in slots["slice"]]

    before = ends()
    harness.local_clock.advance(timedelta(seconds=20))
    wait_until(lambda: ends() != before, what="a beat of the heart")


@pytest.mark.promise("E37")
@pytest.mark.scenario(50)
def test_a_transactional_bot_that_outlasts_three_renewals_commits_once(mongo_harness: MongoHarness) -> None:
    """A renewal of its own row would undo it: its lease is set for the whole run before, and the heart leaves it."""
    store = mongo_harness.acme

    def bot(run: Run) -> None:
        assert run.transaction is not None
        files = run.transaction.database["files"]
        files.insert_one({"tenant_id": ACME}, session=run.transaction.session)
        for _ in range(3):
            beat(mongo_harness)

    runtime = mongo_harness.runtime({"bot": Bot(bot_id="bot", function=bot, transactional=True)})
    add_subscription(store, subscription("s"))
    append(store, runtime, "a")
    drain_whole(store, runtime)
    run_slice(store, runtime)
    row = mongo_harness.row(join_key(ACME, "a", "s"))
    assert (row["state"], row["claims"], len(mongo_harness.raw("files"))) == ("done", 1, 1)


@pytest.mark.promise("E02")
def test_events_of_transactions_that_conflict_are_numbered_as_they_commit_and_an_abort_fills_at_once(
    mongo_harness: MongoHarness,
) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime()
    counters = mongo_harness.database["counters"]
    counters.insert_one({"_id": "shared", "count": 0})
    mongo_harness.local_clock.sleeps_really = True

    def body(transaction: OutboxTransaction) -> None:
        shared = transaction.database["counters"]
        now = shared.find_one_and_update(
            {"_id": "shared"}, {"$inc": {"count": 1}}, session=transaction.session, return_document=True
        )
        transaction.append(type="counted", data={"count": now["count"]})

    def write(_: int) -> None:
        for _ in range(5):
            run_in_transaction(store, runtime, body)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    events = [event for event in mongo_harness.raw("board_events") if "void" not in event]
    in_order = [event["data"]["count"] for event in sorted(events, key=lambda event: event["seq"])]
    assert in_order == list(range(1, 31))
    # Every number that an undone try took is filled already: no grace is waited for.
    assert drain_whole(store, runtime).step is Step.CAUGHT_UP
    assert cursor_of(mongo_harness, ACME) == store.log.head().last_seq


@pytest.mark.promise("E02")
def test_an_appended_id_that_exists_is_left_out_and_one_that_races_past_the_look_runs_the_body_again(
    mongo_harness: MongoHarness,
) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime()
    append(store, runtime, "known")
    bodies = []

    def body(transaction: OutboxTransaction) -> OutboxTransaction:
        bodies.append(1)
        transaction.database["notes"].insert_one({"tenant_id": ACME}, session=transaction.session)
        transaction.append_event(new_event("known"))
        transaction.append_event(new_event("raced"))
        if len(bodies) == 1:
            found = store.log.find

            def find_then_race(event_ids: Any) -> Any:  # noqa: ANN401 - as the port
                answer = found(event_ids)
                append(mongo_harness.acme, runtime, "raced")
                return answer

            object.__setattr__(transaction._store, "log", _With(store.log, find=find_then_race))
        else:
            object.__setattr__(transaction._store, "log", log)
        return transaction

    log = store.log
    published = run_in_transaction(store, runtime, body).published
    assert len(bodies) == 2
    assert {event_id: seen.duplicate for event_id, seen in published.items()} == {"known": True, "raced": True}
    assert len(mongo_harness.raw("notes")) == 1
    assert drain(store, runtime).step is Step.CAUGHT_UP


class _With:
    """A port with one call replaced."""

    def __init__(self, port: object, **calls: Callable[..., object]) -> None:
        self._port = port
        self.__dict__.update(calls)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any call of the port
        return getattr(self._port, name)


@pytest.mark.promise("E02", "E12", "E43")
def test_every_write_is_journaled_on_a_majority_and_no_log_or_read_back_trusts_a_local_read(
    mongo_harness: MongoHarness,
) -> None:
    store = mongo_harness.acme
    bots = {"bot": Bot(bot_id="bot", function=lambda run: run.transaction.append(type="done"), transactional=True)}
    runtime = mongo_harness.runtime(bots)
    found: list[dict[str, Any]] = []
    with profiled(mongo_harness.database, found):
        add_subscription(store, subscription("s", types=("thing",)))
        append(store, runtime, "a")
        drain_whole(store, runtime)
        run_whole(store, runtime)
        drain_whole(store, runtime)
    commands = [op["command"] for op in found if op["op"] != "getmore"]
    in_transaction = [command for command in commands if "autocommit" in command]
    outside = [command for command in commands if "autocommit" not in command]
    # Nothing hangs on a slot, so a write of one waits for no other member.
    of_slots = {"tenant_slots", "trigger_cursors"}
    slots = [one for one in outside if one.get("findandmodify", one.get("findAndModify")) in of_slots]
    assert {command["writeConcern"]["w"] for command in slots} == {1}
    kinds = {"insert", "update", "findAndModify", "delete"}
    writes = [command for command in outside if kinds & command.keys() and command not in slots]
    reads = [command for command in outside if {"find", "aggregate"} & command.keys()]
    assert len(writes) > 4
    assert len(reads) > 8
    assert {command["readConcern"]["level"] for command in in_transaction if "readConcern" in command} == {"snapshot"}
    # An update's profile line names one statement; the concern stands on its command.
    concerns = [command["writeConcern"] for command in writes if "writeConcern" in command]
    assert len(concerns) > 4
    assert all((concern["w"], concern["j"]) == ("majority", True) for concern in concerns)
    assert {command["readConcern"]["level"] for command in reads} == {"majority"}


@pytest.mark.promise("E09")
@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"data": {"x": "y" * 300_000}}, "limit"),
        ({"data": {"x": 2**70}}, "64 bits"),
        ({"data": {"x": b"bytes"}}, "JSON"),
        ({"data": {"x": float("nan")}}, "JSON"),
        ({"data": {1: 2}}, "key"),
        ({"data": {"x": "\ud800"}}, "Unicode"),
        ({"labels": tuple("x" * 50 + str(number) for number in range(400))}, "attributes"),
    ],
)
def test_an_event_that_is_too_large_or_no_json_is_refused_and_nothing_is_written(
    mongo_harness: MongoHarness, event: dict[str, Any], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        append(mongo_harness.acme, mongo_harness.runtime(), "a", **event)
    assert mongo_harness.raw("event_sequences") == []
    assert mongo_harness.raw("board_events") == []


@pytest.mark.promise("E12", "E13")
@pytest.mark.scenario(21)
def test_four_drains_race_and_each_match_has_its_row(mongo_harness: MongoHarness) -> None:
    """The loser's E11000 is success, and the batch goes on (mgo 274)."""
    store, runtime = mongo_harness.acme, mongo_harness.runtime(event_batch=20)
    for number in range(3):
        add_subscription(store, subscription(f"s{number}"))
    append(store, runtime, *(f"e{number:03d}" for number in range(100)))

    def race(_: int) -> None:
        for _ in range(20):
            mongo_harness.database["trigger_cursors"].update_one({"_id": ACME}, {"$set": {"drain": []}})
            drain_tenant(store, runtime)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(race, range(4)))
    assert cursor_of(mongo_harness, ACME) == 100
    assert len(rows_of(mongo_harness, ACME)) == 300
    assert _journal_chain(mongo_harness) == list(range(1, 101))


def _journal_chain(harness: MongoHarness) -> list[int]:
    """Return the numbers that the entries which counted cover, oldest first."""
    entries = {entry["entry_id"]: entry for entry in harness.journal()}
    (cursor,) = harness.raw("trigger_cursors")
    covered: list[int] = []
    entry_id = cursor["entry_id"]
    while entry_id:
        entry = entries[entry_id]
        covered = [*range(entry["first_seq"], entry["last_seq"] + 1), *covered]
        entry_id = entry["follows"]
    return covered
