"""What every part of the outbox of effects shares: its collections, its index hint and one fenced move."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from outbox_core.adapters.mongo.edges import (
    Values,
    edge_filter,
    edge_update,
)
from outbox_core.adapters.mongo.errors import translated
from outbox_core.domain.effect_lifecycle import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pymongo.database import Database

    from outbox_core.domain.effect import Claim
    from outbox_core.domain.effect_lifecycle import Edge
    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Clock, Entropy


BY_ID = [("_id", 1)]
"""Every write over known ids names this index: left alone, the planner takes the live one and reads every live row."""

LIVE_STATES = [state.value for state in LIVE]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Every read of a batch asks for it whole (batch_size): the driver's first answer holds 101 documents, and the rest
# would be another command.


class EffectRows:
    """The rows of one tenant on trigger_effects and runs."""

    def __init__(
        self, database: Database[dict[str, Any]], tenant_id: str, limits: Limits, clock: Clock, entropy: Entropy
    ) -> None:
        self._tenant = tenant_id
        self._limits = limits
        self._clock = clock
        self._entropy = entropy
        self._rows = database["trigger_effects"]
        self._runs = database["runs"]

    def _move(self, edge: Edge, claim: Claim, effect_ids: Iterable[str], values: Values) -> int:
        ids = list(effect_ids)
        if not ids:
            return 0
        with translated():
            moved = self._rows.update_many(
                edge_filter(edge, self._tenant, ids, claim.claim_id), edge_update(edge, values), hint=BY_ID
            )
        return moved.matched_count
