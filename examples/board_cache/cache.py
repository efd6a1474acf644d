"""What the cache holds, and how it observes."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

from outbox_core.domain.consumer import Start
from outbox_core.domain.errors import CardNotFoundError
from outbox_core.domain.lifecycle_event import CARD_DELETED
from outbox_core.domain.observer import Observation, Observer, Reconciliation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from outbox_core.bootstrap import Outbox
    from outbox_core.domain.board import Card

CONSUMER = "board-cache"
"""The consumer's id: a name in code, the same after each restart."""

Row = dict[str, Any]


class BoardCache:
    """The live cards of a tenant in a SQLite file; every change of it may be repeated without harm."""

    def __init__(self, file: Path, outbox: Outbox, tenant: str) -> None:
        """Open the file, and make it where there is none. `changed` is called with each change."""
        self._outbox = outbox
        self._tenant = tenant
        self._lock = threading.Lock()
        self._database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._database.execute("CREATE TABLE IF NOT EXISTS cards (card_id TEXT PRIMARY KEY, board, title, state)")
        self.changed: Callable[[Row], None] = lambda _: None

    def observer(self) -> Observer:
        """Return what the consumer gives its events to. To be told twice does no harm, so it takes batches."""
        return Observer(
            consumer_id=CONSUMER,
            function=self.observe,
            start=Start.LATEST,
            reconcile=self.reconcile,
            idempotent=True,
        )

    def observe(self, told: Observation) -> None:
        """Forget a deleted card; take a restored one in as it is now."""
        card_id = told.event.task_id
        if told.event.event_type == CARD_DELETED:
            self._execute("DELETE FROM cards WHERE card_id = ?", card_id)
            self.changed({"kind": "deleted", "card_id": card_id, "own": told.own})
            return
        try:
            card = self._outbox.boards(self._tenant).card(card_id)
        except CardNotFoundError:
            return
        if not card.gone:
            self._put(card)
            self.changed({"kind": "restored", **_row(card)})

    def reconcile(self, given: Reconciliation) -> None:
        """Become what is live now: what was cached and is not live is gone."""
        live = [tuple(_row(card).values()) for card in given.cards]
        with self._lock, closing(self._database.cursor()) as cursor:
            cursor.execute("BEGIN")
            cursor.execute("DELETE FROM cards")
            cursor.executemany("INSERT INTO cards VALUES (?, ?, ?, ?)", live)
            cursor.execute("COMMIT")
        self.changed({"kind": "reconciled", "why": given.why, "cards": self.rows()})

    def rows(self) -> list[Row]:
        """Return the cards, by id."""
        names = ("card_id", "board", "title", "state")
        with self._lock:
            found = self._database.execute("SELECT card_id, board, title, state FROM cards ORDER BY card_id").fetchall()
        return [dict(zip(names, values, strict=True)) for values in found]

    def _put(self, card: Card) -> None:
        self._execute("INSERT OR REPLACE INTO cards VALUES (?, ?, ?, ?)", *_row(card).values())

    def _execute(self, statement: str, *values: object) -> None:
        with self._lock:
            self._database.execute(statement, values)


def _row(card: Card) -> Row:
    return {"card_id": card.card_id, "board": card.board, "title": card.title, "state": card.state}
