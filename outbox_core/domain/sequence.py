"""Numbers of a log: the contiguous prefix, holes, and how old a hole is.

A hole's age counts from when a drain could first see it, never from a time inside an event (E05). What makes it
visible is a mark: "at this time the numbers had come as far as last_seq". A missing number is over age as soon as a
mark at or above it is a grace old, so a dead block of any size costs one grace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.domain.limits import MAX_MARKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Mark:
    """At `at` (server's clock) every number up to `last_seq` had been given out."""

    last_seq: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Horizon:
    """What a log held at one moment: its highest inserted number, and the numbers below it that were missing."""

    highest: int
    holes: tuple[tuple[int, int], ...] = ()

    def covers(self, seq: int) -> bool:
        """Say whether `seq` was in the log at that moment."""
        return seq <= self.highest and not any(first <= seq <= last for first, last in self.holes)


def contiguous_length(after: int, seqs: Sequence[int]) -> int:
    """Count how many of the ascending `seqs` follow `after` without a hole."""
    count = 0
    for count, seq in enumerate(seqs):
        if seq != after + 1 + count:
            return count
    return len(seqs)


def missing_between(after: int, seqs: Iterable[int], upto: int) -> list[tuple[int, int]]:
    """Return the ranges (first, last) of numbers in (after, upto] that are not among the ascending `seqs`."""
    holes: list[tuple[int, int]] = []
    expected = after + 1
    for seq in seqs:
        if seq > upto:
            break
        if seq > expected:
            holes.append((expected, seq - 1))
        expected = seq + 1
    if expected <= upto:
        holes.append((expected, upto))
    return holes


def over_age(marks: Iterable[Mark], now: datetime, grace: timedelta) -> int:
    """Return the highest number that a missing one may have to be over age; 0 where none is."""
    return max((mark.last_seq for mark in marks if now - mark.at >= grace), default=0)


def with_mark(
    marks: Sequence[Mark], new: Mark, cursor_seq: int, interval: timedelta, grace: timedelta
) -> tuple[Mark, ...]:
    """Return the marks with `new` added where one is due, and without those that say nothing any more.

    A mark at or below the cursor says nothing, nor does one that an over-age mark reaches beyond. A mark that lies
    ahead of the server's clock (which may step back at a failover) counts as over: it goes.
    """
    live = [m for m in marks if m.last_seq > cursor_seq and m.at <= new.at]
    reached = over_age(live, new.at, grace)
    kept = [m for m in live if m.last_seq > reached or (m.last_seq == reached and new.at - m.at >= grace)]
    if new.last_seq > max(cursor_seq, reached) and (not kept or new.at - max(m.at for m in kept) >= interval):
        kept.append(new)
    return tuple(kept[-MAX_MARKS:])
