"""How much waits in a queue."""

from __future__ import annotations

from typing import Any


def waiting_in(producer: Any, queue: str) -> int:  # noqa: ANN401 - kombu's producer
    """Return how many messages wait there, over all priorities; raises what the broker's client raises.

    Declared as the workers declare it: the same again changes nothing, and where there is none yet there is one then.
    """
    found = producer.channel.queue_declare(queue=queue, durable=True, exclusive=False, auto_delete=False)
    return int(found.message_count)
