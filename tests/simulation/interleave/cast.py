"""What a cast is: who plays, within which budget, and where all of them are found by their names."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.domain.limits import Limits
from tests.simulation.interleave.scheduler import Budget

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from tests.simulation.interleave.stage import Stage

    Judge = Callable[[], None]
    Play = Callable[[TenantStore, Runtime], object]

AN_HOUR = 3600.0
LEASE, GRACE, HOLD = timedelta(seconds=61), timedelta(seconds=31), timedelta(seconds=31)
BEAT = timedelta(seconds=21)
CONSUMER_LEASE, CONSUMER_BEAT = timedelta(seconds=16), timedelta(seconds=6)
_WIDE = Budget(waits=4, times=(BEAT, GRACE, LEASE), deaths=1, faults=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who plays, within which budget every schedule is tried, and with which one seeds choose.

    `transient` says that a call may find an open transaction in its way, which the twin does not wait for. `most` and
    `seeds` are how many schedules a run of all tests has time for.
    """

    prepare: Callable[[Stage], Judge]
    budget: Budget
    transient: bool = False
    wide: Budget = _WIDE
    most: int = 400
    seeds: int = 25
    limits: Limits = field(default_factory=lambda: Limits(slice_time=timedelta(milliseconds=12)))


CASTS: dict[str, Cast] = {}


def cast(
    budget: Budget,
    *,
    transient: bool = False,
    **limits: Any,  # noqa: ANN401 - limits by their names
) -> Callable[[Callable[[Stage], Judge]], None]:
    """Register the function under its name as a cast."""

    def register(prepare: Callable[[Stage], Judge]) -> None:
        chosen = Limits(**{"slice_time": timedelta(milliseconds=12), **limits})
        CASTS[prepare.__name__] = Cast(prepare=prepare, budget=budget, transient=transient, limits=chosen)

    return register


def consumer_cast(
    budget: Budget, *, transient: bool = False, most: int = 60
) -> Callable[[Callable[[Stage], Judge]], None]:
    """Register a cast of lifecycle observation, with the lengths of time that its leases and retries have."""

    def register(prepare: Callable[[Stage], Judge]) -> None:
        limits = Limits(slice_time=timedelta(milliseconds=12))
        CASTS[prepare.__name__] = Cast(
            prepare=prepare,
            budget=budget,
            transient=transient,
            wide=Budget(waits=4, times=(CONSUMER_BEAT, CONSUMER_LEASE, LEASE), deaths=1, faults=1),
            most=most,
            seeds=5,
            limits=limits,
        )

    return register
