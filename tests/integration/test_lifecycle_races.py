"""Deletions, polls, registrations and prunes that meet on the real store, in threads and in processes."""

from __future__ import annotations

import multiprocessing
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.adapters.mongo.client import connect
from outbox_core.adapters.mongo.store import MongoStore
from outbox_core.adapters.system import SystemClock, SystemEntropy
from outbox_core.application.delete_card import delete_card
from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.application.prune_lifecycle import prune_lifecycle
from outbox_core.domain.board_input import Cause
from outbox_core.domain.consumer import Poll, Start
from outbox_core.domain.limits import Limits
from outbox_core.ports.hints import NoHints
from outbox_core.ports.runtime import NoOutlets, Runtime
from tests.harness.base import ACME
from tests.harness.lifecycle import tell_many
from tests.harness.surroundings import KnownBots
from tests.simulation.observing import Cache, cursor, delete, observer, put_cards, restore

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from outbox_core.domain.lifecycle_event import LifecycleEvent
    from outbox_core.embedded import EmbeddedMongo
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness
    from tests.harness.on_mongo import MongoHarness

pytestmark = pytest.mark.timeout(120)

SOON = timedelta(milliseconds=1)
PATIENCE_S = 90.0


def at_once(*plays: Callable[[], object]) -> None:
    """Let each play in a thread of its own, all from the same moment; raise what one of them raises."""
    gate, errors = threading.Barrier(len(plays)), list[BaseException]()

    def play(one: Callable[[], object]) -> None:
        gate.wait(PATIENCE_S)
        try:
            one()
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            errors.append(error)

    threads = [threading.Thread(target=play, args=(one,)) for one in plays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def surroundings(harness: MongoHarness, worker: str = "worker", **limits: Any) -> Runtime:  # noqa: ANN401 - by name
    """Return a runtime whose waits take the time that they say."""
    return replace(harness.runtime(worker=worker, clock=SystemClock(), **limits), entropy=SystemEntropy())


@pytest.mark.promise("L04")
def test_numbers_that_eight_threads_are_given_have_no_holes_and_are_in_the_order_of_the_commits(
    mongo_harness: MongoHarness,
) -> None:
    store, cards = mongo_harness.acme, [f"c{number}" for number in range(48)]
    put_cards(store, *cards)
    runtime = surroundings(mongo_harness)
    pages: list[tuple[int, int, list[int]]] = []

    def read() -> None:
        after = 0
        while after < len(cards):
            page = store.stream.read_after(after, 1_000)
            pages.append((after, page.head, [entry.sequence for entry in page.entries]))
            after = max(after, page.head - 3)
            if page.head == len(cards):
                return

    with mongo_harness.database["lifecycle_outbox"].watch(max_await_time_ms=500) as commits:
        deletes = [partial(delete, store, runtime, *cards[first::8]) for first in range(8)]
        at_once(*deletes, read)
        committed = [commits.next()["fullDocument"] for _ in cards]
    assert [row["sequence"] for row in committed] == list(range(1, 49))
    # Every number up to the head that was read first is there to be found, at each single reading.
    assert all(found == list(range(after + 1, head + 1)) for after, head, found in pages)
    assert len({head for _, head, _ in pages}) > 5
    assert sorted(row["task_id"] for row in committed) == sorted(cards)
    times = [row["occurred_at"] for row in committed]
    assert times == sorted(times)
    assert store.stream.head() == 48
    assert len(mongo_harness.raw("run_audit", tenant_id=ACME, code="task:deleted")) == 48


class Notices(NoOutlets):
    """Counts what is told after a commit."""

    def __init__(self) -> None:
        self.events: list[LifecycleEvent] = []

    def committed(self, event: LifecycleEvent) -> None:
        self.events.append(event)


def _delete_each(url: str, name: str, cards: list[str], gate: Any, told: Any) -> None:  # noqa: ANN401 - multiprocessing's
    """Be a process that deletes each card at the moment at which another one does."""
    limits, clock, notices = Limits(), SystemClock(), Notices()
    database = connect(url, name, limits)
    store = MongoStore(database, limits, clock, SystemEntropy()).tenant(ACME)
    runtime = Runtime(clock=clock, entropy=SystemEntropy(), hints=NoHints(), bots=KnownBots({}), outlets=notices)
    answers: list[datetime | None] = []
    for card_id in cards:
        gate.wait(PATIENCE_S)
        answers.append(delete_card(store, runtime, card_id, Cause()).card.deleted_at)
    told.put((answers, [event.task_id for event in notices.events]))
    database.client.close()


@pytest.mark.promise("L02")
def test_two_processes_that_delete_one_card_at_once_make_one_event_and_are_told_the_same_time(
    mongo_harness: MongoHarness, mongo_server: EmbeddedMongo
) -> None:
    store, cards = mongo_harness.acme, [f"c{number}" for number in range(24)]
    put_cards(store, *cards)
    context = multiprocessing.get_context("spawn")
    gate, told = context.Barrier(2), context.Queue()
    arguments = (mongo_server.url, mongo_harness.database.name, cards, gate, told)
    processes = [context.Process(target=_delete_each, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    try:
        (first, first_told), (second, second_told) = (told.get(timeout=PATIENCE_S) for _ in processes)
    finally:
        for process in processes:
            process.join(PATIENCE_S)
            process.kill()
    assert first == second
    # Each had some of them: they did meet.
    assert sorted(first_told + second_told) == sorted(cards)
    events = mongo_harness.raw("lifecycle_outbox", tenant_id=ACME)
    assert sorted(event["sequence"] for event in events) == list(range(1, 25))
    assert {event["task_id"]: event["deleted_at"] for event in events} == dict(zip(cards, first, strict=True))
    audited = mongo_harness.raw("run_audit", tenant_id=ACME, code="task:deleted")
    assert sorted(row["subject"] for row in audited) == sorted(cards)


@pytest.mark.promise("L03")
def test_deletions_of_one_card_within_a_millisecond_or_under_a_clock_that_stepped_back_have_ids_of_their_own(
    harness: Harness,
) -> None:
    store, runtime = harness.acme, harness.runtime()
    put_cards(store, "c1")
    for _ in range(3):
        delete(store, runtime, "c1")
        restore(store, runtime, "c1")
    # As after a failover to a server whose clock is an hour behind.
    (card,) = harness.raw("board_cards", tenant_id=ACME)
    ahead = card["last_deleted_at"] + timedelta(hours=1)
    harness.change("board_cards", card["_id"], last_deleted_at=ahead)
    for _ in range(2):
        delete(store, runtime, "c1")
        restore(store, runtime, "c1")
    delete(store, runtime, "c1")
    rows = sorted(harness.raw("lifecycle_outbox", tenant_id=ACME), key=lambda row: row["sequence"])
    assert len({row["event_id"] for row in rows}) == len(rows) == 11
    times = [row["deleted_at"] for row in rows if row["event_type"] == "task:deleted"]
    assert all(later >= earlier + SOON for earlier, later in pairwise(times))
    assert times[3:] == [ahead + SOON, ahead + 2 * SOON, ahead + 3 * SOON]
    assert [row["deleted_at"] for row in rows if row["event_type"] == "task:restored"] == times[:-1]


def poll_until(store: TenantStore, runtime: Runtime, cache: Cache, done: Callable[[], bool]) -> None:
    """Poll as a process does that has nothing else to do."""
    one, clock = observer(cache), runtime.clock
    ends = clock.monotonic() + PATIENCE_S
    while not done():
        assert clock.monotonic() < ends
        observe_lifecycle(store, runtime, one)


@pytest.mark.promise("L12", "L13")
@pytest.mark.scenario(53)
def test_registrations_from_the_beginning_race_a_prune_of_the_whole_stream_and_miss_nothing(
    mongo_harness: MongoHarness,
) -> None:
    """A stream is pruned whole while a consumer registers from its beginning: it reconciles (seen at: measured)."""
    harness, runtime = mongo_harness, surroundings(mongo_harness, lifecycle_retention=SOON, prune_tick=SOON)
    ended: list[str] = []
    for number in range(8):
        store, cache = harness.store.tenant(f"t{number}"), Cache()
        put_cards(store, "live")
        tell_many(store, 3)
        cache.cards = {"c1", "c2", "c3", "live"}

        def join(store: TenantStore = store, cache: Cache = cache) -> None:
            store.consumers.register("cache", Start.BEGINNING, "test")
            poll_until(store, runtime, cache, lambda: cursor(store) == 3)

        at_once(join, lambda: prune_lifecycle(harness.store, runtime))
        # The cards of these events are unknown, so what it was told it passed; all is accounted for either way.
        audited = store.audit.rows()
        passed = sum(int(row.detail["count"]) for row in audited if "count" in row.detail)
        assert cache.reconciled or passed == 3, "read on silently"
        assert not cache.reconciled or cache.cards == {"live"}
        ended.append("reconciled" if cache.reconciled else "told")
    assert ended


@pytest.mark.promise("L12", "L13")
@pytest.mark.scenario(62)
def test_a_prune_and_deletions_during_a_polls_reads_give_neither_a_false_reconciliation_nor_a_skip(
    mongo_harness: MongoHarness,
) -> None:
    """Rows that were read before the head gave 276 false alarms in 3,689 polls (seen at: measured)."""
    harness, store = mongo_harness, mongo_harness.acme
    runtime = surroundings(mongo_harness, lifecycle_retention=SOON, prune_tick=SOON, observe_batch=7)
    cards = [f"c{number}" for number in range(40)]
    put_cards(store, *cards)
    store.consumers.register("cache", Start.BEGINNING, "test")
    cache, pruned = Cache(), list[int]()

    def finished() -> bool:
        return cursor(store) == len(cards)

    def prune() -> None:
        while not finished():
            report = prune_lifecycle(harness.store, runtime)
            pruned.append(report.events if report else 0)

    at_once(
        lambda: delete(store, runtime, *cards[:20]),
        lambda: delete(store, runtime, *cards[20:]),
        lambda: poll_until(store, runtime, cache, finished),
        prune,
    )
    assert cache.reconciled == []
    assert [one.event.sequence for one in cache.told] == list(range(1, 41))
    assert sum(map(bool, pruned)) > 1, "no prune ran beside the polls"
    assert observe_lifecycle(store, runtime, observer(cache)).poll is Poll.IDLE
