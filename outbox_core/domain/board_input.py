"""What a person, an automation or a run may say when it changes a board or a card: checked before anything is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outbox_core.domain.board import Binding
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import MACHINE_REASONS
from outbox_core.domain.identity import require_id

MAX_COLUMNS = 100
MAX_COLUMN_CHARS = 100
MAX_LABELS = 100
MAX_LABEL_CHARS = 100
MAX_TITLE_CHARS = 300
MAX_BODY_CHARS = 65_536
MAX_TARGET_CHARS = 1_000
_MAX_NAME_CHARS = 200
_MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Who changes a card, why, and under which event id; each may be left empty.

    `reason` is free text: the reasons of machines are given by what a machine does, never by hand, so they are refused
    here (E18). A change with a `run_id` reports on a launched run and launches nothing (E19). The same `event_id`
    again changes nothing (E46); without one each call is another change. Raises InvalidInputError.
    """

    author: str = ""
    reason: str = ""
    run_id: str = ""
    event_id: str = ""

    def __post_init__(self) -> None:
        require_text(self.author, "author", _MAX_NAME_CHARS)
        require_text(self.reason, "reason", _MAX_REASON_CHARS)
        require_text(self.run_id, "run_id", _MAX_REASON_CHARS)
        if self.reason in MACHINE_REASONS:
            raise InvalidInputError(f"reason {self.reason!r} is a machine's own; say in other words why you change it")
        if self.event_id != "":
            require_id(self.event_id, "event id")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDraft:
    """A card to be made: `column` "" is its board's first one; `card_id` "" is the id of the event that creates it."""

    board_id: str
    title: str
    card_id: str = ""
    column: str = ""
    body: str = ""
    labels: tuple[str, ...] = ()
    assignee: str = ""
    link: str = ""

    def __post_init__(self) -> None:
        require_id(self.board_id, "board")
        require_line(self.title, "title", MAX_TITLE_CHARS)
        if self.card_id != "":
            require_id(self.card_id, "card id")
        require_text(self.body, "body", MAX_BODY_CHARS)
        require_labels(self.labels)
        require_text(self.assignee, "assignee", _MAX_NAME_CHARS)
        require_text(self.link, "link", MAX_TARGET_CHARS)


def require_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Return a board's columns; raise InvalidInputError where one is no name, or two differ in nothing but case."""
    named = tuple(require_column(column) for column in _several(columns, "columns"))
    if not named:
        raise InvalidInputError("a board needs at least one column")
    if len(named) > MAX_COLUMNS:
        raise InvalidInputError(f"a board has at most {MAX_COLUMNS} columns, not {len(named)}")
    if len({column.casefold() for column in named}) < len(named):
        raise InvalidInputError(f"two columns are called the same: {', '.join(named)}")
    return named


def require_column(column: str) -> str:
    """Return a column's name; raise InvalidInputError where it is none."""
    return require_line(column, "column", MAX_COLUMN_CHARS)


def require_labels(labels: Iterable[str], *, needed: bool = False) -> tuple[str, ...]:
    """Return labels; raise InvalidInputError where one is none, or there are none and one is needed."""
    named = tuple(require_line(label, "label", MAX_LABEL_CHARS) for label in _several(labels, "labels"))
    if needed and not named:
        raise InvalidInputError("name at least one label to add or to remove")
    if len(named) > MAX_LABELS:
        raise InvalidInputError(f"a card has at most {MAX_LABELS} labels, not {len(named)}")
    return named


def _several(given: Iterable[str], what: str) -> Iterable[str]:
    """One text would be taken for its letters."""
    outside: object = given
    if isinstance(outside, str) or not isinstance(outside, Iterable):
        said = "one text" if isinstance(outside, str) else f"a {type(outside).__name__}"
        raise InvalidInputError(f"{what} must be a list of texts, not {said}")
    return given


def require_reference(text: object, what: str) -> str:
    """Return what names a board, a card or a column that may be there; InvalidInputError where nothing is named so.

    It is no question of whether an id may have this form: what was never made is simply not found.
    """
    return require_text(text, what, _MAX_NAME_CHARS)


def require_binding(kind: str, target: str) -> Binding:
    """Return what a board is to be bound to; raise InvalidInputError where it is nothing."""
    return Binding(
        kind=require_id(kind, "projector kind"), target=require_line(target, "target of a binding", MAX_TARGET_CHARS)
    )


def require_line(text: object, what: str, most_chars: int) -> str:
    """Return a text of one line, not empty and without space around it; raise InvalidInputError that names `what`."""
    line = require_text(text, what, most_chars)
    if not line or line != line.strip() or not line.isprintable():
        raise InvalidInputError(f"{what} {line[:80]!r}: use one line of text, without space around it")
    return line


def require_text(text: object, what: str, most_chars: int) -> str:
    """Return a text that a store can hold; raise InvalidInputError that names `what`."""
    if not isinstance(text, str):
        raise InvalidInputError(f"{what} must be text, not a {type(text).__name__}")
    if len(text) > most_chars:
        raise InvalidInputError(f"{what} is {len(text):,} characters long; the limit is {most_chars:,}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{what} holds text that is not valid Unicode") from None
    return text
