"""Celery on Redis with late acknowledgement: what most who come to the outbox come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestant import Facts
from benchmarks.peers.peer import Peer, versions
from benchmarks.peers.redis_server import DURABILITY, AppendOnlyRedis, Fsync, redis_version

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOME = Path(__file__).parent


class CeleryRedis(Peer):
    """One worker with a pool of processes."""

    def __init__(self, fsync: Fsync) -> None:
        """It differs in when Redis flushes."""
        super().__init__(f"celery-redis-{fsync}", _HOME)
        self._fsync = fsync

    def _facts(self) -> Facts:
        return Facts(
            version=f"{versions(_HOME, 'celery', 'kombu', 'redis')}; {redis_version()}",
            durability=f"{DURABILITY[self._fsync]}; acks_late",
            batching="nothing: tasks are sent, taken and acknowledged one by one; 128 a process are taken in advance",
            notes="A message that is taken off the list is noted as unacknowledged only by the next command: a worker"
            " that dies between the two loses it.",
        )

    def _server(self, folder: Path) -> AppendOnlyRedis:
        return AppendOnlyRedis(folder, fsync=self._fsync)

    def _workers(self, processes: int) -> Sequence[Sequence[str]]:
        pool = ("--pool", "prefork", "--concurrency", str(processes))
        return [("-m", "celery", "--app", "app", "worker", *pool, "--loglevel", "WARNING")]

    def _announcements(self, processes: int) -> int:
        return processes + 1  # The parent of the pool, which takes the messages, too.


CONTESTANTS = (CeleryRedis("always"), CeleryRedis("everysec"))
