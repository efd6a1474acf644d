"""Change one card and append the events that tell of it, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outbox_core.application.record_lifecycle import LifecycleRecorder
from outbox_core.application.run_once import run_once
from outbox_core.domain.errors import CardNotFoundError, InvalidInputError
from outbox_core.domain.event import BOARD, Attributes, Event, NewEvent, Snapshot
from outbox_core.domain.identity import fitting_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.board import Card
    from outbox_core.domain.board_input import Cause
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction

CARD_TYPE = "card"
"""The type of the events that tell of a change made here."""

_EXCERPT_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """One event of a change: what was done, why where a machine did it, and what else a bot may want to know."""

    action: str
    reason: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CardChanged:
    """A card as it is now, and the numbers of the events that told of the change; none where nothing changed."""

    card: Card
    seqs: tuple[int, ...] = ()


def change_card(
    store: TenantStore,
    runtime: Runtime,
    card_id: str,
    cause: Cause,
    decide: Callable[[Card | None, Transaction], tuple[Card, tuple[Telling, ...]]],
) -> CardChanged:
    """Let `decide` say what becomes of the card (None: there is none), store that, and append its events.

    A change without an event is none, and writes nothing. The first event has the cause's event id; where the log has
    that already, nothing changes, and its number is returned (E46). Concurrent changes of one card run one after the
    other: `decide` may run more than once. Raises what `decide` raises, InvalidInputError where the id is another
    card's event's, and TransientError where the store did not answer for GAP_GRACE.
    """
    event_id = cause.event_id or runtime.entropy.token()
    recorder = LifecycleRecorder(store, runtime)

    def write(transaction: OutboxTransaction, before: Card | None) -> tuple[Card, list[str]]:
        recorder.forget()
        after, tellings = decide(before, transaction.transaction)
        if not tellings:
            return after, []
        stored = store.cards.put(after, transaction.transaction)
        recorder.see(transaction, before, stored, cause.author, cause.reason)
        ids = [event_id, *(fitting_id(f"{event_id}.{telling.action}") for telling in tellings[1:])]
        for one, telling in zip(ids, tellings, strict=True):
            told = card_event(one, cause, telling, before, stored)
            # Left out of the log, the first one would leave a change of which nothing tells.
            transaction.append_event(told, new=one == event_id)
        return stored, ids

    once = run_once(store, runtime, event_id, lambda transaction: stored_card(store, card_id, transaction), write)
    if once.made is not None:
        recorder.tell()
        card, ids = once.made
        return CardChanged(card, tuple(once.published[one].seq for one in ids))
    # The card is read again: the transaction may have begun before the one that appended the event.
    card_now = stored_card(store, card_id)
    if card_now is None or once.known is None or not _is_of_card(store, event_id, card_id):
        raise InvalidInputError(f"the event {event_id} is in the log, and not of card {card_id!r}; use another id")
    return CardChanged(card_now, (once.known,))


def _is_of_card(store: TenantStore, event_id: str, card_id: str) -> bool:
    found = store.log.get([event_id]).get(event_id)
    return isinstance(found, Event) and found.attributes.subject == card_id


def card_event(event_id: str, cause: Cause, telling: Telling, before: Card | None, after: Card) -> NewEvent:
    """Return the event that tells of a change made here."""
    told = {"title": after.title, "assignee": after.assignee, "link": after.link}
    if before is None:
        told["body"] = after.body[:_EXCERPT_CHARS]
    return NewEvent(
        event_id=event_id,
        attributes=Attributes(
            source=BOARD,
            type=CARD_TYPE,
            action=telling.action,
            subject=after.card_id,
            snapshot=snapshot_after(before, after, cause.author),
            reason=telling.reason or cause.reason,
            run_id=cause.run_id,
        ),
        data={**{name: text for name, text in told.items() if text}, **telling.data},
    )


def snapshot_after(before: Card | None, after: Card, actor: str) -> Snapshot:
    """Return the card after a change (E17); `author` is who acted, not who opened the card."""
    return Snapshot(
        state=after.state,
        from_state=before.state if before and before.state != after.state else "",
        labels=after.labels,
        repo=after.repo,
        author=actor,
        board=after.board,
    )


def stored_card(store: TenantStore, card_id: str, transaction: Transaction | None = None) -> Card | None:
    """Return the card, a deleted one too; None where there is none."""
    try:
        return store.cards.get(card_id, transaction)
    except CardNotFoundError:
        return None


def require_standing(card: Card | None, card_id: str) -> Card:
    """Return the card; raise CardNotFoundError where there is none, or it is deleted."""
    if card is None:
        raise CardNotFoundError(f"there is no card {card_id!r}")
    if card.gone:
        raise CardNotFoundError(f"card {card_id!r} is deleted; restore it first")
    return card
