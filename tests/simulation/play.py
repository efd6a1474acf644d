"""Playing the use cases of one tenant to their rest, as ticks would."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.application.append_events import append_events
from outbox_core.application.drain_tenant import Step, drain_tenant
from outbox_core.application.run_slice import run_slice
from outbox_core.application.run_turn import run_turn
from tests.harness.examples import new_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_core.application.append_events import Appended
    from outbox_core.application.drain_tenant import DrainReport
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Document, Harness


WORK = {"drain": drain_tenant, "turn": run_turn, "slice": run_slice}
"""What a hint of each kind starts."""


def append(store: TenantStore, runtime: Runtime, *event_ids: str, **more: Any) -> Sequence[Appended]:  # noqa: ANN401
    """Append through the use case; keywords as in examples.attributes."""
    return append_events(store, runtime, [new_event(event_id, **more) for event_id in event_ids])


def drain(store: TenantStore, runtime: Runtime) -> DrainReport:
    """Drain once; the slot is free."""
    report = drain_tenant(store, runtime)
    assert report is not None
    return report


def drain_whole(store: TenantStore, runtime: Runtime) -> DrainReport:
    """Drain until nothing is left; what hinders it must be none of this test's matter."""
    for _ in range(200):
        report = drain_tenant(store, runtime)
        if report is not None and report.step is Step.CAUGHT_UP:
            return report
    raise AssertionError("the drain does not catch up")


def run_whole(store: TenantStore, runtime: Runtime) -> None:
    """Run slices until nothing is due."""
    for _ in range(200):
        report = run_slice(store, runtime)
        if report is not None and not report.more:
            return
    raise AssertionError("rows stay due")


def until_all_settled(harness: Harness, store: TenantStore, runtime: Runtime) -> None:
    """Let leases, holds and backoffs pass until no row is live."""
    for _ in range(60):
        run_whole(store, runtime)
        if store.effects.next_due() is None:
            return
        harness.advance(timedelta(minutes=11))
    raise AssertionError("rows stay live")


def rows_of(harness: Harness, tenant: str) -> dict[str, Document]:
    """Return the rows of a tenant by (event, rule), so that two tenants can be compared."""
    return {row["_id"].partition("|")[2]: row for row in harness.raw("trigger_effects", tenant_id=tenant)}


def cursor_of(harness: Harness, tenant: str) -> int:
    """Return how far a tenant is drained."""
    found = harness.raw("trigger_cursors", _id=tenant)
    return int(found[0]["seq"]) if found else 0
