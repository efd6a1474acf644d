"""The consumers of one tenant on the twin: `lifecycle_consumer_cursors` and `lifecycle_dead_letters`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.adapters.memory.consumer_leasing import LeasedRows
from outbox_core.adapters.memory.consumer_rows import CURSORS, FREE, active, leased
from outbox_core.adapters.memory.documents import storable_document
from outbox_core.adapters.memory.letters import LetterRows
from outbox_core.adapters.memory.lifecycle_documents import consumer_of, cursor_of
from outbox_core.domain import delivery
from outbox_core.domain.consumer import Consumer, LetterState, Look, Start, goes_on_after, lag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime


class MemoryConsumers(LeasedRows, LetterRows):
    """Implements ports.consumers.Consumers."""

    def register(self, consumer_id: str, start: Start, by: str) -> Consumer:
        """See the port."""
        with self._database.lock:
            now, found = self._now(), self._find(consumer_id)
            if found is not None and found.get("retired_at") is None:
                return consumer_of(found)
            document = {
                **(found or {}),
                "_id": self._key(consumer_id),
                "tenant_id": self._tenant_id,
                "consumer_id": consumer_id,
                "start": start.value,
                "last_acked_sequence": None,
                "must_reconcile": found is not None,
                "registered_at": now,
                "retired_at": None,
                "paused_at": None,
                "stopped_for": "",
                "heartbeat_at": None,
                "fence": (found or {}).get("fence", 0),
                "failing": None,
                "idle_polls": 0,
                "next_poll_at": now,
                **FREE,
            }
            self._database.put(CURSORS, storable_document(document))
            self._told(delivery.REGISTER, document, by, "", {"start": start.value})
            return consumer_of(document)

    def look(self, consumer_id: str) -> Look:
        """See the port."""
        with self._database.lock:
            found = self._find(consumer_id)
            replays = any(letter["state"] == LetterState.REPLAYING for letter in self._letters(consumer_id))
            return Look(
                consumer=None if found is None else consumer_of(found),
                head=self._stream.head(),
                now=self._now(),
                replays=replays,
            )

    def all(self) -> Sequence[Consumer]:
        """See the port."""
        with self._database.lock:
            return [consumer_of(document) for document in self._documents()]

    def retire(self, consumer_id: str, by: str, why: str) -> bool:
        """See the port."""
        with self._database.lock:
            found = self._found(consumer_id)
            if found.get("retired_at") is not None:
                return False
            now = self._now()
            for letter in self._letters(consumer_id):
                if letter["state"] != LetterState.RESOLVED:
                    self._settle(letter, by=by, why="its consumer was retired")
            retired = {**found, **self._minted(found), "retired_at": now, "failing": None, **FREE}
            self._database.put(CURSORS, storable_document(retired))
            self._told(delivery.RETIRE, retired, by, why, {"cursor": str(consumer_of(found).cursor)})
            return True

    def set_paused(self, consumer_ids: Iterable[str] | None, *, paused: bool) -> Sequence[str]:
        """See the port."""
        wanted = None if consumer_ids is None else set(consumer_ids)
        with self._database.lock:
            changed = [
                document
                for document in self._documents()
                if document.get("retired_at") is None
                and (wanted is None or document["consumer_id"] in wanted)
                and (document.get("paused_at") is None) is paused
            ]
            now = self._now()
            for document in changed:
                self._database.put(
                    CURSORS, {**document, "paused_at": now if paused else None, "idle_polls": 0, "next_poll_at": now}
                )
        return sorted(document["consumer_id"] for document in changed)

    def require_reconcile(self, consumer_id: str, by: str, why: str) -> None:
        """See the port."""
        with self._database.lock:
            found = self._active(consumer_id)
            asked = {
                **found,
                **self._minted(found),
                **FREE,
                "must_reconcile": True,
                "failing": None,
                "stopped_for": "",
            }
            self._database.put(CURSORS, {**asked, "idle_polls": 0, "next_poll_at": self._now()})
            self._audit_once(delivery.AUDIT_RECONCILE_ASKED, consumer_id, by, why, {})

    def skip(self, consumer_id: str, by: str, why: str) -> int:
        """See the port."""
        with self._database.lock:
            found, head = self._active(consumer_id), self._stream.head()
            skipped = {
                **found,
                **self._moved(delivery.SKIP, head),
                **self._minted(found),
                "must_reconcile": False,
                "stopped_for": "",
                "idle_polls": 0,
                "next_poll_at": self._now(),
                **FREE,
            }
            self._database.put(CURSORS, skipped)
            self._audit_once(delivery.AUDIT_SKIPPED, consumer_id, by, why, {"head": head})
            return head

    def wake(self, consumer_ids: Iterable[str]) -> Sequence[str]:
        """See the port."""
        wanted = set(consumer_ids)
        with self._database.lock:
            now, head = self._now(), self._stream.head()
            woken = [
                document
                for document in self._documents()
                if document["consumer_id"] in wanted
                and active(document)
                and not document.get("stopped_for")
                and not leased(document, now, self._limits.longest_consumer_lease + self._limits.op_timeout)
                and document.get("failing") is None
                and ((cursor := cursor_of(document.get("last_acked_sequence"))) is None or cursor < head)
            ]
            for document in woken:
                self._database.put(CURSORS, {**document, "next_poll_at": now, "idle_polls": 0})
        return sorted(document["consumer_id"] for document in woken)

    def lags(self) -> Mapping[str, int]:
        """See the port."""
        with self._database.lock:
            head = self._stream.head()
            waiting = [one for one in self.all() if one.retired_at is None]
        return {one.consumer_id: lag(one.cursor, head) for one in waiting}

    def oldest_unacknowledged(self) -> Mapping[str, datetime]:
        """See the port."""
        found: dict[str, datetime] = {}
        with self._database.lock:
            for consumer_id, behind in self.lags().items():
                cursor = consumer_of(self._found(consumer_id)).cursor
                rows = self._stream.rows_after(goes_on_after(cursor)) if behind else []
                if rows:
                    found[consumer_id] = rows[0]["occurred_at"]
        return found
