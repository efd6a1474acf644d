"""What ports.consumers promises of deliveries that were given up, on both stores."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.consumer import LetterState
from outbox_core.domain.errors import ConsumerRetiredError, LeaseLostError, LetterNotFoundError
from outbox_core.domain.lifecycle_event import UnreadableEvent
from outbox_core.ports.consumers import letter_key
from tests.harness.lifecycle import LETTERS, begun, codes, lease, row, tell_many

if TYPE_CHECKING:
    from outbox_core.domain.consumer import DeadLetter, Lease
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness

MONTH = timedelta(days=30)
UNRESOLVED, REPLAYING, RESOLVED = LetterState


def parked(store: TenantStore, count: int = 1, consumer_id: str = "cache") -> tuple[Lease, list[str]]:
    """Have a consumer begin and park its first events; return its lease and the events' ids."""
    if store.stream.head() < count:
        tell_many(store, count)
    taken = begun(store, consumer_id)
    entries = store.stream.read_after(0, count).entries
    for entry in entries:
        assert store.consumers.park(
            taken, entry, read=entry.sequence - 1, attempts=10, failure_class="ConnectionRefusedError"
        )
    return taken, [entry.event_id for entry in entries]


def state(store: TenantStore, event_id: str) -> LetterState:
    return store.consumers.letter("cache", event_id).state


@pytest.mark.promise("L10")
def test_parking_stores_the_letter_audits_and_moves_the_cursor_together(harness: Harness) -> None:
    store = harness.acme
    (event,) = tell_many(store, 1)
    taken = begun(store)
    assert store.consumers.fail(
        taken, event_id=event.event_id, attempts=9, delay=timedelta(0), failure_class="KeyError"
    )
    for _ in range(2):
        assert store.consumers.park(taken, event, read=0, attempts=10, failure_class="KeyError") is True
    (letter,) = store.consumers.letters()
    assert (letter.consumer_id, letter.event_id, letter.sequence, letter.event) == ("cache", event.event_id, 1, event)
    assert (letter.attempts, letter.failure_class, letter.state, letter.replays) == (10, "KeyError", UNRESOLVED, 0)
    assert abs(letter.parked_at - harness.now()) < timedelta(minutes=1)
    assert (row(store).cursor, row(store).failing) == (1, None)
    assert codes(store) == ["consumer-registered", "consumer-poisoned"]
    told = store.audit.rows()[0]
    assert (told.subject, told.by, told.why) == ("cache", "", "")
    assert {"consumer_id": "cache", "event_id": event.event_id, "attempts": 10}.items() <= dict(told.detail).items()
    assert "KeyError" not in str(told.detail)


@pytest.mark.promise("L10")
def test_nothing_is_parked_from_where_the_cursor_does_not_stand(harness: Harness) -> None:
    first, second = tell_many(harness.acme, 2)
    taken = begun(harness.acme)
    assert harness.acme.consumers.acknowledge(taken, read=0, sequence=1)
    for entry, read in ((first, 0), (second, 0), (second, None)):
        parks = harness.acme.consumers.park(taken, entry, read=read, attempts=10, failure_class="KeyError")
        # To have acknowledged it looks as to have parked it: the cursor stands where it was to go.
        assert parks is (entry is first)
    assert list(harness.acme.consumers.letters()) == []
    assert row(harness.acme).cursor == 1


@pytest.mark.promise("L10")
def test_a_row_that_does_not_decode_is_parked_without_a_copy(harness: Harness) -> None:
    taken = begun(harness.acme)
    broken = UnreadableEvent(sequence=1, event_id="#sequence.1", why="it is broken", unknown=False)
    assert harness.acme.consumers.park(taken, broken, read=0, attempts=10, failure_class="UnreadableEventError")
    letter = harness.acme.consumers.letter("cache", "#sequence.1")
    assert (letter.event, letter.sequence) == (None, 1)


@pytest.mark.promise("L13")
def test_a_letter_keeps_its_event_when_the_stream_is_pruned(harness: Harness) -> None:
    _, (event_id,) = parked(harness.acme)
    harness.advance(timedelta(days=31))
    assert harness.acme.stream.prune(1, MONTH, 10) == 1
    kept = harness.acme.consumers.letter("cache", event_id).event
    assert kept is not None
    assert kept.event_id == event_id


@pytest.mark.promise("L10")
def test_a_copy_that_does_not_decode_any_more_leaves_the_letter(harness: Harness) -> None:
    _, (event_id,) = parked(harness.acme)
    harness.change(LETTERS, f"acme|cache|{event_id}", event={"task_id": 7})
    assert harness.acme.consumers.letter("cache", event_id).event is None


def test_letters_are_listed_in_pages_by_consumer_and_by_state(harness: Harness) -> None:
    store = harness.acme
    for name in ("a", "b"):
        parked(store, 3, name)
    consumers = store.consumers
    whole = [(letter.consumer_id, letter.sequence) for letter in consumers.letters()]
    assert whole == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3)]
    page: list[DeadLetter] = list(consumers.letters(limit=2))
    seen = list(page)
    while page:
        last = seen[-1]
        page = list(consumers.letters(after=letter_key(last.consumer_id, last.event_id), limit=2))
        seen += page
    assert [(letter.consumer_id, letter.sequence) for letter in seen] == whole
    assert consumers.resolve("b", seen[4].event_id, "ann", "")
    assert [letter.sequence for letter in consumers.letters(consumer_id="b", state=UNRESOLVED)] == [1, 3]
    assert [letter.consumer_id for letter in consumers.letters(state=RESOLVED)] == ["b"]
    assert list(consumers.letters(consumer_id="nobody")) == []
    after = letter_key("a", seen[2].event_id)
    assert [letter.sequence for letter in consumers.letters(consumer_id="b", after=after)] == [1, 2, 3]


@pytest.mark.promise("L11")
def test_a_replay_is_asked_for_once_and_audited(harness: Harness) -> None:
    store, consumers = harness.acme, harness.acme.consumers
    taken, (event_id,) = parked(store)
    assert consumers.rest(taken, idle=True, delay=timedelta(days=1))
    assert store.consumers.look("cache").replays is False
    assert [consumers.ask_replay("cache", event_id, "ann", "mended") for _ in range(2)] == [True, False]
    assert (state(store, event_id), consumers.letter("cache", event_id).replays) == (REPLAYING, 1)
    assert store.consumers.look("cache").replays is True
    assert harness.other.consumers.look("cache").replays is False
    assert codes(store) == ["consumer-registered", "consumer-poisoned", "consumer-replayed"]
    told = store.audit.rows()[0]
    assert (told.by, told.why, told.detail["event_id"]) == ("ann", "mended", event_id)
    due = row(store).next_poll_at
    assert due is not None
    assert due <= harness.now()


@pytest.mark.promise("L11")
def test_a_replay_that_succeeded_resolves_the_letter_once(harness: Harness) -> None:
    store, consumers = harness.acme, harness.acme.consumers
    taken, (event_id,) = parked(store)
    assert consumers.ask_replay("cache", event_id, "ann", "")
    for _ in range(2):
        assert consumers.replayed(taken, event_id, why="observed") is True
    letter = consumers.letter("cache", event_id)
    assert (letter.state, letter.settled_why) == (RESOLVED, "observed")
    assert letter.settled_at is not None
    assert abs(letter.settled_at - harness.now()) < timedelta(minutes=1)
    assert consumers.ask_replay("cache", event_id, "ann", "") is False
    assert store.consumers.look("cache").replays is False
    assert row(store).cursor == 1


@pytest.mark.promise("L11")
def test_a_replay_that_failed_puts_the_letter_back(harness: Harness) -> None:
    consumers = harness.acme.consumers
    taken, (event_id,) = parked(harness.acme)
    assert consumers.ask_replay("cache", event_id, "ann", "")
    for _ in range(2):
        assert consumers.replay_failed(taken, event_id, failure_class="TimeoutError") is True
    letter = consumers.letter("cache", event_id)
    assert (letter.state, letter.failure_class, letter.settled_at) == (UNRESOLVED, "TimeoutError", None)
    assert consumers.ask_replay("cache", event_id, "ann", "again") is True
    assert consumers.letter("cache", event_id).replays == 2


@pytest.mark.promise("L11")
def test_a_replay_inside_the_observers_transaction_is_undone_with_it_and_where_the_lease_is_lost(
    harness: Harness,
) -> None:
    store = harness.acme
    taken, (event_id,) = parked(store)
    assert store.consumers.ask_replay("cache", event_id, "ann", "")
    with store.transactions.begin() as transaction:
        store.consumers.replayed_in(transaction, taken, event_id, why="observed")
    assert state(store, event_id) is REPLAYING
    newer = lease(store)
    with store.transactions.begin() as transaction, pytest.raises(LeaseLostError):
        store.consumers.replayed_in(transaction, taken, event_id, why="observed")
    assert state(store, event_id) is REPLAYING
    with store.transactions.begin() as transaction:
        store.consumers.replayed_in(transaction, newer, event_id, why="observed")
        transaction.commit()
    assert state(store, event_id) is RESOLVED


@pytest.mark.promise("L11")
def test_an_operator_resolves_a_letter_once_audited(harness: Harness) -> None:
    store, consumers = harness.acme, harness.acme.consumers
    _, (event_id,) = parked(store)
    assert [consumers.resolve("cache", event_id, "ann", "done by hand") for _ in range(2)] == [True, False]
    letter = consumers.letter("cache", event_id)
    assert (letter.state, letter.settled_by, letter.settled_why) == (RESOLVED, "ann", "done by hand")
    assert codes(store)[-1] == "letter-resolved"
    assert codes(store).count("letter-resolved") == 1
    assert consumers.ask_replay("cache", event_id, "ann", "") is False


@pytest.mark.promise("L11", "L14")
def test_a_letter_that_does_not_exist_or_whose_consumer_is_retired_is_not_replayed(harness: Harness) -> None:
    consumers = harness.acme.consumers
    _, (event_id,) = parked(harness.acme)
    for call in (consumers.ask_replay, consumers.resolve):
        with pytest.raises(LetterNotFoundError):
            call("cache", "nothing", "ann", "")
    with pytest.raises(LetterNotFoundError):
        consumers.letter("nobody", event_id)
    consumers.retire("cache", "ann", "")
    with pytest.raises(ConsumerRetiredError):
        consumers.ask_replay("cache", event_id, "ann", "")


@pytest.mark.promise("L13", "L14")
def test_retiring_a_consumer_resolves_its_letters_and_no_others(harness: Harness) -> None:
    store, consumers = harness.acme, harness.acme.consumers
    _, event_ids = parked(store, 3)
    parked(store, 1, "cache2")
    assert consumers.ask_replay("cache", event_ids[0], "ann", "")
    assert consumers.resolve("cache", event_ids[1], "bob", "by hand")
    assert consumers.retire("cache", "ann", "moved away")
    found = consumers.letters(consumer_id="cache", state=RESOLVED)
    assert [letter.settled_by for letter in found] == ["ann", "bob", "ann"]
    assert len(consumers.letters(state=UNRESOLVED)) == 1


@pytest.mark.promise("L13")
def test_resolved_letters_leave_in_bounded_batches_and_unresolved_ones_stay(harness: Harness) -> None:
    store, consumers = harness.acme, harness.acme.consumers
    _, event_ids = parked(store, 5)
    for event_id in event_ids[:3]:
        assert consumers.resolve("cache", event_id, "ann", "")
    harness.advance(timedelta(days=31))
    assert consumers.resolve("cache", event_ids[3], "ann", "")
    assert [consumers.prune_letters(MONTH, 2) for _ in range(3)] == [2, 1, 0]
    assert [letter.event_id for letter in consumers.letters()] == event_ids[3:]
