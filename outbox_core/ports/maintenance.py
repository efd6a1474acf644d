"""The named reads and writes that span tenants; everything else is bound to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from outbox_core.ports.slots import Lane


class Maintenance(Protocol):
    """Every call may raise TransientError. A page of tenants is ascending, from above `after`."""

    def now(self) -> datetime:
        """Return the server's time; nothing decides by it, it tells whether a process's clock is off."""
        ...

    def tick_due(self, name: str, interval: timedelta) -> bool:
        """Take the tick of this name if it is due by the server's clock, and set the next one `interval` ahead.

        Of any number of beats one gets True. A stored time further ahead than `interval` and OP_TIMEOUT counts as over.
        """
        ...

    def undrained_tenants(self, after: str, limit: int) -> Sequence[str]:
        """Return tenants whose undrained flag is set; costs what is busy, not what exists."""
        ...

    def due_tenants(self) -> Sequence[str]:
        """Return tenants that have a live row which is due, or one that never could be, longest due first."""
        ...

    def lagging_tenants(self, after: str, limit: int) -> tuple[Sequence[str], str]:
        """Return tenants whose counter is ahead of their cursor and whose flag is clear, and the last one looked at.

        Looks at up to `limit` counters above `after`; "" as the second value means that none are left.
        """
        ...

    def take_slots(self, lane: Lane, tenants: Sequence[str], hold: timedelta) -> Mapping[str, str]:
        """Take one free slot of each tenant; return the tokens of those that had one."""
        ...

    def due_consumers(self, consumer_ids: Sequence[str], hold: timedelta, limit: int) -> Sequence[tuple[str, str]]:
        """Return (tenant, consumer) of those that are due for a poll and have something to do; at most `limit`.

        Of those ids alone, not retired, paused, stopped or leased. Each that is returned is due again `hold` from now,
        so that two ticks do not offer it twice. One that is due and has nothing to do is put off here, with jitter, as
        an idle poll would: an idle consumer costs no message and no poll (L15). Two reads and two writes for all.
        """
        ...

    def lifecycle_tenants(self, after: str, limit: int) -> Sequence[str]:
        """Return tenants that have a lifecycle stream."""
        ...

    def ensure_schema(self) -> Sequence[str]:
        """Bring collections, validators and indexes up to date; return the names of the steps applied now.

        A second call does nothing. Raises ConfigurationError where the database is not fit (no replica set, too old).
        """
        ...

    def pending_schema(self) -> Sequence[str]:
        """Return the names of the steps that are not applied yet."""
        ...
