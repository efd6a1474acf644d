"""What a deletion and a restore write beside the card: one audit row and one lifecycle event, in its transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from outbox_core.domain.lifecycle_event import CARD_DELETED, CARD_RESTORED, LifecycleChange, LifecycleEvent, Standing
from outbox_core.domain.observer import forbid_in_observer

if TYPE_CHECKING:
    from datetime import datetime

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.board import Card
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction

_ONE = timedelta(milliseconds=1)


class LifecycleRecorder:
    """Sees every change of a card before it commits, and tells of what was recorded after it has.

    No flow that deletes or restores can leave it out: it finds out by the card before and after. Its writes are the
    transaction's last ones, since the counter makes every other deletion of the tenant wait (L01, L04).
    """

    def __init__(self, store: TenantStore, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._recorded: list[LifecycleEvent] = []

    def forget(self) -> None:
        """Forget what a transaction recorded that was undone; to be called first where a body begins."""
        self._recorded.clear()

    def see(self, transaction: OutboxTransaction, before: Card | None, after: Card, by: str, why: str) -> None:
        """Record what became of the card when the transaction commits; raises ObserverActedError in an observer."""
        change = self._change(before, after)
        if change is None:
            return
        forbid_in_observer(f"write {change.event_type}")

        def record(open_: Transaction) -> None:
            event = self._store.stream.append(change, open_)
            self._store.audit.record(event, by, why, open_)
            self._recorded.append(event)

        transaction.at_last(record)

    def tell(self) -> None:
        """After the commit: this process's listeners, whoever is to be notified, and the consumers (L02, L17)."""
        for event in self._recorded:
            self._runtime.outlets.committed(event)
            self._runtime.hints.wake(event.tenant_id)

    def _change(self, before: Card | None, after: Card) -> LifecycleChange | None:
        """Return what the stream is to tell; a card that was never seen standing cannot be deleted."""
        if before is None or before.gone == after.gone:
            return None
        deleted, deleted_at = (CARD_DELETED, after.deleted_at) if after.gone else (CARD_RESTORED, before.deleted_at)
        if deleted_at is None:
            return None
        return LifecycleChange(
            event_type=deleted,
            task_id=after.card_id,
            deleted_at=deleted_at,
            prior_column=before.state,
            prior_status=_standing(before),
            writer_process_id=self._runtime.writer,
        )


def _standing(card: Card) -> Standing:
    if card.gone:
        return Standing.DELETED
    return Standing.ACTIVE if card.archived_at is None else Standing.ARCHIVED


def deletion_time(card: Card, now: datetime) -> datetime:
    """Return a deletion's identity: the server's time in whole milliseconds, later than the card's last one (L03)."""
    whole = now.replace(microsecond=now.microsecond // 1_000 * 1_000)
    last = card.last_deleted_at
    return whole if last is None else max(whole, last + _ONE)
