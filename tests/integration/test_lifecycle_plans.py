"""What MongoDB does for lifecycle observation: what it examines, how many commands it is sent, and lost answers."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.domain.board import Card
from outbox_core.domain.consumer import LetterState, Start
from outbox_core.domain.errors import ContentionError, UnclearCommitError
from outbox_core.domain.limits import Limits
from tests.harness.base import ACME
from tests.harness.lifecycle import AUDIT, CURSORS, LEASE, LETTERS, begun, codes, lease, register, row, tell_many
from tests.harness.on_mongo import MongoHarness
from tests.integration.test_command_counts import commands
from tests.integration.test_query_plans import profiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox_core.ports.consumers import Consumers
    from outbox_core.ports.store import TenantStore

OUTBOX = "lifecycle_outbox"
MONTH = timedelta(days=30)
HOLD = timedelta(seconds=30)


def crowd(harness: MongoHarness, collection: str, example: dict[str, Any], count: int, **fields: str) -> None:
    """Put in many copies of a document, under ids and fields that are numbered on."""
    harness.database[collection].insert_many(
        {
            **example,
            "_id": f"{example['_id']}-{number:06d}",
            **{name: text.format(number) for name, text in fields.items()},
        }
        for number in range(count)
    )


def crowded(harness: MongoHarness) -> TenantStore:
    """A stream of 3,000 events, 2,000 consumers of one tenant and 2,000 letters, with one of each that is ours."""
    store = harness.acme
    told = tell_many(store, 1)
    (example,) = harness.raw(OUTBOX)
    harness.database[OUTBOX].insert_many(
        {**example, "_id": f"acme|e{number}", "event_id": f"e{number}", "sequence": number}
        for number in range(2, 3_001)
    )
    harness.change("lifecycle_sequences", ACME, last_sequence=3_000)
    taken = begun(store)
    assert store.consumers.park(taken, told[0], read=0, attempts=10, failure_class="KeyError")
    assert store.consumers.ask_replay("cache", told[0].event_id, "ann", "")
    (consumer,) = harness.raw(CURSORS)
    idle = {**consumer, "lease_owner": "", "lease_until": None, "last_acked_sequence": 3_000}
    crowd(harness, CURSORS, idle, 2_000, consumer_id="crowd-{:06d}")
    (letter,) = harness.raw(LETTERS)
    crowd(harness, LETTERS, {**letter, "state": "unresolved"}, 2_000)
    (audited, *_) = harness.raw(AUDIT)
    crowd(harness, AUDIT, {**audited, "code": "other", "subject": "other"}, 2_000)
    return store


def examined(harness: MongoHarness, call: Callable[[], object]) -> list[tuple[int, int]]:
    """Return for each operation of a call how many documents and keys it examined; none may walk a collection."""
    found: list[dict[str, Any]] = []
    with profiled(harness.database, found):
        call()
    plans = {op.get("planSummary", "") for op in found}
    assert not any("COLLSCAN" in plan for plan in plans), plans
    return [(op.get("docsExamined", 0), op.get("keysExamined", 0)) for op in found]


@pytest.mark.promise("L13", "L15")
def test_each_call_examines_what_is_its_own_and_not_its_tenants_others(mongo_harness: MongoHarness) -> None:
    store = crowded(mongo_harness)
    consumers, stream, audit = store.consumers, store.stream, store.audit
    taken = lease(store)
    first = stream.read_after(0, 1).entries[0]
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "head": (stream.head, 1),
        "read_after": (lambda: stream.read_after(2_000, 100), 101),
        "floor": (stream.floor, 2),
        "look": (lambda: consumers.look("cache"), 3),
        "lease": (lambda: consumers.lease("cache", "worker-1", LEASE), 1),
        "acknowledge": (lambda: consumers.acknowledge(lease(store), read=1, sequence=2), 2),
        "supersede": (lambda: consumers.acknowledge(lease(store), read=2, sequence=3, superseded=["e"]), 2),
        "fail": (
            lambda: consumers.fail(lease(store), event_id="e", attempts=1, delay=LEASE, failure_class="KeyError"),
            2,
        ),
        "replayed": (lambda: consumers.replayed(lease(store), first.event_id, why=""), 3),
        "letters": (lambda: consumers.letters(consumer_id="cache", state=LetterState.REPLAYING, limit=10), 1),
        "page of letters": (lambda: consumers.letters(state=LetterState.UNRESOLVED, limit=10), 10),
        "letter": (lambda: consumers.letter("cache", first.event_id), 1),
        "resolve": (lambda: consumers.resolve("cache", f"{first.event_id}-000007", "ann", ""), 3),
        "prune_letters": (lambda: consumers.prune_letters(-LEASE, 10), 4),
        "wake": (lambda: consumers.wake(["cache", "crowd-000007"]), 3),
        "reconcile": (lambda: consumers.reconciled(lease(store), head=9, why=""), 2),
        "rest": (lambda: consumers.rest(lease(store), idle=True, delay=LEASE), 2),
        "skip": (lambda: consumers.skip("cache", "ann", ""), 3),
        "audit": (lambda: audit.rows(limit=10), 10),
        "audit of a code": (lambda: audit.rows(code="lifecycle-observation:consumer-skipped", limit=10), 1),
        "audit of a subject": (lambda: audit.rows(subject="cache", limit=3), 3),
        "prune": (lambda: stream.prune(3_000, -LEASE, 100), 200),
        "due": (lambda: mongo_harness.store.maintenance.due_consumers(["cache"], HOLD, 10), 4),
    }
    del taken
    over = {}
    for name, (call, most) in calls.items():
        seen = examined(mongo_harness, call)
        if sum(docs for docs, _ in seen) > most or sum(keys for _, keys in seen) > 2 * most + 12:
            over[name] = (most, seen)
    assert over == {}


@pytest.mark.promise("L15")
def test_idle_consumers_cost_the_tick_two_reads_and_a_write_however_many_there_are(mongo_harness: MongoHarness) -> None:
    store, maintenance = mongo_harness.acme, mongo_harness.store.maintenance
    tell_many(store, 1)
    taken = begun(store)
    assert store.consumers.acknowledge(taken, read=0, sequence=1)
    assert store.consumers.rest(taken, idle=True, delay=timedelta(0))
    (consumer,) = mongo_harness.raw(CURSORS)
    crowd(mongo_harness, CURSORS, consumer, 500, consumer_id="crowd-{:06d}")
    names = [one["consumer_id"] for one in mongo_harness.raw(CURSORS)]
    counts = [commands(mongo_harness)]
    assert list(maintenance.due_consumers(names, HOLD, 1_000)) == []
    counts.append(commands(mongo_harness))
    times = {one["next_poll_at"] for one in mongo_harness.raw(CURSORS)}
    assert len(times) > 100
    counts.append(commands(mongo_harness))
    assert list(maintenance.due_consumers(names, HOLD, 1_000)) == []
    counts.append(commands(mongo_harness))
    tell_many(store, 1, first=2)
    mongo_harness.advance(timedelta(minutes=2))
    counts.append(commands(mongo_harness))
    assert len(maintenance.due_consumers(names, HOLD, 1_000)) == 501
    counts.append(commands(mongo_harness))
    first, _, quiet, _, busy = [after - before for before, after in pairwise(counts)]
    assert (first, quiet, busy) == (3, 1, 3)


@pytest.mark.promise("L06")
def test_a_plain_delivery_costs_a_look_at_its_card_and_its_acknowledgement(mongo_harness: MongoHarness) -> None:
    store = mongo_harness.acme
    tell_many(store, 3)
    taken = begun(store)
    counts = [commands(mongo_harness)]
    store.cards.deletions(["c1"])
    assert store.consumers.acknowledge(taken, read=0, sequence=1)
    counts.append(commands(mongo_harness))
    page = store.stream.read_after(1, 100)
    counts.append(commands(mongo_harness))
    store.consumers.look("cache")
    counts.append(commands(mongo_harness))
    assert len(page.entries) == 2
    assert [after - before for before, after in pairwise(counts)] == [2, 2, 1]


@pytest.mark.promise("L12")
def test_live_cards_are_read_past_any_number_of_deleted_ones(mongo_harness: MongoHarness) -> None:
    store = mongo_harness.acme
    with store.transactions.begin() as transaction:
        store.cards.put(Card(tenant_id=ACME, card_id="a"), transaction)
        store.cards.put(Card(tenant_id=ACME, card_id="z"), transaction)
        transaction.commit()
    (example, _) = mongo_harness.raw("board_cards")
    gone = {**example, "deleted_at": mongo_harness.now()}
    crowd(mongo_harness, "board_cards", gone, 3_000, card_id="m-{:06d}")
    seen = examined(mongo_harness, lambda: store.cards.live(limit=10))
    assert seen == [(2, 2)]
    assert [card.card_id for card in store.cards.live()] == ["a", "z"]


# Answers that are lost.


@contextmanager
def failing(harness: MongoHarness, times: int = 1, **data: Any) -> Iterator[None]:  # noqa: ANN401 - the fail point's
    admin = harness.database.client.admin
    admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)
    try:
        yield
    finally:
        admin.command("configureFailPoint", "failCommand", mode="off")


def _call(store: TenantStore, name: str) -> object:
    taken = lease(store)
    consumers = store.consumers
    entry = store.stream.read_after(0, 1).entries[0]
    match name:
        case "acknowledge":
            return consumers.acknowledge(taken, read=0, sequence=1)
        case "supersede":
            return consumers.acknowledge(taken, read=0, sequence=1, superseded=[entry.event_id])
        case "park":
            return consumers.park(taken, entry, read=0, attempts=10, failure_class="KeyError")
        case "reconciled":
            return consumers.reconciled(taken, head=1, why="")
        case "rest":
            return consumers.rest(taken, idle=False, delay=LEASE)
        case _:
            raise AssertionError(name)


@pytest.mark.promise("L06", "L10")
@pytest.mark.parametrize("command", ["update", "findAndModify", "insert", "commitTransaction"])
@pytest.mark.parametrize("name", ["acknowledge", "supersede", "park", "reconciled", "rest"])
def test_a_connection_that_breaks_in_a_write_leaves_it_done_once_or_undone(
    mongo_harness: MongoHarness, name: str, command: str
) -> None:
    store = mongo_harness.acme
    tell_many(store, 2)
    taken = begun(store)
    assert store.consumers.rest(taken, idle=False, delay=timedelta(0))
    with failing(mongo_harness, failCommands=[command], closeConnection=True):
        assert _call(store, name) is True
    found = row(store)
    assert found.cursor == (0 if name == "rest" else 1)
    audited = {"supersede": "event-superseded", "park": "consumer-poisoned", "reconciled": "consumer-reconciled"}
    assert codes(store) == ["consumer-registered", *([audited[name]] if name in audited else [])]
    assert len(store.consumers.letters()) == (name == "park")


@pytest.mark.promise("L10", "L12")
@pytest.mark.parametrize("name", ["supersede", "park", "reconciled"])
def test_a_commit_whose_answer_stays_lost_is_found_by_the_next_call(mongo_harness: MongoHarness, name: str) -> None:
    """The write concern fails for longer than the store asks; the commit itself has happened."""
    store = mongo_harness.acme
    tell_many(store, 2)
    begun(store)
    taken = lease(store)
    entry = store.stream.read_after(0, 1).entries[0]

    def call(consumers: Consumers) -> bool:
        match name:
            case "supersede":
                return consumers.acknowledge(taken, read=0, sequence=1, superseded=[entry.event_id])
            case "park":
                return consumers.park(taken, entry, read=0, attempts=10, failure_class="KeyError")
            case _:
                return consumers.reconciled(taken, head=1, why="")

    hasty = MongoHarness(mongo_harness.database, Limits(op_timeout=timedelta(seconds=1))).acme.consumers
    error = {"code": 64, "errmsg": "placed by a test"}
    with (
        failing(mongo_harness, 10_000, failCommands=["commitTransaction"], writeConcernError=error),
        pytest.raises(UnclearCommitError),
    ):
        call(hasty)
    assert call(store.consumers) is True
    assert len(codes(store)) == 2
    assert row(store).cursor == 1


@pytest.mark.promise("L16")
def test_short_transactions_that_meet_another_one_are_run_again(mongo_harness: MongoHarness) -> None:
    store = mongo_harness.acme
    tell_many(store, 2)
    taken = begun(store)
    labels = ["TransientTransactionError"]
    with failing(mongo_harness, 3, failCommands=["findAndModify"], errorCode=112, errorLabels=labels):
        assert store.consumers.acknowledge(taken, read=0, sequence=1, superseded=["e"])
    assert codes(store).count("event-superseded") == 1
    with (
        failing(mongo_harness, 10_000, failCommands=["findAndModify"], errorCode=112, errorLabels=labels),
        pytest.raises(ContentionError),
    ):
        store.consumers.acknowledge(taken, read=1, sequence=2, superseded=["e"])
    assert row(store).cursor == 1


@pytest.mark.promise("L13")
def test_a_delete_that_ends_in_the_middle_leaves_a_stream_without_holes(mongo_harness: MongoHarness) -> None:
    """A server that is killed has removed from the lowest number on: the plan walks the index upwards."""
    store = mongo_harness.acme
    tell_many(store, 20)
    found: list[dict[str, Any]] = []
    with profiled(mongo_harness.database, found):
        assert store.stream.prune(9, -LEASE, 100) == 9
    (removal,) = [op for op in found if op["op"] == "remove"]
    assert removal["command"]["hint"] == {"tenant_id": 1, "sequence": 1}
    inner = removal["execStats"]["inputStage"]["inputStage"]
    assert (inner["stage"], inner["indexName"], inner["direction"]) == ("IXSCAN", "by_sequence", "forward")
    assert [entry.sequence for entry in store.stream.read_after(9, 100).entries] == list(range(10, 21))


@pytest.mark.promise("L05")
def test_a_registration_whose_commit_was_lost_is_found_by_the_next_one(mongo_harness: MongoHarness) -> None:
    with failing(mongo_harness, failCommands=["commitTransaction"], closeConnection=True):
        first = register(mongo_harness.acme)
    assert mongo_harness.acme.consumers.register("cache", Start.LATEST, "bob") == first
    assert codes(mongo_harness.acme) == ["consumer-registered"]
