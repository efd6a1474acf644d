"""PgQueuer, on PostgreSQL: taking jobs in batches, and one by one."""

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
_BATCH = 100
"""Its default is 10, and for short jobs it advises more; beyond this nothing is gained."""


class PgQueuer(Peer):
    """Worker processes that run jobs as coroutines."""

    def __init__(self, name: str, batch: int) -> None:
        """It differs in how many jobs it takes, and notes as done, at once."""
        super().__init__(name, _HOME)
        self._batch = batch

    def _facts(self) -> Facts:
        batching = "taken and finished one by one" if self._batch == 1 else f"taken and finished by {self._batch}"
        return Facts(
            version=f"{versions(_HOME, 'pgqueuer', 'asyncpg')}; PostgreSQL {postgres_version()}",
            durability=f"{DURABILITY}, its tables durable",
            batching=f"put in by {CHUNK:,} at once; {batching}",
            notes="its autovacuum settings; a connection a worker; all that is taken runs as coroutines, its default",
        )

    def _settings(self) -> Mapping[str, str]:
        return {"BENCH_BATCH": str(self._batch)}

    def _server(self, folder: Path) -> Postgres:
        return Postgres(folder)

    def _workers(self, processes: int) -> Sequence[Sequence[str]]:
        return [(str(_HOME / "worker.py"),)] * processes


CONTESTANTS = (PgQueuer("pgqueuer", _BATCH), PgQueuer("pgqueuer-one-by-one", 1))
