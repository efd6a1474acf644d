"""What is thrown and when, from a seed alone, so that a seed throws the same again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

WORKERS = 2
BEATS = 2
MOST_SHIFT_S = 240
"""Two clocks then differ by eight minutes at most: beyond TICK_EXPIRY a worker discards its messages, as promised."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: whom it may strike, and how long it lasts, least and most.

    `leases` counts its length in leases instead of seconds.
    """

    name: str
    lanes: tuple[str, ...]
    least_s: float
    most_s: float
    leases: bool = False


WORKER_LANES = tuple(f"worker-{number}" for number in range(WORKERS))
BEAT_LANES = tuple(f"beat-{number}" for number in range(BEATS))
WATCHER = "watcher"
BROKER = ("broker",)
DATABASE = ("database",)

KINDS = (
    Kind("kill-worker", WORKER_LANES, 0.2, 2.0),
    Kind("kill-child", WORKER_LANES, 0.2, 0.5),
    Kind("pause-worker", WORKER_LANES, 1.2, 1.5, leases=True),
    Kind("pause-child", WORKER_LANES, 1.2, 1.5, leases=True),
    Kind("shift-worker", WORKER_LANES, 0.2, 1.0),
    Kind("kill-beat", BEAT_LANES, 0.5, 3.0),
    Kind("shift-beat", BEAT_LANES, 0.2, 1.0),
    Kind("kill-producer", ("producer",), 0.2, 1.0),
    Kind("kill-watcher", (WATCHER,), 0.2, 2.0),
    Kind("pause-watcher", (WATCHER,), 7.0, 9.0),
    Kind("kill-broker", BROKER, 0.5, 3.0),
    Kind("flush-broker", BROKER, 0.1, 0.1),
    Kind("hang-broker", BROKER, 2.0, 6.0),
    Kind("read-only-broker", BROKER, 1.0, 4.0),
    Kind("cut-broker", BROKER, 0.1, 0.1),
    Kind("step-down", DATABASE, 1.0, 2.0),
    Kind("kill-primary", DATABASE, 1.5, 4.0),
    Kind("kill-secondary", DATABASE, 1.0, 4.0),
    Kind("cut-database", DATABASE, 0.5, 1.5),
    Kind("write-error", DATABASE, 0.8, 2.5),
    Kind("network-error", DATABASE, 0.8, 2.5),
    Kind("write-concern-error", DATABASE, 0.8, 2.5),
    Kind("slow-database", DATABASE, 0.8, 2.5),
)
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: when it begins, counted from the start of the run, whom it strikes, and for how long.

    `draw`, from 0 to 1, decides what else there is to choose: a command, a child, a clock.
    """

    at: timedelta
    kind: str
    lane: str
    lasts: timedelta
    draw: float


def make_plan(seed: int, duration: timedelta, lease: timedelta, kinds: frozenset[str]) -> list[Fault]:
    """Return the faults in the order of their beginning.

    Each lane throws its own one after the other, so that no two faults undo each other. Its kinds come in shuffled
    rounds: each comes once before any comes twice. What would begin after the end is left out; what begins before may
    last beyond it.
    """
    dice = random.Random(seed)  # noqa: S311 - a plan, no secret
    lanes = dict.fromkeys(lane for kind in KINDS for lane in kind.lanes)
    rounds = {lane: [kind for kind in KINDS if lane in kind.lanes and kind.name in kinds] for lane in lanes}
    dense = min(1.0, duration / _UNHURRIED)
    plan: list[Fault] = []
    for lane, mine in rounds.items():
        at = timedelta(seconds=dice.uniform(0.2, 2.0))
        waiting: list[Kind] = []
        while mine and at < duration:
            if not waiting:
                waiting = dice.sample(mine, len(mine))
            kind = waiting.pop()
            unit = lease.total_seconds() if kind.leases else 1.0
            lasts = timedelta(seconds=unit * dice.uniform(kind.least_s, kind.most_s))
            plan.append(Fault(at, kind.name, lane, lasts, dice.random()))
            rest = timedelta(seconds=dice.uniform(*_RESTS[lane.partition("-")[0]]))
            at += lasts + (rest if len(mine) < _FEW else dense * rest)
    return sorted(plan, key=lambda fault: fault.at)


_RESTS = {
    "worker": (2.0, 8.0),
    "beat": (3.0, 12.0),
    "producer": (3.0, 10.0),
    "watcher": (2.0, 8.0),
    "broker": (1.0, 4.0),
    "database": (1.0, 4.0),
}
"""How many seconds a lane rests between two faults, least and most, so that there is work to be struck."""

_UNHURRIED = timedelta(seconds=120)
"""A run that is shorter rests shorter, where there is much to throw, so that it throws all kinds nevertheless."""

_FEW = 3
