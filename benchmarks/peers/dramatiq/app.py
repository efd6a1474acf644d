"""The broker and the actor of dramatiq: loaded by its workers and by who puts messages in."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.ledger import count
from benchmarks.peers.inside import announce, url


class SaysSo(dramatiq.Middleware):
    """Tells the benchmark when a worker process takes messages."""

    def after_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        """Say so."""
        del broker, worker
        announce()


broker = RedisBroker(url=url())
broker.add_middleware(SaysSo())
dramatiq.set_broker(broker)


@dramatiq.actor
def job(number: int) -> None:
    """Count it."""
    count(number)
