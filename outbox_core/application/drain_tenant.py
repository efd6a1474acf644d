"""Drain a tenant's log: every match becomes a durable row before the cursor moves."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

from outbox_core.application.decide_batch import decide_batch
from outbox_core.application.leave_slot import leave_slot
from outbox_core.application.offer_slice import offer_slice
from outbox_core.domain.effect import DEAD_EVENT
from outbox_core.domain.errors import RowsRefusedError, TransientError
from outbox_core.domain.sequence import Mark, contiguous_length, missing_between, over_age, with_mark
from outbox_core.ports.drain_progress import JournalEntry, Kept
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outbox_core.application.decide_batch import Batch
    from outbox_core.application.newborn import Newborn
    from outbox_core.domain.event import LogEntry
    from outbox_core.ports.drain_progress import Cursor
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

_log = logging.getLogger("outbox.drain")

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.25
_FILL_CHUNK = 1_000


class Step(Enum):
    """What one look at the log came to."""

    ADVANCED = "advanced"
    CAUGHT_UP = "caught up"
    WAITING = "waiting for a missing number"
    AGAIN = "read again"
    BLOCKED = "before an event that fails"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a look, or a whole drain, came to: how the last look ended, how far the cursor is, how many rows are new."""

    step: Step
    reached_seq: int
    rows: int = 0


def drain_tenant(store: TenantStore, runtime: Runtime, token: str | None = None) -> DrainReport | None:
    """Drain one tenant for about a slice's time; None where its drain slot is taken, or `token` is not held.

    Any number of drains may race: rows collapse on their keys, and one of them moves the cursor (E13). A death
    anywhere, then another drain, ends in the same rows (E14). Raises TransientError with the cursor where it was
    (E10). Source: the materialization order of the effect outbox decision, docs/decisions/0001.
    """
    return drain_into(None, store, runtime, token)


def drain_into(
    newborn: Newborn | None, store: TenantStore, runtime: Runtime, token: str | None = None
) -> DrainReport | None:
    """Drain as `drain_tenant` does; with `newborn`, only until that holds rows, and whoever is free goes on."""
    ends = runtime.clock.monotonic() + runtime.limits.slice_time.total_seconds()
    pause, rows, moved, look = _FIRST_PAUSE, 0, False, None
    entered = store.progress.enter(token, runtime.limits.slot_hold)
    while entered is not None:
        cursor, slot = entered
        look = _look(store, runtime, cursor, slot, newborn)
        full = newborn is not None and newborn.in_hand is not None
        if newborn is not None and not full:
            newborn.cursor_is_read()
        rows += look.rows
        moved = moved or look.step in {Step.ADVANCED, Step.CAUGHT_UP}
        over = full or look.step is Step.BLOCKED or runtime.clock.monotonic() >= ends or runtime.stopping()
        if look.step is Step.CAUGHT_UP:
            entered = _clear(store, runtime, look.reached_seq, over=over)
        elif over:
            _hand_on(store, runtime, slot, look.step, moved=moved)
            entered = None
        else:
            entered = _again(store, runtime, slot, 0.0 if look.step is Step.ADVANCED else pause)
        pause = _FIRST_PAUSE if look.step is Step.ADVANCED else min(2 * pause, _LONGEST_PAUSE)
    return None if look is None else replace(look, rows=rows)


def _again(store: TenantStore, runtime: Runtime, slot: str, pause: float) -> tuple[Cursor, str]:
    if pause:
        runtime.clock.sleep(pause)
    with _left_on_error(store, slot):
        return store.progress.load(), slot


def _clear(store: TenantStore, runtime: Runtime, reached_seq: int, *, over: bool) -> tuple[Cursor, str] | None:
    """Clear the undrained flag; enter again where more was given out meanwhile.

    The slot is free already: an append after the clearing hints, and its drain must find it so.
    """
    if store.log.clear_undrained(reached_seq):
        return None
    if not over:
        return store.progress.enter(None, runtime.limits.slot_hold)
    # The flag stays set, so no append hints: one that is under way just now would wait for a tick.
    runtime.hints.turn(store.tenant_id)
    return None


def _hand_on(store: TenantStore, runtime: Runtime, slot: str, step: Step, *, moved: bool) -> None:
    """Let a turn go on at the tail of the queue, in the same slot; one that got nowhere leaves it to the tick.

    A turn, whoever hands on: it lasts for one batch, where a drain goes on for a second and leaves rows for slices.
    """
    if step is Step.ADVANCED and runtime.hints.turn(store.tenant_id, slot):
        return
    leave_slot(store, Lane.DRAIN, slot)
    if moved and step in {Step.WAITING, Step.AGAIN}:
        # As in _clear; but a hole that no look got past stays for its grace.
        runtime.hints.turn(store.tenant_id)


@contextmanager
def _left_on_error(store: TenantStore, slot: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        leave_slot(store, Lane.DRAIN, slot)
        raise


def _look(store: TenantStore, runtime: Runtime, cursor: Cursor, slot: str, newborn: Newborn | None) -> DrainReport:
    """Read what follows the cursor; materialize what follows without a hole, or see to the hole.

    Where it is caught up, and where it raises, the slot is free afterwards.
    """
    with _left_on_error(store, slot):
        entries = store.log.read_after(cursor.seq, runtime.limits.event_batch)
        length = contiguous_length(cursor.seq, [entry.seq for entry in entries])
        if length:
            last_read = length == len(entries) < runtime.limits.event_batch
            return _materialize(store, runtime, cursor, slot, entries[:length], newborn, last_read=last_read)
        look = _see_to_hole(store, runtime, cursor, [entry.seq for entry in entries])
    if look.step is Step.CAUGHT_UP:
        leave_slot(store, Lane.DRAIN, slot)
    return look


def _see_to_hole(store: TenantStore, runtime: Runtime, cursor: Cursor, seqs: Sequence[int]) -> DrainReport:
    """Fill what is missing and over age (E04); else note down how far the numbers have come, and wait (E03)."""
    limits = runtime.limits
    head = store.log.head()
    if head.last_seq < cursor.seq:
        _log.error(
            "tenant %s: its counter stands at %d, below its cursor at %d, as after a restore of an older copy; what is"
            " numbered below the cursor would be passed unseen, so nothing is drained",
            store.tenant_id,
            head.last_seq,
            cursor.seq,
        )
        return DrainReport(Step.BLOCKED, cursor.seq)
    if not seqs and head.last_seq <= cursor.seq:
        return DrainReport(Step.CAUGHT_UP, cursor.seq)
    # Beyond a full batch nothing was read, so nothing there is known to be missing.
    known_upto = seqs[-1] if len(seqs) == limits.event_batch else head.last_seq
    fillable = min(over_age(cursor.marks, cursor.now, limits.gap_grace), known_upto)
    holes = missing_between(cursor.seq, seqs, fillable)
    # No more of them than one look fills: a counter that somebody set wrong may be ahead by any number.
    missing = list(islice((seq for first, last in holes for seq in range(first, last + 1)), _FILL_CHUNK))
    if missing:
        _fill(store, missing)
        # The cursor moves only over numbers that were read, never over numbers just written.
        return DrainReport(Step.AGAIN, cursor.seq)
    mark = Mark(head.last_seq, head.now)
    marks = with_mark(cursor.marks, mark, cursor.seq, limits.mark_interval, limits.gap_grace)
    if marks != cursor.marks:
        store.progress.commit(cursor, seq=cursor.seq, marks=marks, poison=cursor.poison, entry=None)
    return DrainReport(Step.WAITING, cursor.seq)


def _fill(store: TenantStore, missing: Sequence[int]) -> None:
    try:
        filled = store.log.fill(missing)
    except TransientError as error:
        _log.info("tenant %s: holes from %d on could not be filled yet: %s", store.tenant_id, missing[0], error)
        return
    if filled:
        _log.warning(
            "tenant %s: %d numbers from %d on were missing for longer than the grace; a tombstone fills each",
            store.tenant_id,
            filled,
            missing[0],
        )


def _materialize(
    store: TenantStore,
    runtime: Runtime,
    cursor: Cursor,
    slot: str,
    entries: Sequence[LogEntry],
    newborn: Newborn | None,
    *,
    last_read: bool,
) -> DrainReport:
    batch, new_ids = _make_durable(store, runtime, cursor, entries, newborn)
    all_held = newborn is not None and newborn.born(new_ids)
    if not batch.length:
        if batch.poison != cursor.poison:
            store.progress.commit(cursor, seq=cursor.seq, marks=cursor.marks, poison=batch.poison, entry=None)
        return DrainReport(Step.BLOCKED, cursor.seq)
    reached = entries[batch.length - 1].seq
    entry = JournalEntry(
        entry_id=runtime.entropy.token(),
        follows=cursor.entry_id,
        first_seq=cursor.seq + 1,
        last_seq=reached,
        rows=len(batch.rows),
        skips=batch.skips,
    )
    marks = tuple(mark for mark in cursor.marks if mark.last_seq > reached)
    whole = last_read and batch.length == len(entries)
    moved = store.progress.commit(
        cursor,
        seq=reached,
        marks=marks,
        poison=batch.poison.above(reached),
        entry=entry,
        slot=Kept(slot) if whole else Kept(slot, runtime.limits.slot_hold),
    )
    if new_ids and not all_held:
        offer_slice(store, runtime)
    if not moved:
        return DrainReport(Step.AGAIN, cursor.seq, len(new_ids))
    return DrainReport(Step.CAUGHT_UP if whole else Step.ADVANCED, reached, len(new_ids))


def _make_durable(
    store: TenantStore, runtime: Runtime, cursor: Cursor, entries: Sequence[LogEntry], newborn: Newborn | None
) -> tuple[Batch, frozenset[str]]:
    """Decide the whole batch, then insert its rows; a row that the store refuses for good fails its event (E15)."""
    refused: dict[int, str] = {}
    new_ids: frozenset[str] = frozenset()
    while True:
        batch = decide_batch(store, runtime, cursor, entries, refused)
        rows = batch.rows if newborn is None else newborn.hold(batch, entries, cursor.now)
        try:
            new_ids |= store.effects.materialize(rows, cursor.now) if rows else frozenset()
        except RowsRefusedError as error:
            new_ids |= error.inserted
            found = {row.seq: error.reasons[row.effect_id] for row in batch.rows if row.effect_id in error.reasons}
            if found.keys() <= refused.keys():
                raise TransientError(f"rows are refused that were left out: {error}") from error
            refused |= found
            continue
        for row in batch.rows:
            if row.kind == DEAD_EVENT and row.effect_id in new_ids:
                _log.error(
                    "tenant %s: event %d is parked as dead letter %s: %s",
                    store.tenant_id,
                    row.seq,
                    row.effect_id,
                    row.error,
                )
        return batch, new_ids
