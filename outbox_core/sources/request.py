"""An HTTP request as a web framework hands it over: its headers by their names in lower case, and its body."""

from __future__ import annotations

from collections.abc import Mapping

from outbox_core.domain.errors import InvalidInputError


def named_headers(headers: object, body: object) -> dict[str, str]:
    """Return the headers; raise InvalidInputError where they, or the body, are of a form that no request has.

    A framework that gives bytes (ASGI does) or pairs is told so, rather than found out by a header that is missing.
    """
    if not isinstance(headers, Mapping):
        raise InvalidInputError(f"headers: a mapping of names to texts is needed, not a {type(headers).__name__}")
    if not isinstance(body, bytes):
        raise InvalidInputError(f"body: bytes as they came are needed, not a {type(body).__name__}")
    named: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInputError(f"headers: {name!r:.60} is {value!r:.20}; names and values are text, decoded")
        named[name.lower()] = value
    return named
