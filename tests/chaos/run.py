"""One run: start all, write, throw the plan's faults, heal, come to rest, judge."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.domain.limits import TRANSACTIONAL_MARGIN
from outbox_core.embedded import EmbeddedRedis
from tests.acceptance.stack import children, running_stack
from tests.chaos.calls import Struck
from tests.chaos.faults import THROW, heal
from tests.chaos.findings import Found, History, find
from tests.chaos.journal import TRANSACTIONAL_LIMIT
from tests.chaos.load import SHOPS, TENANTS, Journal, Producer, prepare
from tests.chaos.observed import cursors_of, head_of
from tests.chaos.plan import BEAT_LANES, DATABASE, WATCHER, WORKER_LANES, Fault, make_plan
from tests.chaos.world import PRODUCER, World, now
from tests.cluster.replica_set import ReplicaSet
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta
    from pathlib import Path

    from pymongo.database import Database

    from outbox_core.bootstrap import Outbox

MAX_ATTEMPTS = 20
"""So many that faults alone never park a row: a row that is parked here is a finding."""

SETTINGS = {
    "OUTBOX_BOTS": "tests.chaos.bots,tests.chaos.observers",
    "OUTBOX_MAX_EFFECT_ATTEMPTS": str(MAX_ATTEMPTS),
    "OUTBOX_DRAIN_TICK": "1s",
    "OUTBOX_SWEEP_TICK": "1s",
    "OUTBOX_REPAIR_TICK": "10s",
    "OUTBOX_BACKOFF_CAP": "4s",
    "OUTBOX_CONSUMER_LEASE": "6s",
    "OUTBOX_CONSUMER_POLL": "1s",
    "OUTBOX_CONSUMER_IDLE_STEP": "500ms",
    "OUTBOX_CONSUMER_IDLE_CAP": "3s",
}
PACE_S = 0.4
FENCED_LINE = "was claimed by another worker"
STANDSTILL_LEASES = 3
"""For how many of the longest leases nothing may come to its end once all is healed: one for who died last, one for who
died of it, one for hints, ticks and slots. How long what has gathered takes is a matter of the machine."""

_REST_WITHIN_S = 900.0
_ANSWERED_WITHIN_S = 60.0
_ALIVE_WITHIN_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to do."""

    seed: int
    duration: timedelta
    kinds: frozenset[str]
    writers: int
    folder: Path
    say: Callable[[str], None]


@dataclass(slots=True)
class Ledger:
    """What was thrown and what was found."""

    run: Run
    thrown: Counter[str] = field(default_factory=Counter)
    found: Found = field(default_factory=Found)
    deaths: int = 0
    ended_by_themselves: list[str] = field(default_factory=list)
    fenced_out: int = 0
    repeats: int = 0
    longest_append_s: float = 0.0
    rest_s: float = 0.0
    standstill_s: float = 0.0
    standstill_bound_s: float = 0.0
    elapsed_s: float = 0.0
    troubles: list[str] = field(default_factory=list)
    """What kept the run from its end, or a process from its work."""

    @property
    def violations(self) -> list[str]:
        """Every broken promise, in one line each."""
        return [*self.troubles, *self.ended_by_themselves, *self.found.violations]


def run_chaos(run: Run) -> Ledger:
    """Do it all; whatever happens, no process is left behind."""
    begun = time.monotonic()
    with (
        ReplicaSet(run.folder / "mongo") as mongo,
        EmbeddedRedis(run.folder / "broker") as broker,
        pytest.MonkeyPatch.context() as patch,
        running_stack(
            run.folder, patch, mongo_url=mongo.url, broker_url=broker.url, database="chaos", **SETTINGS
        ) as stack,
    ):
        (run.folder / "seen").mkdir()
        # Its settings are the environment's, which is set only now.
        from tasks import outbox  # noqa: PLC0415

        world = World(stack, mongo, broker, [str(run.seed), str(PACE_S)])
        ledger = _Driver(run, world, outbox).drive()
        outbox.close()
    ledger.elapsed_s = time.monotonic() - begun
    return ledger


class _Driver:
    def __init__(self, run: Run, world: World, outbox: Outbox) -> None:
        self._run = run
        self._world = world
        self._outbox = outbox
        self._limits = outbox.settings.limits
        self._journal = Journal(run.folder)
        self._ledger = Ledger(run)
        self._struck: list[Struck] = []
        self._lock = threading.Lock()
        self._begun = 0.0
        with outbox.tenant(SHOPS[0]).transactions.begin() as transaction:
            self._database: Database[dict[str, Any]] = transaction.database

    def drive(self) -> Ledger:
        """Return the ledger; what goes wrong on the way is in it."""
        prepare(self._outbox)
        prepared = frozenset(event["event_id"] for event in self._database["board_events"].find({}, {"event_id": 1}))
        self._world.start()
        stop, writers, threads = self._start_writers()
        try:
            wait_until(self._world.watched.at_work, _ALIVE_WITHIN_S, "somebody is at work")
            self._throw_all()
            heal(self._world)
            healed_at = now()
            stop.set()
            self._await_answers(writers, threads)
            self._world.vacate_if_taken(PRODUCER)
            self._await_signs_of_life(healed_at)
            self._await_rest()
        finally:
            stop.set()
            for writer in writers:
                writer.give_up()
            self._world.stop_watch()
        self._ledger.repeats = sum(writer.repeats for writer in writers)
        self._ledger.longest_append_s = max(writer.longest_s for writer in writers)
        self._judge(prepared)
        return self._ledger

    def _start_writers(self) -> tuple[threading.Event, list[Producer], list[threading.Thread]]:
        stop, count = threading.Event(), self._run.writers
        writers = [Producer(self._outbox, self._journal, f"thread{n}", f"{self._run.seed}-{n}") for n in range(count)]
        for writer in (writers * 2)[:2]:
            writer.begin_slowly()
        threads = [threading.Thread(target=one.run, args=(stop, PACE_S), daemon=True) for one in writers]
        for thread in threads:
            thread.start()
        return stop, writers, threads

    def _throw_all(self) -> None:
        lease = self._limits.effect_lease
        plan = make_plan(self._run.seed, self._run.duration, lease, self._run.kinds)
        self._begun = time.monotonic()
        lanes = {fault.lane for fault in plan}
        threads = [
            threading.Thread(
                target=self._throw_lane, args=([fault for fault in plan if fault.lane == lane],), daemon=True
            )
            for lane in sorted(lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rest = self._run.duration.total_seconds() - (time.monotonic() - self._begun)
        time.sleep(max(0.0, rest))

    def _throw_lane(self, faults: Sequence[Fault]) -> None:
        """Throw a lane's faults, the rests between them as planned; what is late may leave none of its kinds out."""
        ends = self._begun + self._run.duration.total_seconds()
        late_s = 0.0
        for fault in faults:
            time.sleep(max(0.0, self._begun + fault.at.total_seconds() + late_s - time.monotonic()))
            if time.monotonic() > ends and self._ledger.thrown[fault.kind]:
                continue
            self._throw(fault)
            late_s = time.monotonic() - self._begun - (fault.at + fault.lasts).total_seconds()

    def _throw(self, fault: Fault) -> None:
        since = now()
        self._say(f"{fault.kind} begins, {fault.lane}")
        pids = self._pids(fault)
        try:
            what = THROW[fault.kind](self._world, fault)
        except Exception as error:  # noqa: BLE001 - a fault that cannot be thrown is a finding, and the others go on
            what = f"cannot be thrown or healed: {type(error).__name__}: {error}"
            self._ledger.troubles.append(f"{fault.kind} of {fault.lane} {what}")
        with self._lock:
            self._ledger.thrown[fault.kind] += 1
            if fault.lane in (*WORKER_LANES, WATCHER, *DATABASE):
                self._struck.append(Struck(since, now(), pids))
        self._say(f"{fault.kind} ended: {what}")

    def _pids(self, fault: Fault) -> frozenset[int] | None:
        if fault.lane not in (*WORKER_LANES, WATCHER):
            return None
        seated = self._world.seats[fault.lane].process
        return frozenset() if seated is None else frozenset({seated.pid, *children(seated)})

    def _say(self, said: str) -> None:
        self._run.say(f"{time.monotonic() - self._begun:7.1f} s  {said}")

    def _await_answers(self, writers: Sequence[Producer], threads: Sequence[threading.Thread]) -> None:
        deadline = time.monotonic() + _ANSWERED_WITHIN_S
        for writer, thread in zip(writers, threads, strict=True):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                writer.give_up()
                thread.join()
                self._ledger.troubles.append(f"an append is unanswered {_ANSWERED_WITHIN_S:g} s after all was healed")

    def _await_signs_of_life(self, healed_at: float) -> None:
        """Give every worker something to do, and see each of them do it, and each beat tick."""
        probe = Producer(self._outbox, self._journal, "probe", "probe")
        deadline = time.monotonic() + _ALIVE_WITHIN_S
        ticked = {name: self._ticks(name) for name in BEAT_LANES}
        while True:
            probe.probe()
            idle = [*self._idle(healed_at), *(name for name, before in ticked.items() if self._ticks(name) == before)]
            if not idle:
                return
            if time.monotonic() > deadline:
                self._ledger.troubles += [f"{name} runs, and does nothing any more" for name in idle]
                return
            time.sleep(0.5)

    def _ticks(self, beat: str) -> int:
        return self._world.seats[beat].alive.log.read_text("utf-8", "replace").count("Sending due task")

    def _idle(self, since: float) -> list[str]:
        at_work = {pid for phase, _, _, pid, at in self._world.watched.all() if phase == "start" and at > since}
        pools = {name: children(self._world.seats[name].alive) for name in WORKER_LANES}
        idle = [name for name, pids in pools.items() if not at_work.intersection(pids)]
        watcher = self._world.seats[WATCHER].alive.pid
        saw = any(pid == watcher and at > since for _, _, _, pid, at in self._world.observed.all())
        return idle if saw else [*idle, WATCHER]

    def _await_rest(self) -> None:
        longest = max(self._limits.effect_lease, TRANSACTIONAL_LIMIT + TRANSACTIONAL_MARGIN)
        bound = self._ledger.standstill_bound_s = STANDSTILL_LEASES * longest.total_seconds()
        begun = moved_at = time.monotonic()
        progress = -1
        while unrest := self._unrest():
            at = time.monotonic()
            if progress != (progress := self._progress()):
                moved_at = at
            if at - moved_at > bound or at - begun > _REST_WITHIN_S:
                self._ledger.troubles.append(
                    f"not at rest after {at - begun:.0f} s, {bound:g} s may pass idle: {unrest}"
                )
                break
            self._ledger.standstill_s = max(self._ledger.standstill_s, at - moved_at)
            time.sleep(0.25)
        self._ledger.rest_s = time.monotonic() - begun

    def _progress(self) -> int:
        """Return a number that grows with all that comes to its end."""
        settled = self._database["trigger_effects"].count_documents({"state": {"$in": ["done", "failed"]}})
        drained = sum(int(cursor["seq"]) for cursor in self._database["trigger_cursors"].find({}, {"seq": 1}))
        return settled + drained + sum(cursors_of(self._database).values())

    def _unrest(self) -> str:
        """Say what is still under way."""
        database = self._database
        live = database["trigger_effects"].count_documents({"state": {"$in": ["pending", "claimed"]}})
        behind = []
        for tenant in TENANTS:
            numbers = database["event_sequences"].find_one({"tenant_id": tenant}) or {}
            cursor = database["trigger_cursors"].find_one({"tenant_id": tenant}) or {}
            if numbers.get("undrained") or numbers.get("last_seq", 0) != cursor.get("seq", 0):
                behind.append(tenant)
        head = head_of(database)
        late = [name for name, cursor in cursors_of(database).items() if cursor != head]
        return ", ".join(
            [
                *([f"{live} rows live"] if live else []),
                *(f"{one} undrained" for one in behind),
                *(f"{one} observes still" for one in late),
            ]
        )

    def _judge(self, prepared: frozenset[str]) -> None:
        ledger, world = self._ledger, self._world
        ledger.deaths = sum(len(killed.pids) for killed in world.killed)
        ledger.ended_by_themselves = world.ended_by_themselves
        ledger.fenced_out = sum(log.read_text("utf-8", "replace").count(FENCED_LINE) for log in world.logs)
        ledger.found = find(
            self._database,
            History(
                told=self._journal.read(),
                prepared=prepared,
                lines=world.watched.all(),
                observed=world.observed.all(),
                killed=world.killed,
                struck=self._struck,
                max_attempts=MAX_ATTEMPTS,
                lease_s=self._limits.effect_lease.total_seconds(),
            ),
        )
