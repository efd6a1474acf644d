"""How far one tenant's log has been drained, and the journal of what each batch came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from outbox_core.domain.poison import Poison

if TYPE_CHECKING:
    from datetime import datetime

    from outbox_core.domain.sequence import Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The cursor as it was read: all up to `seq` is materialized. `rev` grows with every write to it.

    `marks` and `poison` are stored, since consecutive drains run in different processes. `now` is the server's time
    at the read; `entry_id` the journal entry of the last batch; `journal` counts the entries that stand on the cursor
    still.
    """

    seq: int
    rev: int
    now: datetime
    marks: tuple[Mark, ...] = ()
    poison: Poison = field(default_factory=Poison)
    entry_id: str = ""
    journal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """What one batch came to: its range, how many rows it made, which numbers were skipped and why.

    `entry_id` is minted by the drain that writes it; it names the one that it `follows`. It stands on the cursor from
    the write that moves it, so there is one only of a batch that counted, and moves to the journal with some others.
    """

    entry_id: str
    follows: str
    first_seq: int
    last_seq: int
    rows: int
    skips: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """What becomes of a drain's slot as the cursor moves: it ends `hold` from the server's time at the read, or now."""

    token: str
    hold: timedelta = timedelta(0)


JOURNAL_ITEMS = 64
"""How many entries and skips stand on a cursor before the next batch moves them to the journal together."""


class DrainProgress(Protocol):
    """One consistency boundary: the cursor and its journal. Every call may raise TransientError."""

    def load(self) -> Cursor:
        """Return the cursor that a majority holds, creating it at 0 where there is none."""
        ...

    def enter(self, token: str | None, hold: timedelta) -> tuple[Cursor, str] | None:
        """Take the drain's slot for `hold`, or rotate `token`; return the cursor and the fresh token.

        None where the slot is taken, or `token` is not held. The cursor is the primary's own: what a failover takes
        back of it no `commit` moves on from.
        """
        ...

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
        """Move the cursor from exactly what was read, and note the entry down; say whether it moved (E13).

        `slot` says what becomes of the drain's slot with the same write; nothing does where the cursor does not move.

        False means that another drain wrote meanwhile: read again. `seq` must not be below `read.seq`.
        A repeat after a lost answer returns False.
        """
        ...
