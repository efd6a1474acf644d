"""Stored documents of the twin: to and from the domain, with the names that MongoDB's documents have.

Reading is strict where a value stands, and lenient where one is missing: an unknown field is ignored, a missing one or
a null has its default (O08), and a value of a wrong type makes the document malformed, which is a ValueError.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from outbox_core.adapters.memory.clock import truncated
from outbox_core.domain.event import Attributes, Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox_core.adapters.memory.database import Document

_T = TypeVar("_T")
_MOST_NESTED = 100
_INTEGERS = range(-(2**63), 2**63)


class Fields:
    """The fields of one document, read by type."""

    def __init__(self, document: object, place: str = "") -> None:
        if not isinstance(document, dict):
            raise ValueError(f"{place or 'document'}: not a document")  # noqa: TRY004 - malformed is a ValueError
        self._document = document
        self._place = f"{place}." if place else ""

    def text(self, name: str, default: str | None = "") -> str:
        """Return a text; a default of None means that there must be one."""
        value = self._document.get(name)
        if value is None and default is not None:
            return default
        return self._of(name, value, str)

    def number(self, name: str) -> int:
        """Return an integer."""
        value = self._document.get(name)
        if isinstance(value, bool):
            raise self._wrong(name, int)
        return self._of(name, value, int)

    def count(self, name: str) -> int:
        """Return an integer from 0 on; a missing one is 0."""
        value = self.number(name) if name in self._document else 0
        if value < 0:
            raise ValueError(f"{self._place}{name}: below 0")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean."""
        value = self._document.get(name)
        return default if value is None else self._of(name, value, bool)

    def instant(self, name: str) -> datetime:
        """Return a time."""
        return self._of(name, self._document.get(name), datetime)

    def instant_or_none(self, name: str) -> datetime | None:
        """Return a time, None where there is none."""
        return None if self._document.get(name) is None else self.instant(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        values = self.sequence(name)
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name, list)
        return tuple(values)

    def sequence(self, name: str) -> list[Any]:
        """Return a list."""
        value = self._document.get(name)
        return [] if value is None else self._of(name, value, list)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a nested document."""
        value = self._document.get(name)
        return {} if value is None else self._of(name, value, dict)

    def nested(self, name: str) -> Fields:
        """Return the fields of a nested document."""
        return Fields(self.mapping(name), f"{self._place}{name}")

    def carrier(self, name: str) -> dict[str, str]:
        """Return a nested document that holds texts alone."""
        value = self.mapping(name)
        if not all(isinstance(text, str) for text in value.values()):
            raise self._wrong(name, dict)
        return value

    def _of(self, name: str, value: object, kind: type[_T]) -> _T:
        if not isinstance(value, kind):
            raise self._wrong(name, kind)
        return value

    def _wrong(self, name: str, kind: type) -> ValueError:
        return ValueError(f"{self._place}{name}: not a {kind.__name__}")


def attributes_of(fields: Fields) -> Attributes:
    """Return what rules match from an event's or a row's fields."""
    seen = fields.nested("snapshot")
    return Attributes(
        source=fields.text("source", None),
        type=fields.text("type", None),
        action=fields.text("action"),
        subject=fields.text("subject"),
        snapshot=Snapshot(
            state=seen.text("state"),
            from_state=seen.text("from_state"),
            labels=seen.texts("labels"),
            repo=seen.text("repo"),
            author=seen.text("author"),
            board=seen.text("board"),
        ),
        reason=fields.text("reason"),
        run_id=fields.text("run_id"),
    )


def document_id(document: Mapping[str, Any]) -> str:
    """Return a stored id as text."""
    identity = document.get("_id")
    return identity if isinstance(identity, str) else repr(identity)


def storable_document(document: Mapping[str, Any]) -> Document:
    """Return a document as it would come back from a store; raise ValueError where it cannot be stored."""
    stored: Document = storable(dict(document))
    return stored


def storable(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - any value
    """Return a value as it would come back from a store: a copy, with lists for tuples and times in milliseconds.

    Raises ValueError for what a store cannot hold: a key that is no text, an integer over 64 bits, any other type.
    """
    if depth > _MOST_NESTED:
        raise ValueError(f"nested deeper than {_MOST_NESTED}")
    match value:
        case None | bool() | float() | bytes():
            return value
        case int():
            if value not in _INTEGERS:
                raise ValueError("an integer over 64 bits")
            return int(value)
        case str():
            value.encode()  # A lone surrogate is a UnicodeEncodeError, which is a ValueError.
            return str.__str__(value)  # The text itself, whatever a subclass (an enum's member) prints as.
        case datetime():
            return truncated(value)
        case dict():
            return {_key(key): storable(item, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [storable(item, depth + 1) for item in value]
        case _:
            raise ValueError(f"a {type(value).__name__}")


def _key(key: object) -> str:
    if not isinstance(key, str) or "\0" in key:
        raise ValueError(f"the key {key!r:.80}")
    key.encode()
    return key
