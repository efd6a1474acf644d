"""An effect: one durable row, and what can become of it.

`Effect` is a claimed row as a worker sees it, `Claim` the proof that it holds some, and an `Outcome` what its turn
came to. `settlement` decides, from outcome to edge; the store writes it in one place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, assert_never

from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.errors import InvariantError
from outbox_core.domain.identity import dead_event_key, launch_key, projection_key
from outbox_core.domain.limits import MAX_ERROR_CHARS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from outbox_core.domain.effect_lifecycle import Edge
    from outbox_core.domain.event import Attributes
    from outbox_core.domain.limits import Limits

LAUNCH = "launch"
PROJECTION = "projection"
DEAD_EVENT = "dead_event"
DELIVERED = "delivered"
PROMOTED = "promoted"


class DropReason(StrEnum):
    """Why a row is done without its bot having run (E35)."""

    SUBSCRIPTION_NOT_FOUND = "subscription_not_found"
    SUBSCRIPTION_DISABLED = "subscription_disabled"
    SUBSCRIPTION_EDITED = "subscription_no_longer_matches"
    LABEL_SPENT = "label_spent_by_another"
    CARD_GONE = "card_gone"


def key_of(kind: str, tenant_id: str, event_id: str, sub_id: str) -> str | None:
    """Return the key that the fields of a launch or a projection yield, None for any other kind."""
    match kind:
        case "launch":
            return launch_key(tenant_id, event_id, sub_id)
        case "projection":
            return projection_key(tenant_id, event_id)
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Under which claim, by whom, and for how long from the time of its stamp a row is held from its birth."""

    claim_id: str
    worker: str
    lease: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEffect:
    """A row to be materialized.

    A launch has a sub_id and a bot, a projection neither; a dead event has an error and is born failed. One with a
    `hold` is born claimed by whoever materializes it, if it is new.
    """

    tenant_id: str
    seq: int
    event_id: str
    kind: str
    attributes: Attributes | None
    sub_id: str = ""
    bot_id: str = ""
    document_id: str = ""
    error: str = ""
    trace: Mapping[str, str] = field(default_factory=dict)
    hold: Hold | None = None
    effect_id: str = field(init=False)
    """The row key; two drains of one event collapse on it."""

    def __post_init__(self) -> None:
        key = key_of(self.kind, self.tenant_id, self.event_id, self.sub_id)
        object.__setattr__(self, "effect_id", dead_event_key(self.tenant_id, self.document_id) if key is None else key)

    @property
    def birth(self) -> Edge:
        """The edge that creates the row."""
        if self.kind == DEAD_EVENT:
            return lifecycle.BORN_DEAD
        return lifecycle.MATERIALIZE if self.hold is None else lifecycle.BORN_CLAIMED

    def held_by(self, hold: Hold) -> NewEffect:
        """Return the row to be born claimed; written out, since `replace` costs several times as much a row."""
        return NewEffect(
            tenant_id=self.tenant_id,
            seq=self.seq,
            event_id=self.event_id,
            kind=self.kind,
            attributes=self.attributes,
            sub_id=self.sub_id,
            bot_id=self.bot_id,
            document_id=self.document_id,
            error=self.error,
            trace=self.trace,
            hold=hold,
        )

    def claimed(self, now: datetime) -> Effect:
        """Return the row as its holder sees it, stamped with `now`; a dead event is nobody's."""
        if self.attributes is None:
            raise InvariantError(f"{self.effect_id} is a dead event")
        return Effect(
            effect_id=self.effect_id,
            owner=self.tenant_id,
            tenant_id=self.tenant_id,
            seq=self.seq,
            event_id=self.event_id,
            kind=self.kind,
            attributes=self.attributes,
            sub_id=self.sub_id,
            bot_id=self.bot_id,
            attempts=0,
            claims=1,
            due_at=now,
            created_at=now,
            waiting_since=None,
            trace=self.trace,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A claimed row. `owner` is the tenant that its key names; `attempts` counts spent tries, `claims` every claim.

    `attempts` already holds what a reclaim added; `waiting_since` is when its bot first asked to be retried later;
    `consume_marked` says that its labels were consumed for it.
    """

    effect_id: str
    owner: str
    tenant_id: str
    seq: int
    event_id: str
    kind: str
    attributes: Attributes
    sub_id: str
    bot_id: str
    attempts: int
    claims: int
    due_at: datetime
    created_at: datetime
    waiting_since: datetime | None
    trace: Mapping[str, str]
    consume_marked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Rows taken under one fresh `claim_id`; every later write filters on it.

    `claimed_at` is the server's time at the claim. `lease_ends` is the worker's own idea of the lease's end, on its
    monotonic clock, from the moment the claim was sent. `more` says that other rows were due as well; `lost` counts
    those that were chosen and that other claims took meanwhile.
    """

    claim_id: str
    worker: str
    effects: tuple[Effect, ...]
    claimed_at: datetime
    lease_ends: float
    more: bool
    parked: int = 0
    lost: int = 0

    def __post_init__(self) -> None:
        if not self.claim_id:
            msg = "a claim needs a claim_id"
            raise InvariantError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a launch came to, one per effect: `error` is None where the bot finished, `result` is JSON."""

    bot_id: str
    args: Mapping[str, Any]
    started_at: datetime
    finished_at: datetime
    result: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """What was owed has happened; `run` is None where there is none, or an earlier claim's record already says so."""

    run: RunRecord | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """The current rule does not owe this any more."""

    reason: DropReason


@dataclass(frozen=True, slots=True)
class Failed:
    """The try failed. `definitive` parks at once, else the row is retried within its budget."""

    error: str
    definitive: bool = False
    run: RunRecord | None = None


@dataclass(frozen=True, slots=True)
class Postponed:
    """The bot asked to be retried after `delay`, or its transaction met another one; no attempt is spent."""

    delay: timedelta
    error: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The row names another tenant."""

    error: str


@dataclass(frozen=True, slots=True)
class Hung:
    """The budget went to claims that never came back; parked without being run."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """This worker knows the row's kind, mode or bot not."""

    error: str


Outcome = Delivered | Dropped | Failed | Postponed | Refused | Hung | PassedOver


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What is written for one outcome: the edge, and the values that it takes."""

    edge: Edge
    outcome: str = ""
    error: str = ""
    delay: timedelta = timedelta(0)
    run: RunRecord | None = None


def settlement(  # noqa: PLR0911 - one line an outcome
    effect: Effect, outcome: Outcome, now: datetime, limits: Limits, jitter: float
) -> Settlement:
    """Decide which edge an outcome takes.

    `now` is the server's time as the worker knows it, `jitter` a number from 0.8 to 1.2 for the backoff.
    """
    match outcome:
        case Delivered(run):
            return Settlement(edge=lifecycle.DONE, outcome=DELIVERED, run=run)
        case Dropped(reason):
            return Settlement(edge=lifecycle.DROP, outcome=reason.value)
        case Refused(error):
            return Settlement(edge=lifecycle.REFUSE, error=bounded(error))
        case Hung():
            error = f"claimed {effect.claims} times without coming back; the budget of attempts is spent"
            return Settlement(edge=lifecycle.PARK_HUNG, error=error)
        case PassedOver(error):
            return Settlement(edge=lifecycle.PASS_OVER, error=bounded(error), delay=_pass_over_delay(effect, now))
        case Postponed(delay, error):
            return _postpone(effect, delay, error, now, limits)
        case Failed(error, definitive, run):
            if definitive or effect.attempts + 1 >= limits.max_effect_attempts:
                return Settlement(edge=lifecycle.FAIL, error=bounded(error), run=run)
            delay = min(limits.backoff_base * 2**effect.attempts, limits.backoff_cap) * jitter
            return Settlement(edge=lifecycle.RETRY, error=bounded(error), delay=delay, run=run)
        case _:
            assert_never(outcome)


def _postpone(effect: Effect, delay: timedelta, error: str, now: datetime, limits: Limits) -> Settlement:
    last_moment = (effect.waiting_since or now) + limits.retry_later_max
    if now >= last_moment:
        text = f"asked to be retried later for more than {limits.retry_later_max}: {error}"
        return Settlement(edge=lifecycle.FAIL, error=bounded(text))
    return Settlement(edge=lifecycle.RETRY_LATER, error=bounded(error), delay=min(delay, last_moment - now))


def _pass_over_delay(effect: Effect, now: datetime) -> timedelta:
    """As long as the row has waited, within 15 s and 10 min."""
    return max(timedelta(seconds=15), min(now - effect.created_at, timedelta(minutes=10)))


def bounded(text: str) -> str:
    """Cut an error text to its bound (E33), as text that every store can hold: a lone surrogate is spelt out.

    An error that names a file can hold one, and an outcome that cannot be written would hold up its whole batch.
    """
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"
