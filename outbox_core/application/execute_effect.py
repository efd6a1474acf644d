"""Execute one claimed row: decide what it is owed now, and see to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.application.consume_labels import consume_labels
from outbox_core.application.contention import contended
from outbox_core.application.launch_bot import Launch, launch_bot
from outbox_core.application.project_move import project_move
from outbox_core.application.promote_card import promote_card
from outbox_core.application.unknown_alarm import raise_unknown_alarm
from outbox_core.domain import effect as effects
from outbox_core.domain.effect import (
    Delivered,
    Dropped,
    DropReason,
    Failed,
    Hung,
    PassedOver,
    Refused,
    settlement,
)
from outbox_core.domain.errors import ClaimLostError, OutboxError, TransientError, UnclearCommitError
from outbox_core.domain.event import Event
from outbox_core.domain.subscription import BOARD_MODE, DIRECT, Subscription, mismatch

if TYPE_CHECKING:
    from outbox_core.application.hand import Hand
    from outbox_core.application.known import Known
    from outbox_core.domain.effect import Effect, Outcome, Settlement
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


def execute_effect(store: TenantStore, runtime: Runtime, hand: Hand, effect: Effect, known: Known) -> Settlement | None:
    """Decide and run one row; return what is to be written for it, None where that is done, or lost, already.

    Never raises for what a bot does; ClaimLostError says that the row is another's, and that nothing was written.
    Source: the execution of the effect outbox decision, docs/decisions/0001.
    """
    began = runtime.clock.monotonic()
    try:
        outcome = _outcome(store, runtime, hand, effect, known)
    except ClaimLostError:
        raise
    except UnclearCommitError:
        # What is stored tells the next claim of it.
        return None
    except TransientError as error:
        outcome = contended(runtime, effect, hand.server_now(), error)
    except OutboxError as error:
        outcome = Failed(f"{type(error).__name__}: {error}")
    finally:
        runtime.pace.note(effect.tenant_id, effect.bot_id or effect.kind, runtime.clock.monotonic() - began)
    if outcome is None:
        return None
    if isinstance(outcome, PassedOver):
        raise_unknown_alarm(runtime, effect, outcome, hand.server_now())
    return settlement(effect, outcome, hand.server_now(), runtime.limits, runtime.entropy.jitter())


def _outcome(store: TenantStore, runtime: Runtime, hand: Hand, effect: Effect, known: Known) -> Outcome | None:
    if effect.attempts >= runtime.limits.max_effect_attempts:
        return Hung()
    if effect.owner != effect.tenant_id or effect.tenant_id != store.tenant_id:
        return Refused(f"the row's key names tenant {effect.owner!r}, the row tenant {effect.tenant_id!r}")
    if effect.effect_id in known.finished:
        return Delivered()
    match effect.kind:
        case effects.LAUNCH:
            return _launch(store, runtime, hand, effect, known)
        case effects.PROJECTION:
            event = _event(effect, known)
            return event if isinstance(event, Failed) else project_move(runtime, effect, event, known)
        case unknown:
            return PassedOver(f"this worker does not know the kind {unknown!r}")


def _launch(  # noqa: PLR0911 - one line a verdict, in the order in which they are asked
    store: TenantStore, runtime: Runtime, hand: Hand, effect: Effect, known: Known
) -> Outcome | None:
    rule = _current_rule(effect, known)
    if not isinstance(rule, Subscription):
        return rule
    if rule.mode == BOARD_MODE:
        return promote_card(store, runtime, hand, effect, rule)
    if rule.mode != DIRECT:
        return PassedOver(f"this worker does not know the mode {rule.mode!r}")
    bot = runtime.bots.get(rule.bot_id)
    if bot is None:
        return PassedOver(f"this worker does not know the bot {rule.bot_id!r}")
    event = _event(effect, known)
    if isinstance(event, Failed):
        return event
    if rule.consume_labels and not effect.consume_marked:
        # Last of all before the launch: a label is spent only where its bot can run.
        not_consumed = consume_labels(store, runtime, hand, effect, rule.consume_labels)
        if not_consumed is not None:
            return not_consumed
        if hand.lease_is_over:
            # The transaction outlasted the lease: whoever has the row now finds its mark, and launches (E27).
            return None
    launch = Launch(bot=bot, effect=effect, rule=rule, event=event, started_at=hand.server_now())
    return launch_bot(store, runtime, hand, launch)


def _current_rule(effect: Effect, known: Known) -> Subscription | Outcome:
    """Return the rule as it is now, or what becomes of a row that it does not owe any more (E34).

    A row whose labels were consumed for it is owed its launch whatever the rule's terms have become (E36).
    """
    rule = known.rules.get(effect.sub_id)
    if rule is None:
        return Dropped(DropReason.SUBSCRIPTION_NOT_FOUND)
    if isinstance(rule, str):
        return Failed(f"the subscription cannot be read: {rule}")
    if not rule.enabled:
        return Dropped(DropReason.SUBSCRIPTION_DISABLED)
    if not (effect.consume_marked or known.just_matched) and mismatch(rule, effect.attributes) is not None:
        return Dropped(DropReason.SUBSCRIPTION_EDITED)
    return rule


def _event(effect: Effect, known: Known) -> Event | Failed:
    event = known.events.get(effect.event_id)
    if isinstance(event, Event):
        return event
    why = "is not in the log" if event is None else f"cannot be read: {event.error}"
    return Failed(f"event {effect.event_id} {why}", definitive=True)
