"""One consumer's turn under its lease: the events after its cursor, one after the other."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from outbox_core.application.append_events import fill_own_numbers
from outbox_core.application.reconcile_consumer import reconcile_consumer, why_reconcile
from outbox_core.application.run_in_transaction import OutboxTransaction
from outbox_core.domain.consumer import Poll, PollReport, goes_on_after
from outbox_core.domain.delivery import MAX_ATTEMPTS, failure_class, retry_delay
from outbox_core.domain.errors import (
    BotOverstayedError,
    EventConflictError,
    LeaseLostError,
    TransientError,
    UnclearCommitError,
    UnreadableEventError,
)
from outbox_core.domain.lifecycle_event import LifecycleEvent, UnreadableEvent, superseded
from outbox_core.domain.limits import TRANSACTIONAL_MARGIN
from outbox_core.domain.observer import Observation, observing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from outbox_core.application.lease_heart import LeaseHeart
    from outbox_core.domain.bot import BotTransaction
    from outbox_core.domain.consumer import Consumer, Lease
    from outbox_core.domain.lifecycle_event import StreamEntry
    from outbox_core.domain.observer import Observer
    from outbox_core.ports.lifecycle_stream import Page
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction

CONTENDED = timedelta(seconds=1)
"""How long a consumer waits whose transaction met another one; that is no failed try."""

_NOW = timedelta(0)
_log = logging.getLogger("outbox.lifecycle")


def put_off(consumer: Consumer, now: datetime) -> timedelta | None:
    """Return for how long the next try of what failed must wait, None where it need not."""
    failing = consumer.failing
    return None if failing is None or failing.next_attempt_at <= now else failing.next_attempt_at - now


class ConsumerTurn:
    """What one poll does under its lease. `report` is what it came to."""

    def __init__(
        self, store: TenantStore, runtime: Runtime, observer: Observer, lease: Lease, heart: LeaseHeart
    ) -> None:
        self.store = store
        self.runtime = runtime
        self.observer = observer
        self.lease = lease
        self._heart = heart
        self._cursor = lease.consumer.cursor
        self._failing = lease.consumer.failing
        # Another process must not wait long for the lease, however long a slice may be.
        duration = min(runtime.limits.slice_time, runtime.limits.consumer_lease / 3)
        self._ends = runtime.clock.monotonic() + duration.total_seconds()
        self._at_most = runtime.limits.observe_batch if observer.idempotent or observer.transactional else 1
        self.report = PollReport(tenant_id=store.tenant_id, consumer_id=observer.consumer_id, poll=Poll.OBSERVED)

    def work(self) -> None:
        """Reconcile where that is due, and observe until the head or the time."""
        consumer = self.lease.consumer
        waits = put_off(consumer, self.lease.taken_at)
        if waits is not None:
            self.ended(Poll.RETRYING, wait=waits)
            return
        while self.goes_on():
            page = self._read()
            why = why_reconcile(consumer, page.head) if self._cursor == consumer.cursor else ""
            if not (why or self._whole(page)):
                why = f"events after {self._after} are gone"
            if why:
                self._reconcile(page.head, why)
                return
            if self._cursor is None:
                if not self.store.consumers.begin(self.lease):
                    self.ended(Poll.LOST)
                    return
                self._cursor = 0
            if not self._take_all(page) or self._after >= page.head:
                return

    def rest(self) -> None:
        """Give the lease back, and say when the next poll is due; a lease that is lost is another's."""
        if self.report.poll is Poll.LOST:
            return
        usual = self.runtime.limits.consumer_poll * self.runtime.entropy.jitter()
        delay = _NOW if self.report.more else usual if self.report.wait is None else self.report.wait
        try:
            self.store.consumers.rest(self.lease, idle=False, delay=delay)
        except TransientError as error:
            _log.warning("%s: its lease could not be given back, and runs out: %s", self.named, error)

    # What is before it.

    def goes_on(self, *, begun: bool = False) -> bool:
        """Whether there is time for more; where there is not, the report says that more may be there.

        There is for the first event at least, however long the store took to give it: else nothing would ever be done.
        """
        said = self.report
        begun = begun or bool(said.observed or said.failed or said.superseded or said.parked or said.replayed)
        in_time = not begun or self.runtime.clock.monotonic() < self._ends
        going = in_time and self._heart.holds and not self.runtime.stopping()
        if not going:
            self.report = replace(self.report, more=True)
        return going

    def _read(self) -> Page:
        """Read what follows the cursor.

        A number that is missing was pruned, before this poll or while it read: what is so a second time is so (L12).
        """
        page = self.store.stream.read_after(self._after, self.runtime.limits.observe_batch)
        return (
            page if self._whole(page) else self.store.stream.read_after(self._after, self.runtime.limits.observe_batch)
        )

    def _whole(self, page: Page) -> bool:
        last = min(page.head, self._after + self.runtime.limits.observe_batch)
        return [entry.sequence for entry in page.entries] == list(range(self._after + 1, last + 1))

    @property
    def holds(self) -> bool:
        """Whether the lease is surely ours; foreign code is called only where it is."""
        return self._heart.holds

    def _reconcile(self, head: int, why: str) -> None:
        if not self.holds:
            self.ended(Poll.LOST)
            return
        poll, wait = reconcile_consumer(
            self.store, self.runtime, self.observer, self.lease, self._heart, head=head, why=why
        )
        self.ended(poll, wait)
        if poll is Poll.OBSERVED:
            self.report = replace(self.report, reconciled=True, more=True, lag=0)

    # One event after the other.

    def _take_all(self, page: Page) -> bool:
        """Take the page's entries; False where the poll ends here."""
        while entries := [entry for entry in page.entries if entry.sequence > self._after]:
            self.report = replace(self.report, lag=page.head - self._after)
            if not self.goes_on():
                return False
            first = entries[0]
            if isinstance(first, UnreadableEvent):
                went_on = self._unreadable(first)
            else:
                events = _readable(entries[: self._at_most])
                went_on = self._transact(events) if self.observer.transactional else self._observe(events)
            if not went_on:
                return False
        self.report = replace(self.report, lag=page.head - self._after)
        return True

    def _observe(self, events: Sequence[LifecycleEvent]) -> bool:
        """Give a plain observer events, then acknowledge them: a death between the two gives them again (L06)."""
        deletions = self.store.cards.deletions({event.task_id for event in events})
        passed: list[str] = []
        reached, seen = self._after, 0
        failed: tuple[LifecycleEvent, BaseException] | None = None
        for event in events:
            if superseded(event, deletions.get(event.task_id)):
                passed.append(event.event_id)
            elif (seen and not self.goes_on(begun=True)) or not self.holds:
                break
            else:
                try:
                    self.call(event)
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
            with self.transaction() as inside:
                deletions = self.store.cards.deletions({one.task_id for one in events}, inside.transaction)
                for event in events:
                    if superseded(event, deletions.get(event.task_id)):
                        passed.append(event.event_id)
                    elif seen and not self.goes_on(begun=True):
                        break
                    else:
                        self.call(event, inside)
                        seen += 1
                    reached = event.sequence
                inside.commit(self._acknowledging(reached, passed))
        except (LeaseLostError, UnclearCommitError):
            # Unclear: the next poll reads how far the cursor has come.
            self.ended(Poll.LOST)
            return False
        except (TransientError, EventConflictError) as error:
            _log.warning("%s: its transaction was undone, and is tried again: %s", self.named, error)
            self.ended(Poll.RETRYING, wait=CONTENDED * self.runtime.entropy.jitter())
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
    def transaction(self) -> Iterator[OutboxTransaction]:
        """Open a transaction in which the lease is written by nobody but itself; raises LeaseLostError."""
        unused: list[int] = []
        with self._heart.quiet(self.observer.limit(self.runtime.limits) + TRANSACTIONAL_MARGIN) as held:
            if not held:
                raise LeaseLostError(f"{self.named}: the lease is another's")
            try:
                with self.store.transactions.begin() as transaction:
                    yield OutboxTransaction(self.store, self.runtime, transaction, unused)
            finally:
                fill_own_numbers(self.store, unused)

    def _acknowledging(self, reached: int, passed: Sequence[str]) -> Callable[[Transaction], None]:
        read = self._cursor
        return lambda open_: self.store.consumers.acknowledge_in(
            open_, self.lease, read=read, sequence=reached, superseded=passed
        )

    def call(self, event: LifecycleEvent, transaction: BotTransaction | None = None, *, replayed: bool = False) -> None:
        """Call the observer with an event; raises what it raises, and BotOverstayedError after its limit."""
        limit = self.observer.limit(self.runtime.limits)
        observation = Observation(
            event=event,
            consumer_id=self.observer.consumer_id,
            own=event.writer_process_id == self.runtime.writer,
            attempt=1 + self._attempts(event.event_id),
            replayed=replayed,
            transaction=transaction,
        )
        with observing(self.observer.consumer_id), self._heart.call(limit), self.runtime.interrupt.limit(limit):
            self.observer.function(observation)

    def _unreadable(self, entry: UnreadableEvent) -> bool:
        if not entry.unknown:
            return self._failed(entry, UnreadableEventError(entry.why))
        said = f"{self.named}: {entry.why}"
        if self.runtime.said.is_time(said, self.runtime.clock.monotonic()):
            _log.error("%s; it waits for a process of the version that wrote it", said)
        self.ended(Poll.UNKNOWN, wait=self.runtime.limits.consumer_idle_cap)
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
                self.named,
                entry.event_id,
                attempts,
                delay.total_seconds(),
                kind,
            )
            noted = self.store.consumers.fail(
                self.lease, event_id=entry.event_id, attempts=attempts, delay=delay, failure_class=kind
            )
            self.ended(Poll.RETRYING if noted else Poll.LOST, wait=delay if noted else None)
            return False
        if not self.store.consumers.park(self.lease, entry, read=self._cursor, attempts=attempts, failure_class=kind):
            self.ended(Poll.LOST)
            return False
        _log.error("%s: event %s is a dead letter after %d tries: %s", self.named, entry.event_id, attempts, kind)
        self._cursor, self._failing = entry.sequence, None
        self.report = replace(self.report, parked=self.report.parked + 1)
        return True

    def _acknowledged(self, reached: int, passed: Sequence[str], seen: int) -> bool:
        if not self.store.consumers.acknowledge(self.lease, read=self._cursor, sequence=reached, superseded=passed):
            self.ended(Poll.LOST)
            return False
        self._reached(reached, passed, seen)
        return True

    def _reached(self, sequence: int, passed: Sequence[str], seen: int) -> None:
        self._cursor, self._failing = sequence, None
        self.report = replace(
            self.report, observed=self.report.observed + seen, superseded=self.report.superseded + len(passed)
        )

    # What it is.

    @property
    def _after(self) -> int:
        return goes_on_after(self._cursor)

    @property
    def named(self) -> str:
        """How logs name the consumer."""
        return f"tenant {self.store.tenant_id}: consumer {self.observer.consumer_id}"

    def _attempts(self, event_id: str) -> int:
        failing = self._failing
        return failing.attempts if failing is not None and failing.event_id == event_id else 0

    def ended(self, poll: Poll, wait: timedelta | None = None) -> None:
        """Note what the poll came to, and when the next may find something to do."""
        self.report = replace(self.report, poll=poll, wait=wait)


def _readable(entries: Sequence[StreamEntry]) -> list[LifecycleEvent]:
    """Return the events before the first entry that cannot be read."""
    events: list[LifecycleEvent] = []
    for entry in entries:
        if isinstance(entry, UnreadableEvent):
            break
        events.append(entry)
    return events
