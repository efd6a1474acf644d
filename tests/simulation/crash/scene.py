"""One tenant on one store, the actors that play on it, and what the oracle will be told."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.application.offer_drains import offer_drains
from outbox_core.application.offer_polls import offer_polls, wake_consumers
from outbox_core.application.offer_slices import offer_slices
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.bot import Bot
from tests.harness.faults import FaultyStore
from tests.harness.on_mongo import MongoHarness
from tests.harness.surroundings import KnownBots, KnownProjectors, RecordingHints
from tests.harness.twin import TwinHarness
from tests.oracle import Evidence, Execution, Watch, database_reader, judge, judge_progress, judge_watch
from tests.simulation.crash.watching import CURSORS, Journal, Notices, Observers
from tests.simulation.play import WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Document, Harness
    from tests.harness.faults import Fault
    from tests.oracle import Figures
    from tests.simulation.crash.plays import Play

RUN = "bot.run"
"""The call of a bot or a projector, which is struck as the store's calls are."""
SETTLE = "effects.settle"
PASSED = timedelta(minutes=11)
"""Longer than any lease, hold, backoff or grace."""
LIVE = ("pending", "claimed")
_ROUNDS = 16


class ActorClock:
    """A process's clock that stands still unless it is moved, or the process sleeps: a play is the same each time."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        with self._lock:
            return self._now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds

    def advance(self, delta: timedelta) -> None:
        self.sleep(delta.total_seconds())


class Scene:
    """The tenant. What is asked of it, and what it answers, is noted down as an application would."""

    def __init__(self, harness: Harness, play: Play, tenant: str) -> None:
        self.harness = harness
        self.play = play
        self.tenant = tenant
        self.executions: list[Execution] = []
        self.may_repeat: set[str] = set()
        self.tried: set[str] = set()
        self.acknowledged: set[str] = set()
        self.journal = Journal()
        self.finished = False
        self.woke = False

    def again(self, harness: Harness, tenant: str) -> Scene:
        """Return a scene that begins where this one is, on another store or as another tenant."""
        scene = Scene(harness, self.play, tenant)
        scene.tried, scene.acknowledged = set(self.tried), set(self.acknowledged)
        scene.journal = self.journal.again()
        return scene

    @property
    def store(self) -> TenantStore:
        """The tenant's own store, that nothing strikes."""
        return self.harness.store.tenant(self.tenant)

    def actor(self, name: str, *faults: Fault) -> Actor:
        return Actor(self, name, *faults)

    def raw(self, collection: str) -> list[Document]:
        if isinstance(self.harness, TwinHarness):
            # A stored document is never changed in place: here it needs no copy.
            found = self.harness._twin.database.documents(collection).values()
            return [document for document in found if document.get("tenant_id") == self.tenant]
        return self.harness.raw(collection, tenant_id=self.tenant)

    def acknowledge(self, event_ids: Iterable[str], call: Callable[[], object]) -> None:
        """Append: until the answer is there, it is unclear whether the events are in the log."""
        ids = set(event_ids)
        self.tried |= ids
        call()
        self.acknowledged |= ids

    def lapse(self) -> None:
        """Let all that this tenant waits for be over: leases, backoffs, holds, the grace of a missing number."""
        over = self.harness.now() - timedelta(seconds=1)
        for row in self.raw("trigger_effects"):
            if row.get("state") in LIVE and row.get("not_before") is not None and row["not_before"] > over:
                self.harness.change("trigger_effects", row["_id"], not_before=over)
        for slots in self.raw("tenant_slots"):
            if slots.get("slice"):
                self.harness.change("tenant_slots", slots["_id"], slice=[])
        for cursor in self.raw("trigger_cursors"):
            if cursor.get("marks") or cursor.get("poison") or cursor.get("drain"):
                marks = [{**mark, "at": over - PASSED} for mark in cursor.get("marks") or ()]
                self.harness.change("trigger_cursors", cursor["_id"], marks=marks, poison_at=over - PASSED, drain=[])
        for row in self.raw(CURSORS) if self.play.watchers is not None else ():
            waits: dict[str, Any] = {
                name: over for name in ("lease_until", "next_poll_at") if row.get(name) is not None
            }
            if row.get("failing"):
                waits["failing"] = {**row["failing"], "next_attempt_at": over}
            self.harness.change(CURSORS, row["_id"], **waits)
        for tick in self.harness.raw("ticks") if self.play.by_ticks else ():
            self.harness.change("ticks", tick["_id"], next_at=over)

    def at_rest(self) -> bool:
        """Say whether nothing is left to do, as an operator would see it."""
        return self.is_drained() and (self.play.watchers is None or self._is_observed())

    def is_drained(self) -> bool:
        """Say whether the log is drained, and no row waits."""
        counters, cursors = self.raw("event_sequences"), self.raw("trigger_cursors")
        if counters and (counters[0]["undrained"] or not cursors or cursors[0]["seq"] < counters[0]["last_seq"]):
            return False
        return not any(row.get("state") in LIVE for row in self.raw("trigger_effects"))

    def _is_observed(self) -> bool:
        heads = self.raw("lifecycle_sequences")
        head = heads[0]["last_sequence"] if heads else 0
        running = {
            row["consumer_id"]: (row["last_acked_sequence"], row.get("must_reconcile"), row.get("failing"))
            for row in self.raw(CURSORS)
            if row.get("retired_at") is None
        }
        asked = {one["consumer_id"] for one in self.raw("lifecycle_dead_letters") if one["state"] == "replaying"}
        return not asked & running.keys() and all(row == (head, False, None) for row in running.values())

    def watch(self) -> Watch:
        play = self.play
        watchers = () if play.watchers is None else play.watchers(self)
        return self.journal.watch(self.tenant, watchers, play.forgotten(self))

    def sight(self) -> None:
        """Note how far each consumer is: it must never be seen further back."""
        if self.play.watchers is not None:
            self.journal.sight(self.raw(CURSORS))

    def evidence(self) -> Evidence:
        play = self.play
        return Evidence(
            tenant=self.tenant,
            rules=play.rules(self),
            acknowledged=frozenset(self.acknowledged),
            unclear=frozenset(self.tried - self.acknowledged),
            bots_append=play.bots_append,
            broken=frozenset(f"{self.tenant}|{event_id}" for event_id in play.broken),
            owes_nothing=play.owes_nothing,
            forged=frozenset(key.format(tenant=self.tenant) for key in play.forged),
            may_repeat=frozenset(self.may_repeat),
            executions=tuple(self.executions),
            max_attempts=self.harness.limits.max_effect_attempts,
            deaths=1,
        )

    def require_progress(self, where: object) -> None:
        if not self.play.flag_lost:
            judge_progress(self.raw, self.evidence()).require(where)
        self._require_watch(where, at_rest=False)

    def require_rest(self, where: object) -> Figures:
        figures = judge(self._read, self.evidence()).require(where)
        self._require_watch(where, at_rest=True)
        if broken := list(self.play.check(self)):
            raise AssertionError(f"{where}: {'; '.join(broken)}")
        return figures

    def _require_watch(self, where: object, *, at_rest: bool) -> None:
        if self.play.watchers is None:
            return
        if broken := judge_watch(self.raw, self.watch(), at_rest=at_rest):
            lines = "\n  ".join(broken)
            raise AssertionError(f"{where}: {len(broken)} promises are broken\n  {lines}")
        self.sight()

    def _read(self, collection: str) -> Iterable[Document]:
        """Read also what names another tenant and stands under a key of this one."""
        if isinstance(self.harness, MongoHarness):
            return cast("list[Document]", database_reader(self.harness.database, self.tenant)(collection))
        return self.raw(collection)


class Actor:
    """One process on a tenant, whose calls may be struck."""

    def __init__(self, scene: Scene, name: str, *faults: Fault) -> None:
        self.scene = scene
        self.name = name
        self.clock = ActorClock()
        self.hints = RecordingHints()
        self.faulty = FaultyStore(scene.harness._store_with(self.clock), *faults)
        self.store = self.faulty.tenant(scene.tenant)
        self.stops = False
        self._ended: list[str] = []
        self._in_turn: str | None = None
        bots = {bot_id: self._bot(bot_id, bot) for bot_id, bot in scene.play.bots(scene, self).items()}
        projectors = {kind: self._noted(function) for kind, function in scene.play.projectors.items()}
        self.observers = Observers(scene.play.observers(scene, self), scene.journal, self.faulty)
        limits = scene.play.limits
        self.runtime: Runtime = replace(
            scene.harness.runtime(worker=name, writer=name, clock=self.clock, stopping=lambda: self.stops, **limits),
            bots=KnownBots(bots),
            projectors=KnownProjectors(projectors),
            observers=self.observers,
            outlets=Notices(scene.journal, self.faulty),
            hints=self.hints,
        )

    def act(self) -> None:
        """Do what the play is about."""
        self.scene.play.act(self.scene, self)

    def unsettled(self) -> set[str]:
        """Return the effects whose bot has ended here, and whose settle has not landed."""
        ended = iter(self._ended)
        waiting: set[str] = set()
        for name in self.faulty.landed:
            if name == RUN:
                waiting.add(next(ended))
            elif name == SETTLE:
                waiting.clear()
        return waiting

    def in_hand(self) -> set[str]:
        """Return the effect whose bot is about to begin or runs, if there is one."""
        return {self._in_turn} - {None}  # type: ignore[return-value] # None is taken out

    def to_rest(self) -> None:
        """Go on until nothing is left, as ticks would; time passes where something must be waited for."""
        for _ in range(_ROUNDS):
            self.scene.lapse()
            if self.scene.play.by_ticks:
                self.tick()
            elif self.scene.play.watchers is not None:
                self._watch_on()
            else:
                drain_tenant(self.store, self.runtime)
                while (report := run_slice(self.store, self.runtime)) is not None and report.more:
                    pass
            if self.scene.at_rest():
                return
        raise AssertionError(f"{self.scene.tenant}: what {self.name} does comes to no rest")

    def tick(self) -> None:
        """Do what beat's two ticks offer, as a worker that takes each message once."""
        offer_drains(self.faulty, self.runtime)
        self.take_messages()
        offer_slices(self.faulty, self.runtime)
        self.take_messages()
        offer_polls(self.faulty, self.runtime)
        self.take_messages()

    def poll(self) -> None:
        """Let each consumer of this process observe once."""
        for consumer_id in self.observers.ids():
            self.poll_one(consumer_id)

    def poll_one(self, consumer_id: str) -> None:
        """Let one consumer observe."""
        if (observer := self.observers.get(consumer_id)) is not None:
            observe_lifecycle(self.store, self.runtime, observer)

    def _watch_on(self) -> None:
        if not self.scene.is_drained():
            drain_tenant(self.store, self.runtime)
        self.poll()

    def take_messages(self) -> None:
        """Work off what was hinted for this tenant, and what that hints."""
        while self.hints.sent:
            lane, tenant, token = self.hints.sent.pop(0)
            if tenant == self.scene.tenant:
                if lane in WORK:
                    WORK[lane](self.store, self.runtime, token)
                elif lane == "wake":
                    wake_consumers(self.store, self.runtime)
                elif lane == "poll":
                    self.poll_one(token or "")

    def _bot(self, bot_id: str, bot: Bot | Callable[..., Any]) -> Bot:
        known = bot if isinstance(bot, Bot) else Bot(bot_id=bot_id, function=bot)
        return replace(known, function=self._noted(known.function))

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Note down each execution, as a bot does that keeps a journal outside of the store."""

        def body(run: Any, **given: object) -> object:  # noqa: ANN401 - a Run or a Projection
            number = len(self.scene.executions)
            begun = Execution(effect_id=run.effect_id, attempt=run.attempt, actor=self.name, ended=False)
            self.scene.executions.append(begun)
            try:
                answer = function(run, **given)
            except Exception:
                self.scene.executions[number] = replace(begun, ended=True, failed=True)
                raise
            finally:
                self._in_turn = None
            self.scene.executions[number] = replace(begun, ended=True)
            self._ended.append(run.effect_id)
            return answer

        struck = self.faulty.foreign(RUN, body)

        def noted(run: Any, **given: object) -> object:  # noqa: ANN401 - a Run or a Projection
            self._in_turn = run.effect_id
            return struck(run, **given)

        return noted
