"""The calls of the twin that span tenants."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from outbox_core.adapters.memory.consumer_rows import CURSORS, active, leased
from outbox_core.adapters.memory.documents import storable_document
from outbox_core.adapters.memory.effect_rows import due_time
from outbox_core.adapters.memory.slots import MemorySlots
from outbox_core.domain.consumer import LetterState
from outbox_core.domain.effect_lifecycle import LIVE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from outbox_core.adapters.memory.database import Document, MemoryDatabase
    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Entropy
    from outbox_core.ports.slots import Lane


class MemoryMaintenance:
    """Implements ports.maintenance.Maintenance."""

    def __init__(self, database: MemoryDatabase, limits: Limits, entropy: Entropy) -> None:
        self._database = database
        self._limits = limits
        self._entropy = entropy

    def now(self) -> datetime:
        """See the port."""
        return self._database.clock.now()

    def tick_due(self, name: str, interval: timedelta) -> bool:
        """See the port."""
        with self._database.lock:
            now = self._database.clock.now()
            tick = self._database.get("ticks", name)
            if tick is not None and now < tick["next_at"] <= now + interval + self._limits.op_timeout:
                return False
            self._database.put("ticks", {"_id": name, "next_at": now + interval})
            return True

    def undrained_tenants(self, after: str, limit: int) -> Sequence[str]:
        """See the port."""
        with self._database.lock:
            counters = list(self._database.documents("event_sequences").values())
        found = sorted(c["tenant_id"] for c in counters if c.get("undrained") is True and c["tenant_id"] > after)
        return found[:limit]

    def due_tenants(self) -> Sequence[str]:
        """See the port."""
        with self._database.lock:
            now = self._database.clock.now()
            since: dict[str, datetime] = {}
            for row in self._database.documents("trigger_effects").values():
                if row.get("state") in LIVE:
                    # What has no due time comes first: the next claim parks it.
                    due = due_time(row) or datetime.min.replace(tzinfo=UTC)
                    since[row["tenant_id"]] = min(due, since.get(row["tenant_id"], due))
        return sorted(
            (tenant for tenant, due in since.items() if due <= now), key=lambda tenant: (since[tenant], tenant)
        )

    def lagging_tenants(self, after: str, limit: int) -> tuple[Sequence[str], str]:
        """See the port."""
        with self._database.lock:
            counters = sorted(
                (c for c in self._database.documents("event_sequences").values() if c["tenant_id"] > after),
                key=lambda counter: str(counter["tenant_id"]),
            )
            looked_at = counters[:limit]
            lagging = [
                counter["tenant_id"]
                for counter in looked_at
                if counter.get("undrained") is not True and counter["last_seq"] > self._reached(counter["tenant_id"])
            ]
        return lagging, looked_at[-1]["tenant_id"] if len(looked_at) == limit else ""

    def take_slots(self, lane: Lane, tenants: Sequence[str], hold: timedelta) -> Mapping[str, str]:
        """See the port."""
        taken = {}
        for tenant_id in tenants:
            token = MemorySlots(self._database, tenant_id, self._limits, self._entropy).take(lane, hold)
            if token is not None:
                taken[tenant_id] = token
        return taken

    def due_consumers(self, consumer_ids: Sequence[str], hold: timedelta, limit: int) -> Sequence[tuple[str, str]]:
        """See the port."""
        with self._database.lock:
            now, found = self._database.clock.now(), list[tuple[str, str]]()
            documents = sorted(
                self._database.documents(CURSORS).values(),
                key=lambda one: (due_time({"not_before": one.get("next_poll_at")}) or now, str(one["_id"])),
            )
            for document in documents:
                if not _polled(document, consumer_ids, now, self._limits):
                    continue
                again = (document.get("failing") or {}).get("next_attempt_at")
                if isinstance(again, datetime) and again > now and not self._replays(document):
                    self._put_off(document, again, idle=False)
                elif not self._has_work(document):
                    polls = document.get("idle_polls", 0)
                    delay = self._limits.idle_delay(polls) * self._entropy.jitter()
                    self._put_off(document, now + delay, idle=True)
                elif len(found) < limit:
                    self._put_off(document, now + hold, idle=False)
                    found.append((document["tenant_id"], document["consumer_id"]))
        return found

    def _has_work(self, document: Document) -> bool:
        """Say whether a consumer is behind, must reconcile, or has a letter to observe again."""
        counter = self._database.get("lifecycle_sequences", document["tenant_id"])
        head, cursor = counter["last_sequence"] if counter else 0, document.get("last_acked_sequence")
        return document.get("must_reconcile", False) or cursor != head or self._replays(document)

    def _replays(self, document: Document) -> bool:
        return any(
            (letter["tenant_id"], letter["consumer_id"], letter["state"])
            == (document["tenant_id"], document["consumer_id"], LetterState.REPLAYING)
            for letter in self._database.documents("lifecycle_dead_letters").values()
        )

    def _put_off(self, document: Document, until: datetime, *, idle: bool) -> None:
        polls = document.get("idle_polls", 0) + 1 if idle else 0
        self._database.put(CURSORS, storable_document({**document, "next_poll_at": until, "idle_polls": polls}))

    def lifecycle_tenants(self, after: str, limit: int) -> Sequence[str]:
        """See the port."""
        with self._database.lock:
            found = sorted(str(tenant) for tenant in self._database.documents("lifecycle_sequences"))
        return [tenant for tenant in found if tenant > after][:limit]

    def ensure_schema(self) -> Sequence[str]:
        """Return nothing: the twin has no schema."""
        return ()

    def pending_schema(self) -> Sequence[str]:
        """Return nothing: the twin has no schema."""
        return ()

    def _reached(self, tenant_id: str) -> int:
        cursor = self._database.get("trigger_cursors", tenant_id)
        return 0 if cursor is None else int(cursor["seq"])


def _polled(document: Document, consumer_ids: Sequence[str], now: datetime, limits: Limits) -> bool:
    due = document.get("next_poll_at")
    return (
        document.get("consumer_id") in consumer_ids
        and active(document)
        and not document.get("stopped_for")
        and not leased(document, now, limits.longest_consumer_lease + limits.op_timeout)
        and (not isinstance(due, datetime) or due <= now)
    )
