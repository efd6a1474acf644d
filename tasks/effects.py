"""The tasks that do a tenant's work; each is one use case call, and a message that lies to it changes nothing."""

from __future__ import annotations

from outbox_core.domain.errors import OutboxError
from tasks.app import app, outbox

# What a newer sender adds to a message is left alone, so that old and new share one broker.


@app.task(name="outbox.drain_tenant", throws=(OutboxError,))
def drain_tenant(*, tenant: object = None, token: object = None, **_newer: object) -> None:
    """Materialize what one tenant's events owe."""
    outbox.drain_tenant(tenant, token)


@app.task(name="outbox.run_turn", throws=(OutboxError,))
def run_turn(*, tenant: object = None, token: object = None, **_newer: object) -> None:
    """Materialize what one tenant's next events owe, and run it at once."""
    outbox.run_turn(tenant, token)


@app.task(name="outbox.run_slice", throws=(OutboxError,))
def run_slice(*, tenant: object = None, token: object = None, **_newer: object) -> None:
    """Claim, run and settle one tenant's due rows, for about a second."""
    outbox.run_slice(tenant, token)
