"""GitHub webhook deliveries: one HTTP request, read into what it says. No I/O; a repeat returns the same."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from outbox_core.domain.errors import ConfigurationError, InvalidInputError
from outbox_core.domain.forge_delivery import Delivery, Ignored
from outbox_core.domain.identity import fitting_id
from outbox_core.sources.github_items import read_item
from outbox_core.sources.github_kinds import CARD_KINDS, COMMENT_KINDS, CONCERNS_NO_CARD, ITEM_KINDS, OTHER_KINDS
from outbox_core.sources.github_payloads import read_payload
from outbox_core.sources.request import named_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BODY_BYTES = 10 * 1024 * 1024
"""The default bound of a body, in bytes.

GitHub sends up to 25 MB, but what comes near that is a push or a created branch, which become nothing here. An issue's
or a pull request's payload is some 30 KB; with the longest bodies and 100 labels it stays under 2 MB. Reading takes
about ten times a body's size in memory, so the bound is also what one request can make a process hold.
"""

MAX_DELIVERY_ID_CHARS = 200
_SIGNATURE_PREFIX = "sha256="


def read_delivery(
    headers: Mapping[str, str], raw: bytes, *, secret: str | None, max_bytes: int = MAX_BODY_BYTES
) -> Delivery | Ignored:
    """Return what a delivery says, or that it is of a known kind which becomes no event.

    Args:
        headers: the request's headers; their names are compared without case.
        raw: the body, byte for byte as it came: the signature is over these bytes.
        secret: the webhook's secret; None takes deliveries unsigned.
        max_bytes: the largest body that is read at all.

    Raises:
        InvalidInputError: the body is too large, not signed with the secret, no JSON object, of a kind that GitHub does
            not have, or lacks what its kind must have; one line that says what to do.
        ConfigurationError: the secret is empty, which would take any signature for granted.
    """
    named = named_headers(headers, raw)
    require_size(len(raw), max_bytes)
    if secret is not None:
        require_signature(named.get("x-hub-signature-256"), raw, secret)
    kind = _required(named, "X-GitHub-Event")
    delivery = _required(named, "X-GitHub-Delivery")
    return read_verified(kind, delivery, parse_json(raw))


def read_verified(kind: str, delivery: str, payload: object) -> Delivery | Ignored:
    """Return what a parsed payload says, once its size and its signature are known to be right.

    Raises InvalidInputError as `read_delivery` does.
    """
    if len(delivery) > MAX_DELIVERY_ID_CHARS:
        raise InvalidInputError(f"the delivery id is longer than {MAX_DELIVERY_ID_CHARS} characters")
    event_id = fitting_id(delivery)
    if not isinstance(payload, dict):
        raise InvalidInputError(f"the payload is {_json_name(payload)}; GitHub sends a JSON object")
    place = CARD_KINDS.get(kind) or COMMENT_KINDS.get(kind)
    if place is None and kind not in ITEM_KINDS:
        _require_known(kind)
        return Ignored(event_id=event_id, kind=kind, reason=CONCERNS_NO_CARD)
    try:
        read = (
            read_item(event_id, kind, payload)
            if place is None
            else read_payload(event_id, kind, place, payload, touches_card=kind in CARD_KINDS)
        )
    except InvalidInputError as error:
        raise InvalidInputError(f"this {kind} delivery is not as GitHub sends it: {error}") from None
    if event_id == delivery:
        return read
    # A lone surrogate, which only a header could hold, cannot be stored.
    return replace(read, data={**read.data, "delivery": delivery.encode(errors="replace").decode()})


def parse_json(raw: bytes) -> object:
    """Return the value of a JSON text; raise InvalidInputError where it is none."""
    try:
        value: object = from_json(raw)
    except ValueError as error:
        raise InvalidInputError(f"the body is not JSON: {error}") from None
    return value


def require_size(size: int, max_bytes: int) -> None:
    """Raise InvalidInputError where a body is larger than `max_bytes`."""
    if size > max_bytes:
        raise InvalidInputError(
            f"the body is {size:,} bytes, the limit is {max_bytes:,}; "
            "in the webhook's settings, choose only issues, pull requests, their comments and project items"
        )


def require_signature(signature: str | None, raw: bytes, secret: str) -> None:
    """Raise InvalidInputError unless `signature` is this body's under the secret; compares in constant time."""
    if not secret:
        raise ConfigurationError("the webhook secret is empty; set it to the webhook's, or leave it unset")
    if not signature:
        raise InvalidInputError("no X-Hub-Signature-256; set the same secret in the webhook's settings")
    expected = _SIGNATURE_PREFIX + hmac.new(secret.encode(errors="surrogateescape"), raw, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), signature.encode(errors="replace")):
        raise InvalidInputError("the signature does not fit the body; check that both sides have the same secret")


def _required(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name.lower(), "")
    if not value:
        raise InvalidInputError(f"the header {name} is missing; send the request as GitHub made it")
    return value


def _require_known(kind: str) -> None:
    if kind in OTHER_KINDS:
        return
    near = get_close_matches(kind[:80], [*CARD_KINDS, *COMMENT_KINDS, *ITEM_KINDS, *sorted(OTHER_KINDS)], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidInputError(f"GitHub has no event {kind[:80]!r}{hint}")


def _json_name(value: Any) -> str:  # noqa: ANN401 - any JSON value
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case _:
            return "an array"
