"""The cursor of one tenant on the twin, and its journal: `trigger_cursors` and `drain_journal`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.adapters.memory.documents import storable_document
from outbox_core.domain.errors import InvariantError
from outbox_core.domain.identity import join_key
from outbox_core.domain.poison import Poison
from outbox_core.domain.sequence import Mark
from outbox_core.ports.drain_progress import Cursor

if TYPE_CHECKING:
    from outbox_core.adapters.memory.database import Document, MemoryDatabase
    from outbox_core.ports.drain_progress import JournalEntry

_CURSORS = "trigger_cursors"
_JOURNAL = "drain_journal"


class MemoryDrainProgress:
    """Implements ports.drain_progress.DrainProgress."""

    def __init__(self, database: MemoryDatabase, tenant_id: str) -> None:
        self._database = database
        self._tenant_id = tenant_id

    def load(self) -> Cursor:
        """See the port."""
        with self._database.lock:
            stored = self._database.get(_CURSORS, self._tenant_id)
            if stored is None:
                stored = {"_id": self._tenant_id, "tenant_id": self._tenant_id, "seq": 0, "rev": 0}
                self._database.put(_CURSORS, stored)
            return Cursor(
                seq=stored["seq"],
                rev=stored["rev"],
                now=self._database.clock.now(),
                marks=tuple(Mark(mark["last_seq"], mark["at"]) for mark in stored.get("marks", ())),
                poison=Poison(
                    {int(seq): count for seq, count in stored.get("poison", {}).items()}, stored.get("poison_at")
                ),
                entry_id=stored.get("entry_id", ""),
            )

    def commit(
        self, read: Cursor, *, seq: int, marks: tuple[Mark, ...], poison: Poison, entry: JournalEntry | None
    ) -> bool:
        """See the port."""
        if seq < read.seq:
            raise InvariantError(f"the cursor of {self._tenant_id} cannot move back from {read.seq} to {seq}")
        with self._database.lock:
            if entry is not None:
                # A second copy of the same entry is the answer to a lost one: it stands.
                self._database.insert(_JOURNAL, self._entry_document(entry, read))
            stored = self._database.get(_CURSORS, self._tenant_id)
            if stored is None or (stored["seq"], stored["rev"]) != (read.seq, read.rev):
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
                moved["entry_id"] = entry.entry_id
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
