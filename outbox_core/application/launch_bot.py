"""Run a launch's bot, in this process and in this claim: there is no second message that could be lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outbox_core.application.append_events import fill_own_numbers
from outbox_core.application.bot_words import what_it_said
from outbox_core.application.contention import contended
from outbox_core.application.run_in_transaction import OutboxTransaction
from outbox_core.domain.bot import Run, event_argument
from outbox_core.domain.effect import Delivered, RunRecord, settlement
from outbox_core.domain.errors import (
    BotOverstayedError,
    ClaimLostError,
    DefinitiveError,
    EventConflictError,
    InvalidInputError,
    TransientError,
    UnclearCommitError,
)
from outbox_core.domain.limits import TRANSACTIONAL_MARGIN
from outbox_core.domain.payload import json_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from outbox_core.application.hand import Hand
    from outbox_core.domain.bot import Bot, BotTransaction
    from outbox_core.domain.effect import Effect, Outcome
    from outbox_core.domain.event import Event
    from outbox_core.domain.subscription import Subscription
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A bot that is due to run: what it runs with, and when it began by the server's time."""

    bot: Bot
    effect: Effect
    rule: Subscription
    event: Event
    started_at: datetime

    def call(self, transaction: BotTransaction | None = None) -> Any:  # noqa: ANN401 - a bot's result
        """Call the bot; return its result where that is JSON. It ran: another result parks rather than runs again."""
        run = Run(
            effect_id=self.effect.effect_id,
            tenant=self.effect.tenant_id,
            event=self.event,
            attempt=self.effect.attempts + 1,
            transaction=transaction,
        )
        named = {self.rule.args_var: event_argument(self.event)} if self.rule.args_var else {}
        result = self.bot.function(run, **self.rule.vars, **named)
        if result is not None:
            try:
                json_bytes(result, "what the bot returned")
            except InvalidInputError as error:
                raise DefinitiveError(f"{error}; a bot returns JSON or None") from error
        return result

    def recorder(self, hand: Hand) -> Callable[[str], RunRecord]:
        """Return what makes the record of a run that failed with a text, now."""
        return lambda error: self.record(hand.server_now(), error=error)

    def record(self, finished_at: datetime, result: Any = None, error: str | None = None) -> RunRecord:  # noqa: ANN401
        """Return the record of the run."""
        return RunRecord(
            bot_id=self.bot.bot_id,
            args=self.rule.vars,
            started_at=self.started_at,
            finished_at=finished_at,
            result=result,
            error=error,
        )


def launch_bot(store: TenantStore, runtime: Runtime, hand: Hand, launch: Launch) -> Outcome | None:
    """Run the bot; return what it came to, None where that is written already, or unclear.

    Never raises for what a bot does; ClaimLostError where the row is another's.
    """
    if launch.bot.transactional:
        return _in_transaction(store, runtime, hand, launch)
    try:
        with runtime.interrupt.limit(launch.bot.limit(runtime.limits)):
            result = launch.call()
    except (Exception, BotOverstayedError) as error:  # noqa: BLE001 - the named edge: a bot's call
        return what_it_said(error, launch.recorder(hand))
    return Delivered(launch.record(hand.server_now(), result))


def _in_transaction(store: TenantStore, runtime: Runtime, hand: Hand, launch: Launch) -> Outcome | None:
    """Commit the bot's writes, its run record and the done mark together, so the launch happens exactly once (E37)."""
    effect, claim, limits = launch.effect, hand.claim, runtime.limits
    limit = launch.bot.limit(limits)
    # A renewal inside would undo the transaction, so the lease is set for the whole run before, once.
    hand.leave_out(effect.effect_id)
    if store.effects.renew(claim, [effect.effect_id], limit + TRANSACTIONAL_MARGIN) != 1:
        raise ClaimLostError(f"{effect.effect_id}: the claim does not hold the row any more")
    unused: list[int] = []
    try:
        with store.transactions.begin() as transaction:
            inside = OutboxTransaction(store, runtime, transaction, unused)
            with runtime.interrupt.limit(limit):
                result = launch.call(inside)
            finished = Delivered(launch.record(hand.server_now(), result))
            done = settlement(effect, finished, hand.server_now(), limits, jitter=1.0)
            inside.commit(lambda open_: store.effects.settle_in(open_, claim, effect.effect_id, done))
    except ClaimLostError:
        raise
    except UnclearCommitError:
        # The next claim of it finds the run record, or runs it.
        return None
    except (TransientError, EventConflictError) as error:
        return contended(runtime, effect, hand.server_now(), error)
    except (Exception, BotOverstayedError) as error:  # noqa: BLE001 - the named edge: a bot's call
        return what_it_said(error, launch.recorder(hand))
    finally:
        fill_own_numbers(store, unused)
    return None
