"""The cards of one tenant on the twin: `board_cards`."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from outbox_core.adapters.memory.documents import Fields, storable_document
from outbox_core.adapters.memory.transactions import inside
from outbox_core.domain.board import Card
from outbox_core.domain.errors import CardNotFoundError, ContentionError, InvalidInputError
from outbox_core.domain.identity import join_key, require_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outbox_core.adapters.memory.database import Document, MemoryDatabase
    from outbox_core.ports.transactions import Transaction

_CARDS = "board_cards"
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class MemoryCards:
    """Implements ports.cards.Cards."""

    def __init__(self, database: MemoryDatabase, tenant_id: str) -> None:
        self._database = database
        self._tenant_id = tenant_id

    def standing(self, card_ids: Iterable[str]) -> frozenset[str]:
        """See the port."""
        with self._database.lock:
            found = {card_id: self._database.get(_CARDS, self._key(card_id)) for card_id in card_ids}
        return frozenset(
            card_id for card_id, document in found.items() if document and document.get("deleted_at") is None
        )

    def deletions(self, card_ids: Iterable[str], transaction: Transaction | None = None) -> Mapping[str, datetime]:
        """See the port."""
        with self._database.lock:
            opened = inside(transaction)
            found = {card_id: self._database.get(_CARDS, self._key(card_id), opened) for card_id in card_ids}
        deleted = {card_id: document.get("deleted_at") for card_id, document in found.items() if document}
        return {card_id: instant for card_id, instant in deleted.items() if isinstance(instant, datetime)}

    def live(self, *, after: str = "", limit: int = 1_000) -> Sequence[Card]:
        """See the port."""
        with self._database.lock:
            documents = list(self._database.documents(_CARDS).values())
        own = [_card(found) for found in documents if found["tenant_id"] == self._tenant_id]
        standing = [card for card in own if not card.gone and card.card_id > after]
        return sorted(standing, key=lambda card: card.card_id)[:limit]

    def get(self, card_id: str, transaction: Transaction | None = None) -> Card:
        """See the port."""
        with self._database.lock:
            document = self._database.get(_CARDS, self._key(card_id), inside(transaction))
        if document is None:
            raise CardNotFoundError(f"tenant {self._tenant_id} has no card {card_id!r}")
        return _card(document)

    def linked(self, link: str) -> Card | None:
        """See the port."""
        with self._database.lock:
            documents = list(self._database.documents(_CARDS).values())
        cards = [_card(found) for found in documents if (found["tenant_id"], found["link"]) == (self._tenant_id, link)]
        return max(cards, key=lambda card: (card.changed_at or _LONG_AGO, card.card_id), default=None)

    def in_column(self, board_id: str, column: str, transaction: Transaction, limit: int) -> Sequence[Card]:
        """See the port."""
        with self._database.lock:
            opened = inside(transaction)
            cards = [self._database.get(_CARDS, key, opened) for key in self._database.documents(_CARDS)]
        own = [_card(found) for found in cards if found is not None and found["tenant_id"] == self._tenant_id]
        return [card for card in own if (card.board, card.state) == (board_id, column) and not card.gone][:limit]

    def listed(self, board_id: str, *, after: str = "", limit: int = 100) -> Sequence[Card]:
        """See the port."""
        with self._database.lock:
            documents = list(self._database.documents(_CARDS).values())
        own = [_card(found) for found in documents if found["tenant_id"] == self._tenant_id]
        shown = [card for card in own if card.board == board_id and not card.gone and card.archived_at is None]
        return sorted((card for card in shown if card.card_id > after), key=lambda card: card.card_id)[:limit]

    def put(self, card: Card, transaction: Transaction) -> Card:
        """See the port."""
        require_own(self._tenant_id, card.tenant_id, "a card")
        key, opened = self._key(card.card_id), inside(transaction)
        stored = replace(card, version=card.version + 1)
        try:
            document = storable_document({"_id": key, **asdict(stored)})
        except ValueError as error:
            raise InvalidInputError(f"card {card.card_id} cannot be stored: {error}") from error
        with self._database.lock:
            before = self._database.get(_CARDS, key, opened)
            if (0 if before is None else before["version"]) != card.version:
                if opened is not None:
                    opened.undo()
                raise ContentionError(f"card {card.card_id} was written meanwhile")
            self._database.put(_CARDS, {**(before or {}), **document}, opened)
        return stored

    def _key(self, card_id: str) -> str:
        return join_key(self._tenant_id, card_id)


def _card(document: Document) -> Card:
    fields = Fields(document)
    return Card(
        tenant_id=fields.text("tenant_id", None),
        card_id=fields.text("card_id", None),
        board=fields.text("board"),
        title=fields.text("title"),
        body=fields.text("body"),
        state=fields.text("state"),
        labels=fields.texts("labels"),
        assignee=fields.text("assignee"),
        link=fields.text("link"),
        repo=fields.text("repo"),
        author=fields.text("author"),
        bot=fields.text("bot"),
        bot_args=document.get("bot_args") or {},
        changed_at=fields.instant_or_none("changed_at"),
        archived_at=fields.instant_or_none("archived_at"),
        deleted_at=fields.instant_or_none("deleted_at"),
        last_deleted_at=fields.instant_or_none("last_deleted_at"),
        version=fields.count("version"),
    )
