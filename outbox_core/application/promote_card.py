"""Stamp a rule's bot on a card, for whatever picks up stamped cards (mode `board`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.contention import contended
from outbox_core.domain.effect import PROMOTED, Dropped, DropReason, Settlement
from outbox_core.domain.effect_lifecycle import DONE
from outbox_core.domain.errors import CardNotFoundError, TransientError, UnclearCommitError

if TYPE_CHECKING:
    from outbox_core.application.hand import Hand
    from outbox_core.domain.effect import Effect, Outcome
    from outbox_core.domain.subscription import Subscription
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


def promote_card(
    store: TenantStore, runtime: Runtime, hand: Hand, effect: Effect, rule: Subscription
) -> Outcome | None:
    """Stamp the bot and its arguments, and settle the row, in one transaction; None where that is done (E38).

    A card that carries the same bot is left as it is. A gone one drops the row. Raises ClaimLostError
    and UnclearCommitError as `consume_labels` does.
    """
    try:
        with store.transactions.begin() as transaction:
            card = store.cards.get(effect.attributes.subject, transaction)
            if card.gone:
                return Dropped(DropReason.CARD_GONE)
            if card.bot != rule.bot_id:
                store.cards.put(replace(card, bot=rule.bot_id, bot_args=dict(rule.vars)), transaction)
            store.effects.settle_in(transaction, hand.claim, effect.effect_id, Settlement(edge=DONE, outcome=PROMOTED))
            transaction.commit()
    except CardNotFoundError:
        return Dropped(DropReason.CARD_GONE)
    except UnclearCommitError:
        raise
    except TransientError as error:
        return contended(runtime, effect, hand.server_now(), error)
    return None
