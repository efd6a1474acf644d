"""Stored documents: how they are read one by one, so that a broken one never stops its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.dbref import DBRef
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from outbox_core.adapters.mongo.client import CODEC
from outbox_core.domain.event import Attributes, Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo.collection import Collection

_LENIENT = CodecOptions[dict[str, Any]](
    document_class=dict, datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
_RAW = CodecOptions(document_class=RawBSONDocument)


def _none_is_missing(value: Any) -> Any:  # noqa: ANN401 - any stored value
    return "" if value is None else value


Text = Annotated[str, BeforeValidator(_none_is_missing)]
"""A text whose absence an older or a newer version may have stored as null."""


def _whole_is_integer(value: Any) -> Any:  # noqa: ANN401 - any stored value
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole_is_integer)]
"""A counter: an older shell, and many a tool, stores each number that a person types as a double."""


class StoredDocument(BaseModel):
    """A document as this version reads it: unknown fields are ignored, missing ones have their default (O08)."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, populate_by_name=True)


class StoredSnapshot(StoredDocument):
    """`snapshot` of an event or a row."""

    state: Text = ""
    from_state: Text = ""
    labels: list[str] = []
    repo: Text = ""
    author: Text = ""
    board: Text = ""


class StoredAttributes(StoredDocument):
    """What rules match, in an event and in a row."""

    source: str
    type: str
    action: Text = ""
    subject: Text = ""
    snapshot: StoredSnapshot = StoredSnapshot()
    reason: Text = ""
    run_id: Text = ""

    def to_domain(self) -> Attributes:
        """Return the domain's form."""
        seen = self.snapshot
        return Attributes(
            source=self.source,
            type=self.type,
            action=self.action,
            subject=self.subject,
            snapshot=Snapshot(
                state=seen.state,
                from_state=seen.from_state,
                labels=tuple(seen.labels),
                repo=seen.repo,
                author=seen.author,
                board=seen.board,
            ),
            reason=self.reason,
            run_id=self.run_id,
        )


def raw(collection: Collection[dict[str, Any]]) -> Collection[RawBSONDocument]:
    """Return the collection so that its documents arrive undecoded."""
    return collection.with_options(codec_options=_RAW)


def decode(document: RawBSONDocument) -> dict[str, Any]:
    """Decode one document; raise ValueError where it cannot be."""
    try:
        decoded = bson.decode(document.raw, CODEC)
    except (BSONError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}"[:300]) from error
    whole: dict[str, Any] = _without_references(decoded) if b"$ref\0" in document.raw else decoded
    return whole


def _without_references(value: Any) -> Any:  # noqa: ANN401 - any decoded value
    """Return what was stored: an object with the keys $ref and $id is JSON here, which the driver takes for a link."""
    match value:
        case DBRef():
            return _without_references(dict(value.as_doc()))
        case dict():
            return {key: _without_references(item) for key, item in value.items()}
        case list():
            return [_without_references(item) for item in value]
        case _:
            return value


def decode_leniently(document: RawBSONDocument) -> dict[str, Any]:
    """Decode what can be of a document that `decode` refused, to learn its ids; {} where nothing can."""
    try:
        return bson.decode(document.raw, _LENIENT)
    except (BSONError, UnicodeDecodeError, OverflowError):
        return {}


def why_invalid(error: ValueError) -> str:
    """Return one line on why a document is not of its form."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"{place or 'document'}: {first['msg']}"[:300]
    return str(error)[:300]


def document_id(document: Mapping[str, Any]) -> str:
    """Return a stored id as text."""
    identity = document.get("_id")
    return identity if isinstance(identity, str) else repr(identity)
