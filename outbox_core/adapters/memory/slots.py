"""The slots of one tenant on the twin: a list on its `tenant_slots` for slices, one on its cursor for the drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from outbox_core.adapters.memory.database import MemoryDatabase
    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Entropy

COLLECTIONS = {Lane.SLICE: "tenant_slots", Lane.DRAIN: "trigger_cursors"}
"""Where the slots of each lane stand, as a list under the lane's name."""


class MemorySlots:
    """Implements ports.slots.Slots."""

    def __init__(self, database: MemoryDatabase, tenant_id: str, limits: Limits, entropy: Entropy) -> None:
        self._database = database
        self._tenant_id = tenant_id
        self._limits = limits
        self._entropy = entropy

    def take(self, lane: Lane, hold: timedelta) -> str | None:
        """See the port."""
        token = self._entropy.token()
        with self._database.lock:
            live = self._live(lane)
            free = len(live) < self._cap(lane)
            self._write(lane, [*live, self._slot(token, hold)] if free else live)
        return token if free else None

    def rotate(self, lane: Lane, token: str, hold: timedelta) -> str | None:
        """See the port."""
        fresh = self._entropy.token()
        return fresh if self._replace(lane, token, fresh, hold) else None

    def extend(self, lane: Lane, token: str, hold: timedelta) -> bool:
        """See the port."""
        return self._replace(lane, token, token, hold)

    def give_back(self, lane: Lane, token: str) -> bool:
        """See the port."""
        with self._database.lock:
            slots = self._stored(lane)
            kept = [slot for slot in slots if slot["token"] != token]
            if len(kept) == len(slots):
                return False
            self._write(lane, kept)
            return len(slots) >= self._cap(lane)

    def _replace(self, lane: Lane, token: str, fresh: str, hold: timedelta) -> bool:
        with self._database.lock:
            if all(slot["token"] != token for slot in self._stored(lane)):
                return False
            live = self._live(lane)
            self._write(lane, [self._slot(fresh, hold) if slot["token"] == token else slot for slot in live])
            return any(slot["token"] == token for slot in live)

    def _cap(self, lane: Lane) -> int:
        return self._limits.tenant_slots if lane is Lane.SLICE else 1

    def _live(self, lane: Lane) -> list[dict[str, Any]]:
        """Return the slots whose end lies ahead, but not further than a hold reaches for a command that ran late."""
        now, reach = self._database.clock.now(), self._limits.longest_hold + self._limits.op_timeout
        return [slot for slot in self._stored(lane) if now < slot["until"] <= now + reach]

    def _stored(self, lane: Lane) -> list[dict[str, Any]]:
        return list((self._database.get(COLLECTIONS[lane], self._tenant_id) or {}).get(lane.value, ()))

    def _slot(self, token: str, hold: timedelta) -> dict[str, Any]:
        return {"token": token, "until": self._database.clock.now() + hold}

    def _write(self, lane: Lane, slots: Sequence[dict[str, Any]]) -> None:
        collection = COLLECTIONS[lane]
        before = self._database.get(collection, self._tenant_id) or {
            "_id": self._tenant_id,
            "tenant_id": self._tenant_id,
        }
        self._database.put(collection, {**before, lane.value: list(slots)})
