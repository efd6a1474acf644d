"""The cursor of one tenant on the twin, and its journal: `trigger_cursors` and `drain_journal`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.adapters.memory.documents import storable_document
from outbox_core.domain.errors import InvariantError
from outbox_core.domain.identity import join_key
from outbox_core.domain.poison import Poison
from outbox_core.domain.sequence import Mark
from outbox_core.ports.drain_progress import JOURNAL_ITEMS, Cursor
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from datetime import timedelta

    from outbox_core.adapters.memory.database import Document, MemoryDatabase
    from outbox_core.adapters.memory.slots import MemorySlots
    from outbox_core.ports.drain_progress import JournalEntry, Kept

_CURSORS = "trigger_cursors"
_JOURNAL = "drain_journal"


class MemoryDrainProgress:
    """Implements ports.drain_progress.DrainProgress."""

    def __init__(self, database: MemoryDatabase, tenant_id: str, slots: MemorySlots) -> None:
        self._database = database
        self._tenant_id = tenant_id
        self._slots = slots

    def load(self) -> Cursor:
        """See the port."""
        with self._database.lock:
            stored = self._database.get(_CURSORS, self._tenant_id)
            if stored is None:
                stored = {"_id": self._tenant_id, "tenant_id": self._tenant_id, "seq": 0, "rev": 0}
                self._database.put(_CURSORS, stored)
            return Cursor(
                seq=stored.get("seq", 0),
                rev=stored.get("rev", 0),
                now=self._database.clock.now(),
                marks=tuple(Mark(mark["last_seq"], mark["at"]) for mark in stored.get("marks", ())),
                poison=Poison(
                    {int(seq): count for seq, count in stored.get("poison", {}).items()}, stored.get("poison_at")
                ),
                entry_id=stored.get("entry_id", ""),
                journal=stored.get("journal_items", 0),
            )

    def enter(self, token: str | None, hold: timedelta) -> tuple[Cursor, str] | None:
        """See the port."""
        with self._database.lock:
            lane = Lane.DRAIN
            fresh = self._slots.take(lane, hold) if token is None else self._slots.rotate(lane, token, hold)
            return None if fresh is None else (self.load(), fresh)

    def commit(
        self,
        read: Cursor,
        *,
        seq: int,
        marks: tuple[Mark, ...],
        poison: Poison,
        entry: JournalEntry | None,
        slot: Kept | None = None,
    ) -> bool:
        """See the port."""
        if seq < read.seq:
            raise InvariantError(f"the cursor of {self._tenant_id} cannot move back from {read.seq} to {seq}")
        with self._database.lock:
            stored = self._database.get(_CURSORS, self._tenant_id)
            if entry is not None and read.journal >= JOURNAL_ITEMS:
                for document in (stored or {}).get("journal", ()):
                    # A copy that is there already is that of a move that was cut short.
                    self._database.insert(_JOURNAL, document)
            if stored is None or (stored.get("seq", 0), stored.get("rev", 0)) != (read.seq, read.rev):
                return False
            moved: Document = {
                **stored,
                "seq": seq,
                "rev": read.rev + 1,
                "marks": [{"last_seq": mark.last_seq, "at": mark.at} for mark in marks],
                "poison": {str(failing): count for failing, count in poison.counts.items()},
                "poison_at": poison.counted_at,
                "updated_at": self._database.clock.now(),
            }
            if entry is not None:
                kept = stored.get("journal", []) if read.journal < JOURNAL_ITEMS else []
                items = stored.get("journal_items", 0) if kept else 0
                moved |= {
                    "entry_id": entry.entry_id,
                    "journal": [*kept, self._entry_document(entry, read)],
                    "journal_items": items + 1 + len(entry.skips),
                }
            if slot is not None:
                moved[Lane.DRAIN.value] = [
                    {**one, "until": read.now + slot.hold} if one["token"] == slot.token else one
                    for one in stored.get(Lane.DRAIN.value, ())
                    if slot.hold or one["token"] != slot.token
                ]
            self._database.put(_CURSORS, storable_document(moved))
            return True

    def _entry_document(self, entry: JournalEntry, read: Cursor) -> Document:
        return storable_document(
            {
                "_id": join_key(self._tenant_id, entry.entry_id),
                "tenant_id": self._tenant_id,
                "entry_id": entry.entry_id,
                "follows": entry.follows,
                "first_seq": entry.first_seq,
                "last_seq": entry.last_seq,
                "rows": entry.rows,
                "skips": [{"seq": seq, "reason": reason} for seq, reason in entry.skips],
                "drained_at": read.now,
            }
        )
