"""Example events, rows, rules and settlements, with as little said as a test needs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.effect import DEAD_EVENT, DELIVERED, LAUNCH, NewEffect, RunRecord, Settlement
from outbox_core.domain.event import Attributes, Event, NewEvent, Snapshot
from outbox_core.domain.subscription import Match, Subscription
from tests.harness.base import ACME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from outbox_core.domain.effect import Claim
    from outbox_core.domain.effect_lifecycle import Edge
    from outbox_core.ports.store import TenantStore


def attributes(*, source: str = "app", type: str = "thing", **more: Any) -> Attributes:  # noqa: A002, ANN401
    """Return what a rule may ask; names of the snapshot are taken there."""
    seen = {name: more.pop(name) for name in Snapshot.__slots__ if name in more}
    return Attributes(source=source, type=type, snapshot=Snapshot(**seen), **more)


def new_event(event_id: str, **more: Any) -> NewEvent:  # noqa: ANN401 - as attributes
    data = more.pop("data", {})
    return NewEvent(event_id=event_id, attributes=attributes(**more), data=data)


def event(seq: int, event_id: str = "", *, tenant: str = ACME, now: datetime, **more: Any) -> Event:  # noqa: ANN401
    data = more.pop("data", {})
    return Event(
        tenant_id=tenant,
        seq=seq,
        event_id=event_id or f"e{seq}",
        attributes=attributes(**more),
        data=data,
        trace={},
        occurred_at=None,
        recorded_at=now,
    )


def append(store: TenantStore, *event_ids: str, **more: Any) -> Sequence[Event]:  # noqa: ANN401 - as attributes
    """Allocate and insert events, as an append does."""
    allocation = store.log.allocate(len(event_ids))
    events = [
        event(seq, event_id, tenant=store.tenant_id, now=allocation.now, **more)
        for seq, event_id in zip(allocation.seqs, event_ids, strict=True)
    ]
    store.log.insert(events)
    return events


def new_effect(number: int = 1, sub_id: str = "sub", *, tenant: str = ACME, **more: Any) -> NewEffect:  # noqa: ANN401
    """Return a launch that is owed to the event `e<number>`."""
    fields = {"kind": LAUNCH, "bot_id": "bot", "event_id": f"e{number}", "attributes": attributes(), **more}
    return NewEffect(tenant_id=tenant, seq=number, sub_id=sub_id, **fields)


def dead_event(document_id: str = "broken", *, tenant: str = ACME) -> NewEffect:
    return NewEffect(
        tenant_id=tenant,
        seq=1,
        event_id="",
        kind=DEAD_EVENT,
        attributes=None,
        document_id=document_id,
        error="does not decode",
    )


def materialize(store: TenantStore, count: int, *, now: datetime, first: int = 1, **more: Any) -> list[str]:  # noqa: ANN401
    """Write `count` launches, due now; return their ids in order."""
    effects = [new_effect(first + index, tenant=store.tenant_id, **more) for index in range(count)]
    store.effects.materialize(effects, now)
    return [effect.effect_id for effect in effects]


def claim(
    store: TenantStore, limit: int, lease: timedelta, worker: str = "worker-1", *, crowded: bool = False
) -> Claim:
    return store.effects.claim_due(limit, worker=worker, lease=lease, crowded=crowded)


def ids_of(claimed: Claim) -> list[str]:
    return [effect.effect_id for effect in claimed.effects]


def subscription(sub_id: str = "sub", *, tenant: str = ACME, bot_id: str = "bot", **more: Any) -> Subscription:  # noqa: ANN401
    """Return a rule; names of a match are taken there."""
    match = {name: more.pop(name) for name in Match.__slots__ if name in more}
    return Subscription(tenant_id=tenant, sub_id=sub_id, bot_id=bot_id, match=Match(**match), **more)


def run_record(now: datetime, *, result: object = None, error: str | None = None) -> RunRecord:
    return RunRecord(bot_id="bot", args={"a": 1}, started_at=now, finished_at=now, result=result, error=error)


def done(run: RunRecord | None = None) -> Settlement:
    return Settlement(edge=lifecycle.DONE, outcome=DELIVERED, run=run)


def by_edge(edge: Edge, delay: timedelta = timedelta(0), error: str = "because") -> Settlement:
    """Return a settlement that takes an edge."""
    outcome = {"done": DELIVERED, "drop": "subscription_disabled"}.get(edge.name, "")
    text = "" if outcome else error
    return Settlement(edge=edge, outcome=outcome, error=text, delay=delay)


SETTLING = (
    lifecycle.DONE,
    lifecycle.DROP,
    lifecycle.REFUSE,
    lifecycle.RETRY,
    lifecycle.RETRY_LATER,
    lifecycle.PASS_OVER,
    lifecycle.FAIL,
    lifecycle.PARK_HUNG,
)
"""The edges that a settlement may take."""
