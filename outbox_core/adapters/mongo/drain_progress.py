"""A tenant's cursor on trigger_cursors, and its journal on drain_journal."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pymongo.errors import DuplicateKeyError

from outbox_core.adapters.mongo.documents import StoredDocument, Whole, why_invalid
from outbox_core.adapters.mongo.errors import translated
from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.domain.errors import InvariantError
from outbox_core.domain.identity import join_key
from outbox_core.domain.poison import Poison
from outbox_core.domain.sequence import Mark
from outbox_core.ports.drain_progress import Cursor

if TYPE_CHECKING:
    from pymongo.database import Database

    from outbox_core.ports.drain_progress import JournalEntry


class StoredMark(StoredDocument):
    """One of a cursor's marks."""

    last_seq: Whole
    at: datetime


class CursorDocument(StoredDocument):
    """A tenant's row in trigger_cursors, read together with the server's time."""

    seq: Whole = 0
    rev: Whole = 0
    marks: list[StoredMark] = []
    poison: dict[str, Whole] = {}
    poison_at: datetime | None = None
    entry_id: str = ""
    now: datetime


class MongoDrainProgress:
    """Implements ports.drain_progress.DrainProgress."""

    def __init__(self, database: Database[dict[str, Any]], tenant_id: str) -> None:
        self._tenant = tenant_id
        self._cursors = database["trigger_cursors"]
        self._journal = database["drain_journal"]

    def load(self) -> Cursor:
        """See the port."""
        found = self._read() or self._create()
        try:
            stored = CursorDocument.model_validate(found)
            counts = {int(seq): count for seq, count in stored.poison.items()}
        except ValueError as error:
            raise InvariantError(f"the cursor of tenant {self._tenant} is damaged: {why_invalid(error)}") from error
        return Cursor(
            seq=stored.seq,
            rev=stored.rev,
            now=stored.now,
            marks=tuple(Mark(mark.last_seq, mark.at) for mark in stored.marks),
            poison=Poison(counts, stored.poison_at),
            entry_id=stored.entry_id,
        )

    def commit(
        self,
        read: Cursor,
        *,
        seq: int,
        marks: tuple[Mark, ...],
        poison: Poison,
        entry: JournalEntry | None,
    ) -> bool:
        """See the port."""
        values: dict[str, Any] = {
            "seq": seq,
            "marks": [{"last_seq": mark.last_seq, "at": mark.at} for mark in marks],
            "poison": {str(failing): count for failing, count in poison.counts.items()},
            "poison_at": poison.counted_at,
        }
        if entry is not None:
            # A second copy of the same entry is the answer to a lost one: it stands.
            insert_all(self._journal, [self._entry_document(entry, read)])
            values["entry_id"] = entry.entry_id
        with translated():
            moved = self._cursors.update_one(
                {"_id": self._tenant, "seq": _as_read(read.seq), "rev": _as_read(read.rev)},
                {"$set": values, "$inc": {"rev": 1}, "$currentDate": {"updated_at": True}},
            )
        return moved.modified_count == 1

    def _read(self) -> dict[str, Any] | None:
        fields = {**dict.fromkeys(("seq", "rev", "marks", "poison", "poison_at", "entry_id"), 1), "now": "$$NOW"}
        with translated():
            return self._cursors.find_one({"_id": self._tenant}, fields)

    def _create(self) -> dict[str, Any] | None:
        # A duplicate is another drain that created it between our look and our write.
        with translated(), suppress(DuplicateKeyError):
            self._cursors.update_one(
                {"_id": self._tenant},
                {"$setOnInsert": {"tenant_id": self._tenant, "seq": 0, "rev": 0}},
                upsert=True,
            )
        return self._read()

    def _entry_document(self, entry: JournalEntry, read: Cursor) -> dict[str, Any]:
        return {
            "_id": join_key(self._tenant, entry.entry_id),
            "tenant_id": self._tenant,
            "entry_id": entry.entry_id,
            "follows": entry.follows,
            "first_seq": entry.first_seq,
            "last_seq": entry.last_seq,
            "rows": entry.rows,
            "skips": [{"seq": seq, "reason": reason} for seq, reason in entry.skips],
            "drained_at": read.now,
        }


def _as_read(number: int) -> Any:  # noqa: ANN401 - a value, or a condition
    """Return what finds a number that was read: a missing one is read as 0."""
    return number or {"$in": [0, None]}
