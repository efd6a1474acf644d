"""Clock, chance, hints and bots that a test can see through."""

from __future__ import annotations

import itertools
import time
from threading import Lock
from typing import TYPE_CHECKING

from outbox_core.domain.bot import Bot
from outbox_core.domain.projector import Projector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from outbox_core.ports.runtime import Clock
    from outbox_core.ports.slots import Lane


class MovableClock:
    """A process's clock on real time that a test moves; `sleep` moves it too, and so costs no real time.

    `sleeps_really` makes it wait for what happens outside of the process.
    """

    def __init__(self) -> None:
        self.sleeps_really = False
        self._moved = 0.0
        self._lock = Lock()

    def monotonic(self) -> float:
        with self._lock:
            return time.monotonic() + self._moved

    def advance(self, delta: timedelta) -> None:
        with self._lock:
            self._moved += delta.total_seconds()

    def sleep(self, seconds: float) -> None:
        if self.sleeps_really:
            time.sleep(seconds)
            return
        time.sleep(0)
        with self._lock:
            self._moved += seconds


class SkewedClock:
    """Another process's clock: it runs with the first one, a fixed time away from it."""

    def __init__(self, clock: Clock, skew: timedelta) -> None:
        self._clock = clock
        self._skew = skew.total_seconds()

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._skew

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)


class CountingEntropy:
    """Tokens in order, so that two stores draw the same ones; no jitter."""

    def __init__(self, prefix: str = "token") -> None:
        self._prefix = prefix
        self._numbers = itertools.count(1)

    def token(self) -> str:
        return f"{self._prefix}-{next(self._numbers):06d}"

    def jitter(self) -> float:
        return 1.0


class RecordingHints:
    """Keeps the hints that were sent: ("drain", "turn" or "slice", tenant, token), and for lifecycle.

    Those are ("poll", tenant, consumer) and ("wake", tenant, None).
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, str | None]] = []
        self.waits: dict[Lane, int] = {}

    def drain(self, tenant_id: str, token: str | None = None) -> bool:
        self.sent.append(("drain", tenant_id, token))
        return True

    def turn(self, tenant_id: str, token: str | None = None) -> bool:
        self.sent.append(("turn", tenant_id, token))
        return True

    def slice(self, tenant_id: str, token: str) -> bool:
        self.sent.append(("slice", tenant_id, token))
        return True

    def poll(self, tenant_id: str, consumer_id: str) -> bool:
        self.sent.append(("poll", tenant_id, consumer_id))
        return True

    def wake(self, tenant_id: str) -> bool:
        self.sent.append(("wake", tenant_id, None))
        return True

    def waiting(self, lane: Lane) -> int:
        return self.waits.get(lane, 0)


class KnownProjectors:
    """The projectors of a test, by the kind of their binding."""

    def __init__(self, projectors: Mapping[str, Callable[..., object]]) -> None:
        self._projectors = {kind: Projector(kind=kind, function=function) for kind, function in projectors.items()}

    def get(self, kind: str) -> Projector | None:
        return self._projectors.get(kind)


class KnownBots:
    """The bots of a test, by id; a plain function is a bot that is not transactional."""

    def __init__(self, bots: Mapping[str, Bot | Callable[..., object]]) -> None:
        self._bots = {
            bot_id: bot if isinstance(bot, Bot) else Bot(bot_id=bot_id, function=bot) for bot_id, bot in bots.items()
        }

    def get(self, bot_id: str) -> Bot | None:
        return self._bots.get(bot_id)
