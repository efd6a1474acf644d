"""A bot: the callable that a launch effect runs, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from outbox_core.domain.identity import require_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from outbox_core.domain.event import Event
    from outbox_core.domain.limits import Limits


class BotTransaction(Protocol):
    """What a transactional bot may do inside its transaction.

    `session` is the store's own session (MongoDB's ClientSession, to be passed to every write) and `database` its
    database: the one named leak of the store through the ports. Both are None on the in-memory twin.
    """

    @property
    def session(self) -> Any: ...  # noqa: D102, ANN401 - see the class
    @property
    def database(self) -> Any: ...  # noqa: D102, ANN401 - see the class

    def append(self, **event: Any) -> str:  # noqa: ANN401 - the keywords of Outbox.append
        """Append an event that becomes visible exactly if the transaction commits; return its event id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One try of a launch. `effect_id` is its idempotency key; `attempt` counts from 1.

    `transaction` is set for a transactional bot alone: its writes through it, the run record and the done mark commit
    together, so the launch happens exactly once (E37).
    """

    effect_id: str
    tenant: str
    event: Event
    attempt: int
    transaction: BotTransaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """A registered bot. It returns JSON or None (done); raises RetryLater, a DefinitiveError (park), or anything else.

    `time_limit` None means the deployment's.
    """

    bot_id: str
    function: Callable[..., Any]
    transactional: bool = False
    time_limit: timedelta | None = None

    def __post_init__(self) -> None:
        require_id(self.bot_id, "bot id")

    def limit(self, limits: Limits) -> timedelta:
        """Return how long one try may take."""
        most = limits.transactional_time_limit if self.transactional else limits.max_time_limit
        return min(self.time_limit or limits.effect_time_limit, most)


def event_argument(event: Event) -> dict[str, Any]:
    """Return the event as the argument that `args_var` names: one JSON object."""
    seen = event.attributes
    return {
        "event_id": event.event_id,
        "seq": event.seq,
        "source": seen.source,
        "type": seen.type,
        "action": seen.action,
        "subject": seen.subject,
        "state": seen.snapshot.state,
        "from_state": seen.snapshot.from_state,
        "labels": list(seen.snapshot.labels),
        "repo": seen.snapshot.repo,
        "author": seen.snapshot.author,
        "board": seen.snapshot.board,
        "data": dict(event.data),
    }
