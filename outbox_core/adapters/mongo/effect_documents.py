"""The stored forms of an effect and of its run."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import Field
from pymongo import UpdateOne

from outbox_core.adapters.mongo.documents import StoredAttributes, StoredDocument, Text
from outbox_core.domain.effect import LAUNCH, Effect, key_of
from outbox_core.domain.effect_lifecycle import State
from outbox_core.domain.identity import split_key
from outbox_core.domain.limits import MAX_RESULT_BYTES
from outbox_core.domain.payload import json_bytes

if TYPE_CHECKING:
    from outbox_core.domain.effect import Claim, NewEffect, RunRecord


class EffectDocument(StoredDocument):
    """A row of trigger_effects as a claim reads it."""

    id: str = Field(alias="_id")
    tenant_id: str
    seq: int
    event_id: str
    kind: Text = LAUNCH
    attributes: StoredAttributes
    sub_id: Text = ""
    bot_id: Text = ""
    attempts: int = Field(default=0, ge=0)
    claims: int = Field(ge=1)
    due_at: datetime | None = None
    created_at: datetime
    waiting_since: datetime | None = None
    consume_marked: bool = False
    trace: dict[str, str] | None = None


def launch_of(document: dict[str, Any]) -> Effect:
    """Return a claimed row; raise ValueError, saying why, where it is not one.

    The fields must yield the key: a row forged under another event's key is malformed. Where only the tenant differs
    the row is another tenant's, which `owner` says and the execution refuses.
    """
    stored = EffectDocument.model_validate(document)
    kind = stored.kind or LAUNCH
    owner = split_key(stored.id)[0]
    if key_of(kind, owner, stored.event_id, stored.sub_id) not in {stored.id, None}:
        raise ValueError("the key is not that of the row's kind, tenant, event and subscription")
    return Effect(
        effect_id=stored.id,
        owner=owner,
        tenant_id=stored.tenant_id,
        seq=stored.seq,
        event_id=stored.event_id,
        kind=kind,
        attributes=stored.attributes.to_domain(),
        sub_id=stored.sub_id,
        bot_id=stored.bot_id,
        attempts=stored.attempts,
        claims=stored.claims,
        due_at=stored.due_at or stored.created_at,
        created_at=stored.created_at,
        waiting_since=stored.waiting_since,
        consume_marked=stored.consume_marked,
        trace=stored.trace or {},
    )


def new_row_document(effect: NewEffect, now: datetime) -> dict[str, Any]:
    """Return the stored form of a row at its birth."""
    edge = effect.birth
    hold = effect.hold if edge.target is State.CLAIMED else None
    return {
        "_id": effect.effect_id,
        "tenant_id": effect.tenant_id,
        "seq": effect.seq,
        "event_id": effect.event_id,
        "kind": effect.kind,
        "state": edge.target.value,
        "attributes": None if effect.attributes is None else effect.attributes.document(),
        "sub_id": effect.sub_id,
        "bot_id": effect.bot_id,
        "attempts": 0,
        "claims": 0 if hold is None else 1,
        "not_before": now if hold is None else now + hold.lease,
        "due_at": now,
        "claim_id": None if hold is None else hold.claim_id,
        "runs_alone": False,
        "trace": dict(effect.trace),
        "created_at": now,
        "updated_at": now,
        **({"claimed_by": hold.worker} if hold is not None else {}),
        **({"last_error": effect.error} if edge.target is State.FAILED else {}),
    }


def run_document(tenant_id: str, effect: Effect, claim: Claim, run: RunRecord) -> dict[str, Any]:
    """Return the stored form of a run record."""
    return {"_id": effect.effect_id, "tenant_id": tenant_id, **_told_of(effect, claim, run)}


def run_update(tenant_id: str, effect: Effect, claim: Claim, run: RunRecord) -> UpdateOne:
    """Return the write of a run record that only a newer or the same claim may do.

    Over a record of a newer claim the upsert meets its `_id` and is refused: a duplicate key.
    """
    claims = effect.claims
    return UpdateOne(
        {
            "_id": effect.effect_id,
            "tenant_id": tenant_id,
            "$or": [{"claims": {"$lt": claims}}, {"claims": claims, "claim_id": claim.claim_id}],
        },
        {"$set": _told_of(effect, claim, run)},
        upsert=True,
    )


def _told_of(effect: Effect, claim: Claim, run: RunRecord) -> dict[str, Any]:
    keeps = run.result is None or json_bytes(run.result, "the result") <= MAX_RESULT_BYTES
    return {
        "claims": effect.claims,
        "claim_id": claim.claim_id,
        "claimed_by": claim.worker,
        "bot_id": run.bot_id,
        "args": dict(run.args),
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "result": run.result if keeps else None,
        "result_dropped": not keeps,
        "error": run.error,
    }
