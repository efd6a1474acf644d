"""The rules of one tenant on trigger_subscriptions."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bson.raw_bson import RawBSONDocument
from pydantic import Field

from outbox_core.adapters.mongo.documents import (
    StoredDocument,
    Text,
    decode,
    decode_leniently,
    document_id,
    raw,
    why_invalid,
)
from outbox_core.adapters.mongo.errors import DUPLICATE_KEY, translated
from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.domain.errors import InvalidInputError, SubscriptionNotFoundError
from outbox_core.domain.identity import join_key, require_own
from outbox_core.domain.sequence import Horizon
from outbox_core.domain.subscription import DIRECT, Match, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pymongo.database import Database

_READ_AT_ONCE = 2_000
_MOST_KNOWN = 4_096
_LONGEST_KNOWN = 4_096
"""Rules that stay decoded, and the bytes of the longest: some 6 MB of a process where all are as long as most are."""

_log = logging.getLogger("outbox.subscriptions")


class StoredMatch(StoredDocument):
    """`match` of a rule."""

    sources: list[str] = []
    types: list[str] = []
    actions: list[str] = []
    repos: list[str] = []
    authors: list[str] = []
    subject_states: list[str] = []
    labels: list[str] = []


class SubscriptionDocument(StoredDocument):
    """A rule in trigger_subscriptions; `from_seq` and `holes` are its horizon."""

    tenant_id: str
    sub_id: str
    bot_id: str
    match: StoredMatch = StoredMatch()
    repo: Text = ""
    mode: Text = DIRECT
    consume_labels: list[str] = Field(default_factory=list)
    vars: dict[str, Any] = {}
    args_var: Text = ""
    enabled: bool = True
    origin: Text = ""
    created_by: Text = ""
    from_seq: int = Field(default=0, ge=0)
    holes: list[list[int]] = []
    created_at: datetime | None = None


class MongoSubscriptions:
    """Implements ports.subscriptions.Subscriptions."""

    def __init__(self, database: Database[dict[str, Any]], tenant_id: str) -> None:
        self._tenant = tenant_id
        self._rules = database["trigger_subscriptions"]

    def add(self, subscription: Subscription) -> bool:
        """See the port."""
        require_own(self._tenant, subscription.tenant_id, "a rule")
        rejections = insert_all(self._rules, [_to_document(subscription)])
        if rejections and rejections[0].code != DUPLICATE_KEY:
            raise InvalidInputError(f"subscription {subscription.sub_id} cannot be stored: {rejections[0].reason}")
        return not rejections

    def enabled(self) -> Sequence[Subscription]:
        """See the port."""
        rules = []
        for document in self._find({"enabled": {"$ne": False}}):
            rule = _known(document.raw) if len(document.raw) <= _LONGEST_KNOWN else _to_subscription(document)
            if isinstance(rule, str):
                _log.error("a subscription of tenant %s cannot be read, so it matches nothing: %s", self._tenant, rule)
            elif rule.enabled:
                rules.append(rule)
        return rules

    def all(self) -> Sequence[Subscription]:
        """See the port."""
        rules = [_to_subscription(document) for document in self._find({})]
        return [rule for rule in rules if isinstance(rule, Subscription)]

    def get(self, sub_ids: Iterable[str]) -> Mapping[str, Subscription | str]:
        """See the port."""
        found = self._find({"sub_id": {"$in": list(sub_ids)}})
        return {str(decode_leniently(document).get("sub_id")): _to_subscription(document) for document in found}

    def set_enabled(self, sub_id: str, *, enabled: bool, horizon: Horizon | None = None) -> bool:
        """See the port."""
        changed = {"enabled": enabled, **(_horizon_document(horizon) if horizon is not None else {})}
        query = {"tenant_id": self._tenant, "sub_id": sub_id}
        # A rule that says nothing is enabled.
        other: Any = False if enabled else {"$ne": False}
        with translated():
            written = self._rules.update_one({**query, "enabled": other}, {"$set": changed})
            if written.matched_count:
                return True
            if self._rules.find_one(query, {"_id": 1}) is None:
                raise SubscriptionNotFoundError(f"tenant {self._tenant} has no subscription {sub_id!r}")
        return False

    def remove(self, sub_id: str) -> bool:
        """See the port."""
        with translated():
            return self._rules.delete_one({"tenant_id": self._tenant, "sub_id": sub_id}).deleted_count == 1

    def _find(self, query: dict[str, Any]) -> list[RawBSONDocument]:
        with translated():
            return list(
                raw(self._rules).find({"tenant_id": self._tenant, **query}).sort("sub_id", 1).batch_size(_READ_AT_ONCE)
            )


def _to_document(rule: Subscription) -> dict[str, Any]:
    match = rule.match
    return {
        "_id": join_key(rule.tenant_id, rule.sub_id),
        "tenant_id": rule.tenant_id,
        "sub_id": rule.sub_id,
        "bot_id": rule.bot_id,
        "match": {name: list(getattr(match, name)) for name in StoredMatch.model_fields},
        "repo": rule.repo,
        "mode": rule.mode,
        "consume_labels": list(rule.consume_labels),
        "vars": dict(rule.vars),
        "args_var": rule.args_var,
        "enabled": rule.enabled,
        "origin": rule.origin,
        "created_by": rule.created_by,
        **_horizon_document(rule.horizon),
        "created_at": rule.created_at,
    }


def _horizon_document(horizon: Horizon) -> dict[str, Any]:
    return {"from_seq": horizon.highest, "holes": [list(hole) for hole in horizon.holes]}


@lru_cache(maxsize=_MOST_KNOWN)
def _known(stored: bytes) -> Subscription | str:
    """Return what these bytes say, decoded once: a drain reads every rule for each batch, and few have changed.

    The bytes are the whole key, so nothing older than what was just read can come of it. A bot may change the `vars`
    that it is given: a slice has the rule decoded for it, and a turn copies them.
    """
    return _to_subscription(RawBSONDocument(stored))


def _to_subscription(document: RawBSONDocument) -> Subscription | str:
    """Return the rule, or why it cannot be read."""
    try:
        stored = SubscriptionDocument.model_validate(decode(document))
        match = {name: tuple(values) for name, values in stored.match.model_dump().items()}
        return Subscription(
            tenant_id=stored.tenant_id,
            sub_id=stored.sub_id,
            bot_id=stored.bot_id,
            match=Match(**match),
            repo=stored.repo,
            mode=stored.mode,
            consume_labels=tuple(stored.consume_labels),
            vars=stored.vars,
            args_var=stored.args_var,
            enabled=stored.enabled,
            origin=stored.origin,
            created_by=stored.created_by,
            horizon=Horizon(stored.from_seq, tuple((first, last) for first, last in stored.holes)),
            created_at=stored.created_at,
        )
    except ValueError as error:
        return f"{document_id(decode_leniently(document))}: {why_invalid(error)}"
    except InvalidInputError as error:
        return f"{document_id(decode_leniently(document))}: {error}"
