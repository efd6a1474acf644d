"""Puts messages in for dramatiq, and asks Redis how many are not acknowledged."""

from __future__ import annotations

from app import broker, job

from benchmarks.peers.inside import send_from_threads, take_orders

SENDERS = 8


def send(numbers: range) -> None:
    """Send messages one by one; a group sends them so, too."""
    for number in numbers:
        job.send(number)


def enqueue(first: int, count: int) -> None:
    """Send them from several threads."""
    send_from_threads(send, first, count, SENDERS)


def unfinished() -> int:
    """Count messages: each stays in this hash until it is acknowledged."""
    return int(broker.client.hlen(f"{broker.namespace}:{job.queue_name}.msgs"))


take_orders(enqueue, unfinished)
