"""What a slice reads once for all rows of a claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.domain.effect import PROJECTION
from outbox_core.domain.event import Event
from outbox_core.domain.limits import DONE_TTL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from outbox_core.domain.board import Binding
    from outbox_core.domain.effect import Claim, Effect
    from outbox_core.domain.event import Undecodable
    from outbox_core.domain.subscription import Subscription
    from outbox_core.ports.store import TenantStore

_ROW_MAY_HAVE_LEFT = DONE_TTL / 2
"""A done row stays twice as long; the difference is for a server's clock that was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Finished runs by effect, rules by id, events by id, bindings by board; for what cannot be read, why.

    `just_matched` says that the rows were made by these very rules, as they were read: asked again, they match again.
    """

    finished: frozenset[str]
    rules: Mapping[str, Subscription | str]
    events: Mapping[str, Event | Undecodable]
    bindings: Mapping[str, Binding | str]
    just_matched: bool = False


def read_known(store: TenantStore, claim: Claim) -> Known:
    """Read what the rows of a claim need, each kind in one call, none for what it does not hold.

    Rules and bindings are read as they are now (E34). Raises TransientError.
    """
    launches = [effect for effect in claim.effects if effect.kind != PROJECTION]
    boards = {effect.attributes.snapshot.board for effect in claim.effects if effect.kind == PROJECTION}
    events = store.log.get({effect.event_id for effect in claim.effects})
    ran = [one.effect_id for one in launches if _may_have_run(one, events.get(one.event_id))]
    return Known(
        finished=store.effects.finished_runs(ran) if ran else frozenset(),
        rules=store.subscriptions.get({one.sub_id for one in launches}) if launches else {},
        events=events,
        bindings=store.boards.bindings(boards) if boards else {},
    )


def _may_have_run(effect: Effect, event: Event | Undecodable | None) -> bool:
    """Say whether there may be a run record of an earlier claim: a row that is claimed for the first time has none."""
    return effect.claims > 1 or not isinstance(event, Event) or may_be_made_again(event, effect.created_at)


def may_be_made_again(event: Event, made_at: datetime) -> bool:
    """Say whether a row that is made now may have been there before: done, and gone with its TTL (E37).

    As where a lost cursor has the log drained once more. It is then at least that much younger than its event.
    """
    return made_at - event.recorded_at >= _ROW_MAY_HAVE_LEFT
