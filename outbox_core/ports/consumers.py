"""The consumers of one tenant's lifecycle stream: registrations, cursors, dead letters, and their audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from outbox_core.domain.consumer import Consumer, DeadLetter, Lease, LetterState, Look, Start
    from outbox_core.domain.lifecycle_event import StreamEntry
    from outbox_core.ports.transactions import Transaction


class Consumers(Protocol):
    """One consistency boundary: a consumer's row, its dead letters, and the audit rows that commit with them.

    Every call may raise TransientError; the call may then have happened. Times are the server's. A write under a lease
    filters on tenant, consumer, fence, and not retired; one that moves the cursor also on where it was read. It says
    False where that matched nothing, except where a repeat finds its own work done: then True.
    """

    def register(self, consumer_id: str, start: Start, by: str) -> Consumer:
        """Store a registration, audited, and return the row.

        One that is there and not retired is left as it is, its start too. A retired one comes back without a cursor and
        must reconcile first (L14).
        """
        ...

    def look(self, consumer_id: str) -> Look:
        """Return the row, the head and the server's time, in one read of what a majority holds."""
        ...

    def all(self) -> Sequence[Consumer]:
        """Return every row that decodes, by id, retired ones too."""
        ...

    def lease(self, consumer_id: str, owner: str, duration: timedelta) -> Lease | None:
        """Take the row under the next fence; None where another holds it, or it is unknown, retired or paused (L07).

        A lease that ends further ahead than any may, and OP_TIMEOUT, counts as over. A lease of the same owner is
        taken anew: one process polls a consumer once at a time.
        """
        ...

    def renew(self, lease: Lease, duration: timedelta) -> bool:
        """Let the lease end `duration` from now, where that is later, and note the heartbeat."""
        ...

    def acknowledge(self, lease: Lease, *, read: int | None, sequence: int, superseded: Sequence[str] = ()) -> bool:
        """Move the cursor from what was `read` to an event's number, and forget its failed tries (L06).

        `superseded` are the ids, of the events up to there, that were not to be acted on any more (L18): they are
        audited, one row for all, in the same transaction.
        """
        ...

    def acknowledge_in(
        self, transaction: Transaction, lease: Lease, *, read: int | None, sequence: int, superseded: Sequence[str] = ()
    ) -> None:
        """As `acknowledge`, inside the observer's own transaction; raises LeaseLostError, which undoes it."""
        ...

    def fail(self, lease: Lease, *, event_id: str, attempts: int, delay: timedelta, failure_class: str) -> bool:
        """Note the failed tries of the event that the consumer stands before, and when the next may be (L09)."""
        ...

    def park(self, lease: Lease, entry: StreamEntry, *, read: int | None, attempts: int, failure_class: str) -> bool:
        """Store the dead letter, audit `consumer-poisoned`, and move the cursor, in one transaction (L10)."""
        ...

    def reconciled(self, lease: Lease, *, head: int, why: str) -> bool:
        """Set the cursor to the head that was read before, audited; nothing has to be reconciled any more (L12).

        The cursor may be anything, above `head` too; of what was read it only demands the fence.
        """
        ...

    def begin(self, lease: Lease) -> bool:
        """Give a consumer without a cursor, which starts at the beginning, the cursor 0."""
        ...

    def stop(self, lease: Lease, why: str) -> bool:
        """Note that the consumer waits for an operator, and why; `reconcile` and `skip` end that."""
        ...

    def rest(self, lease: Lease, *, idle: bool, delay: timedelta) -> bool:
        """Give the lease back, and set the next poll `delay` ahead; `idle` counts one idle poll more, else none (L15).

        The fence stays, so that whatever of this lease comes late is refused.
        """
        ...

    def wake(self, consumer_ids: Iterable[str]) -> Sequence[str]:
        """Let those of these be due now that are behind the head, or have no cursor, and wait in idleness; return them.

        One that failed waits on for its next try, and one that is leased, paused, stopped or retired is left alone.
        """
        ...

    def require_reconcile(self, consumer_id: str, by: str, why: str) -> None:
        """Have the consumer reconcile at its next poll, audited; raises ConsumerNotFoundError, ConsumerRetiredError."""
        ...

    def skip(self, consumer_id: str, by: str, why: str) -> int:
        """Set the cursor to the head without reconciling, audited: an operator answers for what was missed.

        Returns the head. Whoever holds the lease loses it. Raises as `require_reconcile`.
        """
        ...

    def retire(self, consumer_id: str, by: str, why: str) -> bool:
        """Retire the consumer, audited; say whether it was not (L14). It keeps no row of the stream any more.

        Its unresolved dead letters are resolved. Whoever holds the lease loses it. Raises ConsumerNotFoundError.
        """
        ...

    def set_paused(self, consumer_ids: Iterable[str] | None, *, paused: bool) -> Sequence[str]:
        """Pause or resume these consumers, None for all; return those that were not so before."""
        ...

    def letters(
        self, *, consumer_id: str | None = None, state: LetterState | None = None, after: str = "", limit: int = 100
    ) -> Sequence[DeadLetter]:
        """Return dead letters in the order of consumer and event id, from above `after` (`letter_key`)."""
        ...

    def letter(self, consumer_id: str, event_id: str) -> DeadLetter:
        """Return one; raise LetterNotFoundError."""
        ...

    def ask_replay(self, consumer_id: str, event_id: str, by: str, why: str) -> bool:
        """Have an unresolved letter observed again by its consumer's next poll, audited `consumer-replayed` (L11).

        False where it is replaying or resolved already. Raises LetterNotFoundError, ConsumerRetiredError.
        """
        ...

    def replayed(self, lease: Lease, event_id: str, *, why: str) -> bool:
        """Resolve a letter whose replay succeeded, or came to nothing (`why` says which)."""
        ...

    def replayed_in(self, transaction: Transaction, lease: Lease, event_id: str, *, why: str) -> None:
        """As `replayed`, inside the observer's own transaction; raises LeaseLostError, which undoes it."""
        ...

    def replay_failed(self, lease: Lease, event_id: str, *, failure_class: str) -> bool:
        """Put a letter whose replay failed back to unresolved."""
        ...

    def resolve(self, consumer_id: str, event_id: str, by: str, why: str) -> bool:
        """Resolve a letter without observing it, audited; False where it was. Raises LetterNotFoundError."""
        ...

    def prune_letters(self, older_than: timedelta, limit: int) -> int:
        """Remove letters that were resolved longer ago than that; return how many. Unresolved ones stay (L13)."""
        ...

    def lags(self) -> Mapping[str, int]:
        """Return for each consumer that is not retired how many events it has not acknowledged."""
        ...

    def oldest_unacknowledged(self) -> Mapping[str, datetime]:
        """Return for each consumer that lags when the event before which it stands occurred."""
        ...


def letter_key(consumer_id: str, event_id: str) -> str:
    """Return where a letter stands in the order of `letters`."""
    return f"{consumer_id}|{event_id}"
