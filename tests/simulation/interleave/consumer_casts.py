"""Casts of lifecycle observation: who deletes, restores, observes, prunes and intervenes against whom."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.application.delete_card import delete_card
from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.application.prune_lifecycle import prune_lifecycle
from outbox_core.domain.board_input import Cause
from outbox_core.domain.consumer import Poll, Start
from outbox_core.domain.observer import Observer
from outbox_core.ports.runtime import NoOutlets
from tests.harness.base import ACME
from tests.harness.lifecycle import tell_many
from tests.simulation.interleave.cast import AN_HOUR, CONSUMER_BEAT, CONSUMER_LEASE, LEASE, consumer_cast
from tests.simulation.interleave.scheduler import Budget
from tests.simulation.observing import delete, put_cards, restore

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from outbox_core.domain.consumer import PollReport
    from outbox_core.domain.lifecycle_event import LifecycleEvent
    from outbox_core.domain.observer import Observation, Reconciliation
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Document
    from tests.simulation.interleave.cast import Judge, Play
    from tests.simulation.interleave.stage import Stage

KEY = f"{ACME}|cache"
RETENTION = timedelta(days=31)


@dataclass(frozen=True, slots=True)
class Called:
    """One call of an observer: who was told what."""

    actor: str
    sequence: int
    event_id: str
    ended: bool


class View:
    """An observer whose state is outside of every process: the live cards, as far as it was told.

    `strict` says that nobody takes leases away, so that whoever calls it holds one. It watches the cursor at each step.
    """

    def __init__(self, stage: Stage, *cards: str, strict: bool = True, transactional: bool = False) -> None:
        self.stage = stage
        self.cards = set(cards)
        self.called: list[Called] = []
        self.reports: list[PollReport] = []
        self.fails: set[str] = set()
        self._strict = strict
        self._before: Document = {}
        self.observer = Observer(
            consumer_id="cache",
            function=self._observe,
            start=Start.BEGINNING,
            reconcile=self._reconcile,
            transactional=transactional,
        )
        stage.watches.append(self._watch)

    def polls(self, times: int = 1) -> Play:
        """Return who polls so many times."""

        def play(store: TenantStore, runtime: Runtime) -> None:
            for _ in range(times):
                self.reports.append(observe_lifecycle(store, runtime, self.observer))

        return play

    def rest(self) -> None:
        """Poll until nothing is left to do, over every wait; then everything must have been told, or accounted for."""
        stage = self.stage
        stage.store.consumers.set_paused(None, paused=False)
        for _ in range(40):
            # A lease of who has died runs out, so does whatever wait was noted.
            stage.harness.advance(timedelta(minutes=16))
            if observe_lifecycle(stage.store, stage.runtime(), self.observer).poll is Poll.IDLE:
                break
        else:
            raise AssertionError("there is no rest")
        self.require_no_skip()

    def require_no_skip(self) -> None:
        """Every number was told, superseded, parked, or lies below a head that was reconciled or skipped to."""
        audited = self.stage.read("run_audit")
        passed = {one for row in audited for one in str(row["detail"].get("event_ids", "")).split(",")}
        heads = [row["detail"]["head"] for row in audited if "head" in row["detail"]]
        parked = {letter["event_id"] for letter in self.stage.read("lifecycle_dead_letters")}
        told = {call.event_id for call in self.called if call.ended}
        for event in self.stage.read("lifecycle_outbox"):
            seen = event["event_id"] in told | passed | parked or event["sequence"] <= max(heads, default=0)
            assert seen, f"{event['event_id']} was skipped: told {told}, passed {passed}, heads {heads}"
        head = self.stage.store.stream.head()
        cursor = (self.stage.database.get("lifecycle_consumer_cursors", KEY) or {}).get("last_acked_sequence")
        assert cursor == head, f"the cursor is {cursor}, the head {head}"

    def require_repeats(self, allowed: int = 0) -> None:
        """No event was told more often than once, and once for each thing that went wrong."""
        scheduler = self.stage.scheduler
        most = 1 + allowed + len(scheduler.dead) + scheduler.faults + scheduler.passed // timedelta(seconds=15)
        for event_id in {call.event_id for call in self.called}:
            times = sum(call.event_id == event_id for call in self.called)
            assert times <= most, f"{event_id} was told {times} times, at most {most}"

    def require_live(self) -> None:
        """What it holds is what is live."""
        live = {card.card_id for card in self.stage.store.cards.live()}
        assert self.cards == live, f"it holds {self.cards}, live are {live}"

    def _observe(self, told: Observation) -> None:
        me, event = self.stage.scheduler.current, told.event
        name = me.process if me else "rest"
        row = self.stage.database.get("lifecycle_consumer_cursors", KEY) or {}
        if me and self._strict and not self._holds(row, name):
            self.stage.scheduler.violate(f"{name} observes {event.event_id} without the lease: {row}")
        if me and self._strict and not told.replayed and event.sequence <= (row["last_acked_sequence"] or 0):
            self.stage.scheduler.violate(f"{name} observes {event.event_id}, which is acknowledged: {row}")
        card = self.stage.database.get("board_cards", f"{ACME}|{event.task_id}") or {}
        if told.transaction is None and event.event_type == "task:deleted" and card["deleted_at"] != event.deleted_at:
            self.stage.scheduler.violate(f"{event.event_id} is given, and its card is restored: {card}")
        number = len(self.called)
        self.called.append(Called(name, event.sequence, event.event_id, ended=False))
        self.stage.scheduler.pause("observer")
        if told.transaction is not None:
            told.transaction.append(type="seen", data={"of": event.event_id})
        if event.task_id in self.fails:
            raise ValueError("told not to")
        (self.cards.discard if event.event_type == "task:deleted" else self.cards.add)(event.task_id)
        self.called[number] = replace(self.called[number], ended=True)

    def _holds(self, row: Document, name: str) -> bool:
        until = row.get("lease_until")
        return row.get("lease_owner") == f"{name}:1" and until is not None and until > self.stage.harness.now()

    def _reconcile(self, given: Reconciliation) -> None:
        self.stage.tell(f"reconciles: {given.why}")
        self.stage.scheduler.pause("reconcile")
        self.cards = {card.card_id for card in given.cards}

    def _watch(self) -> None:
        row = self.stage.database.get("lifecycle_consumer_cursors", KEY) or {}
        old, self._before = self._before, row
        if row is old or not old:
            return
        me = self.stage.scheduler.current
        moved = row["last_acked_sequence"] != old["last_acked_sequence"]
        if me and self._strict and moved and old["lease_owner"] != f"{me.process}:1":
            self.stage.scheduler.violate(f"{me.process} moves the cursor without the lease: {old}, {row}")
        again = old["retired_at"] is not None and row["retired_at"] is None
        if row["fence"] < old["fence"]:
            self.stage.scheduler.violate(f"the fence goes back: {old}, {row}")
        if (row["last_acked_sequence"] or 0) < (old["last_acked_sequence"] or 0) and not again:
            self.stage.scheduler.violate(f"the cursor goes back: {old}, {row}")
        if old["retired_at"] and moved and not again:
            self.stage.scheduler.violate(f"a retired consumer acknowledges: {old}, {row}")


def whole_stream(stage: Stage) -> None:
    """Watch that committed numbers have no holes but below a floor, and that their last is the head (L04)."""

    def watch() -> None:
        numbers = sorted(row["sequence"] for row in stage.read("lifecycle_outbox"))
        head = (stage.database.get("lifecycle_sequences", ACME) or {}).get("last_sequence", 0)
        if numbers and numbers != list(range(numbers[0], head + 1)):
            stage.scheduler.violate(f"{numbers} up to {head} have holes")

    stage.watches.append(watch)


def deleted(stage: Stage, *card_ids: str, live: tuple[str, ...] = (), register: bool = True) -> None:
    """Have a registered consumer, and cards that were deleted after that, before anybody plays."""

    def prepare(first: Stage) -> None:
        put_cards(first.store, *card_ids, *live)
        if register:
            first.store.consumers.register("cache", Start.BEGINNING, "test")
        delete(first.store, first.runtime(), *card_ids)

    stage.at_first(prepare)


def deletes(*card_ids: str) -> Play:
    """Return who deletes cards."""
    return lambda store, runtime: delete(store, runtime, *card_ids)


def asks(call: Callable[[Any], object]) -> Play:
    """Return an operator who does something to the consumers."""
    return lambda store, _: call(store.consumers)


@consumer_cast(Budget(waits=0, times=(CONSUMER_LEASE,)), most=300)
def two_pollers_of_one_consumer(stage: Stage) -> Judge:
    """One works; where its lease runs out the other goes on; the late acknowledgement is refused (L05, L06, L07)."""
    deleted(stage, "c1", "c2")
    view = View(stage, "c1", "c2")
    stage.actor("worker-1", view.polls(2), skew=AN_HOUR, rate=1.001)
    stage.actor("worker-2", view.polls(2), skew=-AN_HOUR, rate=0.999)

    def judge() -> None:
        view.rest()
        view.require_repeats()
        view.require_live()

    return judge


@consumer_cast(Budget(waits=1, times=(CONSUMER_BEAT,) * 3))
def a_long_observation_its_heart_and_another_poller(stage: Stage) -> Judge:
    """The heart renews while an observer works; stalled beyond the lease, the consumer is another's (L07)."""
    deleted(stage, "c1", "c2")
    view = View(stage, "c1", "c2")
    stage.actor("worker-1", view.polls(), skew=AN_HOUR)
    stage.actor("worker-2", view.polls())

    def judge() -> None:
        view.rest()
        view.require_repeats()

    return judge


@consumer_cast(Budget(waits=1, times=(LEASE,)), transient=True)
def two_pollers_of_a_transactional_consumer(stage: Stage) -> Judge:
    """Its writes and the cursor commit together: each event happens once, whoever stalls where (L06)."""
    deleted(stage, "c1", "c2")
    view = View(stage, transactional=True, strict=False)
    stage.actor("worker-1", view.polls(2), skew=AN_HOUR)
    stage.actor("worker-2", view.polls(2), skew=-AN_HOUR)

    def judge() -> None:
        view.rest()
        seen = [event["data"]["of"] for event in stage.read("board_events") if event.get("type") == "seen"]
        assert sorted(seen) == sorted(event["event_id"] for event in stage.read("lifecycle_outbox")), seen

    return judge


@consumer_cast(Budget(waits=0, times=(CONSUMER_LEASE,)), transient=True)
def a_poller_a_retirement_and_a_return(stage: Stage) -> Judge:
    """A retired consumer acknowledges nothing; registered again it reconciles first (L14)."""
    deleted(stage, "c1", "c2", live=("c3",))
    view = View(stage, "c1", "c2", "c3", strict=False)

    def leave(store: TenantStore, _: Runtime) -> None:
        store.consumers.retire("cache", "ann", "")
        store.consumers.register("cache", Start.BEGINNING, "ann")

    stage.actor("worker", view.polls(2))
    stage.actor("person", leave)

    def judge() -> None:
        store = stage.store
        if stage.scheduler.dead or stage.scheduler.faults:
            store.consumers.register("cache", Start.BEGINNING, "ann")
        view.rest()
        returned = sum("consumer-registered" in row["code"] for row in stage.read("run_audit")) > 1
        assert (not returned) or any("reconciles: it was told to" in told for told in stage.told)
        view.require_live()

    return judge


@consumer_cast(Budget(waits=1), transient=True)
def two_deleters_of_one_card_and_a_poller(stage: Stage) -> Judge:
    """One event, one audit row, at most one notice, and both are told the same time (L01, L02)."""
    deleted(stage, live=("c1",))
    whole_stream(stage)
    view = View(stage, "c1")
    told: list[datetime | None] = []
    notices: list[LifecycleEvent] = []

    class Outlets(NoOutlets):
        def committed(self, event: LifecycleEvent) -> None:
            notices.append(event)

    def delete_it(store: TenantStore, runtime: Runtime) -> None:
        stage.unclear.add("c1")
        changed = delete_card(store, replace(runtime, outlets=Outlets()), "c1", Cause())
        told.append(changed.card.deleted_at)

    stage.actor("writer-1", delete_it)
    stage.actor("writer-2", delete_it, skew=AN_HOUR)
    stage.actor("worker", view.polls())

    def judge() -> None:
        if stage.scheduler.undisturbed or told:
            (event,) = stage.read("lifecycle_outbox")
            assert {event["deleted_at"]} == set(told)
        events = stage.read("lifecycle_outbox")
        assert len(events) == sum(row["code"] == "task:deleted" for row in stage.read("run_audit")) <= 1
        assert len(notices) <= len(events)
        assert len(notices) == len(events) or not stage.scheduler.undisturbed
        view.rest()
        view.require_live()

    return judge


@consumer_cast(Budget(waits=1), transient=True)
def two_deleters_of_two_cards_and_a_poller(stage: Stage) -> Judge:
    """Numbers are in the order of commits, without holes; no poll takes one that is to come for gone (L04, L12)."""
    deleted(stage, live=("c1", "c2"))
    whole_stream(stage)
    view = View(stage, "c1", "c2")
    stage.actor("writer-1", deletes("c1"))
    stage.actor("writer-2", deletes("c2"))
    stage.actor("worker", view.polls(2))

    def judge() -> None:
        view.rest()
        view.require_live()
        assert not stage.told, "a false reconciliation"

    return judge


@consumer_cast(Budget(waits=0), transient=True, most=250)
def events_commit_while_a_poll_reads(stage: Stage) -> Judge:
    """Between the head and the rows, in the second reading as well: no number that is new passes for one gone (L12)."""
    stage.at_first(lambda first: first.store.consumers.register("cache", Start.BEGINNING, "test"))
    stage.at_first(lambda first: tell_many(first.store, 1))
    whole_stream(stage)
    view = View(stage)
    stage.actor("worker", view.polls())
    stage.actor("writer", lambda store, _: tell_many(store, 2, first=2))

    def judge() -> None:
        view.rest()
        assert not stage.told, f"a false reconciliation: {stage.told}"

    return judge


@consumer_cast(Budget(waits=0), transient=True)
def a_delete_its_restore_and_a_poller(stage: Stage) -> Judge:
    """A deletion that is undone when its turn comes is passed, recorded; the restore is observed (L18)."""
    deleted(stage, live=("c1",))
    whole_stream(stage)
    view = View(stage, "c1")

    def change(store: TenantStore, runtime: Runtime) -> None:
        delete(store, runtime, "c1")
        restore(store, runtime, "c1")

    stage.actor("writer", change)
    stage.actor("worker", view.polls(2))

    def judge() -> None:
        view.rest()
        view.require_live()
        restored = [row["event_id"] for row in stage.read("lifecycle_outbox") if row["event_type"] == "task:restored"]
        assert {call.event_id for call in view.called if call.ended} >= set(restored)
        assert not stage.told

    return judge


def _aged(stage: Stage) -> None:
    stage.at_first(lambda first: first.harness.advance(RETENTION))


def _prunes(stage: Stage) -> None:
    stage.actor("prune", lambda _, runtime: prune_lifecycle(stage.stores["prune"], runtime))


@consumer_cast(Budget(waits=0), transient=True)
def a_registration_races_a_prune(stage: Stage) -> Judge:
    """Pruned whole, in part, or not at all: it reconciles, or is told everything (L12, L13)."""
    deleted(stage, "c1", "c2", live=("c3",), register=False)
    _aged(stage)
    view = View(stage, "c1", "c2", "c3")

    def join(store: TenantStore, runtime: Runtime) -> None:
        store.consumers.register("cache", Start.BEGINNING, "ann")
        view.polls(2)(store, runtime)

    stage.actor("newcomer", join)
    _prunes(stage)

    def judge() -> None:
        stage.store.consumers.register("cache", Start.BEGINNING, "ann")
        view.rest()
        view.require_live()

    return judge


@consumer_cast(Budget(waits=0), transient=True)
def a_prune_and_a_delete_race_a_poll(stage: Stage) -> Judge:
    """A prune that runs while a poll reads gives neither a false reconciliation nor a skip (L12, L13)."""
    deleted(stage, "c1", "c2", live=("c3",))
    view = View(stage, "c1", "c2", "c3")
    stage.at_first(lambda first: View(first).polls()(first.store, first.runtime()))
    _aged(stage)
    whole_stream(stage)
    view.cards = {"c3"}
    stage.actor("worker", view.polls(2))
    _prunes(stage)
    stage.actor("writer", deletes("c3"))

    def judge() -> None:
        view.rest()
        view.require_live()
        assert not stage.told, f"a false reconciliation: {stage.told}"

    return judge


@consumer_cast(Budget(waits=0), transient=True)
def a_prune_races_who_is_half_way(stage: Stage) -> Judge:
    """Nothing that a consumer has not acknowledged goes, however its cursor moves meanwhile (L13)."""
    deleted(stage, "c1", "c2", "c3")
    _aged(stage)
    view = View(stage, "c1", "c2", "c3")
    stage.actor("worker", view.polls(2))
    _prunes(stage)

    def kept() -> None:
        row = stage.database.get("lifecycle_consumer_cursors", KEY) or {}
        numbers = {one["sequence"] for one in stage.read("lifecycle_outbox")}
        waited_for = set(range((row.get("last_acked_sequence") or 0) + 1, 4))
        if not waited_for <= numbers:
            stage.scheduler.violate(f"{waited_for - numbers} is gone, and not acknowledged: {row}")

    stage.watches.append(kept)

    def judge() -> None:
        view.rest()
        view.require_repeats()
        view.require_live()
        assert not stage.told

    return judge


@consumer_cast(Budget(waits=0, times=(CONSUMER_LEASE,)), transient=True)
def a_replay_races_a_resolution_and_two_pollers(stage: Stage) -> Judge:
    """A letter is observed again alone, once for each request, and what settled it first stays (L11)."""
    return _replayed(stage)


@consumer_cast(Budget(waits=0), transient=True)
def a_replay_that_fails_races_a_resolution(stage: Stage) -> Judge:
    """It puts the letter back where it waits for its replay, and leaves what an operator has resolved (L11)."""
    return _replayed(stage, "c1")


def _replayed(stage: Stage, *fails: str) -> Judge:
    def park(first: Stage) -> None:
        deleted_before(first)
        consumers = first.store.consumers
        taken = consumers.lease("cache", "first:1", timedelta(seconds=15))
        assert taken is not None
        (entry, _) = first.store.stream.read_after(0, 10).entries
        assert consumers.park(taken, entry, read=None, attempts=10, failure_class="ValueError")
        assert consumers.rest(taken, idle=False, delay=timedelta(0))

    def deleted_before(first: Stage) -> None:
        put_cards(first.store, "c1", "c2")
        first.store.consumers.register("cache", Start.BEGINNING, "test")
        delete(first.store, first.runtime(), "c1", "c2")

    stage.at_first(park)
    view = View(stage, "c1", "c2")
    view.fails = set(fails)
    asked: list[bool] = []

    def letter() -> Document:
        (found,) = stage.read("lifecycle_dead_letters")
        return found

    def settled() -> None:
        for found in stage.read("lifecycle_dead_letters"):
            if stage.told[-1:] == ["resolved"] and found["state"] != "resolved":
                stage.scheduler.violate(f"what was resolved is open again: {found}")
            if found["state"] == "resolved" and stage.told[-1:] != ["resolved"]:
                stage.tell("resolved")

    stage.watches.append(settled)

    def ask(store: TenantStore, _: Runtime) -> None:
        event_id = letter()["event_id"]
        asked.append(store.consumers.ask_replay("cache", event_id, "ann", ""))
        asked.append(store.consumers.resolve("cache", event_id, "ann", ""))

    stage.actor("worker-1", view.polls())
    stage.actor("person", ask)
    stage.actor("worker-2", view.polls(), skew=AN_HOUR)

    def judge() -> None:
        view.rest()
        event_id = letter()["event_id"]
        times = sum(call.event_id == event_id for call in view.called)
        scheduler = stage.scheduler
        disturbed = len(scheduler.dead) + scheduler.faults + scheduler.passed // timedelta(seconds=15)
        assert times <= 1 + disturbed, f"observed again {times} times"
        assert letter()["state"] == "resolved" or scheduler.dead or scheduler.faults
        view.require_repeats()

    return judge


def _intervened(stage: Stage, call: Callable[[Any], object], *, reconciles: bool) -> Judge:
    deleted(stage, "c1", "c2", live=("c3",))
    if reconciles:
        # It is at one already when it is asked for another.
        stage.at_first(lambda first: first.store.consumers.require_reconcile("cache", "ann", ""))
    view = View(stage, "c1", "c2", "c3", strict=False)

    def intervene(store: TenantStore, runtime: Runtime) -> None:
        asks(call)(store, runtime)
        stage.tell("answered")

    stage.actor("worker", view.polls(2))
    stage.actor("person", intervene)
    stage.actor("writer", deletes("c3"))

    def judge() -> None:
        view.rest()
        view.require_repeats(1)
        if reconciles:
            view.require_live()
            after = stage.told[stage.told.index("answered") :] if "answered" in stage.told else ["reconciles"]
            assert any("reconciles" in told for told in after), f"asked to, and it did not: {stage.told}"

    return judge


@consumer_cast(Budget(waits=0), transient=True)
def a_request_to_reconcile_races_a_poll_and_a_delete(stage: Stage) -> Judge:
    """Whoever is at work loses its lease; a reconciliation that began before does not count as this one (L12)."""
    return _intervened(stage, lambda consumers: consumers.require_reconcile("cache", "ann", ""), reconciles=True)


@consumer_cast(Budget(waits=0), transient=True)
def a_skip_races_a_poll_and_a_delete(stage: Stage) -> Judge:
    """The cursor goes to the head that the operator was told, never back, and what comes after is told (L12)."""
    return _intervened(stage, lambda consumers: consumers.skip("cache", "ann", ""), reconciles=False)


@consumer_cast(Budget(waits=0), transient=True)
def a_pause_and_a_resume_race_a_poll_and_a_delete(stage: Stage) -> Judge:
    """It goes on in its place: nothing is told twice, nothing is left out, nothing is reconciled (L15)."""
    deleted(stage, "c1", "c2", live=("c3",))
    view = View(stage, "c1", "c2", "c3")

    def switch(store: TenantStore, _: Runtime) -> None:
        store.consumers.set_paused(["cache"], paused=True)
        store.consumers.set_paused(None, paused=False)

    stage.actor("worker", view.polls(2))
    stage.actor("person", switch)
    stage.actor("writer", deletes("c3"))

    def judge() -> None:
        view.rest()
        view.require_repeats()
        view.require_live()
        assert not stage.told

    return judge


@consumer_cast(Budget(waits=0), transient=True)
def a_reconciliation_races_a_delete_and_a_restore(stage: Stage) -> Judge:
    """New, and it starts at the latest: what commits while it reconciles is delivered after that (L05, L12)."""

    def prepare(first: Stage) -> None:
        put_cards(first.store, "c1", "c2")
        delete(first.store, first.runtime(), "c1")

    stage.at_first(prepare)
    view = View(stage)

    def join(store: TenantStore, runtime: Runtime) -> None:
        store.consumers.register("cache", Start.LATEST, "ann")
        view.polls(2)(store, runtime)

    stage.actor("newcomer", join)
    stage.actor("writer-1", deletes("c2"))
    stage.actor("writer-2", lambda store, runtime: restore(store, runtime, "c1"))

    def judge() -> None:
        stage.store.consumers.register("cache", Start.LATEST, "ann")
        view.rest()
        view.require_live()
        assert any("reconciles" in told for told in stage.told)

    return judge
