"""One schedule: every actor stops before each call of a port until the scheduler lets exactly it go on.

An actor is a thread; one baton goes round, so that no two run at once and the same choices give the same calls. The
heart of a slice becomes an actor of its own. Besides whose turn it is, a choice may be that time passes, that a process
dies, or that a call fails before or after it happened; a budget says how often.
"""

from __future__ import annotations

import _thread
import threading
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tests.harness.faults import Death, When

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from outbox_core.adapters.memory.clock import MemoryClock

READS = frozenset(
    {
        "log.find",
        "log.get",
        "log.read_after",
        "log.head",
        "log.horizon",
        "effects.finished_runs",
        "effects.is_due",
        "subscriptions.enabled",
        "subscriptions.get",
        "boards.bindings",
        "cards.standing",
        "cards.get",
        "cards.deletions",
        "cards.live",
        "consumers.look",
        "consumers.all",
        "consumers.letters",
        "consumers.letter",
        "stream.head",
        "stream.read_after",
        "stream.floor",
        "transactions.begin",
    }
)
"""Calls that change nothing, so that their failing after they happened is the same as before."""

_MOST_STEPS = 3_000


class Pruned(Exception):  # noqa: N818 - no error: the state was met before
    """What follows from here is explored already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How often a schedule may do what no actor's own run would; turning from one to another is without a bound.

    `waits` counts time passing for one that sleeps while another could go on; `times` are the lengths of time that may
    pass between any two calls, in their order; `deaths` and `faults` count processes and calls.
    """

    waits: int = 1
    times: tuple[timedelta, ...] = ()
    deaths: int = 0
    faults: int = 0


class Option(NamedTuple):
    """One way on: what happens, to whom, and what it leaves of the budget."""

    what: str
    actor: Actor | None
    left: Budget

    def __str__(self) -> str:
        return f"{self.what} {self.actor.name if self.actor else ''}".strip()


class Strategy(Protocol):
    """Chooses; `state` tells two situations apart from which the same may follow."""

    def pick(self, options: int, state: Callable[[], Hashable]) -> int:
        """Return an index below `options`; raise Pruned to stop."""
        ...


class Actor:
    """One thread of one process, and where it stands."""

    def __init__(self, name: str, process: str, play: Callable[[], object]) -> None:
        self.name = name
        self.process = process
        self.play = play
        self.at = "begin"
        self.wakes: float | None = None
        self.ready: Callable[[], bool] | None = None
        self.fault: When | None = None
        self.returns_to: Actor | None = None
        self.over = False
        self.turn = 0
        self.error: Exception | None = None
        self.history: int = hash(name)
        self.baton = threading.Lock()
        self.baton.acquire()


class Scheduler:
    """Runs actors, one at a time; `trace` says what was done, `choices` by which decisions."""

    def __init__(self, strategy: Strategy, budget: Budget, clock: MemoryClock, state: Callable[[], Hashable]) -> None:
        self.trace: list[str] = []
        self.choices: list[int] = []
        self.steps = 0
        self.pruned = False
        self.violation: str | None = None
        self.budget = self.left = budget
        self.passed = timedelta(0)
        self.faults = 0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.dead: set[str] = set()
        self._strategy = strategy
        self._clock = clock
        self._state = state
        self._stopped = False
        self._main = Actor("main", "main", lambda: None)
        self._main.at = "end"

    def add(self, name: str, play: Callable[[], object], *, process: str | None = None) -> Actor:
        """Add an actor; until its first turn it stands before its beginning."""
        actor = Actor(name, process or name, play)
        self.actors.append(actor)
        return actor

    def run(self) -> None:
        """Let the actors run to their ends; leave no thread behind."""
        try:
            self._hand_on(self._next(self._main))
            self._main.baton.acquire()
        except Pruned:
            pass
        self._stopped = True
        for actor in self.actors:
            self._unwind(actor, self._main)
        self.current = None

    def pause(self, at: str, *, wakes: float | None = None, ready: Callable[[], bool] | None = None) -> None:
        """Stand before a call until it is this actor's turn; outside of any actor nothing."""
        me = self.current
        if me is None:
            return
        self._require_alive(me)
        me.at, me.wakes, me.ready = at, wakes, ready
        self.steps += 1
        if self.steps > _MOST_STEPS:
            self.violate(f"no end after {_MOST_STEPS} steps")
        try:
            chosen = self._next(me)
        except Pruned:
            self.pruned = True
            self._stop(me)
            raise Death from None
        if chosen is not me:
            self._hand_on(chosen)
            me.baton.acquire()
        self._require_alive(me)
        self._note_turn(me)

    def note(self, *what: object) -> None:
        """Add to what the current actor knows: its next steps may depend on it."""
        if self.current is not None:
            self.current.history = hash((self.current.history, what))

    def violate(self, text: str) -> None:
        """Note that something that must hold does not, and stop the schedule."""
        self.violation = self.violation or text
        me = self.current
        if me is None:
            raise AssertionError(text)
        self._stop(me)
        raise Death(text)

    def begin_inline(self, actor: Actor) -> None:
        """Let a new actor of the current one's process run up to its first pause."""
        me = self._require_current()
        actor.returns_to = me
        self._hand_on(actor)
        me.baton.acquire()

    def returned(self, at: str, wakes: float) -> bool:
        """Give the baton back to who began this actor, where it did; it then stands as after `pause`."""
        me = self._require_current()
        back = me.returns_to
        if back is None:
            return False
        me.returns_to = None
        me.at, me.wakes, me.ready = at, wakes, None
        self._hand_on(back)
        me.baton.acquire()
        self._require_alive(me)
        self._note_turn(me)
        return True

    def join(self, actor: Actor) -> None:
        """Wait for another actor of the same process: at once where it only waits, or where both are dead."""
        me = self._require_current()
        if self._is_dead(me):
            self._unwind(actor, me)
        elif actor.at == "wait" and not actor.over:
            actor.wakes = None
            self.begin_inline(actor)
        elif not actor.over:
            self.pause("join", ready=lambda: actor.over)

    def all_over_but(self, process: str) -> bool:
        """Say whether only one process may have something left to do."""
        return all(one.over or one.process in {process, *self.dead} for one in self.actors)

    @property
    def undisturbed(self) -> bool:
        """Whether nothing died or failed, and no time passed but by what the actors slept."""
        return not (self.dead or self.faults or self.passed)

    @property
    def leases_passed(self) -> int:
        """How many leases may have ended while somebody stood still."""
        return self.passed // timedelta(minutes=1)

    def ended_as(self) -> Hashable:
        """Tell two ends apart of which the same may be said."""
        return self._key(self._main)

    def _next(self, me: Actor) -> Actor:
        """Decide until it is some actor's turn; return that one, or main where all are over."""
        while True:
            options = self._options(me)
            if not options:
                return self._main
            option = options[0]
            if len(options) > 1:
                index = self._strategy.pick(len(options), partial(self._key, me, options))
                self.choices.append(index)
                option = options[index]
                self.left = option.left
            if option.what == "time":
                self.trace.append(f"({self._pass_time():g} s pass)")
            elif option.what == "death":
                self.trace.append(f"({me.process} dies before {me.at})")
                self._kill(me)
            elif option.actor is not None:
                option.actor.fault = None if option.what == "run" else When(option.what)
                self.faults += option.what != "run"
                return option.actor

    def _options(self, me: Actor) -> list[Option]:
        left, live = self.left, [actor for actor in self.actors if not actor.over and not self._is_dead(actor)]
        able = [one for one in live if one.wakes is None and (one.ready is None or one.ready())]
        asleep = sorted((one for one in live if one.wakes is not None), key=lambda one: one.wakes or 0.0)
        awake = [one for one in asleep if one.wakes is not None and one.wakes <= self._clock.monotonic()]
        # A heart whose time has come is able, but is no reason not to go on with who is at work.
        able += [one for one in awake if one not in able]
        asleep = [one for one in asleep if one not in awake]
        me_first = [me] if me in able else []
        # Who was left longest comes last: to stall until the others rest takes one turn, not one at each rest.
        others = sorted((one for one in able if one is not me), key=lambda one: (one.at != "begin", -one.turn))
        turns = [*me_first, *others]
        options = []
        for one in turns:
            options.append(Option("run", one, left))
            if left.faults and "." in one.at:
                failing = replace(left, faults=left.faults - 1)
                options.append(Option("before", one, failing))
                if one.at not in READS:
                    options.append(Option("after", one, failing))
        for one in asleep:
            if not turns and one is asleep[0]:
                options.append(Option("run", one, left))
            elif left.waits and one.at == "sleep":
                options.append(Option("run", one, replace(left, waits=left.waits - 1)))
        if options and left.times:
            options.append(Option("time", None, left))
        if left.deaths and me in live:
            options.append(Option("death", me, replace(left, deaths=left.deaths - 1)))
        return options

    def _pass_time(self) -> float:
        delta, *others = self.left.times
        self.left = replace(self.left, times=tuple(others))
        self.passed += delta
        self._clock.advance(delta)
        return delta.total_seconds()

    def _kill(self, me: Actor) -> None:
        """End a process: none of its threads makes another call. The current one unwinds when it sees it."""
        self.dead.add(me.process)
        for actor in self.actors:
            if actor.process == me.process and actor is not me:
                self._unwind(actor, me)
        # Its own unwinding ends in a call that dies, and then another actor's turn comes.
        raise Death

    def _unwind(self, actor: Actor, by: Actor) -> None:
        """Let a dead actor's thread end; who does it goes on after that."""
        if actor.over:
            return
        if actor.at == "begin":
            actor.over = True
            return
        actor.returns_to = by
        self._hand_on(actor)
        by.baton.acquire()
        self.current = by

    def _stop(self, me: Actor) -> None:
        """End the schedule; the current actor's thread ends with the others."""
        self._stopped = True
        if me is not self._main:
            self._main.baton.release()
            me.baton.acquire()
            self.current = me

    def _hand_on(self, actor: Actor) -> None:
        self.current = actor
        if actor.at == "begin":
            actor.at = "begun"
            # Bare threads: of thousands each one counts, and each is seen to its end by its baton.
            _thread.start_new_thread(self._play, (actor,))
        else:
            actor.baton.release()

    def _play(self, actor: Actor) -> None:
        self._note_turn(actor)
        try:
            actor.play()
        except Death:
            pass
        except Exception as error:  # noqa: BLE001 - reported with its schedule
            actor.error = error
        actor.over = True
        if actor.returns_to is not None and not actor.returns_to.over:
            self._hand_on(actor.returns_to)
            return
        try:
            chosen = self._next(actor)
        except Pruned:
            self.pruned = self._stopped = True
            chosen = self._main
        self._hand_on(chosen)

    def _note_turn(self, me: Actor) -> None:
        self.current = me
        if me.wakes is not None:
            ahead = me.wakes - self._clock.monotonic()
            if ahead > 0:
                self._clock.advance(timedelta(seconds=ahead))
        me.wakes = me.ready = None
        me.turn = len(self.trace)
        suffix = f" (fails {me.fault.value} it)" if me.fault else ""
        self.trace.append(f"{me.name}: {me.at}{suffix}")

    def _key(self, me: Actor, options: Sequence[Option] = ()) -> Hashable:
        where = tuple((one.history, one.at, one.over, one.wakes) for one in self.actors)
        return hash(
            (
                me.name if self.left.deaths else "",
                tuple(map(str, options)),
                where,
                self.left,
                frozenset(self.dead),
                self._state(),
            )
        )

    def _is_dead(self, actor: Actor) -> bool:
        return self._stopped or actor.process in self.dead

    def _require_alive(self, actor: Actor) -> None:
        if self._is_dead(actor):
            raise Death

    def _require_current(self) -> Actor:
        if self.current is None:
            raise AssertionError("no actor's turn")
        return self.current
