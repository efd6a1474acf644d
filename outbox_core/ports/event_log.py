"""The log of one tenant: numbers, events, tombstones, and the flag that says whether a drain is owed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from outbox_core.domain.event import Event, LogEntry, Undecodable
    from outbox_core.domain.sequence import Horizon
    from outbox_core.ports.transactions import Transaction


@dataclass(frozen=True, slots=True)
class Allocation:
    """`count` numbers from `first_seq` on; `now` is the server's time, `was_undrained` the flag before this call."""

    first_seq: int
    count: int
    now: datetime
    was_undrained: bool

    @property
    def seqs(self) -> range:
        """The numbers."""
        return range(self.first_seq, self.first_seq + self.count)


@dataclass(frozen=True, slots=True)
class Head:
    """The highest number given out, and the server's time when that was read."""

    last_seq: int
    now: datetime


class EventLog(Protocol):
    """One consistency boundary: the counter, its undrained flag and the events.

    Every call may raise TransientError; the call may then have happened.
    """

    def allocate(self, count: int) -> Allocation:
        """Take `count` fresh numbers and set the undrained flag, in one write; never in a transaction.

        A repeated call takes others: the first ones become a hole, which the grace heals.
        """
        ...

    def insert(self, events: Sequence[Event], transaction: Transaction | None = None) -> None:
        """Store events under their numbers, durably on a majority.

        Raises EventConflictError where an event id exists or a number is taken, after all others are stored; in a
        transaction it is then undone. Raises InvalidInputError where an event cannot be stored; nothing is written.
        A repeat after an unclear answer raises EventConflictError with ids that `find` then answers for.
        """
        ...

    def fill(self, seqs: Sequence[int]) -> int:
        """Put a tombstone at each missing number, lowest first, within FILL_TIME; return how many landed.

        A number that somebody has taken meanwhile is left as it is. Source: docs/decisions/0001, holes are filled.
        """
        ...

    def find(self, event_ids: Iterable[str], transaction: Transaction | None = None) -> Mapping[str, int]:
        """Return the number of each event id that a majority holds; in a transaction, that the transaction sees."""
        ...

    def get(self, event_ids: Iterable[str]) -> Mapping[str, Event | Undecodable]:
        """Return the events under these ids that a majority holds, in one read."""
        ...

    def read_after(self, seq: int, limit: int) -> Sequence[LogEntry]:
        """Return up to `limit` entries above `seq`, ascending, that a majority holds."""
        ...

    def head(self) -> Head:
        """Return the highest number given out; 0 for a tenant without any."""
        ...

    def horizon(self, after: int) -> Horizon:
        """Return the highest number inserted, and the holes above `after` and below it, that a majority holds.

        `after` is the tenant's cursor: nothing at or below it is missing.
        """
        ...

    def clear_undrained(self, reached_seq: int) -> bool:
        """Clear the flag if no number above `reached_seq` was given out; say whether it is clear (E16).

        A tenant that never appended is clear.
        """
        ...

    def flag_undrained(self) -> bool:
        """Set the flag of a tenant whose counter exists; say whether it was clear."""
        ...
