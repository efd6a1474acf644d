"""dramatiq on Redis, which acknowledges late by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestant import Facts
from benchmarks.peers.peer import Peer, versions
from benchmarks.peers.redis_server import DURABILITY, AppendOnlyRedis, Fsync, redis_version

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOME = Path(__file__).parent
_THREADS = 8


class DramatiqRedis(Peer):
    """Worker processes with threads."""

    def __init__(self, fsync: Fsync) -> None:
        """It differs in when Redis flushes."""
        super().__init__(f"dramatiq-redis-{fsync}", _HOME)
        self._fsync = fsync

    def _facts(self) -> Facts:
        return Facts(
            version=f"{versions(_HOME, 'dramatiq', 'redis')}; {redis_version()}",
            durability=DURABILITY[self._fsync],
            batching=f"fetched by up to {2 * _THREADS} a process, its default; sent and acknowledged one by one",
            notes=f"{_THREADS} threads a process and the default middleware; sent from 8 threads",
        )

    def _server(self, folder: Path) -> AppendOnlyRedis:
        return AppendOnlyRedis(folder, fsync=self._fsync)

    def _workers(self, processes: int) -> Sequence[Sequence[str]]:
        return [("-m", "dramatiq", "app", "--processes", str(processes), "--threads", str(_THREADS))]


CONTESTANTS = (DramatiqRedis("always"), DramatiqRedis("everysec"))
