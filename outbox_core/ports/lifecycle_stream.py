"""One tenant's lifecycle stream: its numbers and its events. The counter is inside the writer's transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from outbox_core.domain.lifecycle_event import LifecycleChange, LifecycleEvent, StreamEntry
    from outbox_core.ports.transactions import Transaction


@dataclass(frozen=True, slots=True)
class Page:
    """The head, read first, and the entries that were read after it, none of them above it."""

    head: int
    entries: Sequence[StreamEntry]


class LifecycleStream(Protocol):
    """One consistency boundary: lifecycle_sequences and lifecycle_outbox. Every call may raise TransientError.

    An abort gives its number back, so the committed numbers have no holes, and their order is that of the commits: a
    reader that finds one missing knows that it was pruned (L04, L12).
    """

    def append(self, change: LifecycleChange, transaction: Transaction) -> LifecycleEvent:
        """Give the change the tenant's next number and the server's time and store it; undone with the transaction.

        Raises InvalidInputError for a type that is not in the registry (L19), and EventConflictError where the event
        id exists. Two transactions that append run one after the other: ContentionError for the later one.
        """
        ...

    def head(self) -> int:
        """Return the number of the last event that a majority holds; 0 where there is none."""
        ...

    def read_after(self, sequence: int, limit: int) -> Page:
        """Return the head, and up to `limit` entries above `sequence`, ascending, that a majority holds.

        The head is read before the rows, in one causally consistent session: every number up to it that was not pruned
        is there to be found.
        """
        ...

    def floor(self) -> int:
        """Return the lowest number that is stored; head + 1 where none is."""
        ...

    def prune(self, up_to: int, older_than: timedelta, limit: int) -> int:
        """Remove rows from the lowest number on, up to `up_to`; return how many.

        It stops at the first that occurred less than `older_than` before the server's time, and after `limit`.
        """
        ...
