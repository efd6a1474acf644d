"""The cards of one tenant on board_cards."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import Field

from outbox_core.adapters.mongo.documents import StoredDocument, Text, Whole, why_invalid
from outbox_core.adapters.mongo.errors import DUPLICATE_KEY, translated
from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.adapters.mongo.transactions import session_of
from outbox_core.domain.board import Card
from outbox_core.domain.errors import (
    CardNotFoundError,
    ContentionError,
    DefinitiveError,
    InvalidInputError,
    UnstorableRowError,
)
from outbox_core.domain.identity import join_key, require_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pymongo.client_session import ClientSession
    from pymongo.database import Database

    from outbox_core.ports.transactions import Transaction


class CardDocument(StoredDocument):
    """A card in board_cards."""

    tenant_id: str
    card_id: str
    board: Text = ""
    title: Text = ""
    body: Text = ""
    state: Text = ""
    labels: list[str] = Field(default_factory=list)
    assignee: Text = ""
    link: Text = ""
    repo: Text = ""
    author: Text = ""
    bot: Text = ""
    bot_args: dict[str, Any] = Field(default_factory=dict)
    changed_at: datetime | None = None
    archived_at: datetime | None = None
    deleted_at: datetime | None = None
    last_deleted_at: datetime | None = None
    version: Whole = 0

    def to_domain(self) -> Card:
        """Return the domain's form."""
        return Card(**{**self.model_dump(), "labels": tuple(self.labels)})


class MongoCards:
    """Implements ports.cards.Cards."""

    def __init__(self, database: Database[dict[str, Any]], tenant_id: str) -> None:
        self._tenant = tenant_id
        self._cards = database["board_cards"]

    def standing(self, card_ids: Iterable[str]) -> frozenset[str]:
        """See the port."""
        keys = {self._key(card_id): card_id for card_id in card_ids}
        query = {"_id": {"$in": list(keys)}, "deleted_at": None}
        with translated():
            return frozenset(keys[found["_id"]] for found in self._cards.find(query, {"_id": 1}))

    def deletions(self, card_ids: Iterable[str], transaction: Transaction | None = None) -> Mapping[str, datetime]:
        """See the port."""
        keys = {self._key(card_id): card_id for card_id in card_ids}
        query = {"_id": {"$in": list(keys)}, "deleted_at": {"$type": "date"}}
        with translated():
            found = self._cards.find(query, {"deleted_at": 1}, session=session_of(transaction))
            return {keys[card["_id"]]: card["deleted_at"] for card in found.batch_size(len(keys) + 1)}

    def live(self, *, after: str = "", limit: int = 1_000) -> Sequence[Card]:
        """See the port; served by the index `live`, which holds nothing that is deleted."""
        query = {"tenant_id": self._tenant, "card_id": {"$gt": after}, "deleted_at": None}
        with translated():
            found = self._cards.find(query, hint="live").sort("card_id", 1).limit(limit).batch_size(limit)
            return [_card(document) for document in found]

    def get(self, card_id: str, transaction: Transaction | None = None) -> Card:
        """See the port."""
        with translated():
            found = self._cards.find_one({"_id": self._key(card_id)}, session=session_of(transaction))
        if found is None:
            raise CardNotFoundError(f"tenant {self._tenant} has no card {card_id!r}")
        return _card(found)

    def linked(self, link: str) -> Card | None:
        """See the port; served by the index (tenant_id, link)."""
        with translated():
            query = {"tenant_id": self._tenant, "link": link}
            found = next(self._cards.find(query).sort([("changed_at", -1), ("card_id", -1)]).limit(1), None)
        return None if found is None else _card(found)

    def in_column(self, board_id: str, column: str, transaction: Transaction, limit: int) -> Sequence[Card]:
        """See the port."""
        query = {"tenant_id": self._tenant, "board": board_id, "state": column, "deleted_at": None}
        with translated():
            found = self._cards.find(query, session=session_of(transaction)).limit(limit).batch_size(limit)
            return [_card(document) for document in found]

    def listed(self, board_id: str, *, after: str = "", limit: int = 100) -> Sequence[Card]:
        """See the port."""
        query = {
            "tenant_id": self._tenant,
            "board": board_id,
            "card_id": {"$gt": after},
            "deleted_at": None,
            "archived_at": None,
        }
        with translated():
            found = self._cards.find(query).sort("card_id", 1).limit(limit).batch_size(limit)
            return [_card(document) for document in found]

    def put(self, card: Card, transaction: Transaction) -> Card:
        """See the port; the first version is an insert, every later one an update of the version that was read.

        A field that this version does not know survives (O08).
        """
        require_own(self._tenant, card.tenant_id, "a card")
        stored = replace(card, version=card.version + 1)
        document = {**asdict(stored), "labels": list(stored.labels), "bot_args": dict(stored.bot_args)}
        try:
            landed = self._write(card, document, session_of(transaction))
        except UnstorableRowError as error:
            raise InvalidInputError(f"card {card.card_id} cannot be stored: {error}") from error
        if not landed:
            raise ContentionError(f"card {card.card_id} was written meanwhile")
        return stored

    def _write(self, card: Card, document: dict[str, Any], session: ClientSession | None) -> bool:
        key = self._key(card.card_id)
        if card.version:
            query = {"_id": key, "tenant_id": self._tenant, "version": card.version}
            with translated():
                return self._cards.update_one(query, {"$set": document}, session=session).matched_count == 1
        rejections = insert_all(self._cards, [{"_id": key, **document}], session)
        if any(rejection.code != DUPLICATE_KEY for rejection in rejections):
            raise UnstorableRowError(rejections[0].reason)
        return not rejections

    def _key(self, card_id: str) -> str:
        return join_key(self._tenant, card_id)


def _card(document: dict[str, Any]) -> Card:
    try:
        return CardDocument.model_validate(document).to_domain()
    except ValueError as error:
        raise DefinitiveError(f"card {document.get('card_id')!r} is malformed: {why_invalid(error)}") from error
