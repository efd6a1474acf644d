"""The ids that keys are made of, and how keys are joined.

Ids match `[A-Za-z0-9._-]{1,64}`; the parts of a key are joined by a bar, which no id can hold. A part that begins with
`#` is the system's own.
"""

from __future__ import annotations

import hashlib
import re

from outbox_core.domain.errors import InvalidInputError, InvariantError
from outbox_core.domain.limits import MAX_ID_CHARS

_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_ID_CHARS}}}", re.ASCII)
_JOIN = "|"

_PROJECTION = "#projection"
DEAD_EVENT = "#event"


def is_id(text: object) -> bool:
    """Say whether `text` can be a part of a key as it is."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def require_id(text: object, what: str) -> str:
    """Return `text` where it is an id; raise InvalidInputError that names `what` otherwise."""
    if not isinstance(text, str) or not is_id(text):
        msg = f"{what}: {str(text)[:80]!r} is not an id; use up to {MAX_ID_CHARS} of A-Z a-z 0-9 . _ -"
        raise InvalidInputError(msg)
    return text


def require_own(tenant_id: str, named: str, what: str) -> None:
    """Raise InvariantError where something that names one tenant was given to the handle of another (L21)."""
    if named != tenant_id:
        raise InvariantError(f"{what} of {named} was given to the handle of {tenant_id}")


def fitting_id(outside: str) -> str:
    """Return an outside id as it is where it fits, its SHA-256 in hexadecimal otherwise."""
    return outside if is_id(outside) else hashlib.sha256(outside.encode("utf-8", "surrogatepass")).hexdigest()


def join_key(*parts: str) -> str:
    """Join the parts of a key."""
    return _JOIN.join(parts)


def split_key(key: str) -> tuple[str, ...]:
    """Take a key apart again."""
    return tuple(key.split(_JOIN))


def launch_key(tenant_id: str, event_id: str, sub_id: str) -> str:
    """Return the row key of a launch: never the number, which a restored database gives again."""
    return join_key(tenant_id, event_id, sub_id)


def projection_key(tenant_id: str, event_id: str) -> str:
    """Return the row key of a projection; no subscription's id can be its last part (E22)."""
    return join_key(tenant_id, event_id, _PROJECTION)


def dead_event_key(tenant_id: str, document_id: str) -> str:
    """Return the row key of a dead event, by the id of the stored document."""
    return join_key(tenant_id, DEAD_EVENT, document_id)
