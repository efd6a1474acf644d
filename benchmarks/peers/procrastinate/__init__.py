"""Procrastinate, on PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestant import Facts
from benchmarks.peers.inside import CHUNK
from benchmarks.peers.peer import Peer, versions
from benchmarks.peers.postgres import DURABILITY, Postgres, postgres_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HOME = Path(__file__).parent
_CONCURRENCY = 10
"""More are no faster."""


class Procrastinate(Peer):
    """Worker processes that run jobs as coroutines."""

    def __init__(self) -> None:
        """There is one way to set it up."""
        super().__init__("procrastinate", _HOME)

    def _facts(self) -> Facts:
        return Facts(
            version=f"{versions(_HOME, 'procrastinate', 'psycopg')}; PostgreSQL {postgres_version()}",
            durability=DURABILITY,
            batching=f"deferred by {CHUNK:,} at once; fetched and finished one by one",
            notes=f"{_CONCURRENCY} coroutines a process; done jobs are kept, its default (to delete them is no faster)",
        )

    def _settings(self) -> Mapping[str, str]:
        return {"BENCH_CONCURRENCY": str(_CONCURRENCY)}

    def _server(self, folder: Path) -> Postgres:
        return Postgres(folder)

    def _workers(self, processes: int) -> Sequence[Sequence[str]]:
        return [(str(_HOME / "worker.py"),)] * processes


CONTESTANTS = (Procrastinate(),)
