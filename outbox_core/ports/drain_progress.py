"""How far one tenant's log has been drained, and the journal of what each batch came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from outbox_core.domain.poison import Poison

if TYPE_CHECKING:
    from datetime import datetime

    from outbox_core.domain.sequence import Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The cursor as it was read: all up to `seq` is materialized. `rev` grows with every write to it.

    `marks` and `poison` are stored, since consecutive drains run in different processes. `now` is the server's time
    at the read; `entry_id` the journal entry of the last batch.
    """

    seq: int
    rev: int
    now: datetime
    marks: tuple[Mark, ...] = ()
    poison: Poison = field(default_factory=Poison)
    entry_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """What one batch came to: its range, how many rows it made, which numbers were skipped and why.

    `entry_id` is minted by the drain that writes it. Two racing drains may both write one; the entry that `follows`
    names, from the next entry or from the cursor, is the one that counted.
    """

    entry_id: str
    follows: str
    first_seq: int
    last_seq: int
    rows: int
    skips: tuple[tuple[int, str], ...]


class DrainProgress(Protocol):
    """One consistency boundary: the cursor and its journal. Every call may raise TransientError."""

    def load(self) -> Cursor:
        """Return the cursor that a majority holds, creating it at 0 where there is none."""
        ...

    def commit(
        self,
        read: Cursor,
        *,
        seq: int,
        marks: tuple[Mark, ...],
        poison: Poison,
        entry: JournalEntry | None,
    ) -> bool:
        """Write the entry, then move the cursor from exactly what was read; say whether it moved (E13).

        False means that another drain wrote meanwhile: read again. `seq` must not be below `read.seq`.
        A repeat after a lost answer returns False.
        """
        ...
