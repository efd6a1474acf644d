"""Create a rule that matches what comes from now on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from outbox_core.domain.errors import InvalidInputError, TransientError
from outbox_core.domain.limits import MAX_RULE_BYTES, MAX_VARS_BYTES
from outbox_core.domain.payload import require_json
from outbox_core.domain.subscription import differences

if TYPE_CHECKING:
    from outbox_core.domain.subscription import Subscription
    from outbox_core.ports.store import TenantStore

SECRET_PREFIX = "whsec_"  # noqa: S105 - it says what a secret is, and is none
"""How the signing secret of a webhook begins (Standard Webhooks)."""


@dataclass(frozen=True, slots=True)
class Added:
    """The rule as it is stored, and whether it is new."""

    rule: Subscription
    fresh: bool


def add_subscription(store: TenantStore, rule: Subscription) -> Added:
    """Store a rule; return it with its horizon (E07).

    History does not fire: what the log holds at this moment is behind the horizon, a number that is still missing is
    not. A read error creates nothing. A repeat returns the rule that is there, with its own horizon, its switch and
    its origin as they are. Raises InvalidInputError where the id is another rule's, which is left as it is, and where
    the rule could not be stored, or holds a secret: rules are stored and listed as they are.
    """
    require_storable(rule)
    cursor = store.progress.load()
    born = replace(rule, horizon=store.log.horizon(cursor.seq), created_at=cursor.now)
    if store.subscriptions.add(born):
        return Added(born, fresh=True)
    named = f"tenant {store.tenant_id} has a subscription {rule.sub_id!r} already"
    known = store.subscriptions.get([rule.sub_id]).get(rule.sub_id)
    if known is None:
        raise TransientError(f"{named}, which comes or goes just now; try again")
    if isinstance(known, str):
        raise InvalidInputError(f"{named}, which cannot be read ({known}); remove it first")
    if differ := differences(known, rule):
        raise InvalidInputError(f"{named}, with other content: {'; '.join(differ)}; remove it first")
    return Added(known, fresh=False)


def require_storable(rule: Subscription) -> None:
    """Raise InvalidInputError where a rule could not be stored, is over a limit, or holds a secret."""
    require_json(dict(rule.vars), "vars", MAX_VARS_BYTES)
    texts = {name: getattr(rule, name) for name in ("repo", "mode", "args_var", "origin", "created_by")}
    whole = {**texts, "match": asdict(rule.match), "consume_labels": rule.consume_labels}
    require_json(whole, f"subscription {rule.sub_id}", MAX_RULE_BYTES)
    for name, value in rule.vars.items():
        if any(SECRET_PREFIX in text for text in _texts_in(value)):
            raise InvalidInputError(
                f"vars: {name} holds a secret itself ({SECRET_PREFIX}…), and rules are listed as they are; "
                "put the secret into OUTBOX_WEBHOOK_SECRETS and give its name"
            )


def _texts_in(value: Any) -> Iterator[str]:  # noqa: ANN401 - a value of a JSON object
    match value:
        case str():
            yield value
        case Mapping():
            for key, inner in value.items():
                yield key
                yield from _texts_in(inner)
        case list() | tuple():
            for inner in value:
                yield from _texts_in(inner)
        case _:
            pass
