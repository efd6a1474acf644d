"""One tenant's boards and cards, as applications and bots change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from outbox_core.application.archive_card import archive_card
from outbox_core.application.bind_board import bind_board
from outbox_core.application.create_board import create_board
from outbox_core.application.create_card import create_card
from outbox_core.application.delete_card import delete_card
from outbox_core.application.label_card import label_card
from outbox_core.application.move_card import move_card
from outbox_core.application.remove_column import remove_column
from outbox_core.application.rename_column import rename_column
from outbox_core.application.restore_card import restore_card
from outbox_core.domain.board_input import CardDraft, Cause, require_binding, require_labels, require_reference
from outbox_core.domain.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from outbox_core.application.change_card import CardChanged
    from outbox_core.application.change_column import ColumnChanged
    from outbox_core.domain.board import Board, Card
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


MOST_LISTED = 10_000
"""How many cards one page may hold."""


class CauseWords(TypedDict, total=False):
    """The keywords of `domain.board_input.Cause`, which every change of a card takes."""

    author: str
    reason: str
    run_id: str
    event_id: str


class Boards:
    """What `Outbox.boards(tenant)` returns. Every change and its event commit together, or neither does.

    Every call may raise TransientError; the same call may then be made again, with the same `event_id` where the change
    must not happen twice. InvalidInputError, BoardNotFoundError and CardNotFoundError leave everything as it was.
    """

    def __init__(self, store: TenantStore, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime

    def board(self, board_id: str) -> Board:
        """Return a board."""
        return self._store.boards.get(_board(board_id))

    def card(self, card_id: str) -> Card:
        """Return a card, a deleted one too."""
        return self._store.cards.get(_card(card_id))

    def cards(self, board_id: str, *, after: str = "", limit: int = 100) -> Sequence[Card]:
        """Return cards of a board that are neither deleted nor archived, by id, from above `after`."""
        outside: object = limit
        if not isinstance(outside, int) or not 1 <= outside <= MOST_LISTED:
            raise InvalidInputError(f"limit must be a number from 1 to {MOST_LISTED:,}, not {limit!r:.40}")
        return self._store.cards.listed(_board(board_id), after=_card(after), limit=limit)

    def create_board(self, board_id: str, columns: Iterable[str]) -> Board:
        """Make a board; the same one again is left as it is."""
        return create_board(self._store, self._runtime, board_id, columns)

    def bind(self, board_id: str, kind: str, target: str) -> Board:
        """Have the board's moves reflected by the projector of this kind; `target` tells it where."""
        return bind_board(self._store, self._runtime, _board(board_id), require_binding(kind, target))

    def unbind(self, board_id: str) -> Board:
        """Reflect the board's moves no more."""
        return bind_board(self._store, self._runtime, _board(board_id), None)

    def rename_column(
        self, board_id: str, column: str, name: str, *, author: str = "", run_id: str = ""
    ) -> ColumnChanged:
        """Rename a column; its cards move along, and launch nothing."""
        cause = Cause(author=author, run_id=run_id)
        return rename_column(self._store, self._runtime, _board(board_id), _column(column), name, cause)

    def remove_column(
        self, board_id: str, column: str, *, into: str = "", author: str = "", run_id: str = ""
    ) -> ColumnChanged:
        """Remove a column; its cards move to `into`, and launch nothing."""
        cause = Cause(author=author, run_id=run_id)
        return remove_column(self._store, self._runtime, _board(board_id), _column(column), _column(into), cause)

    def create_card(  # noqa: PLR0913 - the fields of a card
        self,
        board_id: str,
        title: str,
        *,
        card_id: str = "",
        column: str = "",
        body: str = "",
        labels: Iterable[str] = (),
        assignee: str = "",
        link: str = "",
        **cause: Unpack[CauseWords],
    ) -> CardChanged:
        """Put a card on a board, in its first column unless one is named."""
        draft = CardDraft(
            board_id=board_id,
            title=title,
            card_id=card_id,
            column=column,
            body=body,
            labels=require_labels(labels),
            assignee=assignee,
            link=link,
        )
        return create_card(self._store, self._runtime, draft, Cause(**cause))

    def move_card(
        self, card_id: str, column: str, *, watchdog: bool = False, **cause: Unpack[CauseWords]
    ) -> CardChanged:
        """Move a card to another column; `watchdog` says that an automation does, which launches nothing."""
        return move_card(self._store, self._runtime, _card(card_id), _column(column), Cause(**cause), watchdog=watchdog)

    def label_card(
        self,
        card_id: str,
        *,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
        **cause: Unpack[CauseWords],
    ) -> CardChanged:
        """Add and remove labels; those that nobody names here stay as they are."""
        return label_card(self._store, self._runtime, _card(card_id), Cause(**cause), add=add, remove=remove)

    def archive_card(self, card_id: str, **cause: Unpack[CauseWords]) -> CardChanged:
        """Take a card off the board's view."""
        return archive_card(self._store, self._runtime, _card(card_id), Cause(**cause))

    def restore_card(self, card_id: str, **cause: Unpack[CauseWords]) -> CardChanged:
        """Bring a deleted or an archived card back."""
        return restore_card(self._store, self._runtime, _card(card_id), Cause(**cause))

    def delete_card(self, card_id: str, **cause: Unpack[CauseWords]) -> CardChanged:
        """Mark a card deleted; a repeat returns the same `deleted_at`."""
        return delete_card(self._store, self._runtime, _card(card_id), Cause(**cause))


def _board(board_id: object) -> str:
    return require_reference(board_id, "board")


def _card(card_id: object) -> str:
    return require_reference(card_id, "card")


def _column(column: object) -> str:
    return require_reference(column, "column")
