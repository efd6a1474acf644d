"""Build an event from plain keywords, as applications and bots append it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import APP, Attributes, NewEvent, Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from outbox_core.ports.runtime import Entropy


def new_event(  # noqa: PLR0913 - the keywords are the public form of an event
    entropy: Entropy,
    *,
    type: str,  # noqa: A002 - the word of the log
    action: str = "",
    subject: str = "",
    source: str = APP,
    state: str = "",
    from_state: str = "",
    labels: Iterable[str] = (),
    repo: str = "",
    author: str = "",
    reason: str = "",
    run_id: str = "",
    data: Mapping[str, Any] | None = None,
    trace: Mapping[str, str] | None = None,
    event_id: str | None = None,
    occurred_at: datetime | None = None,
) -> NewEvent:
    """Return the event; its id is minted here where none is given, before the first try to store it (E46).

    Raises InvalidInputError that names what has the wrong form.
    """
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise InvalidInputError(f"labels must be a list of texts, not {labels!r:.80}")
    return NewEvent(
        event_id=event_id if event_id is not None else entropy.token(),
        attributes=Attributes(
            source=source,
            type=type,
            action=action,
            subject=subject,
            snapshot=Snapshot(state=state, from_state=from_state, labels=tuple(labels), repo=repo, author=author),
            reason=reason,
            run_id=run_id,
        ),
        data={} if data is None else data,
        trace={} if trace is None else trace,
        occurred_at=occurred_at,
    )
