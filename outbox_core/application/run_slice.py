"""One worker's turn for one tenant: claim, run, settle, for about a second."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outbox_core.application.leave_slot import leave_slot
from outbox_core.application.offer_slice import offer_slice
from outbox_core.application.work_claim import SliceReport, work_claim
from outbox_core.domain.errors import TransientError
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

_log = logging.getLogger("outbox.slice")


def run_slice(store: TenantStore, runtime: Runtime, token: str | None = None) -> SliceReport | None:
    """Work a tenant's due rows for about a slice's time; None where its slots are taken, or `token` is not held.

    A claim whose worker dies is found again when its lease is over (E28). Where rows are still due at the end the
    slice puts itself back at the tail of the queue, with its slot. Raises TransientError where the store does not
    answer; what was claimed is released, or comes back with its lease.
    """
    slots, hold = store.slots, runtime.limits.slot_hold
    slot = slots.take(Lane.SLICE, hold) if token is None else slots.rotate(Lane.SLICE, token, hold)
    if slot is None:
        return None
    report = SliceReport()
    with slice_in(store, runtime, slot, report):
        _work(store, runtime, slot, report)
    return report


@contextmanager
def slice_in(store: TenantStore, runtime: Runtime, slot: str, report: SliceReport) -> Iterator[None]:
    """Hold a slot for the block; at its end put the slice back at the tail of the queue where rows are still due.

    Else, and where the block raises, the slot is left.
    """
    try:
        yield
    except BaseException:
        leave_slot(store, Lane.SLICE, slot)
        raise
    goes_on = report.more and store.slots.extend(Lane.SLICE, slot, runtime.limits.slot_hold)
    if goes_on and runtime.hints.slice(store.tenant_id, slot):
        return
    if leave_slot(store, Lane.SLICE, slot) and not report.more:
        _look_again(store, runtime)


def _look_again(store: TenantStore, runtime: Runtime) -> None:
    """Offer a slice for what became due while all slots were held by slices that would claim no more.

    Whoever made it was refused a slot, and none of those slices has seen it.
    """
    try:
        due = store.effects.is_due()
    except TransientError as error:
        _log.info("tenant %s: a sweep will see what is due: %s", store.tenant_id, error)
        return
    if due:
        offer_slice(store, runtime)


def _work(store: TenantStore, runtime: Runtime, slot: str, report: SliceReport) -> None:
    limits, clock = runtime.limits, runtime.clock
    slice_seconds = limits.slice_time.total_seconds()
    ends = clock.monotonic() + slice_seconds
    crowded = False
    while not runtime.stopping():
        rows = runtime.pace.rows(store.tenant_id, limits.claim_batch, limits.slice_time)
        claim = store.effects.claim_due(rows, worker=runtime.worker, lease=limits.effect_lease, crowded=crowded)
        crowded = claim.lost > 0
        report.more = claim.more or claim.parked > 0
        if claim.effects:
            report.claimed += len(claim.effects)
            if claim.more:
                # More is due than one claim takes: let another worker have a share.
                offer_slice(store, runtime)
            work_claim(store, runtime, slot, claim, report, slice_ends=clock.monotonic() + slice_seconds)
        if not report.more or clock.monotonic() >= ends:
            return
    report.more = True
