"""The cards of one tenant's boards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from outbox_core.domain.board import Card
    from outbox_core.ports.transactions import Transaction


class Cards(Protocol):
    """Every call may raise TransientError."""

    def standing(self, card_ids: Iterable[str]) -> frozenset[str]:
        """Return those that exist and are not deleted, in one read of what a majority holds."""
        ...

    def deletions(self, card_ids: Iterable[str], transaction: Transaction | None = None) -> Mapping[str, datetime]:
        """Return `deleted_at` of those that are deleted, in one read: what a majority holds, or a transaction sees."""
        ...

    def live(self, *, after: str = "", limit: int = 1_000) -> Sequence[Card]:
        """Return cards that are not deleted, archived ones included, by id, from above `after`."""
        ...

    def get(self, card_id: str, transaction: Transaction | None = None) -> Card:
        """Return the card, a deleted one too; raise CardNotFoundError where there is none."""
        ...

    def linked(self, link: str) -> Card | None:
        """Return the card with this external link, a deleted one too, as a majority holds it; None where there is none.

        Of several, the one that changed last. A forge names a pull request by two ids, and by one link.
        """
        ...

    def in_column(self, board_id: str, column: str, transaction: Transaction, limit: int) -> Sequence[Card]:
        """Return up to `limit` cards of a board that stand in a column, archived ones included, deleted ones not."""
        ...

    def listed(self, board_id: str, *, after: str = "", limit: int = 100) -> Sequence[Card]:
        """Return cards of a board that are neither deleted nor archived, by id, from above `after`."""
        ...

    def put(self, card: Card, transaction: Transaction) -> Card:
        """Store the card over the version that it carries, and return it with the next one.

        Raises ContentionError where another write came first.
        """
        ...
