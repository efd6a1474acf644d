"""Hints: "look now", sent after a commit. Losing, doubling or forging one delays work at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from outbox_core.ports.slots import Lane


class Hints(Protocol):
    """No call raises; what cannot be sent is dropped, and a tick covers it.

    All but `waiting` never block. Each returns whether it took the hint; where it did not, who offered a slot gives
    it back.
    """

    def drain(self, tenant_id: str, token: str | None = None) -> bool:
        """Say that a tenant has something to drain; `token` is the slot that the offer took, if it took one."""
        ...

    def turn(self, tenant_id: str, token: str | None = None) -> bool:
        """Say that a tenant has something to drain and to run at once; `token` is the drain's slot that goes on."""
        ...

    def slice(self, tenant_id: str, token: str) -> bool:
        """Say that a tenant has due rows; `token` is the slot that the offer took."""
        ...

    def poll(self, tenant_id: str, consumer_id: str) -> bool:
        """Say that a consumer has something to observe."""
        ...

    def wake(self, tenant_id: str) -> bool:
        """Say that a tenant's lifecycle stream has grown: its consumers may be woken."""
        ...

    def waiting(self, lane: Lane) -> int:
        """Return how many hints of this lane wait for a worker, 0 where that cannot be told within a second."""
        ...


class NoHints:
    """Sends nothing: the ticks find everything."""

    def drain(self, tenant_id: str, token: str | None = None) -> bool:  # noqa: ARG002 - the port's names
        """Take nothing."""
        return False

    def turn(self, tenant_id: str, token: str | None = None) -> bool:  # noqa: ARG002 - the port's names
        """Take nothing."""
        return False

    def slice(self, tenant_id: str, token: str) -> bool:  # noqa: ARG002 - the port's names
        """Take nothing."""
        return False

    def poll(self, tenant_id: str, consumer_id: str) -> bool:  # noqa: ARG002 - the port's names
        """Take nothing."""
        return False

    def wake(self, tenant_id: str) -> bool:  # noqa: ARG002 - the port's name
        """Take nothing."""
        return False

    def waiting(self, lane: Lane) -> int:  # noqa: ARG002 - the port's name
        """Return 0."""
        return 0
