"""Poll one consumer: give its observer the events after its cursor, in order, and acknowledge them.

An event's way: is there something to do (here), is the stream whole from the cursor on (`ConsumerTurn.work`), is the
event still to be acted on, what does the observer say, and what is written of that. Nothing on it can delete, audit a
deletion, or notify (L08).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.consumer_turn import ConsumerTurn, put_off
from outbox_core.application.lease_heart import LeaseHeart
from outbox_core.application.reconcile_consumer import why_reconcile
from outbox_core.application.replay_letters import replay_letters
from outbox_core.domain.consumer import Poll, PollReport, lag

if TYPE_CHECKING:
    from outbox_core.domain.consumer import Consumer, Look
    from outbox_core.domain.observer import Observer
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

_log = logging.getLogger("outbox.lifecycle")


def observe_lifecycle(store: TenantStore, runtime: Runtime, observer: Observer) -> PollReport:
    """Let one consumer observe for about a second; return what it came to, and when to poll again.

    Where nothing is to be done this costs one read and writes nothing. Of two processes under one consumer id one
    works (L07). Raises TransientError where the store did not answer: what was not acknowledged is given again.
    """
    report = _poll(store, runtime, observer)
    runtime.outlets.polled(report)
    return report


def _poll(store: TenantStore, runtime: Runtime, observer: Observer) -> PollReport:
    look = store.consumers.look(observer.consumer_id)
    report = PollReport(tenant_id=store.tenant_id, consumer_id=observer.consumer_id, poll=Poll.IDLE)
    if look.consumer is None:
        return replace(report, poll=Poll.UNREGISTERED)
    report = replace(report, lag=lag(look.consumer.cursor, look.head))
    hindrance = _hindrance(look.consumer, look, observer)
    if hindrance is not None:
        return replace(report, poll=hindrance, wait=put_off(look.consumer, look.now))
    sent_at = runtime.clock.monotonic()
    # Of two threads of one process too one works; the same thread finds a lease again that it could not give back.
    owner = f"{runtime.worker}:{threading.get_native_id()}"
    lease = store.consumers.lease(observer.consumer_id, owner, runtime.limits.consumer_lease)
    if lease is None and look.consumer.damaged:
        _alarm(store, runtime, look.consumer)
        return replace(report, poll=Poll.STOPPED)
    if lease is None:
        # Another process's lease is no idleness: it may be over soon (L15).
        return replace(report, poll=Poll.BUSY, wait=runtime.limits.consumer_poll)
    with LeaseHeart(store, runtime, lease, sent_at) as heart:
        turn = ConsumerTurn(store, runtime, observer, lease, heart)
        turn.report = replace(turn.report, lag=report.lag)
        try:
            if replay_letters(turn):
                turn.work()
        finally:
            turn.rest()
    return turn.report


def _hindrance(consumer: Consumer, look: Look, observer: Observer) -> Poll | None:
    """Return why there is nothing to do now, None where there is something."""
    if consumer.retired_at is not None:
        return Poll.RETIRED
    if consumer.paused_at is not None:
        return Poll.PAUSED
    # Taking the lease mends a fence that is no number; where more of a row is damaged there is none to be had.
    if look.replays or consumer.damaged:
        return None
    if consumer.stopped_for and observer.reconcile is None:
        return Poll.STOPPED
    behind = consumer.cursor is None or consumer.cursor < look.head or why_reconcile(consumer, look.head)
    if not behind:
        return Poll.IDLE
    return Poll.RETRYING if put_off(consumer, look.now) is not None else None


def _alarm(store: TenantStore, runtime: Runtime, consumer: Consumer) -> None:
    said = (
        f"tenant {store.tenant_id}: consumer {consumer.consumer_id} stands: {consumer.stopped_for}; mend the row, or "
        "retire the consumer and register it again"
    )
    if runtime.said.is_time(said, runtime.clock.monotonic()):
        _log.error(said)
