"""Events that fail every time: counted by drain ticks, parked when the count is full (E15)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Poison:
    """How often each failing number was met; `counted_at` is the server's time of the last count."""

    counts: Mapping[int, int] = field(default_factory=dict)
    counted_at: datetime | None = None

    def counted(self, failing: Iterable[int], now: datetime, interval: timedelta) -> Poison:
        """Return the counts after one more tick, or the same where the last one is less than `interval` ago.

        Neither hints nor racing drains hasten a count: the store's revision lets one of them write it. A last count
        that lies ahead of `now` counts as over.
        """
        seqs = set(failing)
        if not seqs:
            return self
        if self.counted_at is not None and self.counted_at <= now < self.counted_at + interval:
            return self
        return Poison({seq: self.counts.get(seq, 0) + 1 for seq in sorted(seqs)}, now)

    def above(self, seq: int) -> Poison:
        """Return the counts of the numbers above `seq` alone: what the cursor has passed is no longer counted."""
        kept = {failing: count for failing, count in self.counts.items() if failing > seq}
        return self if len(kept) == len(self.counts) else Poison(kept, self.counted_at)
