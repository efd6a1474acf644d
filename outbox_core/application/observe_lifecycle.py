"""Poll one consumer: give its observer the events after its cursor, in order, and acknowledge them.

An event's way through here: is there something to do (`_hindrance`), is the stream whole from the cursor on
(`Turn.work`), is the event still to be acted on, what does the observer say (`_observe`, `_transact`), and what is
written of that. Nothing here can delete, audit a deletion, or notify (L08).
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from outbox_core.application.append_events import fill_own_numbers
from outbox_core.application.lease_heart import LeaseHeart
from outbox_core.application.reconcile_consumer import reconcile_consumer, why_reconcile
from outbox_core.application.run_in_transaction import OutboxTransaction
from outbox_core.domain.consumer import LetterState, Poll, PollReport
from outbox_core.domain.delivery import MAX_ATTEMPTS, failure_class, retry_delay
from outbox_core.domain.errors import (
    BotOverstayedError,
    EventConflictError,
    LeaseLostError,
    OutboxError,
    TransientError,
    UnclearCommitError,
)
from outbox_core.domain.lifecycle_event import LifecycleEvent, UnreadableEvent, superseded
from outbox_core.domain.limits import TRANSACTIONAL_MARGIN
from outbox_core.domain.observer import Observation, observing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from outbox_core.domain.bot import BotTransaction
    from outbox_core.domain.consumer import Consumer, DeadLetter, Lease, Look
    from outbox_core.domain.lifecycle_event import StreamEntry
    from outbox_core.domain.observer import Observer
    from outbox_core.ports.lifecycle_stream import Page
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction

_CONTENDED = timedelta(seconds=1)
_NOW = timedelta(0)
_log = logging.getLogger("outbox.lifecycle")


class UnreadableEventError(OutboxError):
    """A stored event cannot be given to an observer: that is a failed try, and parks like any other (L10)."""


def observe_lifecycle(store: TenantStore, runtime: Runtime, observer: Observer) -> PollReport:
    """Let one consumer observe for about a second; return what it came to, and when to poll again.

    Where nothing is to be done this costs one read and writes nothing. Of two processes under one consumer id one
    works (L07). Raises TransientError where the store did not answer: what was not acknowledged is given again.
    """
    report = _poll(store, runtime, observer)
    runtime.outlets.polled(report)
    return report


def _poll(store: TenantStore, runtime: Runtime, observer: Observer) -> PollReport:
    look = store.consumers.look(observer.consumer_id)
    report = PollReport(tenant_id=store.tenant_id, consumer_id=observer.consumer_id, poll=Poll.IDLE)
    if look.consumer is None:
        return replace(report, poll=Poll.UNREGISTERED)
    report = replace(report, lag=_lag(look.consumer.cursor, look.head))
    hindrance = _hindrance(look.consumer, look, observer)
    if hindrance is not None:
        return replace(report, poll=hindrance, wait=_put_off(look.consumer, look.now))
    sent_at = runtime.clock.monotonic()
    lease = store.consumers.lease(observer.consumer_id, runtime.worker, runtime.limits.consumer_lease)
    if lease is None:
        # Another process's lease is no idleness: it may be over soon (L15).
        return replace(report, poll=Poll.BUSY, wait=runtime.limits.consumer_poll)
    with LeaseHeart(store, runtime, lease, sent_at) as heart:
        turn = Turn(store, runtime, observer, lease, heart)
        try:
            turn.work()
        finally:
            turn.rest()
    return turn.report


def _hindrance(consumer: Consumer, look: Look, observer: Observer) -> Poll | None:
    """Return why there is nothing to do now, None where there is something."""
    if consumer.retired_at is not None:
        return Poll.RETIRED
    if consumer.paused_at is not None:
        return Poll.PAUSED
    if look.replays:
        return None
    if consumer.stopped_for and observer.reconcile is None:
        return Poll.STOPPED
    behind = consumer.cursor is None or consumer.cursor < look.head or why_reconcile(consumer, look.head)
    if not behind:
        return Poll.IDLE
    return Poll.RETRYING if _put_off(consumer, look.now) is not None else None


def _put_off(consumer: Consumer, now: datetime) -> timedelta | None:
    """Return for how long the next try of what failed must wait, None where it need not."""
    failing = consumer.failing
    return None if failing is None or failing.next_attempt_at <= now else failing.next_attempt_at - now


def _lag(cursor: int | None, head: int) -> int:
    return max(0, head - max(0, cursor or 0))


class Turn:
    """What one poll does under its lease. `report` is what it came to."""

    def __init__(
        self, store: TenantStore, runtime: Runtime, observer: Observer, lease: Lease, heart: LeaseHeart
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._observer = observer
        self._lease = lease
        self._heart = heart
        self._cursor = lease.consumer.cursor
        self._failing = lease.consumer.failing
        self._ends = runtime.clock.monotonic() + runtime.limits.slice_time.total_seconds()
        self._at_most = runtime.limits.observe_batch if observer.idempotent or observer.transactional else 1
        self.report = PollReport(tenant_id=store.tenant_id, consumer_id=observer.consumer_id, poll=Poll.OBSERVED)

    def work(self) -> None:
        """Replay what an operator asked for, reconcile where that is due, and observe until the head or the time."""
        consumer = self._lease.consumer
        if not self._replay():
            return
        waits = _put_off(consumer, self._lease.taken_at)
        if waits is not None:
            self._ended(Poll.RETRYING, wait=waits)
            return
        while self._goes_on():
            page = self._read()
            why = why_reconcile(consumer, page.head) if self._cursor == consumer.cursor else ""
            if not (why or self._whole(page)):
                why = f"events after {self._after} are gone"
            if why:
                self._reconcile(page.head, why)
                return
            if self._cursor is None:
                if not self._store.consumers.begin(self._lease):
                    self._ended(Poll.LOST)
                    return
                self._cursor = 0
            if not self._take_all(page) or self._after >= page.head:
                return

    def rest(self) -> None:
        """Give the lease back, and say when the next poll is due; a lease that is lost is another's."""
        if self.report.poll is Poll.LOST:
            return
        usual = self._runtime.limits.consumer_poll * self._runtime.entropy.jitter()
        delay = _NOW if self.report.more else usual if self.report.wait is None else self.report.wait
        try:
            self._store.consumers.rest(self._lease, idle=False, delay=delay)
        except TransientError as error:
            _log.warning("%s: its lease could not be given back, and runs out: %s", self._named, error)

    # What is before it.

    def _goes_on(self) -> bool:
        """Whether there is time for more; where there is not, the report says that more may be there."""
        going = self._runtime.clock.monotonic() < self._ends and self._heart.holds and not self._runtime.stopping()
        if not going:
            self.report = replace(self.report, more=True)
        return going

    def _read(self) -> Page:
        """Read what follows the cursor.

        A number that is missing was pruned, before this poll or while it read: what is so a second time is so (L12).
        """
        page = self._store.stream.read_after(self._after, self._runtime.limits.observe_batch)
        return (
            page
            if self._whole(page)
            else self._store.stream.read_after(self._after, self._runtime.limits.observe_batch)
        )

    def _whole(self, page: Page) -> bool:
        last = min(page.head, self._after + self._runtime.limits.observe_batch)
        return [entry.sequence for entry in page.entries] == list(range(self._after + 1, last + 1))

    def _reconcile(self, head: int, why: str) -> None:
        poll, wait = reconcile_consumer(
            self._store, self._runtime, self._observer, self._lease, self._heart, head=head, why=why
        )
        self._ended(poll, wait)
        if poll is Poll.OBSERVED:
            self.report = replace(self.report, reconciled=True, more=True, lag=0)

    # One event after the other.

    def _take_all(self, page: Page) -> bool:
        """Take the page's entries; False where the poll ends here."""
        while entries := [entry for entry in page.entries if entry.sequence > self._after]:
            self.report = replace(self.report, lag=page.head - self._after)
            if not self._goes_on():
                return False
            first = entries[0]
            if isinstance(first, UnreadableEvent):
                went_on = self._unreadable(first)
            else:
                events = _readable(entries[: self._at_most])
                went_on = self._transact(events) if self._observer.transactional else self._observe(events)
            if not went_on:
                return False
        self.report = replace(self.report, lag=page.head - self._after)
        return True

    def _observe(self, events: Sequence[LifecycleEvent]) -> bool:
        """Give a plain observer events, then acknowledge them: a death between the two gives them again (L06)."""
        deletions = self._store.cards.deletions({event.task_id for event in events})
        passed: list[str] = []
        reached, seen = self._after, 0
        failed: tuple[LifecycleEvent, BaseException] | None = None
        for event in events:
            if superseded(event, deletions.get(event.task_id)):
                passed.append(event.event_id)
            elif (seen and not self._goes_on()) or not self._heart.holds:
                break
            else:
                try:
                    self._call(event)
                except (Exception, BotOverstayedError) as error:  # noqa: BLE001 - the named edge: an observer's call
                    failed = (event, error)
                    break
                seen += 1
            reached = event.sequence
        if reached > self._after and not self._acknowledged(reached, passed, seen):
            return False
        return failed is None or self._failed(failed[0], failed[1])

    def _transact(self, events: Sequence[LifecycleEvent]) -> bool:
        """Commit a transactional observer's writes and the cursor together: it sees each event exactly once (L06)."""
        passed: list[str] = []
        reached, seen, event = self._after, 0, events[0]
        try:
            with self._transaction() as inside:
                deletions = self._store.cards.deletions({one.task_id for one in events}, inside.transaction)
                for event in events:
                    if superseded(event, deletions.get(event.task_id)):
                        passed.append(event.event_id)
                    elif seen and not self._goes_on():
                        break
                    else:
                        self._call(event, inside)
                        seen += 1
                    reached = event.sequence
                inside.commit(self._acknowledging(reached, passed))
        except (LeaseLostError, UnclearCommitError):
            # Unclear: the next poll reads how far the cursor has come.
            self._ended(Poll.LOST)
            return False
        except (TransientError, EventConflictError) as error:
            _log.info("%s: its transaction was undone, and is tried again: %s", self._named, error)
            self._ended(Poll.RETRYING, wait=_CONTENDED * self._runtime.entropy.jitter())
            return False
        except (Exception, BotOverstayedError) as error:  # noqa: BLE001 - the named edge: an observer's call
            if event is events[0]:
                return self._failed(event, error)
            # Undone with it is what came before: that is done again, up to there, and then this one alone.
            self._at_most = events.index(event)
            return True
        self._reached(reached, passed, seen)
        return True

    @contextmanager
    def _transaction(self) -> Iterator[OutboxTransaction]:
        """Open a transaction in which the lease is written by nobody but itself; raises LeaseLostError."""
        unused: list[int] = []
        with self._heart.quiet(self._observer.limit(self._runtime.limits) + TRANSACTIONAL_MARGIN) as held:
            if not held:
                raise LeaseLostError(f"{self._named}: the lease is another's")
            try:
                with self._store.transactions.begin() as transaction:
                    yield OutboxTransaction(self._store, self._runtime, transaction, unused)
            finally:
                fill_own_numbers(self._store, unused)

    def _acknowledging(self, reached: int, passed: Sequence[str]) -> Callable[[Transaction], None]:
        read = self._cursor
        return lambda open_: self._store.consumers.acknowledge_in(
            open_, self._lease, read=read, sequence=reached, superseded=passed
        )

    def _call(
        self, event: LifecycleEvent, transaction: BotTransaction | None = None, *, replayed: bool = False
    ) -> None:
        limit = self._observer.limit(self._runtime.limits)
        observation = Observation(
            event=event,
            consumer_id=self._observer.consumer_id,
            own=event.writer_process_id == self._runtime.writer,
            attempt=1 + self._attempts(event.event_id),
            replayed=replayed,
            transaction=transaction,
        )
        with observing(self._observer.consumer_id), self._heart.call(limit), self._runtime.interrupt.limit(limit):
            self._observer.function(observation)

    def _unreadable(self, entry: UnreadableEvent) -> bool:
        if not entry.unknown:
            return self._failed(entry, UnreadableEventError(entry.why))
        said = f"{self._named}: {entry.why}"
        if self._runtime.said.is_time(said, self._runtime.clock.monotonic()):
            _log.error("%s; it waits for a process of the version that wrote it", said)
        self._ended(Poll.UNKNOWN, wait=self._runtime.limits.consumer_idle_cap)
        return False

    def _failed(self, entry: StreamEntry, error: BaseException) -> bool:
        """Count a failed try, or park the event after the last one; True where the poll goes on after it (L09, L10)."""
        attempts = 1 + self._attempts(entry.event_id)
        kind = failure_class(error)
        self.report = replace(self.report, failed=self.report.failed + 1)
        if attempts < MAX_ATTEMPTS:
            delay = retry_delay(attempts)
            _log.warning(
                "%s: event %s failed, try %d, again in %d s: %s",
                self._named,
                entry.event_id,
                attempts,
                delay.total_seconds(),
                kind,
            )
            noted = self._store.consumers.fail(
                self._lease, event_id=entry.event_id, attempts=attempts, delay=delay, failure_class=kind
            )
            self._ended(Poll.RETRYING if noted else Poll.LOST, wait=delay if noted else None)
            return False
        if not self._store.consumers.park(self._lease, entry, read=self._cursor, attempts=attempts, failure_class=kind):
            self._ended(Poll.LOST)
            return False
        _log.error("%s: event %s is a dead letter after %d tries: %s", self._named, entry.event_id, attempts, kind)
        self._cursor, self._failing = entry.sequence, None
        self.report = replace(self.report, parked=self.report.parked + 1)
        return True

    def _acknowledged(self, reached: int, passed: Sequence[str], seen: int) -> bool:
        if not self._store.consumers.acknowledge(self._lease, read=self._cursor, sequence=reached, superseded=passed):
            self._ended(Poll.LOST)
            return False
        self._reached(reached, passed, seen)
        return True

    def _reached(self, sequence: int, passed: Sequence[str], seen: int) -> None:
        self._cursor, self._failing = sequence, None
        self.report = replace(
            self.report, observed=self.report.observed + seen, superseded=self.report.superseded + len(passed)
        )

    # What an operator asked for.

    def _replay(self) -> bool:
        """Observe dead letters again, each alone (L11); False where the poll ends here."""
        letters = self._store.consumers.letters(
            consumer_id=self._observer.consumer_id,
            state=LetterState.REPLAYING,
            limit=self._runtime.limits.observe_batch,
        )
        for letter in letters:
            if not self._goes_on():
                return False
            poll = self._replay_one(letter)
            if poll is not Poll.OBSERVED:
                self._ended(poll, wait=_CONTENDED if poll is Poll.RETRYING else None)
                return False
        return True

    def _replay_one(self, letter: DeadLetter) -> Poll:
        """Give a letter's event to the observer, and note what came of it."""
        consumers, event, event_id = self._store.consumers, letter.event, letter.event_id
        if event is None:
            return self._replay_failed(event_id, UnreadableEventError("it holds no event that can be read"))
        if superseded(event, self._store.cards.deletions([event.task_id]).get(event.task_id)):
            return _held(consumers.replayed(self._lease, event_id, why="superseded"))
        try:
            if self._observer.transactional:
                with self._transaction() as inside:
                    self._call(event, inside, replayed=True)
                    inside.commit(lambda open_: consumers.replayed_in(open_, self._lease, event_id, why="observed"))
            else:
                self._call(event, replayed=True)
        except (LeaseLostError, UnclearCommitError):
            return Poll.LOST
        except (Exception, BotOverstayedError) as error:  # noqa: BLE001 - the named edge: an observer's call
            if self._observer.transactional and isinstance(error, TransientError | EventConflictError):
                # Its transaction met another one: the letter still waits for its replay.
                return Poll.RETRYING
            return self._replay_failed(event_id, error)
        self.report = replace(self.report, replayed=self.report.replayed + 1)
        if self._observer.transactional:
            return Poll.OBSERVED
        return _held(consumers.replayed(self._lease, event_id, why="observed"))

    def _replay_failed(self, event_id: str, error: BaseException) -> Poll:
        kind = failure_class(error)
        _log.warning("%s: its letter %s failed again: %s", self._named, event_id, kind)
        return _held(self._store.consumers.replay_failed(self._lease, event_id, failure_class=kind))

    # What it is.

    @property
    def _after(self) -> int:
        return max(0, self._cursor or 0)

    @property
    def _named(self) -> str:
        return f"tenant {self._store.tenant_id}: consumer {self._observer.consumer_id}"

    def _attempts(self, event_id: str) -> int:
        failing = self._failing
        return failing.attempts if failing is not None and failing.event_id == event_id else 0

    def _ended(self, poll: Poll, wait: timedelta | None = None) -> None:
        self.report = replace(self.report, poll=poll, wait=wait)


def _readable(entries: Sequence[StreamEntry]) -> list[LifecycleEvent]:
    """Return the events before the first entry that cannot be read."""
    events: list[LifecycleEvent] = []
    for entry in entries:
        if isinstance(entry, UnreadableEvent):
            break
        events.append(entry)
    return events


def _held(matched: bool) -> Poll:  # noqa: FBT001 - what a port's write said
    return Poll.OBSERVED if matched else Poll.LOST
