"""A file of GitHub deliveries, one JSON object a line, read as a stream: no more than one line is held at a time.

A line is `{"event": …, "delivery": …, "payload": {…}}`, or, where its signature is to be verified,
`{"event": …, "delivery": …, "body": "<the body as text>", "signature": "sha256=…"}`. Empty lines are passed over.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.forge_delivery import Delivery, Ignored
from outbox_core.sources.github import MAX_BODY_BYTES, parse_json, read_verified, require_signature, require_size
from outbox_core.sources.github_payloads import where_and_why

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_ERRORS = 20
_FORM = 'a line is one JSON object: {"event": …, "delivery": …, "payload": {…}}'
_SIGNED_FORM = '{"event": …, "delivery": …, "body": "…", "signature": "sha256=…"}'
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SKIP_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """What the line of this number says, or why it cannot be taken: an error that names the line."""

    number: int
    said: Delivery | Ignored | InvalidInputError


@dataclass(frozen=True, slots=True)
class Checked:
    """What a file holds: deliveries that become events, ignored ones by kind, and the errors of bad lines.

    `errors` holds the first MOST_ERRORS, `bad` counts all of them.
    """

    deliveries: int
    ignored: Counter[str]
    bad: int
    errors: tuple[InvalidInputError, ...]


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
    deliveries, bad, ignored = 0, 0, Counter[str]()
    errors: list[InvalidInputError] = []
    for line in read_lines(stream, secret=secret, max_bytes=max_bytes):
        match line.said:
            case Delivery():
                deliveries += 1
            case Ignored(kind=kind):
                ignored[kind] += 1
            case InvalidInputError() as error:
                bad += 1
                errors += [error] if len(errors) < MOST_ERRORS else []
    return Checked(deliveries, ignored, bad, tuple(errors))


def read_lines(stream: BinaryIO, *, secret: str | None, max_bytes: int = MAX_BODY_BYTES) -> Iterator[Line]:
    """Read deliveries from where the stream stands, in their order; a bad line is told of and does not end the reading.

    With a secret, a line without `body` and `signature` is bad: it cannot be verified. Raises ConfigurationError for an
    empty secret.
    """
    # A body stands in its line as a JSON text, which quoting lengthens.
    longest = 2 * max_bytes + _SKIP_BYTES
    number = 0
    while raw := stream.readline(longest + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        try:
            if len(raw) > longest:
                require_size(len(raw) + _skip_line(stream, raw), max_bytes)
            if not raw.strip():
                continue
            said: Delivery | Ignored | InvalidInputError = _read(raw, secret, max_bytes)
        except InvalidInputError as error:
            said = InvalidInputError(f"line {number}: {error}")
        yield Line(number, said)


def _read(raw: bytes, secret: str | None, max_bytes: int) -> Delivery | Ignored:
    try:
        envelope = _Envelope.model_validate(from_json(raw))
    except ValidationError as error:
        raise InvalidInputError(f"{where_and_why(error)}; {_FORM}") from None
    except ValueError as error:
        raise InvalidInputError(f"not JSON: {error}; {_FORM}") from None
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


def _skip_line(stream: BinaryIO, read: bytes) -> int:
    """Read on to the line's end; return how many bytes that were."""
    skipped = 0
    while not read.endswith(b"\n") and (read := stream.readline(_SKIP_BYTES)):
        skipped += len(read)
    return skipped
