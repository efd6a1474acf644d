"""Execute one claimed row: decide what it is owed now, and run its bot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.application.append_events import fill_own_numbers
from outbox_core.application.run_in_transaction import OutboxTransaction
from outbox_core.domain.bot import Run, event_argument
from outbox_core.domain.effect import (
    LAUNCH,
    Delivered,
    Dropped,
    DropReason,
    Failed,
    Hung,
    PassedOver,
    Postponed,
    Refused,
    RunRecord,
    bounded,
    settlement,
)
from outbox_core.domain.errors import (
    ClaimLostError,
    ContentionError,
    DefinitiveError,
    EventConflictError,
    InvalidInputError,
    RetryLater,
    UnclearCommitError,
)
from outbox_core.domain.event import Event
from outbox_core.domain.limits import TRANSACTIONAL_MARGIN
from outbox_core.domain.payload import json_bytes
from outbox_core.domain.subscription import DIRECT, Subscription, mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from outbox_core.application.hand import Hand
    from outbox_core.domain.bot import Bot
    from outbox_core.domain.effect import Effect, Outcome, Settlement
    from outbox_core.domain.event import Undecodable
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a slice reads once for all rows of a claim: their finished runs, rules and events."""

    finished: frozenset[str]
    rules: Mapping[str, Subscription | str]
    events: Mapping[str, Event | Undecodable]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """A bot that is due to run: what it runs with, and when it began by the server's time."""

    bot: Bot
    effect: Effect
    rule: Subscription
    event: Event
    started_at: datetime

    @property
    def arguments(self) -> dict[str, Any]:
        named = {self.rule.args_var: event_argument(self.event)} if self.rule.args_var else {}
        return {**self.rule.vars, **named}

    def record(self, finished_at: datetime, result: Any = None, error: str | None = None) -> RunRecord:  # noqa: ANN401
        return RunRecord(
            bot_id=self.bot.bot_id,
            args=self.rule.vars,
            started_at=self.started_at,
            finished_at=finished_at,
            result=result,
            error=error,
        )


def execute_effect(store: TenantStore, runtime: Runtime, hand: Hand, effect: Effect, known: Known) -> Settlement | None:
    """Decide and run one row; return what is to be written for it, None where that is done, or lost, already.

    Never raises for what a bot does. Source: the execution of the effect outbox decision, docs/decisions/0001.
    """
    decided = _before_launch(store, runtime, hand, effect, known)
    if isinstance(decided, _Launch):
        if decided.bot.transactional:
            return _launch_in_transaction(store, runtime, hand, decided)
        decided = _launch(hand, decided)
    return settlement(effect, decided, hand.server_now(), runtime.limits, runtime.entropy.jitter())


def _before_launch(  # noqa: PLR0911 - one line a verdict, in the order in which they are asked
    store: TenantStore, runtime: Runtime, hand: Hand, effect: Effect, known: Known
) -> Outcome | _Launch:
    if effect.attempts >= runtime.limits.max_effect_attempts:
        return Hung()
    if effect.owner != effect.tenant_id or effect.tenant_id != store.tenant_id:
        return Refused(f"the row's key names tenant {effect.owner!r}, the row tenant {effect.tenant_id!r}")
    if effect.kind != LAUNCH:
        return PassedOver(f"this worker does not know the kind {effect.kind!r}")
    if effect.effect_id in known.finished:
        return Delivered(None)
    rule = known.rules.get(effect.sub_id)
    if rule is None:
        return Dropped(DropReason.SUBSCRIPTION_NOT_FOUND)
    if isinstance(rule, str):
        return Failed(f"the subscription cannot be read: {rule}")
    if not rule.enabled:
        return Dropped(DropReason.SUBSCRIPTION_DISABLED)
    if mismatch(rule, effect.attributes) is not None:
        return Dropped(DropReason.SUBSCRIPTION_EDITED)
    if rule.mode != DIRECT:
        return PassedOver(f"this worker does not know the mode {rule.mode!r}")
    bot = runtime.bots.get(rule.bot_id)
    if bot is None:
        return PassedOver(f"this worker does not know the bot {rule.bot_id!r}")
    event = known.events.get(effect.event_id)
    if not isinstance(event, Event):
        why = "is not in the log" if event is None else f"cannot be read: {event.error}"
        return Failed(f"event {effect.event_id} {why}", definitive=True)
    return _Launch(bot=bot, effect=effect, rule=rule, event=event, started_at=hand.server_now())


def _launch(hand: Hand, launch: _Launch) -> Outcome:
    run = Run(
        effect_id=launch.effect.effect_id,
        tenant=launch.effect.tenant_id,
        event=launch.event,
        attempt=launch.effect.attempts + 1,
    )
    try:
        result = _checked(launch.bot.function(run, **launch.arguments))
    except Exception as error:  # noqa: BLE001 - the named edge: a bot's call
        return _what_it_said(hand, launch, error)
    return Delivered(launch.record(hand.server_now(), result))


def _launch_in_transaction(store: TenantStore, runtime: Runtime, hand: Hand, launch: _Launch) -> Settlement | None:
    """Commit the bot's writes, its run record and the done mark together, so the launch happens exactly once (E37)."""
    effect, claim, limits = launch.effect, hand.claim, runtime.limits
    limit = min(launch.bot.time_limit or limits.effect_time_limit, limits.transactional_time_limit)
    # A renewal inside would undo the transaction, so the lease is set for the whole run before, once.
    hand.leave_out(effect.effect_id)
    if store.effects.renew(claim, [effect.effect_id], limit + TRANSACTIONAL_MARGIN) != 1:
        return None
    unused: list[int] = []
    outcome: Outcome
    try:
        with store.transactions.begin() as transaction:
            inside = OutboxTransaction(store, runtime, transaction, unused)
            run = Run(
                effect_id=effect.effect_id,
                tenant=effect.tenant_id,
                event=launch.event,
                attempt=effect.attempts + 1,
                transaction=inside,
            )
            result = _checked(launch.bot.function(run, **launch.arguments))
            done = settlement(
                effect, Delivered(launch.record(hand.server_now(), result)), hand.server_now(), limits, jitter=1.0
            )
            inside.commit(lambda open_: store.effects.settle_in(open_, claim, effect.effect_id, done))
    except (ClaimLostError, UnclearCommitError):
        # Lost: the row is another's. Unclear: the next claim of it finds the run record, or runs it.
        return None
    except (ContentionError, EventConflictError) as error:
        outcome = Postponed(_contention_delay(runtime), f"its transaction met another one: {error}")
    except Exception as error:  # noqa: BLE001 - the named edge: a bot's call
        outcome = _what_it_said(hand, launch, error)
    else:
        return None
    finally:
        fill_own_numbers(store, unused)
    return settlement(effect, outcome, hand.server_now(), limits, runtime.entropy.jitter())


def _what_it_said(hand: Hand, launch: _Launch, error: Exception) -> Outcome:
    said = _words_of(error)
    if isinstance(error, RetryLater):
        return Postponed(error.delay, said)
    text = bounded(f"{type(error).__name__}: {said}")
    record = launch.record(hand.server_now(), error=text)
    return Failed(text, definitive=isinstance(error, DefinitiveError), run=record)


def _words_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001 - the named edge: an error's own text is the bot's code too
        return f"its text cannot be made, {type(worse).__name__}"


def _checked(result: Any) -> Any:  # noqa: ANN401 - a bot's result
    """Return a bot's result; it ran, so one that is no JSON parks rather than runs again."""
    try:
        json_bytes(result, "what the bot returned")
    except InvalidInputError as error:
        raise DefinitiveError(f"{error}; a bot returns JSON or None") from error
    return result


def _contention_delay(runtime: Runtime) -> timedelta:
    """From 0.2 to 2 s."""
    return timedelta(seconds=0.2 + (runtime.entropy.jitter() - 0.8) / 0.4 * 1.8)
