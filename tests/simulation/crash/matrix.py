"""Every point of every play, in every mode: struck, taken over, brought to rest, judged."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from pymongo.write_concern import WriteConcern

from outbox_core.domain.errors import OutboxError
from tests.harness.faults import Death, Fault, When
from tests.harness.twin import TwinHarness
from tests.simulation.crash.every_play import PLAYS
from tests.simulation.crash.plays import MEMORY, MONGO, Play
from tests.simulation.crash.scene import RUN, Scene
from tests.simulation.crash.watching import CURSORS, OBSERVE, REBUILD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.ports.transactions import Transaction
    from tests.harness.on_mongo import MongoHarness
    from tests.oracle import Figures

LEASE = timedelta(seconds=61)
_TEMPLATE = "TEMPLATE"

READS = frozenset(
    {
        "log.find",
        "log.get",
        "log.read_after",
        "log.head",
        "log.horizon",
        "effects.check",
        "effects.finished_runs",
        "effects.is_due",
        "effects.next_due",
        "effects.get",
        "effects.list",
        "effects.newest",
        "effects.counts",
        "subscriptions.enabled",
        "subscriptions.all",
        "subscriptions.get",
        "boards.get",
        "boards.all",
        "boards.bindings",
        "cards.standing",
        "cards.get",
        "cards.linked",
        "cards.in_column",
        "cards.listed",
        "cards.deletions",
        "cards.live",
        "stream.head",
        "stream.read_after",
        "stream.floor",
        "consumers.look",
        "consumers.all",
        "consumers.letters",
        "consumers.letter",
        "consumers.lags",
        "consumers.oldest_unacknowledged",
        "audit.rows",
        "maintenance.lifecycle_tenants",
        "maintenance.now",
        "maintenance.undrained_tenants",
        "maintenance.due_tenants",
        "maintenance.lagging_tenants",
        "maintenance.pending_schema",
    }
)
"""The calls that write nothing. Any other call of a port writes, a new one included, until it is named here."""


class Mode(Enum):
    """What becomes of the one who is struck, and when the second one comes."""

    ALONE = "dies; another comes when all is over"
    BESIDE = "stands still while another comes to rest, then dies"
    STALLED = "stands still while another comes to rest, then goes on"
    FENCED = "stands still while another claims what it held, then goes on before the other does"


_STALE, _WAKING = (When.AFTER, Mode.STALLED), (When.BEFORE, Mode.STALLED)
_TELLING = ((When.AFTER, Mode.ALONE), _WAKING, (When.AFTER, Mode.BESIDE), _STALE)
_TELLING_OF_SLICES = (*_TELLING, (When.BEFORE, Mode.FENCED))
_PATIENCE = 60.0
_OF_EVERY_USE = {
    "slots.take",
    "slots.give_back",
    "subscriptions.get",
    "log.get",
    "consumers.look",
    "consumers.lease",
    "consumers.letters",
    "consumers.rest",
    "stream.read_after",
}
_FOREIGN = {RUN, OBSERVE, REBUILD}
_STRUCK_BY_EFFECTS = {"log", "progress", "slots", "effects", "subscriptions", "boards"}
"""The ports that the plays of effects are about."""


@dataclass(frozen=True, slots=True)
class Point:
    """The `number`th call of a play, whose name is `call`."""

    number: int
    call: str
    when: When
    mode: Mode

    def __str__(self) -> str:
        return f"{self.when.value} call {self.number}, {self.call}, of one who {self.mode.value}"


class TwinStage:
    """Prepares each play once, and gives each scene a twin of its own that holds what that left."""

    name = MEMORY

    def __init__(self) -> None:
        self._prepared: dict[str, Scene] = {}

    def scene(self, play: Play) -> Scene:
        if play.name not in self._prepared:
            self._prepared[play.name] = Scene(TwinHarness(), play, "t")
            play.prepare(self._prepared[play.name])
        prepared = self._prepared[play.name]
        twin = TwinHarness(entropy=prepared.harness.entropy)
        twin.advance(prepared.harness.now() - twin.now())
        kept = prepared.harness._twin.database._tables  # type: ignore[attr-defined] # the twin's own
        # A stored document is never changed in place: a copy of the tables is a copy of all.
        twin._twin.database._tables.update({name: dict(table) for name, table in kept.items()})
        return prepared.again(twin, "t")

    def abort(self, transaction: Transaction) -> None:
        """End an open transaction, as a server does that has not heard of it for long."""
        transaction.undo()  # type: ignore[attr-defined] # the twin's own


class MongoStage:
    """Prepares each play once, and gives each scene a copy of what that left, as a tenant of its own."""

    name = MONGO

    def __init__(self, harness: MongoHarness) -> None:
        self.harness = harness
        self._prepared: dict[str, tuple[Scene, dict[str, list[dict[str, Any]]]]] = {}
        self._scenes = 0

    def scene(self, play: Play) -> Scene:
        if play.name not in self._prepared:
            self._prepared[play.name] = self._prepare(play)
        prepared, documents = self._prepared[play.name]
        self._scenes += 1
        scene = prepared.again(self.harness, f"t{self._scenes}")
        for number, (collection, found) in enumerate(documents.items()):
            # The last one waits for the journal, and all before it are then there as well.
            concern = WriteConcern("majority" if number == len(documents) - 1 else 1)
            copies = [_renamed(document, scene.tenant) for document in found]
            self.harness.database.get_collection(collection, write_concern=concern).insert_many(copies)
        if play.by_ticks:
            self.harness.database["ticks"].delete_many({})
            # The ticks walk over all tenants: those of the scenes before would make each play another one.
            for collection in ("lifecycle_sequences", CURSORS):
                self.harness.database[collection].delete_many({"tenant_id": {"$ne": scene.tenant}})
        return scene

    def abort(self, transaction: Transaction) -> None:
        """End an open transaction, as a server does that has not heard of it for long."""
        self.harness.database.client.admin.command("killSessions", [transaction.session.session_id])

    def _prepare(self, play: Play) -> tuple[Scene, dict[str, list[dict[str, Any]]]]:
        scene = Scene(self.harness, play, _TEMPLATE)
        play.prepare(scene)
        documents = {}
        for collection in self.harness.database.list_collection_names():
            if found := self.harness.raw(collection, tenant_id=_TEMPLATE):
                documents[collection] = found
                # Left there, it would be found by the ticks of others.
                self.harness.database[collection].delete_many({"tenant_id": _TEMPLATE})
        return scene, documents


def _renamed(document: dict[str, Any], tenant: str) -> dict[str, Any]:
    renamed = {**document, "_id": document["_id"].replace(_TEMPLATE, tenant), "tenant_id": tenant}
    if isinstance(copy := document.get("event"), dict):
        renamed["event"] = {**copy, "tenant_id": tenant}
    return renamed


Stage = TwinStage | MongoStage


@dataclass(slots=True)
class Covered:
    """What points came to: how many of each mode, the calls that were struck, where something was repeated."""

    points: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    executions: int = 0

    def add(self, point: Point, figures: Figures) -> None:
        """Count one point."""
        self.points[point.mode.name.lower()] += 1
        self.struck[point.call] += 1
        self.executions += figures.executions
        if figures.repeats:
            self.repeated[f"{point.when.value} {point.call}"] += 1

    def __iadd__(self, other: Covered) -> Self:
        self.points += other.points
        self.struck += other.struck
        self.repeated += other.repeated
        self.executions += other.executions
        return self

    def __str__(self) -> str:
        modes = ", ".join(f"{mode} {count}" for mode, count in sorted(self.points.items()))
        return (
            f"{self.points.total()} points ({modes}), {len(self.struck)} calls struck, {self.executions} executions, "
            f"{self.repeated.total()} points with a repeat that may be"
        )


def points_of(stage: Stage, play: Play) -> list[Point]:
    """Play once without a fault, to its rest, and return where it can be struck."""
    scene = stage.scene(play)
    first = scene.actor("first")
    with deaths_of_threads_pass():
        first.act()
    calls = list(first.faulty.calls)
    _to_rest(scene)
    figures = scene.require_rest(f"{play.name}, unstruck")
    if figures.repeats:
        raise AssertionError(f"{play.name}: unstruck, it repeats")
    modes = [mode for mode in Mode if play.claims or mode is not Mode.FENCED]
    return [Point(number, call, when, mode) for number, call in enumerate(calls, 1) for when in When for mode in modes]


def chosen(play: Play, points: list[Point]) -> list[Point]:
    """Return the points that tell the most of each call of a play, by turns, for a store that takes its time.

    A death before a call is one after the call before it, and who goes on with what was read tells of a read. What
    nearly every play does is struck in every sixth, and in the ticks'.
    """
    first: dict[str, int] = {}
    for point in points:
        first.setdefault(point.call, point.number)
    sides = _TELLING_OF_SLICES if play.claims else _TELLING
    wanted: set[tuple[int, When, Mode]] = set()
    for turn, (name, number) in enumerate(first.items(), PLAYS.index(play)):
        if name in _OF_EVERY_USE and (play.flag_lost or not play.by_ticks) and turn % 6:
            continue
        if play.watchers is not None and name.partition(".")[0] in _STRUCK_BY_EFFECTS:
            continue
        wanted.add((number, *(_STALE if name in READS else sides[turn % len(sides)])))
        if name in _FOREIGN:
            wanted.add((number, *_WAKING))
    return [point for point in points if (point.number, point.when, point.mode) in wanted]


def strike(stage: Stage, play: Play, point: Point) -> Figures:
    """Strike one point, let the tenant come to rest, and judge it."""
    where = f"{stage.name}, {play.name}, {point}"
    scene = stage.scene(play)
    struck = _Struck(stage, scene, point, where)
    with deaths_of_threads_pass():
        if point.mode is Mode.FENCED:
            struck.act_beside_a_holder()
        else:
            struck.act()
    struck.require_struck()
    scene.require_progress(f"{where}, after it")
    _to_rest(scene, sent_again=play.must_be_sent)
    return scene.require_rest(where)


class _Struck:
    """The first actor of a scene, and what happens while it stands still at its point."""

    def __init__(self, stage: Stage, scene: Scene, point: Point, where: str) -> None:
        self._stage = stage
        self._scene = scene
        self._point = point
        self._where = where
        self._stands_still, self._goes_on = threading.Event(), threading.Event()
        dies = point.mode in {Mode.ALONE, Mode.BESIDE}
        fault = Fault(point.number, point.when, Death if dies else None, then=self._stand_still)
        self._first = scene.actor("first", fault)
        # One who was stalled may be told that its transaction is gone: its caller then knows nothing.
        self._unclear: tuple[type[BaseException], ...] = (Death,) if dies else (Death, OutboxError)

    def act(self) -> None:
        with suppress(*self._unclear):
            self._first.act()

    def act_beside_a_holder(self) -> None:
        """Let the first one go on once the second has claimed, and the second only when the first has ended."""
        failures: list[BaseException] = []

        def act() -> None:
            try:
                self.act()
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
                failures.append(error)
            finally:
                self._stands_still.set()

        thread = threading.Thread(target=act, name="first")
        thread.start()
        if not self._stands_still.wait(_PATIENCE):
            raise AssertionError(f"{self._where}: it does not come to its point")

        def let_the_first_end() -> None:
            before = self._held_by("second")
            self._goes_on.set()
            thread.join(_PATIENCE)
            if (after := self._held_by("second")) != before:
                raise AssertionError(f"{self._where}: its late writes changed what another holds: {before} {after}")

        # It holds what it claimed; from here on it knows no more than that.
        fault = Fault(self._scene.play.claims, When.AFTER, None, then=let_the_first_end)
        try:
            self._scene.lapse()
            self._scene.actor("second", fault).act()
        finally:
            self._goes_on.set()
            thread.join(_PATIENCE)
        for failure in failures:
            raise failure

    def require_struck(self) -> None:
        faulty, point = self._first.faulty, self._point
        if not faulty.struck or faulty.calls[point.number - 1] != point.call:
            raise AssertionError(f"{self._where}: the play is not the same each time: {faulty.calls}")

    def _stand_still(self) -> None:
        scene, first, mode = self._scene, self._first, self._point.mode
        scene.may_repeat |= first.unsettled()
        scene.journal.may_repeat |= first.observers.unacknowledged()
        scene.require_progress(f"{self._where}, when it was struck")
        if mode is Mode.ALONE:
            return
        if mode in {Mode.STALLED, Mode.FENCED}:
            scene.woke = True
            scene.may_repeat |= first.in_hand()
            scene.journal.may_repeat |= first.observers.in_hand()
        for transaction in first.faulty.open:
            self._stage.abort(transaction)
        if mode is Mode.FENCED:
            self._stands_still.set()
            self._goes_on.wait(_PATIENCE)
        elif scene.play.meanwhile is not None:
            scene.play.meanwhile(scene, scene.actor("second"))
        else:
            _to_rest(scene, sent_again=scene.play.sent_again)
        scene.sight()
        first.clock.advance(LEASE)

    def _held_by(self, actor: str) -> list[list[dict[str, Any]]]:
        """Return the rows that an actor has claimed and not settled, its consumers and all that is told of them.

        And all cards. What a run came to may be noted down late, until the newer claim has a run of its own.
        """
        rows = self._scene.raw("trigger_effects")
        held = [row for row in rows if (row["state"], row.get("claimed_by")) == ("claimed", actor)]
        leased = [row for row in self._scene.raw(CURSORS) if row["lease_owner"].startswith(f"{actor}:")]
        told = [self._scene.raw(name) for name in ("lifecycle_dead_letters", "run_audit") if leased]
        return [held, leased, *told, self._scene.raw("board_cards")]


def _to_rest(scene: Scene, *, sent_again: bool = False) -> None:
    """Let another one do what is left, once all that it would wait for is over."""
    second = scene.actor("second")
    scene.lapse()
    if sent_again:
        second.act()
    if scene.play.finish is not None and not scene.finished:
        scene.finished = True
        scene.play.finish(scene, second)
    second.to_rest()


@contextmanager
def deaths_of_threads_pass() -> Iterator[None]:
    """Let a thread of a process that dies end without a word, as it does."""
    before = threading.excepthook

    def pass_over(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, Death):
            before(args)

    threading.excepthook = pass_over
    try:
        yield
    finally:
        threading.excepthook = before
