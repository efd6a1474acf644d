"""A file of GitHub deliveries, one JSON object a line, read as a stream: no more than one line is held at a time.

A line is `{"event": …, "delivery": …, "payload": {…}}`, or, where its signature is to be verified,
`{"event": …, "delivery": …, "body": "<the body as text>", "signature": "sha256=…"}`. Empty lines are passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from outbox_core.domain.errors import InvalidInputError
from outbox_core.sources.github import MAX_BODY_BYTES, parse_json, read_verified, require_signature, require_size
from outbox_core.sources.github_payloads import where_and_why
from outbox_core.sources.lines import Line, raw_lines, tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.domain.forge_delivery import Delivery, Ignored
    from outbox_core.sources.lines import Checked

_FORM = 'a line is one JSON object: {"event": …, "delivery": …, "payload": {…}}'
_SIGNED_FORM = '{"event": …, "delivery": …, "body": "…", "signature": "sha256=…"}'
_QUOTED_BYTES = 1024 * 1024


class _Envelope(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    event: str = Field(min_length=1)
    delivery: str = Field(min_length=1)
    payload: Any = None
    body: str | None = None
    signature: str | None = None


def check_lines(stream: BinaryIO, *, secret: str | None, max_bytes: int = MAX_BODY_BYTES) -> Checked:
    """Read a whole file and keep nothing of it but counts and the first errors; nothing is taken.

    A caller that then takes the file seeks back to its start and uses `read_lines`. Raises ConfigurationError for an
    empty secret.
    """
    return tally(read_lines(stream, secret=secret, max_bytes=max_bytes))


def read_lines(stream: BinaryIO, *, secret: str | None, max_bytes: int = MAX_BODY_BYTES) -> Iterator[Line]:
    """Read deliveries from where the stream stands, in their order; a bad line is told of and does not end the reading.

    With a secret, a line without `body` and `signature` is bad: it cannot be verified. Raises ConfigurationError for an
    empty secret.
    """
    # A body stands in its line as a JSON text, which quoting lengthens.
    longest = 2 * max_bytes + _QUOTED_BYTES
    for number, raw, size in raw_lines(stream, longest):
        try:
            if size > longest:
                require_size(size, max_bytes)
            if not raw.strip():
                continue
            said: Delivery | Ignored | InvalidInputError = _read(raw, secret, max_bytes)
        except InvalidInputError as error:
            said = InvalidInputError(f"line {number}: {error}")
        yield Line(number, said)


def _read(raw: bytes, secret: str | None, max_bytes: int) -> Delivery | Ignored:
    try:
        given = from_json(raw)
    except ValueError as error:
        raise InvalidInputError(f"not JSON: {error}; {_FORM}") from None
    try:
        envelope = _Envelope.model_validate(given)
    except ValidationError as error:
        if isinstance(given, dict) and "specversion" in given:
            raise InvalidInputError("this is a CloudEvent; --format cloudevents takes those") from None
        raise InvalidInputError(f"{where_and_why(error)}; {_FORM}") from None
    if secret is not None and (envelope.body is None or envelope.signature is None):
        raise InvalidInputError(
            f"a secret is set, and this line has no body with its signature: give {_SIGNED_FORM}, or unset the secret"
        )
    if envelope.body is not None:
        body = envelope.body.encode()
        require_size(len(body), max_bytes)
        if secret is not None:
            require_signature(envelope.signature, body, secret)
        return read_verified(envelope.event, envelope.delivery, parse_json(body))
    if "payload" not in envelope.model_fields_set:
        raise InvalidInputError(f"neither payload nor body; {_FORM}")
    require_size(len(raw), max_bytes)
    return read_verified(envelope.event, envelope.delivery, envelope.payload)
