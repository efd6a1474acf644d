"""What a cast of actors plays on: the twin, its clock, each process's own clock, and what must hold at every step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from outbox_core.adapters.memory.slots import COLLECTIONS
from outbox_core.adapters.memory.store import MemoryStore
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.offer_slice import offer_slice
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.errors import EventConflictError, TransientError, UnclearCommitError
from outbox_core.ports.drain_progress import Kept
from outbox_core.ports.effect_outbox import Settled
from outbox_core.ports.lifecycle_stream import Page
from outbox_core.ports.runtime import Runtime
from outbox_core.ports.slots import Lane
from tests.harness.base import ACME
from tests.harness.faults import FaultyStore, When
from tests.harness.surroundings import CountingEntropy, KnownBots
from tests.harness.twin import TwinHarness
from tests.oracle import Evidence, Execution, Promise, Rule, judge, judge_progress
from tests.simulation.play import WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from datetime import datetime

    from outbox_core.adapters.memory.clock import MemoryClock
    from outbox_core.domain.bot import Bot, Run
    from outbox_core.domain.effect import Claim, NewEffect, Settlement
    from outbox_core.domain.event import Event
    from outbox_core.domain.limits import Limits
    from outbox_core.ports.store import Store, TenantStore
    from outbox_core.ports.transactions import Transaction
    from tests.harness.base import Document
    from tests.simulation.interleave.scheduler import Actor, Scheduler

_LOCAL_CALLS = frozenset({"effects.check"})
"""Calls that reach no store."""


class ActorClock:
    """A process's own clock: away from the server's, and not quite as fast. Sleeping is a step like a call."""

    def __init__(self, server: MemoryClock, scheduler: Scheduler, skew: float, rate: float) -> None:
        self._server = server
        self._scheduler = scheduler
        self._skew = skew
        self._rate = rate

    def monotonic(self) -> float:
        now = self._skew + self._rate * self._server.monotonic()
        self._scheduler.note("clock", now)
        return now

    def sleep(self, seconds: float) -> None:
        self._scheduler.pause("sleep", wakes=self.server_time_in(seconds))

    def server_time_in(self, seconds: float) -> float:
        """Return the server's time when so much has passed here."""
        return self._server.monotonic() + seconds / self._rate


def _without_slots(cursor: Document) -> Document:
    """Return a cursor without what its drain's slot is: that is written without moving it."""
    return {name: value for name, value in cursor.items() if name != Lane.DRAIN.value}


class Messages:
    """The hints of one process; the stage keeps them in the order in which they were sent."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def drain(self, tenant_id: str, token: str | None = None) -> bool:
        self._stage.messages.append(("drain", tenant_id, token))
        return True

    def turn(self, tenant_id: str, token: str | None = None) -> bool:
        self._stage.messages.append(("turn", tenant_id, token))
        return True

    def slice(self, tenant_id: str, token: str) -> bool:
        self._stage.messages.append(("slice", tenant_id, token))
        return True

    def poll(self, tenant_id: str, consumer_id: str) -> bool:  # noqa: ARG002 - the port's names
        return False

    def wake(self, tenant_id: str) -> bool:  # noqa: ARG002 - the port's name
        return False

    def waiting(self, lane: Lane) -> int:
        return sum(kind == lane for kind, _, _ in self._stage.messages)


class SteppedStore(FaultyStore):
    """A process's handle of the twin, each of whose calls waits for its turn.

    A call that writes several documents outside of a transaction is atomic for each of them alone, as on MongoDB: each
    is a step of its own, and the runs of a settle come before its rows.
    """

    def __init__(self, store: Store, stage: Stage) -> None:
        super().__init__(store)
        self._stage = stage
        self._scheduler = stage.scheduler

    def _proxy(self, name: str, protocol: type, port: object) -> Any:  # noqa: ANN401 - it stands for any port
        del protocol
        return _Port(lambda method: self._stepped(name, method, port))

    def _stepped(self, name: str, method: str, port: object) -> Callable[..., Any]:
        if (name, method) == ("transactions", "begin"):
            return self._begin(port)
        call = self._call(f"{name}.{method}", getattr(port, method))
        if (name, method) == ("effects", "settle"):
            return partial(_settle_each, self._call("effects.record_run", partial(_record_run, port)), call)
        if (name, method) == ("stream", "read_after"):
            return partial(_head_then_rows, self._call("stream.head", getattr(port, "head")), call)  # noqa: B009 - a port's
        each = _EACH.get(f"{name}.{method}")
        return partial(each, call) if each else call

    def _call(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        if name in _LOCAL_CALLS:
            return method
        stepped = super()._call(name, method)

        def call(*args: object, **kwargs: object) -> object:
            try:
                answer = stepped(*args, **kwargs)
            except Exception as error:
                self._scheduler.note(name, type(error).__name__)
                self._stage.look(*args, *kwargs.values())
                raise
            self._scheduler.note(name, repr(answer))
            self._stage.look(*args, *kwargs.values())
            return answer

        return call

    def _count(self, name: str) -> int:
        self._scheduler.pause(name)
        self.calls.append(name)
        if name == "transactions.begin":
            self._scheduler.note(self._stage.digest())
        return len(self.calls)

    def _strike(self, name: str, number: int, when: When) -> None:
        del number
        me = self._scheduler.current
        if me is not None and me.fault is when:
            me.fault = None
            unclear = name == "transaction.commit" and when is When.AFTER
            raise (UnclearCommitError if unclear else TransientError)(f"{name} fails {when.value} it happened")


def run_is_owned(row: Document, worker: str, now: datetime) -> bool:
    """Say whether a worker may begin to run a row now."""
    return (row["state"], row["claimed_by"]) == ("claimed", worker) and bool(row["not_before"] > now)


class _Port:
    """A port whose calls are made ready when they are asked for: a schedule asks for few of them."""

    def __init__(self, make: Callable[[str], Callable[..., Any]]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = self._make(name)
        setattr(self, name, call)
        return call


def _materialize_each(call: Callable[..., Any], rows: Sequence[NewEffect], now: datetime) -> frozenset[str]:
    return frozenset().union(*(call([row], now) for row in rows))


def _record_run(effects: Any, claim: Claim, effect_id: str, settlement: Settlement) -> None:  # noqa: ANN401 - the twin's
    """Write the run alone, as the first of the commands of a settle."""
    (effect,) = (one for one in claim.effects if one.effect_id == effect_id)
    with effects._database.lock:
        effects._record_run(claim, effect, settlement, None)


def _settle_each(
    record: Callable[..., Any], call: Callable[..., Any], claim: Claim, settlements: Mapping[str, Settlement]
) -> Settled:
    for effect_id, one in settlements.items():
        if one.run is not None:
            record(claim, effect_id, one)
    settled = [call(claim, {effect_id: one}) for effect_id, one in settlements.items()]
    owned, fenced_out = [one.owned for one in settled], [one.fenced_out for one in settled]
    return Settled(frozenset().union(*owned), frozenset().union(*fenced_out))


def _move_each(call: Callable[..., Any], claim: Claim, effect_ids: Iterable[str], *more: object) -> int:
    return sum(call(claim, [effect_id], *more) for effect_id in effect_ids)


def _fill_each(call: Callable[..., Any], seqs: Sequence[int]) -> int:
    return sum(call([seq]) for seq in sorted(seqs))


def _insert_each(call: Callable[..., Any], events: Sequence[Event], transaction: Transaction | None = None) -> None:
    if transaction is not None:
        call(events, transaction)
        return
    duplicates: set[str] = set()
    taken: set[int] = set()
    for event in events:
        try:
            call([event])
        except EventConflictError as conflict:
            duplicates |= conflict.duplicates
            taken |= conflict.taken
    if duplicates or taken:
        raise EventConflictError(duplicates=duplicates, taken=taken)


def _head_then_rows(head: Callable[[], int], call: Callable[..., Any], sequence: int, limit: int) -> Page:
    """Read as MongoDB does: the head, then the rows up to it; what happens between the two is seen in the rows."""
    found = head()
    if found <= sequence:
        return Page(found, ())
    return Page(found, tuple(entry for entry in call(sequence, limit).entries if entry.sequence <= found))


def _prune_each(call: Callable[..., Any], up_to: int, older_than: timedelta, limit: int) -> int:
    return next(removed for removed in range(limit + 1) if removed == limit or not call(up_to, older_than, 1))


_EACH: dict[str, Callable[..., Any]] = {
    "effects.materialize": _materialize_each,
    "effects.renew": _move_each,
    "effects.release": _move_each,
    "log.insert": _insert_each,
    "log.fill": _fill_each,
    "stream.prune": _prune_each,
}
"""Calls that are atomic for each document alone."""


class HeartThreads:
    """Stands for `threading` in the hearts' modules: their thread is an actor, their waiting a step."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def Event(self) -> HeartEvent:  # noqa: N802 - the name in threading
        return HeartEvent(self._stage)

    def Thread(self, *, target: Callable[[], None], name: str, daemon: bool) -> HeartThread:  # noqa: N802
        del name, daemon
        return HeartThread(self._stage, target)

    def Lock(self) -> HeartLock:  # noqa: N802
        return HeartLock(self._stage)

    def get_native_id(self) -> int:
        """Return what is the same in each play of the same choices."""
        return 1


class HeartLock:
    """A lock that an actor may hold across its steps: whoever wants it stands still until it is free."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            self._stage.scheduler.pause("lock", ready=lambda: not self._held)
        self._held = True

    def __exit__(self, *exc: object) -> None:
        self._held = False


class HeartEvent:
    """What tells a heart to stop."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._set = False

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float) -> bool:
        scheduler = self._stage.scheduler
        me = scheduler.current
        if me is not None and not self._set:
            wakes = self._stage.clocks[me.process].server_time_in(timeout)
            if not scheduler.returned("wait", wakes):
                scheduler.pause("wait", wakes=wakes)
        scheduler.note("stopped", self._set)
        return self._set


class HeartThread:
    """A heart: an actor of its slice's process, and nothing where no schedule is played."""

    def __init__(self, stage: Stage, target: Callable[[], None]) -> None:
        self._stage = stage
        self._target = target
        self._actor: Actor | None = None

    def start(self) -> None:
        scheduler = self._stage.scheduler
        me = scheduler.current
        if me is not None:
            number = sum(actor.process == me.process for actor in scheduler.actors)
            self._actor = scheduler.add(f"{me.process}'s heart {number}", self._target, process=me.process)
            scheduler.begin_inline(self._actor)

    def join(self) -> None:
        if self._actor is not None:
            self._stage.scheduler.join(self._actor)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What stands before anybody plays: documents, which are never changed in place, the time, and tokens given out."""

    tables: Mapping[str, dict[Hashable, Any]]
    moved: float
    tokens: list[str]
    hashes: dict[int, tuple[object, int]]


class Stage:
    """One tenant on the twin, and the processes that work on it."""

    def __init__(self, limits: Limits, prefix: str = "rest") -> None:
        self.limits = limits
        self.harness = TwinHarness(limits, CountingEntropy(prefix))
        self.database = self.harness._twin.database
        self.clocks: dict[str, ActorClock] = {}
        self.stores: dict[str, Store] = {}
        self.messages: list[tuple[str, str, str | None]] = []
        self.rules: tuple[Rule, ...] = ()
        self.executions: list[Execution] = []
        self.acknowledged: set[str] = set()
        self.unclear: set[str] = set()
        self.flag_was_wrong = False
        self.tells_of_events = False
        self.told: list[str] = []
        self.stopping: set[str] = set()
        self.bots: dict[str, Bot | Callable[..., object]] = {"bot": self.bot()}
        self.scheduler: Scheduler
        self.tokens: list[str] = []
        self.watches: list[Callable[[], None]] = []
        self._at_first: list[Callable[[Stage], object]] = []
        self._seen: dict[Hashable, Document] = {}
        self._cursor: Document = {}
        self._counter: Document = {}
        self._slots: dict[Lane, Document] = {}
        self._numbered_at: dict[int, datetime] = {}
        self._tombstones: set[Hashable] = set()
        self._run_claims: dict[Hashable, int] = {}
        self._hashes: dict[int, tuple[object, int]] = {}

    @property
    def store(self) -> TenantStore:
        """The handle of who prepares and who looks afterwards: its calls are no steps."""
        return self.harness.acme

    def runtime(self) -> Runtime:
        """The surroundings of who prepares and who looks afterwards."""
        return Runtime(
            clock=self.harness.clock,
            entropy=self.harness.entropy,
            hints=Messages(self),
            bots=KnownBots(self.bots),
            limits=self.limits,
        )

    def at_first(self, step: Callable[[Stage], object]) -> None:
        """Have something done before anybody plays, on the stage that is given; once for all schedules of a cast."""
        self._at_first.append(step)

    def set_up(self, snapshots: dict[str, Snapshot], cast: str) -> None:
        """Put in place what was asked for by `at_first`."""
        if cast not in snapshots:
            scratch = Stage(self.limits, "first")
            for step in self._at_first:
                step(scratch)
            moved = scratch.harness.server_clock.monotonic()
            snapshots[cast] = Snapshot(scratch.database._tables, moved, scratch.tokens, scratch._hashes)
            scratch.digest()
        found = snapshots[cast]
        self.database._tables.update({name: dict(table) for name, table in found.tables.items()})
        self.harness.advance(timedelta(seconds=found.moved))
        self.tokens, self._hashes = list(found.tokens), dict(found.hashes)
        self._seen = dict(self.database.documents("trigger_effects"))
        self._slots = {lane: self._slots_of(lane) for lane in Lane}

    def actor(
        self,
        name: str,
        play: Callable[[TenantStore, Runtime], object],
        *,
        skew: float = 0.0,
        rate: float = 1.0,
        change: Callable[[TenantStore], TenantStore] = lambda store: store,
    ) -> None:
        """Add a process that plays on its own handle of the store, under its own clock."""
        clock = self.clocks[name] = ActorClock(self.harness.server_clock, self.scheduler, skew, rate)
        entropy = CountingEntropy(name)
        own = MemoryStore(
            self.limits,
            clock=self.harness.server_clock,
            entropy=entropy,
            local=clock,
            database=self.database,
        )
        stepped = self.stores[name] = SteppedStore(own, self)
        store = change(stepped.tenant(ACME))

        def stopping() -> bool:
            told = name in self.stopping
            self.scheduler.note("stopping", told)
            return told

        runtime = Runtime(
            clock=clock,
            entropy=entropy,
            hints=Messages(self),
            bots=KnownBots(self.bots),
            limits=self.limits,
            worker=name,
            stopping=stopping,
        )
        self.scheduler.add(name, lambda: play(store, runtime))

    def listener(self, name: str, messages: int = 2) -> None:
        """Add a worker that takes so many messages, each at any time after it was sent."""

        def listen(store: TenantStore, runtime: Runtime) -> None:
            for _ in range(messages):
                self.scheduler.pause("message", ready=lambda: bool(self.messages) or self.scheduler.all_over_but(name))
                if self.messages:
                    kind, _, token = self.messages.pop(0)
                    self.scheduler.note(kind, token)
                    WORK[kind](store, runtime, token)

        self.actor(name, listen)

    def tell(self, what: str) -> None:
        """Note that something has happened now, in the order of all that is told."""
        self.told.append(what)

    def bot(self, then: Callable[[Run], object] = lambda _: None) -> Callable[[Run], object]:
        """Return a bot that takes a step while it runs; none but a worker who owns the row may begin it."""

        def run_it(run: Run) -> object:
            me = self.scheduler.current
            row = self.database.get("trigger_effects", run.effect_id) or {}
            name = me.process if me else "rest"
            strict = me and run.transaction is None
            if strict and not run_is_owned(row, name, self.harness.now()):
                self.scheduler.violate(f"{name} runs {run.effect_id}, which it does not hold: {row}")
            number = len(self.executions)
            self.executions.append(Execution(effect_id=run.effect_id, attempt=run.attempt, actor=name, ended=False))
            self.scheduler.pause("bot")
            failed = replace(self.executions[number], ended=True, failed=True)
            self.executions[number] = failed
            result = then(run)
            self.executions[number] = replace(failed, failed=False)
            return result

        return run_it

    def state(self) -> Hashable:
        """Return what tells two moments apart, besides what each actor knows."""
        return hash((self.digest(), self.harness.server_clock.monotonic(), tuple(self.told), tuple(self.messages)))

    def digest(self) -> int:
        """Return a hash of all that is stored."""
        tables = self.database._tables
        return hash(
            tuple((name, tuple(self._hash(one) for one in table.values())) for name, table in sorted(tables.items()))
        )

    def _hash(self, document: object) -> int:
        # Stored documents are never changed in place, so each is looked at once; it is kept, so its id stays its own.
        known = self._hashes.get(id(document))
        if known is None:
            known = self._hashes[id(document)] = (document, hash(repr(document)))
        return known[1]

    def look(self, *arguments: object) -> None:
        """Check what must hold after every single call, of which these are the arguments."""
        self._look_at_rows()
        self._look_at_progress()
        self._look_at_slots(arguments)
        self._look_at_tombstones()
        for watch in self.watches:
            watch()

    def _look_at_rows(self) -> None:
        rows = self.database.documents("trigger_effects")
        for key, row in rows.items():
            before = self._seen.get(key)
            if row is before:
                continue
            self._seen[key] = row
            if before is None:
                continue
            if before["state"] in {"done", "failed"}:
                self.scheduler.violate(f"{key} was {before['state']}, and is written again: {row['state']}")
            if before["claims"] > row["claims"] or before["attempts"] > row["attempts"]:
                self.scheduler.violate(f"{key}: its counts go back")
            if row["claims"] > before["claims"] and before["not_before"] > self.harness.now():
                self.scheduler.violate(f"{key} is claimed by {row['claimed_by']} before it is due")
        if len(rows) < len(self._seen):
            self.scheduler.violate("a row is gone")
        for key, run in self.database.documents("runs").items():
            if run["claims"] < self._run_claims.get(key, 0):
                self.scheduler.violate(f"the run of {key} is written over by an older claim")
            self._run_claims[key] = run["claims"]

    def _slots_of(self, lane: Lane) -> Document:
        """Return the document on which the slots of a lane stand."""
        return self.database.get(COLLECTIONS[lane], ACME) or {}

    def _look_at_slots(self, arguments: tuple[object, ...]) -> None:
        given = {one.token if isinstance(one, Kept) else one for one in arguments if isinstance(one, str | Kept)}
        for lane, cap in ((Lane.SLICE, self.limits.tenant_slots), (Lane.DRAIN, 1)):
            slots, before = self._slots_of(lane), self._slots.get(lane, {})
            if slots is before:
                continue
            self._slots[lane] = slots
            held = {slot["token"] for slot in slots.get(lane, ())}
            if len(held) > cap:
                self.scheduler.violate(f"more slots than there are: {slots}")
            now = self.harness.now()
            live = {slot["token"] for slot in before.get(lane, ()) if slot["until"] > now}
            if taken := live - held - given:
                self.scheduler.violate(f"the slots {taken} are taken from who holds them")

    def _look_at_tombstones(self) -> None:
        """Check that a drain fills no number that is missing for less than a grace (E03)."""
        now = self.harness.now()
        given_out = (self.database.get("event_sequences", ACME) or {}).get("last_seq", 0)
        for seq in range(len(self._numbered_at) + 1, given_out + 1):
            self._numbered_at[seq] = now
        me = self.scheduler.current
        for key, event in self.database.documents("board_events").items():
            if not event.get("void") or key in self._tombstones:
                continue
            self._tombstones.add(key)
            early = now - self._numbered_at[event["seq"]] < self.limits.gap_grace
            if early and me is not None and me.process.startswith("drain"):
                self.scheduler.violate(f"{key} is filled before its grace is over")

    def _look_at_progress(self) -> None:
        if self.tells_of_events:
            stored = {f"stored {event['event_id']}" for event in self.read("board_events")}
            self.told += sorted(stored - set(self.told))
        cursor = self.database.get("trigger_cursors", ACME) or {}
        counter = self.database.get("event_sequences", ACME) or {}
        if cursor is self._cursor and counter is self._counter:
            return
        old = self._cursor
        self._cursor, self._counter = cursor, counter
        if _without_slots(cursor) != _without_slots(old):
            begun = old.get("rev", 0) == 0 and not old.get("seq", 0)
            if cursor.get("seq", 0) < old.get("seq", 0) or (cursor.get("rev", 0) <= old.get("rev", 0) and not begun):
                self.scheduler.violate(f"the cursor goes back: {old}, {cursor}")
        if not self.flag_was_wrong:
            verdict = judge_progress(self.read, Evidence(tenant=ACME, rules=self.rules))
            if not verdict.holds:
                self.scheduler.violate("; ".join(verdict.violations))

    def read(self, collection: str) -> list[Document]:
        """Return the documents of a collection, for the oracle."""
        return list(self.database.documents(collection).values())

    def offer(self) -> None:
        """Offer a slice as a sweep does; the token of its message, which is on its way, is among the `tokens`."""
        assert offer_slice(self.store, self.runtime())
        _, _, token = self.messages.pop()
        assert token is not None
        self.tokens.append(token)

    def deliver(self) -> None:
        """Let an idle worker take the messages one by one, at no time passing, until none is left."""
        runtime = self.runtime()
        for _ in range(100):
            if not self.messages:
                return
            kind, tenant, token = self.messages.pop(0)
            WORK[kind](self.harness.store.tenant(tenant), runtime, token)
        self.scheduler.violate("messages multiply")

    def come_to_rest(self) -> None:
        """Let time pass, and ticks come, until everything is drained and settled."""
        self.messages.clear()
        self.stopping.clear()
        runtime = self.runtime()
        for _ in range(40):
            self.harness.advance(timedelta(minutes=11))
            report = drain_tenant(self.store, runtime)
            run_slice(self.store, runtime)
            drained = report is not None and report.reached_seq == self.store.log.head().last_seq
            if drained and self.store.effects.next_due() is None:
                return
        raise AssertionError("there is no rest")

    def judge(self, **evidence: Any) -> None:  # noqa: ANN401 - the fields of the oracle's evidence
        """Let the oracle judge what is stored at rest; each thing that went wrong may have cost a repeat."""
        repeats = self.scheduler.leases_passed + len(self.scheduler.dead) + self.scheduler.faults
        rules = (replace(rule, repeats=repeats if rule.promise is Promise.AT_LEAST_ONCE else 0) for rule in self.rules)
        told = Evidence(
            tenant=ACME,
            rules=tuple(rules),
            acknowledged=frozenset(self.acknowledged),
            unclear=frozenset(self.unclear),
            executions=tuple(self.executions),
            **evidence,
        )
        judge(self.read, told).require()
