"""graphile-worker, on PostgreSQL, with the settings that its page on performance is measured with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contestant import Facts
from benchmarks.peers.inside import CHUNK
from benchmarks.peers.node import NodePeer, versions
from benchmarks.peers.postgres import DURABILITY, Postgres, postgres_version

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOME = Path(__file__).parent

_CONCURRENT_JOBS = 24
_LOCAL_QUEUE = 500


class GraphileWorker(NodePeer):
    """Worker processes that run jobs as promises."""

    def __init__(self, *, batching: bool) -> None:
        """It batches what is taken, by a local queue, and what is completed; or neither."""
        super().__init__("graphile-worker" if batching else "graphile-worker-unbatched", _HOME)
        self._batching = batching

    def _facts(self, node: str) -> Facts:
        fetched = (
            f"{_LOCAL_QUEUE} are taken at once into each process (localQueue), and those that ended are completed"
            " together (completeJobBatchDelay 0)"
            if self._batching
            else "taken and completed one by one"
        )
        return Facts(
            version=f"{versions(_HOME, 'graphile-worker')}; Node {node}; PostgreSQL {postgres_version()}",
            durability=DURABILITY,
            batching=f"added by {CHUNK:,} at once (addJobs); {fetched}",
            notes=f"{_CONCURRENT_JOBS} jobs at a time in each process, and {_CONCURRENT_JOBS + 1} connections: what its"
            " page on performance is measured with. A worker that dies leaves its jobs locked for four hours.",
        )

    def _server(self, folder: Path) -> Postgres:
        return _PostgresForMany(folder)

    def _worker(self) -> Mapping[str, Any]:
        worker: dict[str, Any] = {"concurrentJobs": _CONCURRENT_JOBS, "maxPoolSize": _CONCURRENT_JOBS + 1}
        if self._batching:
            worker |= {"localQueue": {"size": _LOCAL_QUEUE}, "completeJobBatchDelay": 0, "failJobBatchDelay": 0}
        return {"worker": worker}

    def _settings(self) -> Mapping[str, str]:
        return {"NO_LOG_SUCCESS": "1"}  # As its performance test does: no line on the log for each job.

    def _enqueue(self) -> Mapping[str, Any]:
        return {"chunk": CHUNK}


class _PostgresForMany(Postgres):
    """PostgreSQL takes 100 connections as it comes; 4 processes have as many, and one more puts jobs in."""

    def _prepare(self) -> list[str]:
        return [*super()._prepare(), "-c", "max_connections=200"]


CONTESTANTS = (GraphileWorker(batching=True), GraphileWorker(batching=False))
