"""Puts tasks in for Celery, and asks Redis how many are not acknowledged."""

from __future__ import annotations

from app import app, job
from redis import Redis

from benchmarks.peers.inside import take_orders, url

store = Redis.from_url(url())


def enqueue(first: int, count: int) -> None:
    """Send tasks over one producer, as the guide to calling tasks shows; a group, and several threads, are slower."""
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(first, first + count):
            job.apply_async((number,), producer=producer)


def unfinished() -> int:
    """Count messages that wait, and those that are taken and not acknowledged."""
    asked = store.pipeline(transaction=True)
    asked.llen("celery")
    asked.hlen("unacked")
    return sum(asked.execute())


take_orders(enqueue, unfinished)
