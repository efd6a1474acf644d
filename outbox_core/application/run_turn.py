"""A turn: a slice that begins with the tenant's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.application.drain_tenant import drain_into
from outbox_core.application.newborn import Newborn
from outbox_core.application.run_slice import slice_in
from outbox_core.application.work_claim import SliceReport, work_claim

if TYPE_CHECKING:
    from outbox_core.application.drain_tenant import DrainReport
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What a turn came to: its drain, and its slice where it had rows of its own to run."""

    drained: DrainReport
    worked: SliceReport | None


def run_turn(store: TenantStore, runtime: Runtime, token: str | None = None) -> TurnReport | None:
    """Drain until there are new rows, and run those; None where the drain's slot is taken, or `token` is not held.

    The rows are born claimed by this worker, so what a lone event owes has begun as soon as the cursor has moved, and
    a full batch is claimed by the write that makes it durable. What follows in the log is handed on before they run.
    A death leaves rows whose lease ends, as after any claim (E28). Raises TransientError where the store does not
    answer; what is new is then given back.
    """
    newborn = Newborn(store, runtime)
    try:
        drained = drain_into(newborn, store, runtime, token)
    except BaseException:
        newborn.give_back()
        raise
    if drained is None:
        return None
    if newborn.in_hand is None:
        return TurnReport(drained, None)
    slot, claim, known = newborn.in_hand
    report = SliceReport(claimed=len(claim.effects))
    slice_ends = runtime.clock.monotonic() + runtime.limits.slice_time.total_seconds()
    with slice_in(store, runtime, slot, report):
        if claim.effects:
            work_claim(store, runtime, slot, claim, report, slice_ends=slice_ends, known=known)
    return TurnReport(drained, report)
