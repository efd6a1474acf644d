"""What one webhook delivery of a forge says, in the domain's words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outbox_core.domain.event import BOARD, FORGE, Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from outbox_core.domain.board import CardChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """A delivery of a known `kind` that becomes no event; `reason` is one of a few fixed texts, fit for counting."""

    event_id: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A delivery that becomes an event, and changes a card where `change` is set.

    `event_id` is minted from the forge's own delivery id, so a redelivery is the same event (E46). `subject` is the id
    of the card it concerns. Where the delivery does not know that id, `card_link` is the card's link instead, and
    `subject` is used only where no card has that link. `actor` is who acted. `seen` is what the delivery itself says of
    its subject: it serves where no card is stored.
    """

    event_id: str
    type: str
    action: str
    subject: str
    actor: str
    change: CardChange | None = None
    card_link: str = ""
    seen: Snapshot = field(default_factory=Snapshot)
    data: Mapping[str, Any] = field(default_factory=dict)
    occurred_at: datetime | None = None

    @property
    def source(self) -> str:
        """The event's source: `board` where the delivery touches its card, `forge` where it only speaks of it."""
        return FORGE if self.change is None else BOARD
