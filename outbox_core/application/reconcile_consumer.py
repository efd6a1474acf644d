"""Bring a consumer that the stream cannot tell everything to what is live now, then let it go on from there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from outbox_core.domain.consumer import Poll, Start
from outbox_core.domain.delivery import MAX_ATTEMPTS, failure_class, retry_delay
from outbox_core.domain.errors import BotOverstayedError
from outbox_core.domain.observer import Reconciliation, observing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from outbox_core.application.lease_heart import LeaseHeart
    from outbox_core.domain.board import Card
    from outbox_core.domain.consumer import Consumer, Lease
    from outbox_core.domain.observer import Observer
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

RECONCILING = "#reconcile"
"""Stands in the place of an event id where it is the reconciliation that failed."""

_PAGE = 1_000
_log = logging.getLogger("outbox.lifecycle")


def why_reconcile(consumer: Consumer, head: int) -> str:
    """Return why the stream cannot tell a consumer everything, by its row alone; "" where it may (L12)."""
    if consumer.must_reconcile:
        return "it was told to"
    if consumer.cursor is None:
        return "it starts at the latest event" if consumer.start is Start.LATEST else ""
    if consumer.cursor < 0:
        return "its cursor is no number"
    return f"its cursor {consumer.cursor} is above the head {head}" if consumer.cursor > head else ""


def reconcile_consumer(
    store: TenantStore, runtime: Runtime, observer: Observer, lease: Lease, heart: LeaseHeart, *, head: int, why: str
) -> tuple[Poll, timedelta | None]:
    """Give the observer every live card, then set the cursor to `head`, which was read before the cards.

    A change that commits meanwhile stands above that head, and is observed afterwards. One that fails is tried again,
    after the times of an event's retries, and never given up: an alarm is raised from the tenth failure on. Where the
    observer has no `reconcile` the consumer stops and waits for an operator. Returns what it came to, and when to try
    again. Never raises for what foreign code does.
    """
    named = f"tenant {store.tenant_id}: consumer {observer.consumer_id}"
    if observer.reconcile is None:
        if not lease.consumer.stopped_for:
            _log.error(
                "%s must reconcile (%s) and its observer has no reconcile=; give it one, or accept the loss with "
                "`outbox consumers reconcile --tenant %s %s --skip`",
                named,
                why,
                store.tenant_id,
                observer.consumer_id,
            )
        return (Poll.STOPPED if store.consumers.stop(lease, why) else Poll.LOST), None
    given = Reconciliation(tenant=store.tenant_id, consumer_id=observer.consumer_id, why=why, cards=_live_cards(store))
    limit = runtime.limits.max_time_limit
    try:
        with observing(observer.consumer_id), heart.call(limit), runtime.interrupt.limit(limit):
            observer.reconcile(given)
    except (Exception, BotOverstayedError) as error:  # noqa: BLE001 - the named edge: an observer's call
        failing = lease.consumer.failing
        attempts = 1 + (failing.attempts if failing and failing.event_id == RECONCILING else 0)
        level = logging.ERROR if attempts >= MAX_ATTEMPTS else logging.WARNING
        _log.log(level, "%s could not reconcile (%s), try %d: %s", named, why, attempts, type(error).__name__)
        delay, kind = retry_delay(attempts), failure_class(error)
        noted = store.consumers.fail(lease, event_id=RECONCILING, attempts=attempts, delay=delay, failure_class=kind)
        return (Poll.RETRYING, delay) if noted else (Poll.LOST, None)
    if not store.consumers.reconciled(lease, head=head, why=why):
        return Poll.LOST, None
    _log.info("%s reconciled (%s), and goes on after event %d", named, why, head)
    return Poll.OBSERVED, None


def _live_cards(store: TenantStore) -> Iterator[Card]:
    after = ""
    while page := store.cards.live(after=after, limit=_PAGE):
        yield from page
        after = page[-1].card_id
