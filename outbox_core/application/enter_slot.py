"""Enter a tenant's slot: the one that a message carries, or a free one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from outbox_core.ports.slots import Lane
    from outbox_core.ports.store import TenantStore


def enter_slot(store: TenantStore, lane: Lane, token: str | None, hold: timedelta) -> str | None:
    """Rotate `token`, or take a free slot without one; return the fresh token, None where there is none to be had.

    A token is good once: a doubled or forged message enters nothing.
    """
    return store.slots.take(lane, hold) if token is None else store.slots.rotate(lane, token, hold)
