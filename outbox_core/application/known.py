"""What a slice reads once for all rows of a claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.domain.effect import PROJECTION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox_core.domain.board import Binding
    from outbox_core.domain.effect import Claim
    from outbox_core.domain.event import Event, Undecodable
    from outbox_core.domain.subscription import Subscription
    from outbox_core.ports.store import TenantStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Finished runs by effect, rules by id, events by id, bindings by board; for what cannot be read, why."""

    finished: frozenset[str]
    rules: Mapping[str, Subscription | str]
    events: Mapping[str, Event | Undecodable]
    bindings: Mapping[str, Binding | str]


def read_known(store: TenantStore, claim: Claim) -> Known:
    """Read what the rows of a claim need, each kind in one call, none for what it does not hold.

    Rules and bindings are read as they are now (E34). Raises TransientError.
    """
    launches = [effect for effect in claim.effects if effect.kind != PROJECTION]
    boards = {effect.attributes.snapshot.board for effect in claim.effects if effect.kind == PROJECTION}
    return Known(
        finished=store.effects.finished_runs([one.effect_id for one in launches]) if launches else frozenset(),
        rules=store.subscriptions.get({one.sub_id for one in launches}) if launches else {},
        events=store.log.get({effect.event_id for effect in claim.effects}),
        bindings=store.boards.bindings(boards) if boards else {},
    )
