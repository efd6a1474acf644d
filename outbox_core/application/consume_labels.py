"""Take a launch's one-shot labels off its card, once per arming (E36)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.application.contention import contended
from outbox_core.domain.board import without_labels
from outbox_core.domain.effect import Dropped, DropReason
from outbox_core.domain.errors import CardNotFoundError, TransientError, UnclearCommitError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outbox_core.application.hand import Hand
    from outbox_core.domain.effect import Effect, Outcome
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


def consume_labels(
    store: TenantStore, runtime: Runtime, hand: Hand, effect: Effect, labels: Iterable[str]
) -> Outcome | None:
    """Remove the labels and mark the row, in one transaction under the row's fence; None where they are consumed.

    Whoever dies before the commit has spent nothing, whoever dies after it finds the mark. A card that does not carry
    all of them any more has been spent by another effect: Dropped. A stalled worker whose row was claimed again
    changes nothing, since its mark must match: ClaimLostError. UnclearCommitError where it may have happened. A store
    that does not answer postpones the row.
    """
    try:
        with store.transactions.begin() as transaction:
            card = store.cards.get(effect.attributes.subject, transaction)
            spent = None if card.gone else without_labels(card, labels)
            if spent is None:
                return Dropped(DropReason.CARD_GONE if card.gone else DropReason.LABEL_SPENT)
            store.cards.put(spent, transaction)
            store.effects.mark_consumed(transaction, hand.claim, effect.effect_id)
            transaction.commit()
    except CardNotFoundError:
        return Dropped(DropReason.CARD_GONE)
    except UnclearCommitError:
        raise
    except TransientError as error:
        return contended(runtime, effect, hand.server_now(), error)
    return None
