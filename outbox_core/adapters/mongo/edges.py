"""Filters and updates of trigger_effects, built from an edge: no query restates a rule of the state machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.domain.effect_lifecycle import Attempts, Edge, Fence, Flag, Guard, NotBefore
from outbox_core.domain.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterable

NOW = "$$NOW"
FIRST_DATE = datetime(1, 1, 1, tzinfo=UTC)
LAST_DATE = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)

# $$NOW compares a missing date as due, so a date is demanded; a plain range is bracketed by type and would not see
# what lies outside the dates, so that is asked for by $expr, one bound at a time, which the index can answer.
DUE = {"not_before": {"$type": "date"}, "$expr": {"$lte": ["$not_before", NOW]}}
MALFORMED = {
    "$or": [
        {"$expr": {"$lt": ["$not_before", FIRST_DATE]}},
        {"$expr": {"$gt": ["$not_before", LAST_DATE]}},
    ]
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What an edge takes from outside: who claims, for how long, what is recorded."""

    claim_id: str = ""
    worker: str = ""
    duration: timedelta = timedelta(0)
    outcome: str = ""
    error: str = ""


def edge_filter(edge: Edge, tenant_id: str, effect_ids: Iterable[Any], claim_id: str = "") -> dict[str, Any]:
    """Return the filter that lets a write over known ids take this edge only from where it starts."""
    if edge.fence is Fence.HOLD and not claim_id:
        raise InvariantError(f"{edge.name} without a claim_id")
    held = {"claim_id": claim_id} if claim_id and edge.fence is not Fence.MINT else {}
    sources = [source.value for source in edge.sources]
    return {
        "_id": {"$in": list(effect_ids)},
        "tenant_id": tenant_id,
        **held,
        "state": sources[0] if len(sources) == 1 else {"$in": sources},
        **(DUE if edge.guard in {Guard.DUE, Guard.LEASE_OVER} else {}),
        **(MALFORMED if edge.guard is Guard.MALFORMED and not claim_id else {}),
    }


def edge_update(edge: Edge, values: Values) -> list[dict[str, Any]]:
    """Return the update pipeline of an edge. Text from outside is a literal: a leading dollar is no field."""
    fields: dict[str, Any] = {"state": edge.target.value, "updated_at": NOW}
    if edge.fence is Fence.MINT:
        if not values.claim_id:
            raise InvariantError(f"{edge.name} without a claim_id")
        fields |= {
            "claim_id": {"$literal": values.claim_id},
            "claimed_by": {"$literal": values.worker},
            # A count that cannot be read may hide an earlier claim, and a first one asks for no finished run.
            "claims": _plus_one("claims", unreadable=1),
        }
    if edge.due_at is Flag.SET:
        fields["due_at"] = "$not_before"
    if edge.attempts is Attempts.SPEND:
        fields["attempts"] = _plus_one("attempts")
    if (moved := _not_before(edge, values)) is not None:
        fields["not_before"] = moved
    if edge.runs_alone is not Flag.KEEP:
        fields["runs_alone"] = edge.runs_alone is Flag.SET
    if edge.consumed is Flag.SET:
        fields["consume_marked"] = True
    if edge.done_at is Flag.SET:
        fields["done_at"] = NOW
    if edge.waiting is Flag.SET:
        fields["waiting_since"] = {"$ifNull": ["$waiting_since", NOW]}
    if values.outcome:
        fields["outcome"] = {"$literal": values.outcome}
    if values.error:
        fields["last_error"] = {"$literal": values.error}
    return [{"$set": fields}]


def _not_before(edge: Edge, values: Values) -> Any:  # noqa: ANN401 - an aggregation expression
    ahead = {"$add": [NOW, int(values.duration.total_seconds() * 1000)]}
    match edge.not_before:
        case NotBefore.KEEP:
            return None
        case NotBefore.NOW:
            return NOW
        case NotBefore.GIVEN_BACK:
            # A row that an older version claimed may have none: it stays until its lease is over.
            return {"$ifNull": ["$due_at", "$not_before"]}
        case NotBefore.DELAY:
            return ahead
        case NotBefore.LEASE:
            # A renewal never shortens a lease that somebody set for longer.
            return ahead if edge.fence is Fence.MINT else {"$max": ["$not_before", ahead]}


def _plus_one(field: str, unreadable: int = 0) -> dict[str, Any]:
    """Add one to a count; a count that is no number must not fail its neighbours' write, so it starts anew."""
    return {"$add": [{"$cond": [{"$isNumber": f"${field}"}, f"${field}", unreadable]}, 1]}
