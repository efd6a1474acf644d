"""What a use case asks of the process it runs in: time, chance, hints, bots and limits."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from outbox_core.domain.limits import Limits
from outbox_core.domain.pace import Pace
from outbox_core.domain.rarely import Rarely

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from outbox_core.domain.bot import Bot
    from outbox_core.domain.consumer import PollReport
    from outbox_core.domain.lifecycle_event import LifecycleEvent
    from outbox_core.domain.observer import Observer
    from outbox_core.domain.projector import Projector
    from outbox_core.ports.hints import Hints


class Clock(Protocol):
    """The process's own clock. It never decides what is due: that is the server's; it only bounds local work."""

    def monotonic(self) -> float:
        """Return seconds that never step back and that count a suspended machine's sleep."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Entropy(Protocol):
    """Chance."""

    def token(self) -> str:
        """Return a fresh id that nobody else will ever draw."""
        ...

    def jitter(self) -> float:
        """Return a number from 0.8 to 1.2."""
        ...


class Bots(Protocol):
    """The bots this process knows."""

    def get(self, bot_id: str) -> Bot | None:
        """Return the bot, None where this process does not know it."""
        ...


class Projectors(Protocol):
    """The projectors this process knows."""

    def get(self, kind: str) -> Projector | None:
        """Return the projector of a binding's kind, None where this process does not know it."""
        ...


class NoProjectors:
    """Knows none."""

    def get(self, kind: str) -> Projector | None:  # noqa: ARG002 - the port's name
        """Return None."""
        return None


class Observers(Protocol):
    """The observers this process knows."""

    def get(self, consumer_id: str) -> Observer | None:
        """Return the observer of a consumer, None where this process does not know it."""
        ...

    def ids(self) -> Sequence[str]:
        """Return the ids of all that this process knows."""
        ...


class NoObservers:
    """Knows none."""

    def get(self, consumer_id: str) -> Observer | None:  # noqa: ARG002 - the port's name
        """Return None."""
        return None

    def ids(self) -> Sequence[str]:
        """Return nothing."""
        return ()


class Interrupt(Protocol):
    """What ends foreign code that does not end by itself."""

    def limit(self, duration: timedelta) -> AbstractContextManager[None]:
        """Return a block in which code that runs for longer than `duration` is interrupted by BotOverstayedError.

        The error is raised within the block alone, and again from time to time while the block goes on. Where the
        process cannot interrupt the code, it runs on.
        """
        ...


class NoInterrupt:
    """Interrupts nothing: the lease ends, and the fence does the rest."""

    def limit(self, duration: timedelta) -> AbstractContextManager[None]:  # noqa: ARG002 - the port's name
        """Return a block that does nothing."""
        return nullcontext()


class Outlets(Protocol):
    """Whom this process tells of lifecycle events, best effort. No call raises."""

    def committed(self, event: LifecycleEvent) -> None:
        """Tell of a change that this process has just committed: its listeners at once, then whoever is notified.

        The listeners are called in this thread, with the event as it is stored; the notice within AUDIT_BOUND, and at
        most once (L02).
        """
        ...

    def polled(self, report: PollReport) -> None:
        """Tell whoever audits or measures what a consumer's poll came to, within AUDIT_BOUND (L16)."""
        ...


class NoOutlets:
    """Tells nobody."""

    def committed(self, event: LifecycleEvent) -> None:
        """Do nothing."""

    def polled(self, report: PollReport) -> None:
        """Do nothing."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The surroundings of a use case.

    `worker` names this process in rows, `writer` in lifecycle events; `stopping` says that it shuts down; `said` keeps
    alarms from repeating; `pace` tells how many rows fit into a slice.
    """

    clock: Clock
    entropy: Entropy
    hints: Hints
    bots: Bots
    projectors: Projectors = field(default_factory=NoProjectors)
    observers: Observers = field(default_factory=NoObservers)
    outlets: Outlets = field(default_factory=NoOutlets)
    interrupt: Interrupt = field(default_factory=NoInterrupt)
    limits: Limits = field(default_factory=Limits)
    said: Rarely = field(default_factory=Rarely)
    pace: Pace = field(default_factory=Pace)
    worker: str = "local"
    writer: str = "local"
    stopping: Callable[[], bool] = _never
