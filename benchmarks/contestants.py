"""Who takes part. Each module has `CONTESTANTS`; importing it asks for nothing that `prepare` must install first."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.contestant import Contestant

OURS = ("benchmarks.outbox_contestant", "benchmarks.raw_contestant")
PEERS = (
    "benchmarks.peers.celery_redis",
    "benchmarks.peers.dramatiq",
    "benchmarks.peers.procrastinate",
    "benchmarks.peers.pgqueuer",
    "benchmarks.peers.python_outbox",
    "benchmarks.peers.graphile_worker",
    "benchmarks.peers.agenda",
)


def known() -> tuple[dict[str, Contestant], dict[str, str]]:
    """Return every contestant by its name, and why a module of them could not be loaded."""
    found: dict[str, Contestant] = {}
    missing: dict[str, str] = {}
    for name in (*OURS, *PEERS):
        try:
            contestants: Sequence[Contestant] = import_module(name).CONTESTANTS
        except Exception as error:  # noqa: BLE001 - one peer that does not load must not end the run
            missing[name.rpartition(".")[2]] = f"{type(error).__name__}: {error}"
            continue
        found |= {one.name: one for one in contestants}
    return found, missing
