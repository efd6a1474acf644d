"""What ports.lifecycle_stream promises, on both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.errors import ContentionError, EventConflictError, InvalidInputError
from outbox_core.domain.lifecycle_event import CARD_RESTORED, LifecycleEvent, Standing, UnreadableEvent
from tests.harness.lifecycle import deletion, tell, tell_many

if TYPE_CHECKING:
    from outbox_core.ports.lifecycle_stream import Page
    from tests.harness.base import Harness

OUTBOX = "lifecycle_outbox"
MONTH = timedelta(days=30)


def sequences(page: Page) -> list[int]:
    return [entry.sequence for entry in page.entries]


@pytest.mark.promise("L03", "L04")
def test_events_are_numbered_from_one_and_read_back_as_they_were_written(harness: Harness) -> None:
    told = tell(
        harness.acme,
        deletion(1, prior_status=Standing.ARCHIVED),
        deletion(1, event_type=CARD_RESTORED, prior_status=Standing.DELETED),
        deletion(2, prior_column=""),
    )
    page = harness.acme.stream.read_after(0, 10)
    assert list(page.entries) == told
    assert (page.head, sequences(page)) == (3, [1, 2, 3])
    assert [event.event_id for event in told] == [
        "task-deleted:c1:2026-11-30T15:00:00.001Z",
        "task-restored:c1:2026-11-30T15:00:00.001Z",
        "task-deleted:c2:2026-11-30T15:00:00.002Z",
    ]
    assert all(abs(event.occurred_at - harness.now()) < timedelta(minutes=1) for event in told)


@pytest.mark.promise("L03")
def test_a_stored_event_has_the_fixed_keys_and_no_others(harness: Harness) -> None:
    tell_many(harness.acme, 1)
    (stored,) = harness.raw(OUTBOX)
    assert set(stored) == {
        "_id",
        "tenant_id",
        "sequence",
        "event_type",
        "event_id",
        "task_id",
        "deleted_at",
        "prior_column",
        "prior_status",
        "writer_process_id",
        "occurred_at",
        "payload_version",
    }
    assert (stored["event_type"], stored["payload_version"]) == ("task:deleted", 1)


@pytest.mark.promise("L01", "L04")
def test_a_number_whose_transaction_is_undone_is_given_again(harness: Harness) -> None:
    tell_many(harness.acme, 1)
    with harness.acme.transactions.begin() as transaction:
        assert harness.acme.stream.append(deletion(2), transaction).sequence == 2
    assert harness.acme.stream.head() == 1
    assert tell(harness.acme, deletion(3))[0].sequence == 2


@pytest.mark.promise("L04")
@pytest.mark.parametrize("earlier", [0, 1], ids=["the tenant's first", "a later one"])
def test_of_two_transactions_that_append_the_later_one_is_undone(harness: Harness, earlier: int) -> None:
    store = harness.acme
    tell_many(store, earlier)
    with store.transactions.begin() as first:
        store.stream.append(deletion(8), first)
        with store.transactions.begin() as second, pytest.raises(ContentionError):
            store.stream.append(deletion(9), second)
        first.commit()
    assert [entry.event_id for entry in store.stream.read_after(earlier, 10).entries] == [deletion(8).event_id]


@pytest.mark.promise("L03")
def test_an_event_id_that_exists_is_refused_and_its_number_is_given_again(harness: Harness) -> None:
    store = harness.acme
    tell_many(store, 1)
    with store.transactions.begin() as transaction, pytest.raises(EventConflictError) as refused:
        store.stream.append(deletion(1), transaction)
    assert refused.value.duplicates == {deletion(1).event_id}
    assert tell_many(store, 1, first=2)[0].sequence == 2
    assert store.stream.head() == 2


@pytest.mark.promise("L19")
def test_a_type_that_is_not_registered_is_refused_at_write(harness: Harness) -> None:
    with harness.acme.transactions.begin() as transaction, pytest.raises(InvalidInputError, match="task:archived"):
        harness.acme.stream.append(deletion(event_type="task:archived"), transaction)
    assert harness.acme.stream.head() == 0


@pytest.mark.promise("L05")
def test_a_page_holds_what_follows_ascending_up_to_its_limit_and_its_head(harness: Harness) -> None:
    stream = harness.acme.stream
    assert (stream.read_after(0, 10).head, stream.floor()) == (0, 1)
    tell_many(harness.acme, 5)
    assert sequences(stream.read_after(0, 3)) == [1, 2, 3]
    assert sequences(stream.read_after(3, 3)) == [4, 5]
    assert (sequences(stream.read_after(5, 3)), sequences(stream.read_after(9, 3))) == ([], [])
    assert stream.read_after(9, 3).head == 5


@pytest.mark.promise("L04")
def test_what_is_not_committed_is_not_seen(harness: Harness) -> None:
    tell_many(harness.acme, 1)
    with harness.acme.transactions.begin() as transaction:
        harness.acme.stream.append(deletion(2), transaction)
        assert harness.acme.stream.head() == 1
        assert sequences(harness.acme.stream.read_after(0, 10)) == [1]
        transaction.commit()
    assert sequences(harness.acme.stream.read_after(0, 10)) == [1, 2]


@pytest.mark.promise("L04", "L12")
@pytest.mark.scenario(62)
def test_a_reader_beside_writers_misses_no_number_up_to_the_head_that_it_is_told(harness: Harness) -> None:
    """Rows that are read before the head gave 276 false alarms in 3,689 polls (seen at: measured)."""
    over = Event()

    def poll() -> tuple[int, int]:
        cursor, polls, wrong = 0, 0, 0
        while not over.is_set() or cursor < 60:
            page = harness.other_process().tenant("acme").stream.read_after(cursor, 7)
            wrong += sequences(page) != list(range(cursor + 1, min(page.head, cursor + 7) + 1))
            cursor, polls = cursor + len(page.entries), polls + 1
        return polls, wrong

    def write(first: int) -> None:
        tell_many(harness.other_process().tenant("acme"), 20, first)

    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(poll) for _ in range(2)]
        writers = [pool.submit(write, first) for first in (1, 101, 201)]
        for writer in writers:
            writer.result(60)
        over.set()
        results = [reader.result(60) for reader in readers]
    assert [wrong for _, wrong in results] == [0, 0]
    assert min(polls for polls, _ in results) >= 9


@pytest.mark.promise("L10")
@pytest.mark.parametrize(
    ("field", "value"),
    [("deleted_at", "soon"), ("task_id", 7), ("prior_status", "asleep"), ("event_id", "task-deleted:c9:x")],
)
def test_an_event_that_does_not_decode_is_told_apart_and_stops_no_neighbour(
    harness: Harness, field: str, value: object
) -> None:
    told = tell_many(harness.acme, 3)
    harness.change(OUTBOX, f"acme|{told[1].event_id}", **{field: value})
    first, broken, third = harness.acme.stream.read_after(0, 10).entries
    assert (first, third) == (told[0], told[2])
    assert isinstance(broken, UnreadableEvent)
    assert (broken.sequence, broken.unknown) == (2, False)
    assert broken.why.startswith("the stored event is malformed: ")


@pytest.mark.promise("L10")
def test_an_event_without_a_usable_id_is_named_by_its_number(harness: Harness) -> None:
    told = tell_many(harness.acme, 1)
    harness.change(OUTBOX, f"acme|{told[0].event_id}", event_id=None)
    (broken,) = harness.acme.stream.read_after(0, 10).entries
    assert isinstance(broken, UnreadableEvent)
    assert broken.event_id == "#sequence.1"


@pytest.mark.promise("L19")
@pytest.mark.parametrize(("field", "value"), [("event_type", "task:moved"), ("payload_version", 2)])
def test_what_a_newer_version_wrote_is_unknown_and_no_failure(harness: Harness, field: str, value: object) -> None:
    told = tell_many(harness.acme, 2)
    harness.change(OUTBOX, f"acme|{told[0].event_id}", **{field: value})
    newer, known = harness.acme.stream.read_after(0, 10).entries
    assert isinstance(newer, UnreadableEvent)
    assert (newer.unknown, newer.event_id) == (True, told[0].event_id)
    assert isinstance(known, LifecycleEvent)


@pytest.mark.promise("O08")
def test_a_field_of_an_event_that_this_version_does_not_know_is_no_matter(harness: Harness) -> None:
    told = tell_many(harness.acme, 1)
    harness.change(OUTBOX, f"acme|{told[0].event_id}", shade="blue")
    assert list(harness.acme.stream.read_after(0, 10).entries) == told


@pytest.mark.promise("L13")
def test_pruning_goes_from_the_lowest_number_to_what_is_young_or_not_acknowledged(harness: Harness) -> None:
    stream = harness.acme.stream
    tell_many(harness.acme, 6)
    harness.advance(timedelta(days=20))
    tell_many(harness.acme, 2, first=7)
    assert stream.prune(8, MONTH, 100) == 0
    harness.advance(timedelta(days=11))
    assert (stream.prune(2, MONTH, 100), stream.floor()) == (2, 3)
    assert (stream.prune(8, MONTH, 3), stream.floor()) == (3, 6)
    assert (stream.prune(8, MONTH, 100), stream.floor()) == (1, 7)
    assert (stream.prune(8, MONTH, 100), stream.floor()) == (0, 7)
    assert sequences(stream.read_after(0, 10)) == [7, 8]
    harness.advance(timedelta(days=20))
    assert (stream.prune(8, MONTH, 100), stream.floor(), stream.head()) == (2, 9, 8)
    assert tell_many(harness.acme, 1, first=9)[0].sequence == 9


@pytest.mark.promise("L13")
def test_pruning_stops_at_the_first_young_event_although_an_old_one_follows(harness: Harness) -> None:
    told = tell_many(harness.acme, 4)
    harness.advance(timedelta(days=31))
    harness.change(OUTBOX, f"acme|{told[2].event_id}", occurred_at=harness.now())
    assert harness.acme.stream.prune(4, MONTH, 100) == 2
    assert sequences(harness.acme.stream.read_after(0, 10)) == [3, 4]


@pytest.mark.promise("L13")
def test_what_does_not_decode_is_pruned_with_its_neighbours(harness: Harness) -> None:
    told = tell_many(harness.acme, 3)
    harness.advance(timedelta(days=31))
    harness.change(OUTBOX, f"acme|{told[1].event_id}", occurred_at=None)
    assert harness.acme.stream.prune(3, MONTH, 100) == 3
