"""CloudEvents 1.0: an event in its JSON form, or an HTTP request that carries one, read into an event of the log.

The event's source is `cloudevents`, its type and subject are the CloudEvent's, and its `data` is the whole CloudEvent
in its JSON form, whatever came: every attribute, extensions included, and `data` or `data_base64`. Of the extensions,
rules match `action`, `state`, `repo`, `author` and `labels` (joined by commas); `traceparent` and `tracestate` become
the event's trace.

No I/O; a repeat returns the same.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from datetime import UTC, datetime
from email.message import Message
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.v1.event import OPTIONAL_ATTRIBUTES, REQUIRED_ATTRIBUTES, CloudEvent
from pydantic_core import from_json

from outbox_core.application.append_events import check_event
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import CLOUDEVENTS, Attributes, NewEvent, Snapshot
from outbox_core.sources.request import named_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from outbox_core.domain.limits import Limits

MAX_BODY_BYTES = 10 * 1024 * 1024
"""The bound of a request's body, and of one line: many events fit in a batch, one event is far smaller."""

_STRUCTURED = "application/cloudevents"
_BATCHED = "application/cloudevents-batch"
_HEADER_PREFIX = "ce-"
_DATA, _DATA_BASE64 = "data", "data_base64"
_MATCHED = ("action", "state", "repo", "author", "labels")
_INT_BOUND = 2**31

# RFC 3986's characters; a reference has no others.
_URI_REFERENCE = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+", re.ASCII)
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:.*", re.ASCII | re.DOTALL)
_WORD = r"[A-Za-z0-9!#$&^_.+\-]+"
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(\s*;.*)?", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_NAME = re.compile(r"[a-z0-9]+", re.ASCII)
# What an attribute's text may not hold: control characters and what is no character at all.
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.ASCII)


def event_id_of(source: str, id_: str) -> str:
    """Return the event id of a CloudEvent: the SHA-256 of its source, a space and its id.

    A source holds no space, so two pairs never give one text; the same source and id are the same event (E46).
    """
    return hashlib.sha256(f"{source} {id_}".encode()).hexdigest()


def read_json(value: object, limits: Limits) -> NewEvent:
    """Return the event of a parsed CloudEvent in its JSON form.

    Raises InvalidInputError, one line, where the form breaks CloudEvents 1.0 or a limit of the log.
    """
    if not isinstance(value, dict):
        raise InvalidInputError("a CloudEvent is one JSON object")
    # An attribute that is null counts as not there; data may be null.
    given = {name: one for name, one in value.items() if one is not None or name == _DATA}
    data = {name: given.pop(name) for name in (_DATA, _DATA_BASE64) if name in given}
    if data.get(_DATA) is not None and _DATA_BASE64 in data:
        raise InvalidInputError("it has both data and data_base64; give one of them")
    if _DATA_BASE64 in data:
        _require_base64(data[_DATA_BASE64])
    return _event(given, data, limits)


def read_body(headers: Mapping[str, str], raw: bytes, limits: Limits) -> NewEvent:
    """Return the event of an HTTP request in structured or binary content mode.

    Header names are compared without case. Raises InvalidInputError as `read_json` does, and for a batch.
    """
    named = named_headers(headers, raw)
    kind = _content_type(named)
    if kind.startswith(_BATCHED):
        raise InvalidInputError("the body is a batch; take it with ingest_cloudevents")
    _require_size(raw)
    if not kind.startswith(_STRUCTURED):
        return _read_binary(named, raw, limits)
    _require_json_format(kind)
    return read_json(parse(raw), limits)


def read_bodies(headers: Mapping[str, str], raw: bytes, limits: Limits) -> list[NewEvent]:
    """Return the events of an HTTP request in any content mode, a batch included; an empty batch gives none.

    Raises InvalidInputError as `read_body` does; one event that is wrong makes the whole batch wrong.
    """
    named = named_headers(headers, raw)
    kind = _content_type(named)
    if not kind.startswith(_BATCHED):
        return [read_body(named, raw, limits)]
    _require_size(raw)
    _require_json_format(kind)
    batch = parse(raw)
    if not isinstance(batch, list):
        raise InvalidInputError("a batch is a JSON array of CloudEvents")
    events: list[NewEvent] = []
    for number, one in enumerate(batch, 1):
        try:
            events.append(read_json(one, limits))
        except InvalidInputError as error:
            raise InvalidInputError(f"event {number}: {error}") from None
    return events


def parse(raw: bytes) -> object:
    """Return the value of a JSON text; raise InvalidInputError where it is none."""
    try:
        value: object = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInputError(f"not JSON: {error}") from None
    return value


def _read_binary(headers: Mapping[str, str], raw: bytes, limits: Limits) -> NewEvent:
    """Attributes stand in ce-* headers, the data is the body."""
    attributes: dict[str, Any] = {}
    for name, value in headers.items():
        if name.startswith(_HEADER_PREFIX):
            attributes[name.removeprefix(_HEADER_PREFIX)] = _unquoted(name, value)
    if not attributes:
        raise InvalidInputError(
            f"neither a Content-Type of {_STRUCTURED}+json nor ce-* headers; send a CloudEvent in one of the modes"
        )
    # In this mode the content type is the attribute; a ce- header of that name must not be there.
    if "datacontenttype" in attributes:
        raise InvalidInputError("ce-datacontenttype is no header; give Content-Type")
    kind = headers.get("content-type", "")
    if kind:
        attributes["datacontenttype"] = kind
    return _event(attributes, _body_data(kind, raw), limits)


def _body_data(kind: str, raw: bytes) -> dict[str, Any]:
    """Return a binary mode's body as the JSON form has it: JSON and text as `data`, anything else as `data_base64`."""
    if not raw:
        return {}
    if kind and _MEDIA_TYPE.fullmatch(kind) is None:
        raise InvalidInputError("Content-Type is no media type; use for example application/json")
    media = Message()
    media["Content-Type"] = kind or "application/json"
    media_type = media.get_content_type()
    if media_type.endswith(("/json", "+json")):
        try:
            return {_DATA: parse(raw)}
        except InvalidInputError as error:
            if kind:
                raise InvalidInputError(f"the body should be {media_type}: {error}") from None
    elif media_type.startswith("text/"):
        try:
            return {_DATA: raw.decode(str(media.get_param("charset", "utf-8")))}
        except (LookupError, ValueError):
            pass
    return {_DATA_BASE64: base64.b64encode(raw).decode()}


def _event(attributes: dict[str, Any], data: dict[str, Any], limits: Limits) -> NewEvent:
    _require_conformance(attributes)
    time = attributes.get("time")
    named = {name: _as_text(attributes[name]) for name in _MATCHED if name in attributes}
    labels = tuple(label.strip() for label in named.pop("labels", "").split(",") if label.strip())
    event = NewEvent(
        event_id=event_id_of(attributes["source"], attributes["id"]),
        attributes=Attributes(
            source=CLOUDEVENTS,
            type=attributes["type"],
            action=named.pop("action", ""),
            subject=attributes.get("subject", ""),
            snapshot=Snapshot(labels=labels, **named),
        ),
        data={**attributes, **data},
        trace=_trace(attributes),
        occurred_at=None if time is None else _instant(time),
    )
    check_event(event, limits)
    return event


def _require_conformance(attributes: Mapping[str, Any]) -> None:
    """Raise InvalidInputError at the first rule of CloudEvents 1.0 that the attributes break."""
    missing = [name for name in REQUIRED_ATTRIBUTES if name not in attributes]
    if missing:
        raise InvalidInputError(f"{', '.join(missing)} missing; a CloudEvent has {', '.join(REQUIRED_ATTRIBUTES)}")
    for name, value in attributes.items():
        _require_attribute(name, value)
    # The library's own rules, on a copy: it mends what it is given. What it mends (a missing id) was refused above.
    checked = dict(attributes)
    if "time" in checked:
        checked["time"] = _instant(checked["time"])
    try:
        CloudEvent(checked)
    except CloudEventValidationError as error:
        raise InvalidInputError(_first_of(error)) from None
    if _URI_REFERENCE.fullmatch(attributes["source"]) is None:
        raise InvalidInputError("source is no URI reference; percent-encode what a URI cannot hold")
    schema, kind = attributes.get("dataschema"), attributes.get("datacontenttype")
    if schema is not None and not (_URI_REFERENCE.fullmatch(schema) and _ABSOLUTE.fullmatch(schema)):
        raise InvalidInputError("dataschema is no absolute URI")
    if kind is not None and _MEDIA_TYPE.fullmatch(kind) is None:
        raise InvalidInputError("datacontenttype is no media type; use for example application/json")


def _require_attribute(name: str, value: object) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidInputError(f"{name[:40]!r} is no name of an attribute; use a-z and 0-9")
    match value:
        case str():
            if _NO_TEXT.search(value):
                raise InvalidInputError(f"{name[:40]} holds a character that an attribute cannot hold")
        case bool():
            pass
        case int():
            if not -_INT_BOUND <= value < _INT_BOUND:
                raise InvalidInputError(f"{name[:40]} is an integer beyond 32 bits; give it as text")
        case _:
            raise InvalidInputError(f"{name[:40]} is neither text, integer nor boolean; put it into data")
    if name in (*REQUIRED_ATTRIBUTES, *OPTIONAL_ATTRIBUTES) and not isinstance(value, str):
        raise InvalidInputError(f"{name} is no text")


def _first_of(error: CloudEventValidationError) -> str:
    """Return the library's first complaint, in one line."""
    said: Iterable[str] = (str(one) for errors in error.errors.values() for one in errors)
    return " ".join(next(iter(said), "it is no CloudEvent").split())


def _instant(text: str) -> datetime:
    """Read RFC 3339; return aware UTC in whole milliseconds, as stores keep it. A leap second is its last moment."""
    if _TIME.fullmatch(text) is None:
        raise InvalidInputError("time is no RFC 3339 time; use for example 2026-11-30T15:00:00Z")
    try:
        read = datetime.fromisoformat(re.sub(r"^(.{17})60(\.\d+)?", r"\g<1>59.999", text.upper())).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInputError("time is no time of the years 1 to 9999") from None
    return read.replace(microsecond=read.microsecond // 1_000 * 1_000)


def _trace(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context; one that is not in its W3C form counts as none."""
    parent = _as_text(attributes.get("traceparent", ""))
    if _TRACEPARENT.fullmatch(parent) is None:
        return {}
    state = _as_text(attributes.get("tracestate", ""))
    return {"traceparent": parent} | ({"tracestate": state} if state else {})


def _as_text(value: object) -> str:
    """Return an attribute in CloudEvents' canonical text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _require_base64(text: object) -> None:
    try:
        if not isinstance(text, str):
            raise InvalidInputError("data_base64 is no text")
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInputError("data_base64 is not Base64") from None


def _require_size(raw: bytes) -> None:
    if len(raw) > MAX_BODY_BYTES:
        raise InvalidInputError(f"the body is {len(raw):,} bytes, the limit is {MAX_BODY_BYTES:,}")


def _require_json_format(kind: str) -> None:
    """Other event formats (Avro, Protobuf, XML) are not read."""
    media = kind.partition(";")[0].strip()
    if media not in {_STRUCTURED, f"{_STRUCTURED}+json", _BATCHED, f"{_BATCHED}+json"}:
        raise InvalidInputError(f"the event format {media[:80]!r} is not read here; send JSON")


def _content_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").strip().lower()


def _unquoted(name: str, value: str) -> str:
    """Undo what the HTTP binding does to a value: quotes and percent-encoding."""
    text = value.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    try:
        return unquote_to_bytes(text.encode()).decode()
    except ValueError:
        raise InvalidInputError(f"the header {name[:40]} is not percent-encoded UTF-8") from None
