"""Appends in a transaction that the caller opened, with a client of its own, on a real replica set."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import TransactionOptions  # type: ignore[attr-defined] # exported, unseen by mypy
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import SecondaryPreferred
from pymongo.write_concern import WriteConcern

from outbox_core.adapters.mongo.callers_session import transaction_options
from outbox_core.application.append_in_session import append_in_session
from outbox_core.application.drain_tenant import Step
from outbox_core.domain.errors import (
    ConfigurationError,
    ContentionError,
    InvalidInputError,
    InvariantError,
    TransientError,
)
from outbox_core.embedded import EmbeddedMongo
from tests.harness.base import ACME
from tests.harness.examples import new_event
from tests.harness.faults import with_calls
from tests.integration.test_faults import failing
from tests.simulation.play import append, cursor_of, drain, drain_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pymongo.client_session import ClientSession
    from pymongo.collection import Collection

    from outbox_core.application.append_events import Appended
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from tests.harness.on_mongo import MongoHarness

GRACE = timedelta(seconds=31)
MAJORITY = WriteConcern("majority")


class Caller:
    """An application with a client of its own, beside the outbox's."""

    def __init__(self, harness: MongoHarness, url: str) -> None:
        self.harness = harness
        self.client: MongoClient[dict[str, Any]] = MongoClient(url)
        self.store: TenantStore = harness.acme
        self.runtime: Runtime = harness.runtime()
        self.orders.insert_one({"_id": "shared", "version": 0})

    @property
    def orders(self) -> Collection[dict[str, Any]]:
        """A collection of the caller's, which commits with the outbox's."""
        return self.client[self.harness.database.name]["orders"]

    def append(self, session: object, *event_ids: str, **more: Any) -> list[Appended]:  # noqa: ANN401
        events = [new_event(event_id, **more) for event_id in event_ids]
        return list(append_in_session(self.store, self.runtime, events, session))

    def run(self, body: Callable[[ClientSession], object]) -> None:
        """Run the body in a transaction, once."""
        with self.client.start_session() as session, session.start_transaction():
            body(session)

    def log(self) -> list[str]:
        """What the log has in the order of its numbers; a tombstone is a hyphen."""
        events = sorted(self.harness.raw("board_events"), key=lambda event: event["seq"])
        return ["-" if event.get("void") else event["event_id"] for event in events]


@pytest.fixture
def caller(mongo_harness: MongoHarness, mongo_server: EmbeddedMongo) -> Iterator[Caller]:
    caller = Caller(mongo_harness, mongo_server.url)
    yield caller
    caller.client.close()


@pytest.mark.promise("E02")
def test_an_event_in_a_session_of_the_callers_is_there_exactly_if_its_transaction_commits(caller: Caller) -> None:
    with caller.client.start_session() as session, session.start_transaction():
        caller.orders.insert_one({"_id": "17"}, session=session)
        (appended,) = caller.append(session, "placed")
        assert (appended.seq, appended.duplicate) == (1, False)
        assert caller.log() == []
    assert caller.log() == ["placed"]

    def fails(session: ClientSession) -> None:
        caller.orders.insert_one({"_id": "18"}, session=session)
        caller.append(session, "never")
        raise LookupError

    with pytest.raises(LookupError):
        caller.run(fails)
    assert caller.log() == ["placed"]
    assert [order["_id"] for order in caller.orders.find()] == ["shared", "17"]


@pytest.mark.promise("E02")
def test_with_transaction_and_a_session_that_is_committed_by_hand_will_do_as_well(caller: Caller) -> None:
    with caller.client.start_session() as session:
        session.with_transaction(lambda inside: caller.append(inside, "a", "b"))
        session.start_transaction(read_concern=ReadConcern("snapshot"), write_concern=MAJORITY)
        caller.append(session, "c")
        session.commit_transaction()
    assert caller.log() == ["a", "b", "c"]


@pytest.mark.promise("E46")
def test_an_event_id_that_the_transaction_sees_gives_its_number_and_takes_none(caller: Caller) -> None:
    append(caller.store, caller.runtime, "a")
    with caller.client.start_session() as session, session.start_transaction():
        again, fresh, twice = caller.append(session, "a", "b", "b")
        assert [(one.seq, one.duplicate) for one in (again, fresh, twice)] == [(1, True), (2, False), (2, False)]
        (own,) = caller.append(session, "b")
        assert (own.seq, own.duplicate) == (2, True)
    assert caller.log() == ["a", "b"]
    assert caller.store.log.head().last_seq == 2


@pytest.mark.promise("E02")
def test_a_transaction_that_goes_on_to_see_what_another_wrote_has_the_higher_number(caller: Caller) -> None:
    """The other one commits right after our number was taken; our first read, before that, keeps it out of sight."""
    with caller.client.start_session() as session, session.start_transaction():
        hidden = with_calls(caller.store, "log", allocate=lambda count: _then(caller, count))
        (ours,) = append_in_session(hidden, caller.runtime, [new_event("ours")], session)
        seen = caller.orders.find_one({"_id": "shared"}, session=session)
    assert caller.log() == ["ours", "theirs"]
    assert ours.seq == 1
    assert seen is not None
    assert seen["version"] == 0, "a lower number, and yet it saw the writes of the higher one"


def _then(caller: Caller, count: int) -> Any:  # noqa: ANN401 - an Allocation
    allocation = caller.store.log.allocate(count)
    with caller.client.start_session() as session, session.start_transaction():
        caller.orders.update_one({"_id": "shared"}, {"$inc": {"version": 1}}, session=session)
        caller.append(session, "theirs")
    return allocation


@pytest.mark.promise("E02")
def test_a_transaction_that_would_overwrite_what_another_wrote_meanwhile_is_undone(caller: Caller) -> None:
    def appends_and_writes(session: ClientSession) -> None:
        hidden = with_calls(caller.store, "log", allocate=lambda count: _then(caller, count))
        append_in_session(hidden, caller.runtime, [new_event("ours")], session)
        caller.orders.update_one({"_id": "shared"}, {"$inc": {"version": 1}}, session=session)

    with pytest.raises(OperationFailure, match="WriteConflict"):
        caller.run(appends_and_writes)
    assert caller.log() == ["theirs"]


@pytest.mark.promise("E02", "E03")
def test_a_drain_waits_before_an_open_transaction_however_long_and_then_delivers_in_order(caller: Caller) -> None:
    with caller.client.start_session() as session, session.start_transaction():
        caller.append(session, "slow")
        append(caller.store, caller.runtime, "later")
        assert drain(caller.store, caller.runtime).step is Step.WAITING
        caller.harness.advance(GRACE)
        # It is over age now; the tombstone waits behind the transaction, and does not get past it.
        assert drain(caller.store, caller.runtime).step is not Step.CAUGHT_UP
        assert cursor_of(caller.harness, ACME) == 0
    drain_whole(caller.store, caller.runtime)
    assert caller.log() == ["slow", "later"]
    assert cursor_of(caller.harness, ACME) == 2


@pytest.mark.promise("E02", "E04")
def test_an_abort_that_nobody_told_of_costs_one_grace_and_loses_nothing(caller: Caller) -> None:
    session = caller.client.start_session()
    session.start_transaction()
    caller.append(session, "lost")
    append(caller.store, caller.runtime, "kept")
    session.end_session()
    assert drain(caller.store, caller.runtime).step is Step.WAITING
    assert cursor_of(caller.harness, ACME) == 0
    caller.harness.advance(GRACE)
    drain_whole(caller.store, caller.runtime)
    assert caller.log() == ["-", "kept"]
    assert cursor_of(caller.harness, ACME) == 2
    with caller.client.start_session() as again, again.start_transaction():
        assert caller.append(again, "lost")[0].seq == 3


@pytest.mark.promise("E46")
def test_of_two_transactions_that_race_with_one_event_id_one_is_undone_and_its_number_filled_at_once(
    caller: Caller,
) -> None:
    def second(session: ClientSession) -> None:
        caller.orders.insert_one({"_id": "second"}, session=session)
        caller.append(session, "twice")

    with caller.client.start_session() as first, first.start_transaction():
        caller.append(first, "twice")
        with pytest.raises(ContentionError, match="was undone; run it again"):
            caller.run(second)
    assert caller.log() == ["twice", "-"]
    assert [order["_id"] for order in caller.orders.find()] == ["shared"]
    assert drain(caller.store, caller.runtime).step is Step.CAUGHT_UP


@pytest.mark.promise("E46")
def test_with_transaction_runs_again_by_itself_after_a_duplicate_that_raced_past(caller: Caller) -> None:
    """The other append comes after our read, before our insert."""
    runs = []

    def raced(count: int) -> Any:  # noqa: ANN401 - an Allocation
        allocation = caller.store.log.allocate(count)
        append(caller.store, caller.runtime, "twice")
        return allocation

    def places(session: ClientSession) -> Appended:
        runs.append(1)
        caller.orders.insert_one({"_id": "17"}, session=session)
        hidden = with_calls(caller.store, "log", allocate=raced)
        return append_in_session(hidden, caller.runtime, [new_event("twice")], session)[0]

    with caller.client.start_session() as session:
        appended = session.with_transaction(places)
    assert (appended.seq, appended.duplicate, len(runs)) == (2, True, 2)
    assert caller.log() == ["-", "twice"]
    assert caller.orders.count_documents({"_id": "17"}) == 1


@pytest.mark.promise("E02")
@pytest.mark.parametrize("command", ["find", "insert"])
def test_a_connection_that_breaks_in_the_session_lets_with_transaction_run_again(caller: Caller, command: str) -> None:
    runs = []

    def places(session: ClientSession) -> Appended:
        runs.append(1)
        return caller.append(session, "a")[0]

    with caller.client.start_session() as session:
        # The first operation of a session is made with a connection that stands already.
        session.with_transaction(lambda inside: caller.append(inside, "before"))
        with failing(caller.harness, command, 1, {"closeConnection": True}):
            appended = session.with_transaction(places)
    assert len(runs) == 2
    assert appended.duplicate is False
    assert [name for name in caller.log() if name != "-"] == ["before", "a"]
    assert drain(caller.store, caller.runtime).step is Step.CAUGHT_UP


@pytest.mark.promise("E02")
def test_a_number_that_cannot_be_had_leaves_the_callers_transaction_as_it_was(caller: Caller) -> None:
    """The outbox's own connection failed, not the session's: the caller may go on without the event, or run again."""
    with caller.client.start_session() as session, session.start_transaction():
        caller.orders.insert_one({"_id": "17"}, session=session)
        silent = with_calls(caller.store, "log", allocate=_silent)
        with pytest.raises(TransientError, match="no answer") as raised:
            append_in_session(silent, caller.runtime, [new_event("a")], session)
        assert not isinstance(raised.value, ContentionError)
        assert session.in_transaction
    assert caller.orders.count_documents({"_id": "17"}) == 1
    assert caller.log() == []


def _silent(count: int) -> object:
    raise TransientError(f"no answer to {count}")


@pytest.mark.promise("E09", "E02")
def test_an_event_that_is_too_large_is_refused_before_a_number_is_taken(caller: Caller) -> None:
    with caller.client.start_session() as session, session.start_transaction():
        with pytest.raises(InvalidInputError, match="the limit is 262144"):
            caller.append(session, "a", data={"text": "x" * 300_000})
        caller.append(session, "b")
    assert caller.log() == ["b"]
    assert caller.store.log.head().last_seq == 1


@pytest.mark.promise("E02")
def test_no_hint_leaves_before_the_commit(caller: Caller) -> None:
    with caller.client.start_session() as session, session.start_transaction():
        caller.append(session, "a")
    assert caller.harness.hints.sent == []


@pytest.mark.promise("E02", "O06")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"write_concern": WriteConcern(1)}, "would commit with w:1, which a failover may undo"),
        ({"write_concern": WriteConcern(2)}, "would commit with w:2,"),
        ({"write_concern": WriteConcern("majority", j=False)}, "would commit with w:majority, j:False,"),
        ({"write_concern": MAJORITY, "read_preference": SecondaryPreferred()}, "does not read from the primary"),
    ],
)
def test_a_transaction_that_could_lose_an_event_is_refused_in_one_line_that_says_what_to_do(
    caller: Caller, options: dict[str, Any], said: str
) -> None:
    with caller.client.start_session() as session:
        session.start_transaction(**options)
        with pytest.raises(InvalidInputError, match=said) as refused:
            caller.append(session, "a")
        session.abort_transaction()
    assert "\n" not in str(refused.value)
    assert "start it with " in str(refused.value)
    assert caller.store.log.head().last_seq == 0


@pytest.mark.promise("E02")
def test_the_write_concern_that_counts_is_the_one_that_the_transaction_has_whoever_set_it(
    caller: Caller, mongo_server: EmbeddedMongo
) -> None:
    one = WriteConcern(1)
    with MongoClient[dict[str, Any]](mongo_server.url, w=1) as weak:
        for default, given, fits in ((None, None, False), (MAJORITY, None, True), (None, MAJORITY, True)):
            with weak.start_session(default_transaction_options=TransactionOptions(write_concern=default)) as session:
                session.start_transaction(write_concern=given)
                assert _takes(caller, session) is fits
    with caller.client.start_session(default_transaction_options=TransactionOptions(write_concern=one)) as session:
        session.start_transaction()
        assert _takes(caller, session) is False
        session.abort_transaction()
        session.start_transaction(write_concern=MAJORITY)
        assert _takes(caller, session) is True


def _takes(caller: Caller, session: ClientSession) -> bool:
    try:
        caller.append(session, "a")
    except InvalidInputError:
        return False
    return True


@pytest.mark.promise("E02")
def test_the_servers_default_write_concern_is_asked_and_noticed_when_it_changes(caller: Caller) -> None:
    admin, harness = caller.client.admin, caller.harness
    try:
        with caller.client.start_session() as session:
            session.with_transaction(lambda inside: caller.append(inside, "a"))
            admin.command("setDefaultRWConcern", defaultWriteConcern={"w": 1}, writeConcern={"w": "majority"})
            harness.local_clock.advance(timedelta(minutes=2))
            with pytest.raises(InvalidInputError, match="commit with w:1, the server's default, which"):
                session.with_transaction(lambda inside: caller.append(inside, "b"))
    finally:
        admin.command("setDefaultRWConcern", defaultWriteConcern={"w": "majority"}, writeConcern={"w": "majority"})
    assert caller.log() == ["a"]


@pytest.mark.promise("E02")
def test_a_default_write_concern_that_may_not_be_read_names_the_way_round_it(caller: Caller) -> None:
    caller.harness.local_clock.advance(timedelta(minutes=2))
    with failing(caller.harness, "getDefaultRWConcern", 1, {"errorCode": 13}), caller.client.start_session() as session:
        session.start_transaction()
        with pytest.raises(
            TransientError, match=r"start the transaction with write_concern=WriteConcern\('majority'\)"
        ):
            caller.append(session, "a")
        session.abort_transaction()
        session.start_transaction(write_concern=MAJORITY)
        caller.append(session, "a")
        session.commit_transaction()
    assert caller.log() == ["a"]


@pytest.mark.promise("O06")
def test_what_is_no_session_with_an_open_transaction_is_refused(caller: Caller) -> None:
    with pytest.raises(InvalidInputError, match="takes a pymongo ClientSession, not a MongoClient"):
        caller.append(caller.client, "a")
    session = caller.client.start_session()
    for _ in ("fresh", "committed", "ended"):
        with pytest.raises(InvalidInputError, match="no transaction is open"):
            caller.append(session, "a")
        if not session.has_ended:
            with session.start_transaction():
                caller.orders.insert_one({}, session=session)
            session.end_session()
    assert caller.store.log.head().last_seq == 0


@pytest.mark.promise("E02")
def test_a_session_of_another_replica_set_is_refused_where_a_number_of_this_one_would_have_no_event(
    caller: Caller, tmp_path: Path
) -> None:
    with EmbeddedMongo(tmp_path) as elsewhere, MongoClient[dict[str, Any]](elsewhere.url) as client:
        with (
            pytest.raises(InvalidInputError, match=r"its client is connected to .*a transaction cannot span"),
            client.start_session() as session,
            session.start_transaction(),
        ):
            caller.append(session, "a")
        assert caller.harness.database.name not in client.list_database_names()
    assert caller.store.log.head().last_seq == 0


@pytest.mark.promise("E02")
def test_only_the_caller_commits_its_transaction(caller: Caller) -> None:
    with caller.client.start_session() as session:
        session.start_transaction()
        with caller.store.transactions.adopt(session) as transaction, pytest.raises(InvariantError):
            transaction.commit()
        assert session.in_transaction


@pytest.mark.promise("E02")
def test_the_driver_still_keeps_a_transactions_options_where_we_read_them(caller: Caller) -> None:
    """A private attribute: where it goes, each append in a caller's session is refused, and this fails first."""
    with caller.client.start_session() as session:
        session.start_transaction(write_concern=WriteConcern("majority", wtimeout=1_234))
        assert transaction_options(session).write_concern == WriteConcern("majority", wtimeout=1_234)
        session.abort_transaction()
        session.start_transaction()
        assert transaction_options(session).write_concern == caller.client.write_concern
        session._transaction.opts = None
        with pytest.raises(ConfigurationError, match="append with run_in_transaction"):
            transaction_options(session)
        session._transaction.opts = TransactionOptions()


THREADS, ROUNDS, SHARED = 16, 8, 4


class Writer:
    """One of many: every fourth transaction gives up; half append before they write, and half after it."""

    def __init__(self, caller: Caller, thread: int) -> None:
        self.committed: list[tuple[str, int, str]] = []
        self._caller = caller
        self._thread = thread

    def write(self) -> None:
        for number in range(ROUNDS):
            event_id = f"t{self._thread}-{number}"
            if self._thread % 4 == 0:
                append(self._caller.store, self._caller.runtime, event_id)
                continue
            with self._caller.client.start_session() as session, contextlib.suppress(LookupError):
                self.committed.append(session.with_transaction(self._body(number, event_id)))

    def _body(self, number: int, event_id: str) -> Callable[[ClientSession], tuple[str, int, str]]:
        key = f"shared-{(self._thread + number) % SHARED}"
        orders = self._caller.orders

        def body(session: ClientSession) -> tuple[str, int, str]:
            if self._thread % 2:
                self._caller.append(session, event_id)
            order: Any = orders.find_one_and_update(
                {"_id": key}, {"$inc": {"version": 1}}, session=session, return_document=True
            )
            if not self._thread % 2:
                self._caller.append(session, event_id)
            if number % 4 == 3:
                raise LookupError
            return key, order["version"], event_id

        return body


@pytest.mark.promise("E01", "E02")
def test_numbers_follow_the_order_of_conflicting_transactions_among_sixteen_writers_of_both_kinds(
    caller: Caller,
) -> None:
    """Each transaction reads and raises the version of a document that others raise, so their order is known."""
    caller.orders.insert_many([{"_id": f"shared-{number}", "version": 0} for number in range(SHARED)])
    writers = [Writer(caller, thread) for thread in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(Writer.write, writers))
    committed = [one for writer in writers for one in writer.committed]
    plain = [f"t{thread}-{number}" for thread in range(0, THREADS, 4) for number in range(ROUNDS)]
    assert len(committed) == (THREADS - THREADS // 4) * (ROUNDS - ROUNDS // 4)
    seqs = {event["event_id"]: event["seq"] for event in caller.harness.raw("board_events") if not event.get("void")}
    assert sorted(seqs) == sorted([*plain, *(event_id for _, _, event_id in committed)])
    for shared in range(SHARED):
        versions = sorted((version, event_id) for key, version, event_id in committed if key == f"shared-{shared}")
        assert [version for version, _ in versions] == list(range(1, len(versions) + 1))
        numbers = [seqs[event_id] for _, event_id in versions]
        assert numbers == sorted(numbers), "a transaction that followed another has the lower number"
    for _ in range(50):
        if drain(caller.store, caller.runtime).step is Step.CAUGHT_UP:
            break
        caller.harness.advance(GRACE)
    assert cursor_of(caller.harness, ACME) == caller.store.log.head().last_seq
    assert sorted(one for one in caller.log() if one != "-") == sorted(seqs)
