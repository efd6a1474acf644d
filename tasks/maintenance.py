"""The ticks: each looks whether anything is due, and offers it."""

from __future__ import annotations

from outbox_core.domain.errors import OutboxError
from tasks.app import app, outbox


@app.task(name="outbox.drain_tick", throws=(OutboxError,))
def drain_tick(**_newer: object) -> None:
    """Offer a drain of every tenant that has undrained events."""
    outbox.drain_tick()


@app.task(name="outbox.sweep_tick", throws=(OutboxError,))
def sweep_tick(**_newer: object) -> None:
    """Offer slices to every tenant that has due rows."""
    outbox.sweep_tick()


@app.task(name="outbox.repair_undrained", throws=(OutboxError,))
def repair_undrained(**_newer: object) -> None:
    """Find tenants whose undrained flag is wrong, and set it right."""
    outbox.repair_undrained()
