"""Test your own bots and rules: a whole outbox in memory, on a clock that the test moves.

docs/testing.md shows it by examples. Nothing here needs a test framework, or a service.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.adapters.memory.clock import MemoryClock
from outbox_core.domain.effect_lifecycle import LIVE, State
from outbox_core.domain.event import Event
from outbox_core.local import LocalOutbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outbox_core.application.append_events import Appended
    from outbox_core.domain.limits import Limits
    from outbox_core.domain.subscription import Subscription
    from outbox_core.local import BotsGiven, ProjectorsGiven

_START = datetime(2030, 1, 1, tzinfo=UTC)
_PAGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A row as it stands. `state` is pending, claimed, done or failed, `outcome` says why it is done.

    `attempts` counts spent tries, `claims` every try; `error` is what the last one that went wrong said, `result` what
    the bot returned. `due` is when a pending row runs next. `sub_id` and `bot_id` are "" on a projection.
    """

    effect_id: str
    tenant: str
    event_id: str
    kind: str
    sub_id: str
    bot_id: str
    state: str
    outcome: str
    attempts: int
    claims: int
    error: str
    result: Any
    due: datetime | None

    @property
    def delivered(self) -> bool:
        """Whether the bot ran to its end."""
        return (self.state, self.outcome) == (State.DONE, "delivered")

    @property
    def dead(self) -> bool:
        """Whether it is a dead letter."""
        return self.state == State.FAILED

    @property
    def waits(self) -> bool:
        """Whether it runs again: after a failure, because the bot asked to, or because nobody knows the bot."""
        return self.state in {state.value for state in LIVE}

    def __str__(self) -> str:
        said = f", {self.error}" if self.error else ""
        return f"{self.effect_id}: {self.bot_id or self.kind} {self.state} {self.outcome}, {self.attempts} spent{said}"


class OutboxTest:
    """An outbox for one test. Nothing runs until `drain_and_run_all`, and time stands still but for `advance`.

    `bots` maps ids to functions, or lists functions that `@bot` registered, `projectors` likewise by kinds; None
    means what is registered in this process. `outbox` is the facade, for the code under test: `append`, `subscribe`,
    `run_in_transaction`, `boards`, `ingest_github` and the rest work on it. The waits after a failure have no jitter.
    """

    def __init__(
        self,
        *,
        bots: BotsGiven | None = None,
        projectors: ProjectorsGiven | None = None,
        limits: Limits | None = None,
        tenant: str = "test",
        start: datetime = _START,
    ) -> None:
        self.tenant = tenant
        self._clock = MemoryClock(start, frozen=True)
        self.outbox = LocalOutbox(
            bots=bots, projectors=projectors, limits=limits, clock=self._clock, entropy=_InOrder(), at_once=False
        )

    # What a test does.

    def subscribe(self, sub_id: str, bot_id: str, **rule: Any) -> Subscription:  # noqa: ANN401 - as Outbox.subscribe
        """Make a rule of the test's tenant; keywords as in `Outbox.subscribe`."""
        return self.outbox.subscribe(self.tenant, sub_id, bot_id, **rule)

    def append(self, **event: Any) -> Appended:  # noqa: ANN401 - as Outbox.append
        """Append an event to the test's tenant; keywords as in `Outbox.append`."""
        return self.outbox.append(self.tenant, **event)

    @property
    def now(self) -> datetime:
        """The time, by the store's clock."""
        return self._clock.now()

    def advance(self, delta: timedelta) -> None:
        """Let time pass; nothing runs by that alone. Raises ValueError for a time that goes back."""
        if delta < timedelta(0):
            raise ValueError(f"advance: time goes forward, not by {delta}")
        self._clock.advance(delta)

    def drain_and_run_all(self) -> list[Ran]:
        """Run what every worker would run now; return the rows that were tried, as they stand then.

        A row that fails waits for its next time: `advance`, and call again. An empty list means that nothing was due.
        Raises OutboxError where there is no end, as with a bot that appends what launches it.
        """
        before = {row.effect_id: row.claims for row in self._rows()}
        self.outbox.settle_all()
        return [row for row in self._rows() if row.claims > before.get(row.effect_id, 0)]

    def run_to_the_end(self, within: timedelta = timedelta(days=2)) -> list[Ran]:
        """Run all, and again whenever something is due next, until nothing waits; return the rows that were tried.

        Raises AssertionError where something still waits after `within`.
        """
        tried: dict[str, Ran] = {}
        until = self.now + within
        while True:
            tried |= {row.effect_id: row for row in self.drain_and_run_all()}
            due = min((row.due for row in self._rows() if row.waits and row.due is not None), default=None)
            if due is None:
                return list(tried.values())
            if due > until:
                raise AssertionError(f"still waiting after {within}:\n{_listed(self._rows())}")
            self.advance(max(due - self.now, timedelta(0)))

    # What a test looks at.

    def effects(self, *, bot_id: str | None = None, sub_id: str | None = None) -> list[Ran]:
        """Return the rows of every tenant, in the order in which they came to be; of one bot or rule, if given."""
        return [row for row in self._rows() if bot_id in {None, row.bot_id} and sub_id in {None, row.sub_id}]

    def effect(self, *, bot_id: str | None = None, sub_id: str | None = None) -> Ran:
        """Return the one row that there is, of a bot or rule if given; raise AssertionError for none or several."""
        found = self.effects(bot_id=bot_id, sub_id=sub_id)
        if len(found) != 1:
            raise AssertionError(f"one effect was expected, there are {len(found)}:\n{_listed(self._rows())}")
        return found[0]

    @property
    def dead_letters(self) -> list[Ran]:
        """The rows that nobody tries any more."""
        return [row for row in self._rows() if row.dead]

    def events(self, type: str | None = None) -> list[Event]:  # noqa: A002 - the word of the log
        """Return the events of the test's tenant, in order; of one type, if given."""
        found: list[Event] = []
        log, after = self.outbox.tenant(self.tenant).log, 0
        while entries := log.read_after(after, _PAGE):
            found += [entry for entry in entries if isinstance(entry, Event)]
            after = entries[-1].seq
        return [event for event in found if type in {None, event.attributes.type}]

    def assert_delivered(self, bot_id: str, times: int = 1) -> None:
        """Raise AssertionError, with every row, unless the bot ran to its end for this many events."""
        self._assert_count(f"{bot_id} delivered", [row for row in self.effects(bot_id=bot_id) if row.delivered], times)

    def assert_dead(self, bot_id: str, times: int = 1, *, says: str = "") -> None:
        """Raise AssertionError, with every row, unless the bot left this many dead letters whose error holds `says`."""
        found = [row for row in self.effects(bot_id=bot_id) if row.dead and says in row.error]
        self._assert_count(f"{bot_id} dead" + (f" saying {says!r}" if says else ""), found, times)

    def assert_quiet(self) -> None:
        """Raise AssertionError, with every row, where a row waits, or an event is not drained."""
        undrained = self.outbox.store.maintenance.undrained_tenants("", _PAGE)
        waiting = [row for row in self._rows() if row.waits]
        if waiting or undrained:
            owed = f"{len(waiting)} rows wait; undrained tenants: {', '.join(undrained) or 'none'}"
            raise AssertionError(f"{owed}\n{_listed(self._rows())}")

    def _assert_count(self, what: str, found: Sequence[Ran], times: int) -> None:
        if len(found) != times:
            raise AssertionError(f"{what}: {len(found)} times, not {times}\n{_listed(self._rows())}")

    def _rows(self) -> list[Ran]:
        database = self.outbox.twin.database
        with database.lock:
            stored = list(database.documents("trigger_effects").values())
            return [_ran(row, database.get("runs", row["_id"]) or {}) for row in stored]


class _InOrder:
    """Implements ports.runtime.Entropy: ids in order, no jitter."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def token(self) -> str:
        """See the port."""
        return f"id-{next(self._numbers):06d}"

    def jitter(self) -> float:
        """See the port."""
        return 1.0


def _ran(row: Mapping[str, Any], run: Mapping[str, Any]) -> Ran:
    waits = row["state"] in {state.value for state in LIVE}
    return Ran(
        effect_id=row["_id"],
        tenant=row["tenant_id"],
        event_id=row.get("event_id", ""),
        kind=row["kind"],
        sub_id=row.get("sub_id", ""),
        bot_id=row.get("bot_id", ""),
        state=str(row["state"]),
        outcome=row.get("outcome") or "",
        attempts=row.get("attempts", 0),
        claims=row.get("claims", 0),
        error=row.get("last_error") or "",
        result=run.get("result"),
        due=row.get("not_before") if waits else None,
    )


def _listed(rows: Iterable[Ran]) -> str:
    return "\n".join(str(row) for row in rows) or "there is no effect"
