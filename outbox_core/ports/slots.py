"""A tenant's slots: how many slices and drains of it may be queued or running at once."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import timedelta


class Lane(StrEnum):
    """What a slot is for. A tenant has TENANT_SLOTS for slices and one for its drain.

    A drain's slot stands on its cursor, so that entering it reads the cursor, and moving the cursor may leave it.
    """

    SLICE = "slice"
    DRAIN = "drain"


class Slots(Protocol):
    """A slot is a token with an end, by the server's clock; correctness never hangs on one.

    Whoever offers work takes the slot; the message carries the token, and the work rotates it or ends at once: so
    neither ticks nor hints multiply messages, and a doubled message runs once. Every call may raise TransientError.
    """

    def take(self, lane: Lane, hold: timedelta) -> str | None:
        """Take a free slot for `hold`; return its fresh token, None where all are taken."""
        ...

    def rotate(self, lane: Lane, token: str, hold: timedelta) -> str | None:
        """Exchange a token for a fresh one with a new hold; None where the token is not held (over, or used)."""
        ...

    def extend(self, lane: Lane, token: str, hold: timedelta) -> bool:
        """Let a held slot end `hold` from now."""
        ...

    def give_back(self, lane: Lane, token: str) -> bool:
        """Free a slot; return whether until now all of the lane were taken, so that an offer may have been refused.

        A token that is not held changes nothing, and returns False.
        """
        ...
