"""Take in a forge's delivery: its card changes and its event is appended in one transaction, or nothing happens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outbox_core.application.change_card import snapshot_after, stored_card
from outbox_core.application.record_lifecycle import LifecycleRecorder, deletion_time
from outbox_core.application.run_once import run_once
from outbox_core.domain.board import apply_change
from outbox_core.domain.event import Attributes, NewEvent, Snapshot

if TYPE_CHECKING:
    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.board import Card, CardChange
    from outbox_core.domain.forge_delivery import Delivery
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction


@dataclass(frozen=True, slots=True)
class Ingested:
    """The event of a delivery, under its number.

    `fresh` is False where the log had it: a redelivery, or a first try whose answer was lost.
    """

    event_id: str
    seq: int
    fresh: bool


def ingest_delivery(store: TenantStore, runtime: Runtime, delivery: Delivery) -> Ingested:
    """Apply a delivery to its card and append its event, whose snapshot is the card after applying (E17).

    A redelivery (the same event id) changes nothing, the card included, and is answered with the first one's number
    (E46): else a label that was consumed since would come back. A delivery that only speaks of a card takes its
    snapshot from the stored card; where none is stored, from what the delivery itself says.

    Asks a store that does not answer again for GAP_GRACE: a forge does not send twice by itself. Raises TransientError
    after that, and the same call may then be made again; EventTooLargeError or InvalidInputError with nothing written.
    """
    change = delivery.change
    recorder = LifecycleRecorder(store, runtime)

    def read(transaction: Transaction) -> Card | None:
        return stored_card(store, change.card_id, transaction) if change else _spoken_of(store, delivery)

    def write(transaction: OutboxTransaction, card: Card | None) -> None:
        recorder.forget()
        if change is None:
            transaction.append_event(
                _event(delivery, card.card_id if card else delivery.subject, _seen(delivery, card))
            )
        else:
            after = _change(store, card, change, transaction.transaction)
            recorder.see(transaction, card, after, delivery.actor, delivery.action)
            transaction.append_event(_event(delivery, after.card_id, _moved(delivery, change, card, after)))

    once = run_once(store, runtime, delivery.event_id, read, write)
    if once.known is not None:
        return Ingested(delivery.event_id, once.known, fresh=False)
    recorder.tell()
    appended = once.published[delivery.event_id]
    return Ingested(delivery.event_id, appended.seq, fresh=not appended.duplicate)


def _spoken_of(store: TenantStore, delivery: Delivery) -> Card | None:
    return store.cards.linked(delivery.card_link) if delivery.card_link else stored_card(store, delivery.subject)


def _change(store: TenantStore, card: Card | None, change: CardChange, transaction: Transaction) -> Card:
    """Write the card where the change makes a difference; a delivery that says nothing new costs no write."""
    after = apply_change(store.tenant_id, card, change)
    if after.gone and card is not None and not card.gone:
        # The forge's own time is no identity: two deletions may share it.
        deleted_at = deletion_time(card, store.log.head().now)
        after = replace(after, deleted_at=deleted_at, last_deleted_at=deleted_at)
    return after if after == card else store.cards.put(after, transaction)


def _moved(delivery: Delivery, change: CardChange, before: Card | None, after: Card) -> Snapshot:
    """Return the card after the change; where the delivery itself tells of a move, the card came from where it says."""
    snapshot = snapshot_after(before, after, delivery.actor)
    told = change.from_state if after.state == change.state != change.from_state else None
    return replace(snapshot, from_state=told) if told else snapshot


def _seen(delivery: Delivery, card: Card | None) -> Snapshot:
    if card is None:
        return delivery.seen
    return Snapshot(
        state=card.state or delivery.seen.state,
        labels=card.labels,
        repo=card.repo or delivery.seen.repo,
        author=delivery.actor,
        board=card.board,
    )


def _event(delivery: Delivery, subject: str, snapshot: Snapshot) -> NewEvent:
    return NewEvent(
        event_id=delivery.event_id,
        attributes=Attributes(
            source=delivery.source,
            type=delivery.type,
            action=delivery.action,
            subject=subject,
            snapshot=snapshot,
        ),
        data=delivery.data,
        occurred_at=delivery.occurred_at,
    )
