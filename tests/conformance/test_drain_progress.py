"""What ports.drain_progress promises, on both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.poison import Poison
from outbox_core.domain.sequence import Mark
from outbox_core.ports.drain_progress import JOURNAL_ITEMS, JournalEntry, Kept

if TYPE_CHECKING:
    from outbox_core.ports.drain_progress import Cursor, DrainProgress
    from tests.harness.base import Harness


HOLD = timedelta(seconds=30)


def _entry(number: int, follows: str = "") -> JournalEntry:
    return JournalEntry(
        entry_id=f"entry{number}", follows=follows, first_seq=1, last_seq=3, rows=2, skips=((2, "card_gone"),)
    )


def _move(
    progress: DrainProgress, read: Cursor, seq: int, entry: JournalEntry | None = None, poison: Poison | None = None
) -> bool:
    return progress.commit(read, seq=seq, marks=read.marks, poison=poison or read.poison, entry=entry)


def test_a_cursor_starts_at_nought_and_stands_from_then_on(harness: Harness) -> None:
    before = harness.now()
    first, second = harness.acme.progress.load(), harness.acme.progress.load()
    assert (first.seq, first.marks, first.poison, first.entry_id) == (0, (), Poison(), "")
    assert (first.seq, first.rev) == (second.seq, second.rev)
    assert before <= first.now <= second.now <= harness.now()


@pytest.mark.promise("E03", "E15")
def test_what_a_drain_learnt_is_there_for_the_next_one(harness: Harness) -> None:
    progress = harness.acme.progress
    read = progress.load()
    marks = (Mark(4, read.now - timedelta(seconds=7)), Mark(9, read.now))
    assert progress.commit(read, seq=3, marks=marks, poison=Poison({4: 2, 7: 1}, read.now), entry=_entry(1))
    loaded = harness.other_process().tenant("acme").progress.load()
    assert (loaded.seq, loaded.marks, loaded.entry_id) == (3, marks, "entry1")
    assert loaded.poison == Poison({4: 2, 7: 1}, read.now)
    assert loaded.rev > read.rev


@pytest.mark.promise("E13")
@pytest.mark.scenario(60)
def test_a_stale_drain_cannot_write_the_gap_state_of_a_cursor_that_has_not_moved(harness: Harness) -> None:
    """Scenario 60: refused by rev."""
    progress = harness.acme.progress
    mine, theirs = progress.load(), progress.load()
    assert progress.commit(mine, seq=0, marks=(Mark(5, mine.now),), poison=Poison({1: 1}, mine.now), entry=None)
    assert progress.commit(theirs, seq=0, marks=(), poison=Poison(), entry=None) is False
    kept = progress.load()
    assert (kept.marks, kept.poison) == ((Mark(5, mine.now),), Poison({1: 1}, mine.now))


@pytest.mark.promise("E13")
def test_of_racing_drains_one_moves_the_cursor(harness: Harness) -> None:
    progress = harness.acme.progress
    read = progress.load()
    with ThreadPoolExecutor(8) as pool:
        moved = list(pool.map(lambda number: _move(progress, read, 3, _entry(number)), range(8)))
    assert sum(moved) == 1
    assert progress.load().entry_id == f"entry{moved.index(True)}"


def test_a_repeat_after_a_lost_answer_moves_nothing(harness: Harness) -> None:
    progress = harness.acme.progress
    read = progress.load()
    assert [_move(progress, read, 3, _entry(1)), _move(progress, read, 3, _entry(1))] == [True, False]
    after = progress.load()
    assert (after.seq, after.entry_id) == (3, "entry1")
    assert len(harness.journal()) == 1


def test_the_journal_holds_each_batch_that_counted_and_each_entry_names_the_one_before(harness: Harness) -> None:
    progress = harness.acme.progress
    first = progress.load()
    assert _move(progress, first, 3, _entry(1))
    assert not _move(progress, first, 3, _entry(2))
    second = progress.load()
    assert _move(progress, second, 5, _entry(3, follows=second.entry_id))
    assert progress.load().entry_id == "entry3"
    stored = {document["entry_id"]: document for document in harness.journal()}
    assert set(stored) == {"entry1", "entry3"}
    assert stored["entry3"]["follows"] == "entry1"
    assert (stored["entry1"]["first_seq"], stored["entry1"]["last_seq"], stored["entry1"]["rows"]) == (1, 3, 2)
    assert [(skip["seq"], skip["reason"]) for skip in stored["entry1"]["skips"]] == [(2, "card_gone")]


def test_entries_stand_on_the_cursor_until_they_are_many_and_none_is_ever_missing(harness: Harness) -> None:
    progress = harness.acme.progress
    for number in range(1, JOURNAL_ITEMS):
        assert _move(progress, progress.load(), number, _entry(number))
        assert len(harness.journal()) == number
    moved = harness.raw("drain_journal", tenant_id="acme")
    (cursor,) = harness.raw("trigger_cursors")
    assert (len(moved), len(cursor["journal"])) == (JOURNAL_ITEMS // 2, JOURNAL_ITEMS // 2 - 1)
    assert progress.load().journal == cursor["journal_items"] == 2 * len(cursor["journal"])


def test_a_losing_drain_takes_no_entry_off_the_cursor(harness: Harness) -> None:
    progress = harness.acme.progress
    full = replace(_entry(1), skips=tuple((seq, "void") for seq in range(JOURNAL_ITEMS)))
    assert _move(progress, progress.load(), 1, full)
    stale = progress.load()
    assert _move(progress, stale, 2, None, Poison({3: 1}, harness.now()))
    assert not _move(progress, stale, 2, _entry(2))
    assert [entry["entry_id"] for entry in harness.journal()] == ["entry1"]
    assert _move(progress, progress.load(), 2, _entry(3))
    assert {entry["entry_id"] for entry in harness.journal()} == {"entry1", "entry3"}


def test_entering_takes_the_one_slot_and_reads_the_cursor(harness: Harness) -> None:
    progress = harness.acme.progress
    before = harness.now()
    entered = progress.enter(None, HOLD)
    assert entered is not None
    cursor, token = entered
    assert (cursor.seq, cursor.rev) == (0, 0)
    assert before <= cursor.now <= harness.now()
    assert progress.enter(None, HOLD) is None
    assert _move(progress, cursor, 3, _entry(1))
    again = progress.enter(token, HOLD)
    assert again is not None
    assert (again[0].seq, again[0].entry_id) == (3, "entry1")
    assert again[1] != token
    assert progress.enter(token, HOLD) is None
    assert progress.enter("forged", HOLD) is None
    harness.advance(HOLD + timedelta(seconds=1))
    assert progress.enter(None, HOLD) is not None


def test_moving_the_cursor_gives_the_slot_back_or_lets_it_go_on(harness: Harness) -> None:
    store = harness.acme
    entered = store.progress.enter(None, HOLD)
    assert entered is not None
    cursor, token = entered
    harness.advance(HOLD * 0.9)
    later = store.progress.load()
    assert _commit_with(store.progress, later, 1, Kept(token, HOLD))
    harness.advance(HOLD * 0.9)
    assert store.progress.enter(None, HOLD) is None
    assert not _commit_with(store.progress, cursor, 2, Kept(token))
    assert store.progress.enter(None, HOLD) is None
    assert _commit_with(store.progress, store.progress.load(), 2, Kept("anothers"))
    assert store.progress.enter(None, HOLD) is None
    assert _commit_with(store.progress, store.progress.load(), 3, Kept(token))
    assert store.progress.enter(None, HOLD) is not None


def _commit_with(progress: DrainProgress, read: Cursor, seq: int, slot: Kept) -> bool:
    return progress.commit(read, seq=seq, marks=(), poison=read.poison, entry=None, slot=slot)


def test_a_commit_without_an_entry_keeps_the_last_one(harness: Harness) -> None:
    progress = harness.acme.progress
    assert _move(progress, progress.load(), 3, _entry(1))
    assert _move(progress, progress.load(), 3, None, Poison({4: 1}, harness.now()))
    assert progress.load().entry_id == "entry1"


@pytest.mark.promise("O08")
def test_a_field_of_a_later_version_survives_a_commit(harness: Harness) -> None:
    progress = harness.acme.progress
    progress.load()
    harness.change("trigger_cursors", "acme", of_a_later_version=[1])
    assert _move(progress, progress.load(), 2)
    (stored,) = harness.raw("trigger_cursors", tenant_id="acme")
    assert stored["of_a_later_version"] == [1]
