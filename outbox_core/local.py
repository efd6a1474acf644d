"""Local mode: a whole outbox in one process, on the in-memory twin, worked in the calling thread."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, suppress
from threading import Condition, get_ident
from typing import TYPE_CHECKING, Any, TypeAlias

from outbox_core.adapters.memory.clock import MemoryClock
from outbox_core.adapters.memory.store import MemoryStore
from outbox_core.adapters.system import SystemEntropy
from outbox_core.bootstrap import Opened, Outbox
from outbox_core.bots import BotRegistry, ProjectorRegistry, observers, projectors, registry
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import ConfigurationError, InvariantError, OutboxError
from outbox_core.domain.limits import Limits
from outbox_core.domain.projector import Projector
from outbox_core.ports.runtime import Runtime
from outbox_core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.ports.runtime import Entropy
    from outbox_core.ports.slots import Lane

BotsGiven: TypeAlias = Mapping[str, Callable[..., Any] | Bot] | Iterable[Callable[..., Any] | Bot]
"""Bots by their ids, or functions that `@bot` registered."""

ProjectorsGiven: TypeAlias = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
"""Projectors by their kinds, or functions that `@projector` registered."""

_log = logging.getLogger("outbox.local")

_MOST_TURNS = 10_000
"""After this many drains and slices in one go something makes work as fast as it is done."""

_MOST_ROUNDS = 1_000
"""The same, for rounds through all tenants."""

_ALL_TENANTS = 1_000_000


class LocalOutbox(Outbox):
    """What `Outbox.local()` returns: the same calls, no services, and nothing that outlives the process or `close`.

    What an append calls for has run when the append returns, in the calling thread: drained, matched, and its bots
    called. A bot's own appends follow when the bot is done. Where another thread is at work already, that one does it.
    Retries and what was put off are run by `settle_all`, or by a later append, once they are due. Bots are not
    interrupted. What docs/guarantees.md marks "both stores" holds; a forked child begins empty.
    """

    def __init__(
        self,
        *,
        bots: BotsGiven | None = None,
        projectors: ProjectorsGiven | None = None,
        limits: Limits | None = None,
        clock: MemoryClock | None = None,
        entropy: Entropy | None = None,
        at_once: bool = True,
    ) -> None:
        """`Outbox.local` is the usual way. Not `at_once`, nothing runs but by `settle_all`."""
        self._turns = Turns(self, at_once=at_once)
        self._bots = choose_bots(bots)
        self._projectors = choose_projectors(projectors)
        self._clock = clock
        self._entropy = entropy or SystemEntropy()
        # Not from the environment: this is no part of a deployment.
        settings = Settings.model_construct(limits=limits or Limits())
        super().__init__(settings, hints=self._turns, offers=self._turns, stopping=lambda: False)

    def settle_all(self) -> None:
        """Drain every tenant, and run every row that is due now.

        A row that fails is due again later, so it is run once. Waits for another thread that is at work; within a bot
        it does nothing, since what waits runs after the bot. Raises OutboxError where there is no end, as with a bot
        that appends what launches it.
        """
        with self._turns.taken() as taken:
            if taken:
                self._settle_all()

    def _settle_all(self) -> None:
        maintenance, reached = self.store.maintenance, dict[str, int]()
        for _ in range(_MOST_ROUNDS):
            moved = False
            for tenant in sorted({*maintenance.undrained_tenants("", _ALL_TENANTS), *maintenance.due_tenants()}):
                drained, ran = self.drain_tenant(tenant), self.run_slice(tenant)
                if drained is not None and drained.reached_seq != reached.get(tenant):
                    reached[tenant], moved = drained.reached_seq, True
                moved = moved or (ran is not None and (ran.claimed > 0 or ran.more))
            if not self._turns.work_off():
                break
            if not moved:
                return
        raise OutboxError("there is no end of work: something makes it as fast as it is done")

    @property
    def twin(self) -> MemoryStore:
        """The in-memory store."""
        store = self.store
        if not isinstance(store, MemoryStore):
            raise InvariantError("local mode runs on the twin alone")
        return store

    def _open(self) -> Opened:
        clock = self._clock or MemoryClock()
        limits = self.settings.limits
        runtime = Runtime(
            clock=clock,
            entropy=self._entropy,
            hints=self._turns,
            bots=self._bots,
            projectors=self._projectors,
            observers=observers,
            outlets=self._outlets,
            limits=limits,
            worker="local",
            writer=self._entropy.token(),
        )
        return Opened(MemoryStore(limits, clock=clock, entropy=self._entropy), runtime, lambda: None)

    def _start_over(self) -> None:
        super()._start_over()
        self._turns.start_over()


class Turns:
    """Implements ports.hints.Hints: what a hint calls for is done before it returns, unless somebody is at work.

    One thread at a time is at work; what comes up meanwhile, in a bot too, waits and is done by that thread. Not
    `at_once`, no hint is taken.
    """

    def __init__(self, outbox: Outbox, *, at_once: bool) -> None:
        self._outbox = outbox
        self._at_once = at_once
        self.start_over()

    def start_over(self) -> None:
        """Forget who is at work, and what waits."""
        self._free = Condition()
        self._at_work: int | None = None
        self._waiting: deque[Callable[[], object]] = deque()

    def drain(self, tenant_id: str, token: str | None = None) -> bool:
        """See the port."""
        return self._at_once and self._do(lambda: self._outbox.drain_tenant(tenant_id, token))

    def turn(self, tenant_id: str, token: str | None = None) -> bool:
        """See the port."""
        return self._at_once and self._do(lambda: self._outbox.run_turn(tenant_id, token))

    def slice(self, tenant_id: str, token: str) -> bool:
        """See the port."""
        return self._at_once and self._do(lambda: self._outbox.run_slice(tenant_id, token))

    def poll(self, tenant_id: str, consumer_id: str) -> bool:  # noqa: ARG002 - the port's names
        """Take nothing: a consumer of this process is polled by its own LifecycleConsumer."""
        return False

    def wake(self, tenant_id: str) -> bool:  # noqa: ARG002 - the port's name
        """Take nothing, as `poll`."""
        return False

    def waiting(self, lane: Lane) -> int:  # noqa: ARG002 - the port's name
        """Return 0: what was taken is done."""
        return 0

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Be at work for the time of the block, once nobody else is; False where this thread is already."""
        with self._free:
            if self._at_work == get_ident():
                mine = False
            else:
                self._free.wait_for(lambda: self._at_work is None)
                self._at_work, mine = get_ident(), True
        try:
            yield mine
        except BaseException:
            if mine:
                self._leave()
            raise
        if mine:
            # What was left to this thread while the block ended would be nobody's.
            self._leave_when_done()

    def work_off(self) -> bool:
        """Do what waits, and what comes of it; False where there is no end. This thread must be at work."""
        for _ in range(_MOST_TURNS):
            with self._free:
                if not self._waiting:
                    return True
                work = self._waiting.popleft()
            with suppress(OutboxError):
                # It is logged; settle_all tries again.
                work()
        _log.error("%d turns in one go: something makes work as fast as it is done; the rest is left", _MOST_TURNS)
        self._waiting.clear()
        return False

    def _do(self, work: Callable[[], object]) -> bool:
        with self._free:
            self._waiting.append(work)
            if self._at_work is not None:
                return True
            self._at_work = get_ident()
        self._leave_when_done()
        return True

    def _leave_when_done(self) -> None:
        try:
            while not self._left():
                self.work_off()
        except BaseException:
            # No error of a bot's, but a Ctrl-C: what waits is done with the next hint.
            self._leave()
            raise

    def _left(self) -> bool:
        with self._free:
            if not self._waiting:
                self._leave()
            return not self._waiting

    def _leave(self) -> None:
        with self._free:
            self._at_work = None
            self._free.notify_all()


def choose_bots(given: BotsGiven | None) -> BotRegistry:
    """Return the bots that are given: by their ids, or as registered functions; None means all that are registered.

    A function that is registered keeps its declaration. Raises ConfigurationError for what is no bot.
    """
    if given is None:
        return registry
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"bots: takes a list of bots, or a dict of functions by id, and not {given!r}")
    chosen = BotRegistry()
    if isinstance(given, Mapping):
        for bot_id, one in given.items():
            known = _registered(one)
            fits = known is not None and known.bot_id == bot_id
            chosen.add(known if known is not None and fits else _bot(bot_id, one))
        return chosen
    for one in given:
        known = _registered(one)
        if known is None:
            raise ConfigurationError(
                f"bots: {one!r} is not registered; decorate it with @bot, or give {{'its-id': it}}"
            )
        chosen.add(known)
    return chosen


def choose_projectors(given: ProjectorsGiven | None) -> ProjectorRegistry:
    """Return the projectors that are given: by their kinds, or as registered functions; None means all registered.

    Raises ConfigurationError for what is no projector.
    """
    if given is None:
        return projectors
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"projectors: takes a list of them, or a dict of functions by kind, and not {given!r}")
    chosen = ProjectorRegistry()
    if isinstance(given, Mapping):
        for kind, function in given.items():
            chosen.add(Projector(kind=kind, function=_callable(kind, function)))
        return chosen
    for one in given:
        known = next((known for known in projectors if known.function is one), None)
        if known is None:
            raise ConfigurationError(
                f"projectors: {one!r} is not registered; decorate it with @projector, or give {{'its-kind': it}}"
            )
        chosen.add(known)
    return chosen


def _registered(one: Callable[..., Any] | Bot) -> Bot | None:
    if isinstance(one, Bot):
        return one
    return next((known for known in registry if known.function is one), None)


def _bot(bot_id: str, one: Callable[..., Any] | Bot) -> Bot:
    function = one.function if isinstance(one, Bot) else one
    return Bot(bot_id=bot_id, function=_callable(bot_id, function))


def _callable(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function):
        raise ConfigurationError(f"{name!r}: {function!r} is no function")
    return function
