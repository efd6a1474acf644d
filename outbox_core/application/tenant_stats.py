"""How far a tenant's work has come: its log, its cursor, its rows and its rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.domain.effect_lifecycle import LIVE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from outbox_core.ports.store import TenantStore


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStats:
    """`last_seq` is the highest number given out, `drained_seq` the cursor; `now` is the server's time.

    `rows` counts rows by state, done ones by outcome as `done:<outcome>`; `next_due` is when the next live one is due.
    """

    tenant_id: str
    now: datetime
    last_seq: int
    drained_seq: int
    rows: Mapping[str, int]
    next_due: datetime | None
    subscriptions: int
    enabled: int

    @property
    def undrained(self) -> int:
        """How many numbers no drain has passed yet."""
        return self.last_seq - self.drained_seq

    @property
    def live(self) -> int:
        """How many rows are not settled yet."""
        return sum(self.rows.get(state.value, 0) for state in LIVE)


def tenant_stats(store: TenantStore) -> TenantStats:
    """Return what the tenant's store says now, read one after the other; raise TransientError."""
    # Rows after the cursor, the cursor after the head: what a reader is told is drained has its rows counted.
    head = store.log.head()
    # Asked for, a cursor is made: a tenant that never appended anything needs none.
    drained_seq = store.progress.load().seq if head.last_seq else 0
    rules = store.subscriptions.all()
    return TenantStats(
        tenant_id=store.tenant_id,
        now=head.now,
        last_seq=max(head.last_seq, drained_seq),
        drained_seq=drained_seq,
        rows=store.effects.counts(),
        next_due=store.effects.next_due(),
        subscriptions=len(rules),
        enabled=sum(rule.enabled for rule in rules),
    )
