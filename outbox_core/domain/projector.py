"""A projector: the callable that reflects the moves of a bound board, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outbox_core.domain.identity import require_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.domain.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One try of a projection: the event of a move, and where the board is bound to.

    `effect_id` is its idempotency key; `attempt` counts from 1. Moves of one card may arrive out of order: compare
    `event.seq` with the last one seen.
    """

    effect_id: str
    tenant: str
    event: Event
    board: str
    target: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """A registered projector; it says by raising what a bot says, and returns nothing."""

    kind: str
    function: Callable[[Projection], Any]

    def __post_init__(self) -> None:
        require_id(self.kind, "projector kind")
