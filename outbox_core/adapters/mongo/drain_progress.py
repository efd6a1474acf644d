"""A tenant's cursor on trigger_cursors, and its journal on drain_journal."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from outbox_core.adapters.mongo.documents import StoredDocument, Whole, why_invalid
from outbox_core.adapters.mongo.errors import DUPLICATE_KEY, translated
from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.adapters.mongo.slots import holds, replacement, slots_of, taking
from outbox_core.domain.errors import InvariantError, TransientError
from outbox_core.domain.identity import join_key
from outbox_core.domain.poison import Poison
from outbox_core.domain.sequence import Mark
from outbox_core.ports.drain_progress import JOURNAL_ITEMS, Cursor
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from pymongo.database import Database

    from outbox_core.domain.limits import Limits
    from outbox_core.ports.drain_progress import JournalEntry, Kept
    from outbox_core.ports.runtime import Entropy


_FIELDS = {
    **dict.fromkeys(("seq", "rev", "marks", "poison", "poison_at", "entry_id", "journal_items"), 1),
    "now": "$$NOW",
}


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
    journal_items: Whole = 0
    now: datetime


class MongoDrainProgress:
    """Implements ports.drain_progress.DrainProgress."""

    def __init__(self, database: Database[dict[str, Any]], tenant_id: str, limits: Limits, entropy: Entropy) -> None:
        self._tenant = tenant_id
        self._limits = limits
        self._entropy = entropy
        self._slots = slots_of(database, Lane.DRAIN)
        self._cursors = database["trigger_cursors"]
        self._journal = database["drain_journal"]

    def load(self) -> Cursor:
        """See the port."""
        return self._cursor(self._read() or self._create())

    def enter(self, token: str | None, hold: timedelta) -> tuple[Cursor, str] | None:
        """See the port."""
        fresh = self._entropy.token()
        wanted: dict[str, Any] = {"_id": self._tenant}
        if token is None:
            update = taking(self._tenant, Lane.DRAIN, fresh, hold, self._limits)
        else:
            wanted[f"{Lane.DRAIN.value}.token"] = token
            update = replacement(Lane.DRAIN, token, fresh, hold, self._limits)
        with translated():
            found = self._slots.find_one_and_update(
                wanted,
                update,
                projection={**_FIELDS, Lane.DRAIN.value: 1},
                upsert=token is None,
                return_document=ReturnDocument.AFTER,
            )
        return (self._cursor(found), fresh) if holds(found, Lane.DRAIN, fresh) else None

    def _cursor(self, found: Mapping[str, Any] | None) -> Cursor:
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
            journal=stored.journal_items,
        )

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
        update: dict[str, Any] = {"$inc": {"rev": 1}, "$currentDate": {"updated_at": True}}
        values: dict[str, Any] = {
            "seq": seq,
            "marks": [{"last_seq": mark.last_seq, "at": mark.at} for mark in marks],
            "poison": {str(failing): count for failing, count in poison.counts.items()},
            "poison_at": poison.counted_at,
        }
        if entry is not None:
            document, items = self._entry_document(entry, read), 1 + len(entry.skips)
            values["entry_id"] = entry.entry_id
            if read.journal < JOURNAL_ITEMS:
                update["$push"] = {"journal": document}
                update["$inc"]["journal_items"] = items
            else:
                if not self._move_to_journal(read):
                    return False
                values |= {"journal": [document], "journal_items": items}
        held: list[dict[str, Any]] = []
        if slot is not None and slot.hold:
            values[f"{Lane.DRAIN.value}.$[held].until"] = read.now + slot.hold
            held = [{"held.token": slot.token}]
        elif slot is not None:
            update["$pull"] = {Lane.DRAIN.value: {"token": slot.token}}
        with translated():
            moved = self._cursors.update_one(
                {"_id": self._tenant, "seq": _as_read(read.seq), "rev": _as_read(read.rev)},
                {"$set": values, **update},
                array_filters=held or None,
            )
        return moved.modified_count == 1

    def _move_to_journal(self, read: Cursor) -> bool:
        """Copy the entries that stand on the cursor to the journal; the move of the cursor then leaves them out.

        False where a majority does not hold the cursor as it was read: it has moved on, or has yet to be replicated.
        """
        as_read = {"_id": self._tenant, "seq": _as_read(read.seq), "rev": _as_read(read.rev)}
        with translated():
            found = self._cursors.find_one(as_read, {"journal": 1})
        if found is None:
            return False
        entries = [entry for entry in found.get("journal", ()) if isinstance(entry, dict)]
        # A copy that is there already is that of a move that was cut short.
        refused = [one for one in insert_all(self._journal, entries) if one.code != DUPLICATE_KEY] if entries else []
        if refused:
            raise TransientError(f"the journal of {self._tenant} does not take an entry: {refused[0].reason}")
        return True

    def _read(self) -> dict[str, Any] | None:
        with translated():
            return self._cursors.find_one({"_id": self._tenant}, _FIELDS)

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
