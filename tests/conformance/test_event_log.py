"""What ports.event_log promises, on both stores."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.errors import ContentionError, EventConflictError, InvalidInputError, TransientError
from outbox_core.domain.event import Event, Tombstone, Undecodable
from outbox_core.domain.sequence import Horizon
from tests.harness.examples import append, event

if TYPE_CHECKING:
    from tests.harness.base import Harness


@pytest.mark.promise("E01")
def test_numbers_rise_from_one_and_tenants_share_no_counter(harness: Harness) -> None:
    first, block = harness.acme.log.allocate(1), harness.acme.log.allocate(3)
    others = harness.other.log.allocate(2)
    assert (list(first.seqs), list(block.seqs), list(others.seqs)) == ([1], [2, 3, 4], [1, 2])
    assert harness.acme.log.head().last_seq == 4
    assert harness.store.tenant("nobody").log.head().last_seq == 0


@pytest.mark.promise("E01")
def test_racing_allocations_never_share_a_number(harness: Harness) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda size: list(harness.acme.log.allocate(size).seqs), [1, 2, 3] * 20))
    assert sorted(seq for seqs in taken for seq in seqs) == list(range(1, 121))


def test_an_allocation_tells_the_servers_time_and_whether_a_drain_was_owed_already(harness: Harness) -> None:
    before = harness.now()
    first, second = harness.acme.log.allocate(1), harness.acme.log.allocate(1)
    assert (first.was_undrained, second.was_undrained) == (False, True)
    assert before <= first.now <= second.now <= harness.now()
    assert before <= harness.acme.log.head().now <= harness.now()


def test_an_event_is_read_back_as_it_was_stored(harness: Harness) -> None:
    now = harness.acme.log.allocate(1).now
    stored = Event(
        tenant_id="acme",
        seq=1,
        event_id="e1",
        attributes=event(
            1,
            now=now,
            source="board",
            type="issues",
            action="opened",
            subject="gh.issue.1",
            labels=("Bug", "ñ"),
            repo="o/r",
            author="ann",
            state="open",
            from_state="closed",
            reason="watchdog",
            run_id="r1",
        ).attributes,
        data={"n": 1, "deep": {"list": [1.5, None, True, "$dollar", {"a.b": "."}]}},
        trace={"traceparent": "00-1-2-01"},
        occurred_at=datetime(2026, 11, 30, 15, 0, 0, 123_000, UTC),
        recorded_at=now,
    )
    harness.acme.log.insert([stored])
    assert list(harness.acme.log.read_after(0, 10)) == [stored]
    assert dict(harness.acme.log.get(["e1", "e2"])) == {"e1": stored}
    assert dict(harness.acme.log.find(["e1", "e2"])) == {"e1": 1}


def test_reading_goes_on_above_a_number_in_order_and_up_to_a_bound(harness: Harness) -> None:
    append(harness.acme, *(f"e{number}" for number in range(1, 8)))
    assert [entry.seq for entry in harness.acme.log.read_after(2, 3)] == [3, 4, 5]
    assert [entry.seq for entry in harness.acme.log.read_after(5, 100)] == [6, 7]
    assert list(harness.acme.log.read_after(7, 100)) == []


@pytest.mark.promise("E01", "E46")
def test_a_number_or_an_event_id_that_exists_is_a_conflict_after_all_others_are_stored(harness: Harness) -> None:
    now = harness.acme.log.allocate(6).now
    harness.acme.log.insert([event(1, "a", now=now), event(2, "b", now=now)])
    batch = [event(3, "a", now=now), event(2, "c", now=now), event(4, "d", now=now), event(5, "e", now=now)]
    with pytest.raises(EventConflictError) as conflict:
        harness.acme.log.insert(batch)
    assert conflict.value.duplicates == {"a"}
    assert conflict.value.taken == {2}
    assert dict(harness.acme.log.find("abcde")) == {"a": 1, "b": 2, "d": 4, "e": 5}


@pytest.mark.promise("E46")
def test_repeating_an_insert_changes_nothing_and_find_answers_for_it(harness: Harness) -> None:
    """Scenario 47: a writer that lost its answer sends the same documents again."""
    events = append(harness.acme, "a", "b")
    with pytest.raises(EventConflictError) as conflict:
        harness.acme.log.insert(events)
    assert conflict.value.duplicates == {"a", "b"}
    assert not conflict.value.taken
    assert dict(harness.acme.log.find(["a", "b"])) == {"a": 1, "b": 2}


@pytest.mark.promise("E09")
def test_an_event_that_cannot_be_stored_is_refused_and_nothing_is_written(harness: Harness) -> None:
    now = harness.acme.log.allocate(2).now
    broken = event(2, "b", now=now, data={"n": 2**64})
    with pytest.raises(InvalidInputError):
        harness.acme.log.insert([event(1, "a", now=now), broken])
    assert list(harness.acme.log.read_after(0, 10)) == []


@pytest.mark.promise("E04")
@pytest.mark.scenario(55)
def test_each_tombstone_lands_under_an_id_of_its_own(harness: Harness) -> None:
    """Scenario 55: a tenant's second tombstone lands."""
    harness.acme.log.allocate(3)
    assert harness.acme.log.fill([1]) == 1
    assert harness.acme.log.fill([3, 2]) == 2
    assert list(harness.acme.log.read_after(0, 10)) == [Tombstone(1), Tombstone(2), Tombstone(3)]
    assert harness.acme.log.fill([1, 2, 3]) == 0


@pytest.mark.promise("E04")
@pytest.mark.scenario(46)
def test_a_tombstone_never_covers_an_event_nor_an_event_a_tombstone(harness: Harness) -> None:
    """Scenario 46: the writer that was late lands first, or is refused; both are read as they are."""
    now = harness.acme.log.allocate(2).now
    harness.acme.log.insert([event(1, "late", now=now)])
    assert harness.acme.log.fill([1, 2]) == 1
    with pytest.raises(EventConflictError) as conflict:
        harness.acme.log.insert([event(2, "later", now=now)])
    assert conflict.value.taken == {2}
    assert not conflict.value.duplicates
    assert [type(entry) for entry in harness.acme.log.read_after(0, 10)] == [Event, Tombstone]


@pytest.mark.promise("E08")
@pytest.mark.scenario(14)
@pytest.mark.parametrize(
    "broken",
    [{"type": None}, {"source": 7}, {"recorded_at": "yesterday"}, {"data": "text"}, {"snapshot": {"labels": [1]}}],
    ids=lambda fields: next(iter(fields)),
)
def test_a_document_that_does_not_decode_is_told_by_its_number_and_its_neighbours_are_read(
    harness: Harness, broken: dict[str, object]
) -> None:
    """Scenario 14: an undecodable row among good ones."""
    append(harness.acme, "a", "b", "c")
    harness.change("board_events", "acme|b", **broken)
    before, entry, after = harness.acme.log.read_after(0, 10)
    assert isinstance(before, Event)
    assert isinstance(after, Event)
    assert isinstance(entry, Undecodable)
    assert (entry.seq, entry.document_id) == (2, "acme|b")
    assert entry.error
    assert isinstance(harness.acme.log.get(["b"])["b"], Undecodable)


@pytest.mark.promise("O08")
def test_an_event_of_another_version_is_read_with_defaults_for_what_it_lacks(harness: Harness) -> None:
    append(harness.acme, "a")
    (stored,) = harness.raw("board_events")
    kept = {name: stored[name] for name in ("_id", "tenant_id", "seq", "event_id", "source", "type", "recorded_at")}
    harness.put_raw("board_events", {**kept, "of_a_later_version": {"x": 1}})
    (read,) = harness.acme.log.read_after(0, 10)
    assert isinstance(read, Event)
    assert (read.attributes.action, read.data, read.occurred_at) == ("", {}, None)


@pytest.mark.promise("E07")
def test_the_horizon_is_the_highest_inserted_number_and_the_holes_below_it(harness: Harness) -> None:
    now = harness.acme.log.allocate(9).now
    assert harness.acme.log.horizon(0) == Horizon(0)
    harness.acme.log.insert([event(seq, now=now) for seq in (1, 2, 5, 6, 8)])
    horizon = harness.acme.log.horizon(0)
    assert horizon == Horizon(8, ((3, 4), (7, 7)))
    assert [horizon.covers(seq) for seq in range(1, 10)] == [True, True, False, False, True, True, False, True, False]
    assert harness.acme.log.horizon(4) == Horizon(8, ((7, 7),))
    assert harness.acme.log.horizon(8) == Horizon(8)


@pytest.mark.promise("E16")
def test_the_flag_is_cleared_only_where_nothing_above_was_given_out(harness: Harness) -> None:
    assert harness.acme.log.clear_undrained(0) is True
    assert harness.acme.log.flag_undrained() is False
    append(harness.acme, "a", "b")
    assert harness.acme.log.clear_undrained(1) is False
    assert harness.store.maintenance.undrained_tenants("", 10) == ["acme"]
    assert [harness.acme.log.clear_undrained(2), harness.acme.log.clear_undrained(2)] == [True, True]
    assert harness.store.maintenance.undrained_tenants("", 10) == []
    assert [harness.acme.log.flag_undrained(), harness.acme.log.flag_undrained()] == [True, False]
    assert harness.acme.log.allocate(1).was_undrained is True


@pytest.mark.promise("E16")
@pytest.mark.scenario(48)
def test_no_append_that_races_the_clearing_of_the_flag_is_stranded(harness: Harness) -> None:
    """Scenario 48: 300 appends race the clearing; whenever the flag is clear, all that was given out was reached."""
    log = harness.acme.log

    def appends(writer: int) -> None:
        for number in range(100):
            append(harness.acme, f"w{writer}.{number}")

    reached, stranded = 0, 0
    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(appends, writer) for writer in range(3)]
        while True:
            over = all(writer.done() for writer in writers)
            reached = max((entry.seq for entry in log.read_after(0, 1_000)), default=0)
            cleared = log.clear_undrained(reached)
            if cleared and not over:
                # Clear again means: nobody has allocated since, or whoever did set the flag once more.
                head, flagged = log.head().last_seq, harness.store.maintenance.undrained_tenants("", 1)
                stranded += head > reached and not flagged
            if over and cleared:
                break
        for writer in writers:
            writer.result()
    assert (stranded, reached) == (0, 300)


@pytest.mark.promise("E02")
def test_events_of_a_transaction_are_seen_exactly_if_it_commits(harness: Harness) -> None:
    log = harness.acme.log
    now = log.allocate(2).now
    with harness.acme.transactions.begin() as transaction:
        log.insert([event(1, "a", now=now)], transaction)
        assert list(log.read_after(0, 10)) == []
    assert list(log.read_after(0, 10)) == []
    with harness.acme.transactions.begin() as transaction:
        log.insert([event(2, "b", now=now)], transaction)
        transaction.commit()
        transaction.commit()
    assert dict(log.find(["a", "b"])) == {"b": 2}
    assert log.fill([1]) == 1


@pytest.mark.promise("E02", "E46")
def test_a_duplicate_inside_a_transaction_undoes_all_of_it(harness: Harness) -> None:
    log = harness.acme.log
    append(harness.acme, "a")
    now = log.allocate(2).now
    with harness.acme.transactions.begin() as transaction:
        with pytest.raises(EventConflictError) as conflict:
            log.insert([event(2, "b", now=now), event(3, "a", now=now)], transaction)
        with pytest.raises(ContentionError):
            transaction.commit()
    assert conflict.value.duplicates == {"a"}
    assert dict(log.find(["a", "b"])) == {"a": 1}


@pytest.mark.promise("E04")
def test_a_fill_behind_an_open_transaction_gives_up_and_lands_after_it(harness: Harness) -> None:
    log = harness.acme.log
    now = log.allocate(1).now
    with harness.acme.transactions.begin() as transaction:
        log.insert([event(1, "slow", now=now)], transaction)
        began = time.monotonic()
        with pytest.raises(TransientError):
            log.fill([1])
        assert time.monotonic() - began < 5
    assert log.fill([1]) == 1


@pytest.mark.promise("E05")
def test_times_of_the_log_are_the_servers(harness: Harness) -> None:
    distant = harness.other_process(timedelta(hours=1)).tenant("acme")
    mine, theirs = harness.acme.log.allocate(1).now, distant.log.allocate(1).now
    assert timedelta(0) <= theirs - mine < timedelta(minutes=1)


@pytest.mark.promise("E46")
def test_in_a_transaction_an_event_id_is_found_in_its_snapshot_and_among_its_own(harness: Harness) -> None:
    store, wanted = harness.acme, ["before", "meanwhile", "own"]
    append(store, "before")
    with store.transactions.begin() as transaction:
        assert dict(store.log.find(wanted, transaction)) == {"before": 1}
        append(store, "meanwhile")
        store.log.insert([event(store.log.allocate(1).first_seq, "own", now=harness.now())], transaction)
        assert dict(store.log.find(wanted, transaction)) == {"before": 1, "own": 3}
        assert dict(store.log.find(wanted)) == {"before": 1, "meanwhile": 2}
