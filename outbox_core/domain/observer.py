"""An observer: the callable that a consumer gives its events to, and what it is given."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from outbox_core.domain.errors import ObserverActedError
from outbox_core.domain.identity import require_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime, timedelta

    from outbox_core.domain.board import Card
    from outbox_core.domain.bot import BotTransaction
    from outbox_core.domain.consumer import Start
    from outbox_core.domain.lifecycle_event import LifecycleEvent
    from outbox_core.domain.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One delivery of an event: it has happened, and whoever is told of it may not do it again (L08).

    `event.event_id` and `event.deleted_at` are what to deduplicate by: a plain observer may be told twice (L06). `own`
    says that this very process wrote it. `attempt` counts from 1. `replayed` says that an operator asked for it after
    it had been given up. `transaction` is set for a transactional observer alone: its writes there commit with the
    cursor, so it sees the event exactly once.
    """

    event: LifecycleEvent
    consumer_id: str
    own: bool
    attempt: int
    replayed: bool = False
    observed: Literal[True] = True
    transaction: BotTransaction | None = None

    @property
    def tenant(self) -> str:
        """The tenant."""
        return self.event.tenant_id

    @property
    def event_id(self) -> str:
        """The event's id."""
        return self.event.event_id

    @property
    def deleted_at(self) -> datetime:
        """The deletion's identity, beside the card."""
        return self.event.deleted_at

    @property
    def writer_process_id(self) -> str:
        """The process that made the change."""
        return self.event.writer_process_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What an observer rebuilds its state from where the stream cannot tell it all that was missed (L12).

    `cards` yields every live card of the tenant, archived ones included, by id; what is cached and is not among them is
    gone. Events that commit meanwhile are delivered afterwards. `why` says what was missed.
    """

    tenant: str
    consumer_id: str
    why: str
    cards: Iterator[Card]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """A registered observer, under the id of its consumer. It returns nothing; whatever it raises is a failed try.

    `transactional`: it writes through `observation.transaction` alone, and sees each event exactly once. `idempotent`:
    it may be told an event again, so that a batch is acknowledged at once. `reconcile` None means that a consumer which
    must reconcile stops and waits for an operator. `time_limit` None means the deployment's.
    """

    consumer_id: str
    function: Callable[[Observation], Any]
    start: Start
    reconcile: Callable[[Reconciliation], Any] | None = None
    transactional: bool = False
    idempotent: bool = False
    time_limit: timedelta | None = None

    def __post_init__(self) -> None:
        require_id(self.consumer_id, "consumer id")

    def limit(self, limits: Limits) -> timedelta:
        """Return how long one call may take."""
        most = limits.transactional_time_limit if self.transactional else limits.max_time_limit
        return min(self.time_limit or limits.effect_time_limit, most)


_observing: ContextVar[str] = ContextVar("outbox_observing", default="")


@contextmanager
def observing(consumer_id: str) -> Iterator[None]:
    """Mark the block as an observer's: what the writer owns raises inside of it."""
    token = _observing.set(consumer_id)
    try:
        yield
    finally:
        _observing.reset(token)


def forbid_in_observer(what: str) -> None:
    """Raise ObserverActedError inside an observer: deleting, restoring, auditing and notifying are the writer's (L08).

    It holds for the observer's own thread and what is called there, and not for threads that it starts.
    """
    if consumer_id := _observing.get():
        raise ObserverActedError(f"observer {consumer_id!r} may not {what}: whoever made the change has done that")
