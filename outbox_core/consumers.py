"""The consumers of one tenant's lifecycle stream, as operators and applications see and change them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.domain.consumer import Consumer, DeadLetter, LetterState, Start, require_consumer_id
from outbox_core.domain.errors import ConsumerNotFoundError, InvalidInputError
from outbox_core.domain.observer import forbid_in_observer
from outbox_core.domain.retention import Floor, floor_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from outbox_core.ports.store import TenantStore

_MAX_BY_CHARS = 200
_MAX_WHY_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A tenant's stream: its head, its lowest stored number, how far it may be pruned, and each consumer's lag.

    `waiting_since` is when the event occurred before which a consumer stands.
    """

    head: int
    floor: int
    prunable: Floor
    lags: Mapping[str, int]
    waiting_since: Mapping[str, datetime]


class Consumers:
    """What `Outbox.consumers(tenant)` returns.

    Every call may raise TransientError, and may then be made again. `by` says who asks and `why`: both are audited.
    InvalidInputError, ConsumerNotFoundError, ConsumerRetiredError and LetterNotFoundError leave everything as it was.
    """

    def __init__(self, store: TenantStore) -> None:
        self._store = store

    def register(self, consumer_id: str, *, start: str, by: str = "") -> Consumer:
        """Register a consumer; from now on the stream keeps what it has not acknowledged (L22).

        `start` is "beginning" or "latest". One that is registered is left as it is, its start too; one that was retired
        comes back, and reconciles first. The id must be the same after each restart (see `require_consumer_id`).
        """
        host, process_id = socket.gethostname(), os.getpid()
        wanted = require_consumer_id(consumer_id, host=host, process_id=process_id)
        if start not in set(Start):
            raise InvalidInputError(f"start: {start!r} must be one of {', '.join(Start)}")
        forbid_in_observer("register a consumer")
        return self._store.consumers.register(wanted, Start(start), _text(by, "by", _MAX_BY_CHARS))

    def all(self) -> Sequence[Consumer]:
        """Return all of them, retired ones too."""
        return self._store.consumers.all()

    def get(self, consumer_id: str) -> Consumer:
        """Return one; ConsumerNotFoundError where it is not registered."""
        found = self._store.consumers.look(consumer_id).consumer
        if found is None:
            raise ConsumerNotFoundError(f"tenant {self._store.tenant_id} has no consumer {consumer_id!r}")
        return found

    def state(self) -> StreamState:
        """Return how far the stream has come, how far it may go, and who holds it."""
        # The rows first: a cursor that has moved since then would lie above the head, as one that cannot be.
        rows = self.all()
        head = self._store.stream.head()
        return StreamState(
            head=head,
            floor=self._store.stream.floor(),
            prunable=floor_of(rows, head),
            lags=self._store.consumers.lags(),
            waiting_since=self._store.consumers.oldest_unacknowledged(),
        )

    def retire(self, consumer_id: str, *, by: str = "", why: str = "") -> bool:
        """Let a consumer go for good; say whether it was not retired yet (L14)."""
        forbid_in_observer("retire a consumer")
        return self._store.consumers.retire(consumer_id, *_said(by, why))

    def reconcile(self, consumer_id: str, *, by: str = "", why: str = "") -> None:
        """Have the consumer reconcile at its next poll."""
        forbid_in_observer("have a consumer reconcile")
        self._store.consumers.require_reconcile(consumer_id, *_said(by, why))

    def skip(self, consumer_id: str, *, by: str = "", why: str = "") -> int:
        """Go on from the head without reconciling, and return it: you answer for what was missed."""
        forbid_in_observer("skip events")
        return self._store.consumers.skip(consumer_id, *_said(by, why))

    def pause(self, *consumer_ids: str) -> Sequence[str]:
        """Pause these consumers, all of the tenant where none is named, in their place; return those that ran."""
        self._require(consumer_ids)
        return self._store.consumers.set_paused(consumer_ids or None, paused=True)

    def resume(self, *consumer_ids: str) -> Sequence[str]:
        """Let these go on, all of the tenant where none is named; return those that were paused."""
        self._require(consumer_ids)
        return self._store.consumers.set_paused(consumer_ids or None, paused=False)

    def _require(self, consumer_ids: Sequence[str]) -> None:
        for consumer_id in consumer_ids:
            self.get(consumer_id)

    def letters(
        self, *, consumer_id: str | None = None, state: str | None = None, after: str = "", limit: int = 100
    ) -> Sequence[DeadLetter]:
        """Return dead letters: `state` is "unresolved", "replaying" or "resolved"; `after` is a `letter_key`."""
        if state is not None and state not in set(LetterState):
            raise InvalidInputError(f"state: {state!r} must be one of {', '.join(LetterState)}")
        if limit < 1:
            raise InvalidInputError(f"limit must be at least 1, not {limit}")
        wanted = None if state is None else LetterState(state)
        return self._store.consumers.letters(consumer_id=consumer_id, state=wanted, after=after, limit=limit)

    def letter(self, consumer_id: str, event_id: str) -> DeadLetter:
        """Return one dead letter."""
        return self._store.consumers.letter(consumer_id, event_id)

    def replay(self, consumer_id: str, event_id: str, *, by: str = "", why: str = "") -> bool:
        """Have a dead letter observed again, alone, by the consumer's next poll; False where that is asked already."""
        forbid_in_observer("replay a dead letter")
        return self._store.consumers.ask_replay(consumer_id, event_id, *_said(by, why))

    def resolve(self, consumer_id: str, event_id: str, *, by: str = "", why: str = "") -> bool:
        """Settle a dead letter without observing it; False where it was settled."""
        forbid_in_observer("resolve a dead letter")
        return self._store.consumers.resolve(consumer_id, event_id, *_said(by, why))


def _said(by: str, why: str) -> tuple[str, str]:
    return _text(by, "by", _MAX_BY_CHARS), _text(why, "why", _MAX_WHY_CHARS)


def _text(text: object, name: str, most: int) -> str:
    if not isinstance(text, str) or len(text) > most or not text.isprintable():
        raise InvalidInputError(f"{name}: one line of text, up to {most} characters, not {text!r:.80}")
    return text
