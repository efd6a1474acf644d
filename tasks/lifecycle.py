"""The consumers that live in workers: their tick, a poll, what wakes them, and the pruning of the stream."""

from __future__ import annotations

from outbox_core.domain.errors import OutboxError
from tasks.app import app, outbox


@app.task(name="outbox.consumers_tick", throws=(OutboxError,))
def consumers_tick(**_newer: object) -> None:
    """Offer a poll to every consumer that is due."""
    outbox.consumers_tick()


@app.task(name="outbox.poll_consumer", throws=(OutboxError,))
def poll_consumer(*, tenant: object = None, consumer: object = None, **_newer: object) -> None:
    """Let one consumer observe, for about a second."""
    outbox.poll_consumer(tenant, consumer)


@app.task(name="outbox.wake_consumers", throws=(OutboxError,))
def wake_consumers(*, tenant: object = None, **_newer: object) -> None:
    """Offer a poll to the tenant's consumers that wait in idleness."""
    outbox.wake_consumers(tenant)


@app.task(name="outbox.prune", throws=(OutboxError,))
def prune(**_newer: object) -> None:
    """Remove what every consumer has acknowledged and is old enough."""
    outbox.prune()
