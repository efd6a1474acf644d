"""The rules of one tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outbox_core.domain.sequence import Horizon
    from outbox_core.domain.subscription import Subscription


class Subscriptions(Protocol):
    """Every call may raise TransientError; reads are of what a majority holds."""

    def add(self, subscription: Subscription) -> bool:
        """Store a rule, durably on a majority; say whether it is new. One with the same id is left as it is."""
        ...

    def enabled(self) -> Sequence[Subscription]:
        """Return every enabled rule, never from a cache.

        A stored rule that does not decode raises nothing: it is left out with an Error log, and matches nothing.
        """
        ...

    def all(self) -> Sequence[Subscription]:
        """Return every rule that decodes, in the order of ids; `get` says of one that does not why."""
        ...

    def get(self, sub_ids: Iterable[str]) -> Mapping[str, Subscription | str]:
        """Return these rules by id; one that does not exist is missing, one that does not decode is its error."""
        ...

    def set_enabled(self, sub_id: str, *, enabled: bool, horizon: Horizon | None = None) -> bool:
        """Enable (with a new horizon) or disable; say whether that changed anything.

        Raises SubscriptionNotFoundError. Enabling an enabled rule leaves its horizon.
        """
        ...

    def remove(self, sub_id: str) -> bool:
        """Delete a rule; say whether it existed."""
        ...
