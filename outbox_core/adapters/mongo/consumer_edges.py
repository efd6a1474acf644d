"""Filters and updates of lifecycle_consumer_cursors, built from an edge: no query restates a rule of the deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox_core.adapters.mongo.edges import NOW
from outbox_core.domain.delivery import Cursor, Edge, Failing, Fence
from outbox_core.domain.errors import InvariantError

if TYPE_CHECKING:
    from datetime import timedelta

    from outbox_core.domain.consumer import Lease

STANDING: dict[str, Any] = {"retired_at": None}
"""Matches null and a missing field alike."""

ACTIVE: dict[str, Any] = {"retired_at": None, "paused_at": None}
"""What a poll may be due for; the index `due` holds these alone."""

RUNNING: dict[str, Any] = {**ACTIVE, "stopped_for": {"$in": ["", None]}}


def edge_filter(
    edge: Edge, tenant_id: str, key: str, lease: Lease | None = None, read: int | None = None
) -> dict[str, Any]:
    """Return the filter that lets a write take this edge only from where it starts."""
    query: dict[str, Any] = {"_id": key, "tenant_id": tenant_id}
    if edge.name != "register":
        query |= STANDING
    if edge.fence is Fence.HOLD:
        if lease is None:
            raise InvariantError(f"{edge.name} without a lease")
        # The owner too: a lease that was given back keeps its fence, and holds nothing any more.
        query |= {"fence": lease.fence, "lease_owner": lease.consumer.lease_owner}
    if edge.cursor is Cursor.EVENT:
        # A cursor that is no number is reconciled; nothing moves on from it.
        query["last_acked_sequence"] = read if read is None or read >= 0 else {"$in": []}
    return query


def edge_update(
    edge: Edge,
    *,
    number: int | None = None,
    failing: dict[str, Any] | None = None,
    **more: Any,  # noqa: ANN401 - aggregation expressions
) -> list[dict[str, Any]]:
    """Return the update pipeline of an edge; `more` are fields that no rule of the domain speaks of.

    It sets fields and nothing else: one that this version does not know survives (O08).
    """
    fields: dict[str, Any] = {"updated_at": NOW, **more}
    if edge.fence is Fence.MINT:
        fields["fence"] = plus_one("fence")
    if edge.cursor is not Cursor.KEEP:
        fields["last_acked_sequence"] = number
    if edge.failing is Failing.COUNT:
        fields["failing"] = failing
    elif edge.failing is Failing.CLEAR:
        fields["failing"] = None
    if edge.voids:
        fields |= {"lease_owner": "", "lease_until": None}
    return [{"$set": fields}]


def ahead(duration: timedelta) -> dict[str, Any]:
    """Return the server's time so much later."""
    return {"$add": [NOW, int(duration.total_seconds() * 1_000)]}


def literal(text: str) -> dict[str, Any]:
    """Return a text from outside as itself: in a pipeline a leading dollar would be a field."""
    return {"$literal": text}


def plus_one(field: str) -> dict[str, Any]:
    """Add one to a count; one that is no number starts anew."""
    return {"$add": [{"$cond": [{"$isNumber": f"${field}"}, f"${field}", 0]}, 1]}


def lease_is_over(reach: timedelta) -> dict[str, Any]:
    """Return the condition that nobody holds the row: no lease, one that ended, or one that no lease can be.

    One that ends further ahead than `reach` was written before the server's clock stepped back.
    """
    until = "$lease_until"
    return {
        "$or": [
            {"$ne": [{"$type": until}, "date"]},
            {"$lte": [until, NOW]},
            {"$gt": [until, ahead(reach)]},
        ]
    }
