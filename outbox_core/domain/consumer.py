"""A consumer: a registered, durable reader of one tenant's lifecycle stream, and the deliveries that failed it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.identity import require_id

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from outbox_core.domain.lifecycle_event import LifecycleEvent


class Start(StrEnum):
    """Where a consumer without a cursor begins: a new one, and one whose row was lost, are the same (L05, L12)."""

    BEGINNING = "beginning"
    """At the first event, where the stream still has it; else by reconciling."""

    LATEST = "latest"
    """By reconciling, then with what comes after that."""


class LetterState(StrEnum):
    """What became of a dead letter."""

    UNRESOLVED = "unresolved"
    REPLAYING = "replaying"
    """An operator asked for it to be observed again; the consumer does so at its next poll."""

    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """The event at which a consumer stands, and its failed tries so far; a new event starts at zero (L09)."""

    event_id: str
    attempts: int
    next_attempt_at: datetime
    failure_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """The stored registration and its cursor.

    `cursor` is the number of the last event that was acknowledged: None until the consumer has begun, and -1 where
    what is stored is no number. `idle_polls` counts the polls in a row that found nothing; `stopped_for` is why it
    waits for an operator. `damaged`: the stored row does not decode, and nothing but its ids is what it says.
    """

    tenant_id: str
    consumer_id: str
    start: Start
    cursor: int | None
    registered_at: datetime
    must_reconcile: bool = False
    retired_at: datetime | None = None
    paused_at: datetime | None = None
    stopped_for: str = ""
    damaged: bool = False
    lease_owner: str = ""
    lease_until: datetime | None = None
    heartbeat_at: datetime | None = None
    fence: int = 0
    failing: Failing | None = None
    idle_polls: int = 0
    next_poll_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a consumer stands before, in one read: its row (None: not registered), the head, and the server's time.

    `replays` says that dead letters of it wait to be observed again.
    """

    consumer: Consumer | None
    head: int
    now: datetime
    replays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A consumer's row as the lease took it. Every later write demands `fence`, and that it is not retired (L07, L14).

    `taken_at` is the server's time; the lease ends `CONSUMER_LEASE` after that unless it is renewed.
    """

    consumer: Consumer
    fence: int
    taken_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A delivery that was given up, with its own copy of the event; `event` is None where the row did not decode."""

    tenant_id: str
    consumer_id: str
    event_id: str
    sequence: int
    event: LifecycleEvent | None
    attempts: int
    failure_class: str
    parked_at: datetime
    state: LetterState = LetterState.UNRESOLVED
    replays: int = 0
    settled_at: datetime | None = None
    settled_by: str = ""
    settled_why: str = ""


class Poll(StrEnum):
    """What a poll came to."""

    IDLE = "idle"
    OBSERVED = "observed"
    RETRYING = "retrying"
    """The event that it stands before has failed, and its next try is not due."""

    BUSY = "busy"
    """Another process holds the lease."""

    LOST = "lost"
    """The lease was lost on the way: what came after that changed nothing."""

    UNKNOWN = "unknown"
    """A newer version wrote a type of event that this process does not know."""

    PAUSED = "paused"
    STOPPED = "stopped"
    RETIRED = "retired"
    UNREGISTERED = "unregistered"


@dataclass(frozen=True, slots=True, kw_only=True)
class PollReport:
    """What one poll of a consumer came to, in counts.

    `more` says that it ended with events left to observe now. `wait` is when the next poll may find something to do;
    None where only an event can tell.
    """

    tenant_id: str
    consumer_id: str
    poll: Poll
    observed: int = 0
    failed: int = 0
    superseded: int = 0
    parked: int = 0
    replayed: int = 0
    reconciled: bool = False
    more: bool = False
    lag: int = 0
    wait: timedelta | None = None


_HEX = re.compile(r"(?=.*\d)[0-9a-f]{8,}")
_MANY_DIGITS = 5
_TOKEN_CHARS = 16
_TOKEN_NUMBERS = 3
_PROCESS_IDS_FROM = 100
_PART = re.compile(r"[._-]")
_DIGITS = re.compile(r"\d+")


def goes_on_after(cursor: int | None) -> int:
    """Return after which number a consumer goes on: 0 where it has no cursor yet, or one that cannot be."""
    return max(0, cursor or 0)


def lag(cursor: int | None, head: int) -> int:
    """Return how many events a consumer has not acknowledged."""
    return max(0, head - goes_on_after(cursor))


def require_consumer_id(text: object, *, host: str, process_id: int) -> str:
    """Return a consumer id; raise InvalidInputError where it is none, or would not be the same after a restart (L22).

    A host's name, a process id and a random id are refused: such a consumer would never find its cursor again, and the
    one that it leaves behind keeps the stream from being pruned. Between dots, dashes and underscores, hexadecimal of 8
    characters or more with a digit in it counts as random, and so does any text of 16 with three numbers in it; so do 5
    digits in a row anywhere. Words that could be hexadecimal pass (`deadbeef-role`), small numbers too (`dashboard-2`):
    a process id below 100 is a container's, which is the same after a restart.
    """
    consumer_id = require_id(text, "consumer id")
    folded = consumer_id.casefold()
    numbers = _DIGITS.findall(folded)
    why = ""
    if any(_holds(folded, name) for name in _names_of(host)):
        why = "holds this host's name"
    elif process_id >= _PROCESS_IDS_FROM and str(process_id) in numbers:
        why = "holds a process id"
    elif any(map(_is_random, _PART.split(folded))) or any(len(number) >= _MANY_DIGITS for number in numbers):
        why = "looks like a random id"
    if why:
        raise InvalidInputError(
            f"consumer id {consumer_id!r} {why}, so a restart would begin anew; name its role, for example board-cache"
        )
    return consumer_id


def _names_of(host: str) -> set[str]:
    """Return the whole name and the machine's own part of it; every machine is called localhost."""
    whole = host.casefold()
    return {whole, whole.partition(".")[0]} - {"", "localhost", "localhost.localdomain"}


def _holds(consumer_id: str, name: str) -> bool:
    return re.search(rf"(?:^|[._-]){re.escape(name)}(?:$|[._-])", consumer_id) is not None


def _is_random(part: str) -> bool:
    is_token = len(part) >= _TOKEN_CHARS and len(_DIGITS.findall(part)) >= _TOKEN_NUMBERS
    return is_token or _HEX.fullmatch(part) is not None
