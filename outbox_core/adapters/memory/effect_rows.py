"""The rows of `trigger_effects` on the twin: their form, and the one function that takes a row over an edge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from outbox_core.adapters.memory.clock import truncated
from outbox_core.adapters.memory.documents import Fields, attributes_of, storable_document
from outbox_core.domain.effect import LAUNCH, Effect, key_of
from outbox_core.domain.effect_lifecycle import LIVE, Attempts, Edge, Fence, Flag, Guard, NotBefore
from outbox_core.domain.errors import InvalidInputError, InvariantError, UnstorableRowError
from outbox_core.domain.identity import split_key

if TYPE_CHECKING:
    from outbox_core.adapters.memory.database import Document
    from outbox_core.domain.effect import NewEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What an edge takes from outside: who claims, for how long, what is recorded."""

    claim_id: str = ""
    worker: str = ""
    duration: timedelta = timedelta(0)
    outcome: str = ""
    error: str = ""


def born(effect: NewEffect, now: datetime) -> Document:
    """Return the row that `birth` creates; raise UnstorableRowError where it cannot be stored."""
    try:
        if effect.attributes is not None:
            effect.attributes.require_storable("what rules match")
        attributes = None if effect.attributes is None else effect.attributes.document()
        row = storable_document(
            {
                "_id": effect.effect_id,
                "tenant_id": effect.tenant_id,
                "seq": effect.seq,
                "event_id": effect.event_id,
                "kind": effect.kind,
                "attributes": attributes,
                "sub_id": effect.sub_id,
                "bot_id": effect.bot_id,
                "claims": 0,
                "due_at": now,
                "claim_id": None,
                "runs_alone": False,
                "trace": dict(effect.trace),
                "created_at": now,
            }
        )
    except (ValueError, InvalidInputError) as error:
        raise UnstorableRowError(f"a row of event {effect.event_id} cannot be stored: {error}") from error
    hold = effect.hold
    held = Values() if hold is None else Values(claim_id=hold.claim_id, worker=hold.worker, duration=hold.lease)
    return over(row, effect.birth, truncated(now), replace(held, error=effect.error))


def may_take(row: Document, edge: Edge, now: datetime, claim_id: str = "") -> bool:
    """Say whether a row may go over an edge: its state, the fence, the edge's guard."""
    if edge.fence is Fence.HOLD and not claim_id:
        raise InvariantError(f"{edge.name} without a claim_id")
    if row.get("state") not in edge.sources:
        return False
    if claim_id and edge.fence is not Fence.MINT and row.get("claim_id") != claim_id:
        return False
    match edge.guard:
        case Guard.NONE:
            return True
        case Guard.DUE | Guard.LEASE_OVER:
            due = due_time(row)
            return due is not None and due <= now
        case Guard.MALFORMED:
            return bool(claim_id) or due_time(row) is None


def over(row: Document, edge: Edge, now: datetime, values: Values) -> Document:  # noqa: C901, PLR0912 - a line a column
    """Return a row after an edge; every field that the edge does not name stays."""
    moved = {**row, "state": edge.target.value, "updated_at": now}
    match edge.attempts:
        case Attempts.KEEP:
            pass
        case Attempts.SPEND:
            moved["attempts"] = count_of(row, "attempts") + 1
        case Attempts.RESET:
            moved["attempts"] = 0
    if edge.fence is Fence.MINT:
        moved.update(
            claim_id=values.claim_id,
            claimed_by=values.worker,
            # A count that cannot be read may hide an earlier claim, and a first one asks for no finished run.
            claims=count_of(row, "claims", unreadable=1) + 1,
        )
    if edge.due_at is Flag.SET:
        moved["due_at"] = row["not_before"]
    match edge.not_before:
        case NotBefore.KEEP:
            pass
        case NotBefore.NOW:
            moved["not_before"] = now
        case NotBefore.LEASE:
            ends = now + values.duration
            # A renewal never shortens a lease that somebody set for longer.
            moved["not_before"] = ends if edge.fence is Fence.MINT else max(due_time(row) or ends, ends)
        case NotBefore.DELAY:
            moved["not_before"] = now + values.duration
        case NotBefore.GIVEN_BACK:
            moved["not_before"] = row.get("due_at") or row["not_before"]
    match edge.runs_alone:
        case Flag.KEEP:
            pass
        case Flag.SET:
            moved["runs_alone"] = True
        case Flag.CLEAR:
            moved["runs_alone"] = False
    if edge.consumed is Flag.SET:
        moved["consume_marked"] = True
    if edge.done_at is Flag.SET:
        moved["done_at"] = now
    if edge.waiting is Flag.SET:
        moved["waiting_since"] = row.get("waiting_since") or now
    if values.outcome:
        moved["outcome"] = values.outcome
    if values.error:
        moved["last_error"] = values.error
    return moved


def due_time(row: Document) -> datetime | None:
    """Return when a live row is due; None for a settled row, and for one whose time is none."""
    due = row.get("not_before")
    return due if row.get("state") in LIVE and isinstance(due, datetime) else None


def count_of(row: Document, name: str, unreadable: int = 0) -> int:
    """Return a count; what is none has a default, so that a broken row can be claimed, and parked, like any other."""
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else unreadable


def effect_of(row: Document) -> Effect:
    """Return a claimed row as a worker sees it; raise ValueError, saying why, where it is malformed (E45).

    The fields must yield the key: a row forged under another event's key is malformed. Where only the tenant differs
    the row is another tenant's, which `owner` says and the execution refuses.
    """
    fields = Fields(row)
    effect_id, event_id, sub_id = fields.text("_id", None), fields.text("event_id", None), fields.text("sub_id")
    kind = fields.text("kind") or LAUNCH
    owner = split_key(effect_id)[0]
    if key_of(kind, owner, event_id, sub_id) not in {effect_id, None}:
        raise ValueError("the key is not that of the row's kind, tenant, event and subscription")
    created_at = fields.instant("created_at")
    return Effect(
        effect_id=effect_id,
        owner=owner,
        tenant_id=fields.text("tenant_id", None),
        seq=fields.number("seq"),
        event_id=event_id,
        kind=kind,
        attributes=attributes_of(fields.nested("attributes")),
        sub_id=sub_id,
        bot_id=fields.text("bot_id"),
        attempts=fields.count("attempts"),
        claims=fields.count("claims"),
        due_at=fields.instant_or_none("due_at") or created_at,
        created_at=created_at,
        waiting_since=fields.instant_or_none("waiting_since"),
        consume_marked=row.get("consume_marked") is True,
        trace=fields.carrier("trace"),
    )
