"""faststream-outbox, on PostgreSQL: the Python outbox whose rows are run where they lie.

The other one that installs, django-celery-outbox, only hands its rows on to a broker of Celery: it can be no faster
than Celery on Redis, which is measured by itself, and what it promises for a task's run is what Celery promises.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestant import Facts
from benchmarks.peers.inside import CHUNK
from benchmarks.peers.peer import Peer, versions
from benchmarks.peers.postgres import DURABILITY, Postgres, postgres_version

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOME = Path(__file__).parent


class PythonOutbox(Peer):
    """Worker processes, each with a subscriber of several coroutines."""

    def __init__(self) -> None:
        """There is one way to set it up."""
        super().__init__("python-outbox", _HOME)

    def _facts(self) -> Facts:
        return Facts(
            version=f"{versions(_HOME, 'faststream-outbox', 'faststream', 'SQLAlchemy', 'asyncpg')};"
            f" PostgreSQL {postgres_version()}",
            durability=DURABILITY,
            batching=f"published by {CHUNK:,} in a transaction; leased and deleted by 100",
            notes="4 coroutines a process, the autovacuum settings that it recommends; a crash repeats up to a batch",
        )

    def _server(self, folder: Path) -> Postgres:
        return Postgres(folder)

    def _workers(self, processes: int) -> Sequence[Sequence[str]]:
        return [(str(_HOME / "app.py"),)] * processes


CONTESTANTS = (PythonOutbox(),)
