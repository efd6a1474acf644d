"""Which rows of the lifecycle stream may go, and why one is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outbox_core.domain.consumer import Consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """How far a tenant's stream may be pruned: every number up to `acknowledged`, where it is old enough.

    `held_by` names the consumers that keep what stands above it, and `why` says so in one line.
    """

    acknowledged: int
    held_by: tuple[str, ...]
    why: str


def floor_of(consumers: Iterable[Consumer], head: int) -> Floor:
    """Return how far consumers let a stream go (L13).

    A consumer that has not begun, or whose cursor cannot be, keeps everything; a retired one keeps nothing, a paused
    one what it has not seen. Where none is registered, age alone decides.
    """
    waiting = [one for one in consumers if one.retired_at is None]
    lacking = tuple(sorted(one.consumer_id for one in waiting if not _valid(one.cursor, head)))
    if lacking:
        return Floor(acknowledged=0, held_by=lacking, why=f"{', '.join(lacking)} has no cursor yet")
    reached = min((one.cursor for one in waiting if one.cursor is not None), default=head)
    holding = tuple(sorted(one.consumer_id for one in waiting if one.cursor == reached < head))
    behind = f"{', '.join(holding)} has acknowledged {reached} of {head}"
    why = behind if holding else "no consumer waits for it, only its age keeps it"
    return Floor(acknowledged=reached, held_by=holding, why=why)


def _valid(cursor: int | None, head: int) -> bool:
    return cursor is not None and 0 <= cursor <= head
