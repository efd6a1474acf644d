"""What may travel in an event: JSON, within a bound, and nothing that a store could refuse later."""

from __future__ import annotations

import json
from typing import Any

from outbox_core.domain.errors import EventTooLargeError, InvalidInputError
from outbox_core.domain.limits import MAX_JSON_DEPTH

_INT_BITS = 63

_as_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_bytes(value: Any, what: str) -> int:  # noqa: ANN401 - the question is what it is
    """Return the size of `value` as JSON in UTF-8 bytes; raise InvalidInputError, naming `what`, if it is none.

    Integers must fit 64 bits, strings must be valid Unicode, keys strings without NUL, nesting at most 64 deep.
    """
    _require_json(value, what, 0)
    try:
        return len(_as_text(value).encode())
    except UnicodeEncodeError:
        raise InvalidInputError(f"{what} holds text that is not valid Unicode") from None


def require_json(value: Any, what: str, max_bytes: int) -> None:  # noqa: ANN401
    """Raise InvalidInputError where `value` is not JSON, EventTooLargeError where it is over `max_bytes`."""
    size = json_bytes(value, what)
    if size > max_bytes:
        raise EventTooLargeError(f"{what} is {size} bytes as JSON; the limit is {max_bytes}")


def _require_json(value: Any, what: str, depth: int) -> None:  # noqa: ANN401 - as above
    """Raise where `value` is no JSON. Its texts are left to the encoding of the whole, which reads them all anyway."""
    if depth > MAX_JSON_DEPTH:
        raise InvalidInputError(f"{what} is nested deeper than {MAX_JSON_DEPTH}")
    match value:
        case str() | bool() | None:
            pass
        case int():
            if value.bit_length() > _INT_BITS:
                raise InvalidInputError(f"{what} holds the integer {str(value)[:24]}…, which does not fit 64 bits")
        case float():
            if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN is not itself
                raise InvalidInputError(f"{what} holds {value}, which JSON does not have")
        case list() | tuple():
            for item in value:
                _require_json(item, what, depth + 1)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str) or "\0" in key:
                    raise InvalidInputError(f"{what} has the key {str(key)[:40]!r}; keys are text without NUL")
                _require_json(item, what, depth + 1)
        case _:
            raise InvalidInputError(f"{what} holds a {type(value).__name__}; only JSON travels in an event")
