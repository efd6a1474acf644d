"""Reflect a card's move where its board is bound to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.application.bot_words import what_it_said
from outbox_core.domain.effect import Delivered, Failed, PassedOver
from outbox_core.domain.errors import BotOverstayedError
from outbox_core.domain.projector import Projection

if TYPE_CHECKING:
    from outbox_core.application.known import Known
    from outbox_core.domain.effect import Effect, Outcome
    from outbox_core.domain.event import Event
    from outbox_core.ports.runtime import Runtime


def project_move(runtime: Runtime, effect: Effect, event: Event, known: Known) -> Outcome:
    """Call the projector of the binding's kind; never raises for what it does.

    A board that is bound to nothing now is an error, not a success: the move has nowhere to go (E22). A projector runs
    at least once; the effect id is its idempotency key.
    """
    board = effect.attributes.snapshot.board
    binding = known.bindings.get(board)
    if binding is None:
        return Failed(f"board {board!r} is bound to nothing, so the move has nowhere to go")
    if isinstance(binding, str):
        return Failed(f"the binding of board {board!r} cannot be read: {binding}")
    projector = runtime.projectors.get(binding.kind)
    if projector is None:
        return PassedOver(f"this worker does not know a projector of kind {binding.kind!r}")
    projection = Projection(
        effect_id=effect.effect_id,
        tenant=effect.tenant_id,
        event=event,
        board=board,
        target=binding.target,
        attempt=effect.attempts + 1,
    )
    try:
        with runtime.interrupt.limit(runtime.limits.effect_time_limit):
            projector.function(projection)
    except (Exception, BotOverstayedError) as error:  # noqa: BLE001 - the named edge: a projector's call
        return what_it_said(error)
    return Delivered()
