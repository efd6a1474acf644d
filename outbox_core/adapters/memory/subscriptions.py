"""The rules of one tenant on the twin: `trigger_subscriptions`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING

from outbox_core.adapters.memory.documents import Fields, document_id, storable_document
from outbox_core.domain.errors import (
    InvalidInputError,
    SubscriptionNotFoundError,
)
from outbox_core.domain.identity import join_key, require_own
from outbox_core.domain.sequence import Horizon
from outbox_core.domain.subscription import DIRECT, Match, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from outbox_core.adapters.memory.database import Document, MemoryDatabase

_SUBSCRIPTIONS = "trigger_subscriptions"
_log = logging.getLogger("outbox.subscriptions")


class MemorySubscriptions:
    """Implements ports.subscriptions.Subscriptions."""

    def __init__(self, database: MemoryDatabase, tenant_id: str) -> None:
        self._database = database
        self._tenant_id = tenant_id

    def add(self, subscription: Subscription) -> bool:
        """See the port."""
        require_own(self._tenant_id, subscription.tenant_id, "a rule")
        with self._database.lock:
            try:
                document = storable_document(
                    {
                        "_id": self._key(subscription.sub_id),
                        **{name: value for name, value in asdict(subscription).items() if name != "horizon"},
                        **_horizon_document(subscription.horizon),
                    }
                )
            except ValueError as error:
                raise InvalidInputError(f"subscription {subscription.sub_id} cannot be stored: {error}") from error
            return self._database.insert(_SUBSCRIPTIONS, document) is None

    def enabled(self) -> Sequence[Subscription]:
        """See the port."""
        rules = []
        for rule in map(_rule, self._own()):
            if isinstance(rule, str):
                _log.error(
                    "a subscription of tenant %s cannot be read, so it matches nothing: %s", self._tenant_id, rule
                )
            elif rule.enabled:
                rules.append(rule)
        return rules

    def all(self) -> Sequence[Subscription]:
        """See the port."""
        return [rule for rule in map(_rule, self._own()) if isinstance(rule, Subscription)]

    def get(self, sub_ids: Iterable[str]) -> Mapping[str, Subscription | str]:
        """See the port."""
        with self._database.lock:
            found = {sub_id: self._database.get(_SUBSCRIPTIONS, self._key(sub_id)) for sub_id in sub_ids}
        return {sub_id: _rule(document) for sub_id, document in found.items() if document is not None}

    def set_enabled(self, sub_id: str, *, enabled: bool, horizon: Horizon | None = None) -> bool:
        """See the port."""
        with self._database.lock:
            document = self._database.get(_SUBSCRIPTIONS, self._key(sub_id))
            if document is None:
                raise SubscriptionNotFoundError(f"subscription {sub_id} of {self._tenant_id} does not exist")
            if document.get("enabled", True) is enabled:
                return False
            moved = {} if horizon is None else _horizon_document(horizon)
            self._database.put(_SUBSCRIPTIONS, {**document, "enabled": enabled, **moved})
            return True

    def remove(self, sub_id: str) -> bool:
        """See the port."""
        with self._database.lock:
            return self._database.delete(_SUBSCRIPTIONS, self._key(sub_id))

    def _own(self) -> Sequence[Document]:
        with self._database.lock:
            own = [d for d in self._database.documents(_SUBSCRIPTIONS).values() if d["tenant_id"] == self._tenant_id]
        return sorted(own, key=lambda document: str(document.get("sub_id")))

    def _key(self, sub_id: str) -> str:
        return join_key(self._tenant_id, sub_id)


def _horizon_document(horizon: Horizon) -> Document:
    return {"from_seq": horizon.highest, "holes": [list(hole) for hole in horizon.holes]}


def _rule(document: Document) -> Subscription | str:
    """Return the rule, or why it cannot be read."""
    try:
        fields = Fields(document)
        match = fields.nested("match")
        return Subscription(
            tenant_id=fields.text("tenant_id", None),
            sub_id=fields.text("sub_id", None),
            bot_id=fields.text("bot_id", None),
            match=Match(**{name: match.texts(name) for name in Match.__slots__}),
            repo=fields.text("repo"),
            mode=fields.text("mode", DIRECT),
            consume_labels=fields.texts("consume_labels"),
            vars=storable_document(fields.mapping("vars")),  # A bot may change what it is given.
            args_var=fields.text("args_var"),
            enabled=fields.flag("enabled", default=True),
            origin=fields.text("origin"),
            created_by=fields.text("created_by"),
            horizon=Horizon(fields.count("from_seq"), tuple(map(_hole, fields.sequence("holes")))),
            created_at=fields.instant_or_none("created_at"),
        )
    except (ValueError, TypeError, InvalidInputError) as error:
        return f"{document_id(document)}: {error}"[:300]


def _hole(stored: object) -> tuple[int, int]:
    """Return a range of numbers; what is none would only be noticed when an event is matched, and fail that one."""
    if not isinstance(stored, list) or [type(number) for number in stored] != [int, int]:
        raise ValueError("holes: not two whole numbers")
    return stored[0], stored[1]
