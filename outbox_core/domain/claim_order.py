"""Which of the due rows one claim takes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = TypeVar("Row")

_WINDOW = 4
"""A claim in a crowd looks at this many times the rows that it may take."""

_HEAD = 8
"""It takes one in this many, at least one, from the head of the line."""


def looked_at(limit: int, *, crowded: bool) -> int:
    """Return how many due rows a claim of up to `limit` reads: one more tells whether others are due as well."""
    return _WINDOW * limit if crowded and limit > 1 else limit + 1


def taken(line: Sequence[Row], limit: int, claim_id: str, *, crowded: bool) -> Sequence[Row]:
    """Return up to `limit` of these rows, which stand in due order: the first ones.

    Where others claim from the same line all would fight for each row of its head, and most would go without. Then
    it is the oldest eighth of a batch, and a sample of the others. No row waits for ever: those before it leave the
    line, and it comes to stand in that eighth (E30). The claim's own id is the chance, so a claim can be repeated.
    """
    if not crowded or len(line) <= limit:
        return line[:limit]
    head = -(-limit // _HEAD)
    places = Random(claim_id).sample(range(head, len(line)), limit - head)  # noqa: S311 - no secret hangs on it
    return [*line[:head], *(line[place] for place in sorted(places))]
