"""Agenda, on MongoDB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contestant import Facts
from benchmarks.peers.node import NodePeer, versions
from outbox_core.embedded import EmbeddedMongo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox_core.embedded.server import EmbeddedServer

_HOME = Path(__file__).parent

_CONCURRENCY = 20
_LOCKS = 2 * _CONCURRENCY
_TICK_MS = 100
_AT_ONCE = 100


class Agenda(NodePeer):
    """Worker processes that run jobs as promises."""

    def __init__(self) -> None:
        """There is one way to set it up."""
        super().__init__("agenda", _HOME)

    def _facts(self, node: str) -> Facts:
        return Facts(
            version=f"{versions(_HOME, 'agenda', '@agendajs/mongo-backend', 'mongodb')}; Node {node}",
            durability="w: majority, journaled",
            batching=f"nothing: a job is saved, locked, started and finished by a write each; {_AT_ONCE} are saved at a"
            " time",
            notes=f"maxConcurrency {_CONCURRENCY} as it comes, and as many of one job; lockLimit {_LOCKS}, processEvery"
            f" {_TICK_MS} ms: as many locks as it likes, as it comes, or a longer tick took more CPU a job, and its"
            " change stream for notifications many times as much.",
        )

    def _server(self, folder: Path) -> EmbeddedMongo:
        return EmbeddedMongo(folder)

    def _url(self, server: EmbeddedServer) -> str:
        return f"{server.url.replace('/?', '/agenda?')}&w=majority&journal=true"

    def _worker(self) -> Mapping[str, Any]:
        return {
            "agenda": {
                "maxConcurrency": _CONCURRENCY,
                "defaultConcurrency": _CONCURRENCY,
                "lockLimit": _LOCKS,
                "processEvery": _TICK_MS,
            }
        }

    def _enqueue(self) -> Mapping[str, Any]:
        return {"atOnce": _AT_ONCE}


CONTESTANTS = (Agenda(),)
