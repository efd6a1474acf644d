"""What a stretch of work took: CPU of servers and clients, commands and write conflicts of MongoDB."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import psutil
from pymongo import MongoClient, monitoring
from pymongo.read_concern import ReadConcern

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from pymongo.database import Database

NOT_OURS = frozenset({"hello", "isMaster", "ping", "serverStatus", "replSetHeartbeat", "endSessions", "buildInfo"})
"""Commands of the driver's monitoring, of the server itself, and of the measurement."""


def commands(database: Database[dict[str, Any]]) -> Counter[str]:
    """Return how often the server has run each command."""
    return _commands_in(database.client.admin.command("serverStatus"))


def _commands_in(status: dict[str, Any]) -> Counter[str]:
    counted = status["metrics"]["commands"]
    totals = {name: value["total"] for name, value in counted.items() if isinstance(value, dict) and "total" in value}
    return Counter({name: int(total) for name, total in totals.items() if total and name not in NOT_OURS})


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds that these processes and their children have used since they began.

    A child that was waited for is counted by its parent.
    """
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += sum(process.cpu_times()[:4])
    return total


class SentCommands(monitoring.CommandListener):
    """Counts what the clients send that it listens to."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Count it."""
        with self._lock:
            self.sent[event.command_name] += 1

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Nothing more to count."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Nothing more to count."""


@dataclass(frozen=True, slots=True)
class MongoCounts:
    """What a mongod has done so far."""

    commands: Counter[str]
    conflicts: int
    keys: int
    """Index keys examined, by all queries and updates."""

    documents: int
    """Documents examined."""

    def since(self, before: MongoCounts) -> MongoCounts:
        """Return what was done in between."""
        return MongoCounts(
            self.commands - before.commands,
            self.conflicts - before.conflicts,
            self.keys - before.keys,
            self.documents - before.documents,
        )


class MongoObserver:
    """Asks a mongod what it does, over a connection of its own; what it asks itself is not counted."""

    def __init__(self, url: str, database: str) -> None:
        self._own = SentCommands()
        self._client: MongoClient[dict[str, Any]] = MongoClient(url, event_listeners=[self._own])
        # What is not on a majority yet is not done yet.
        self.database: Database[dict[str, Any]] = self._client.get_database(
            database, read_concern=ReadConcern("majority")
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def counts(self) -> MongoCounts:
        """Return the counts up to now."""
        status = self._client.admin.command("serverStatus")
        metrics = status["metrics"]
        return MongoCounts(
            _commands_in(status) - self._own.sent,
            int(metrics["operation"]["writeConflicts"]),
            int(metrics["queryExecutor"]["scanned"]),
            int(metrics["queryExecutor"]["scannedObjects"]),
        )

    def quiet(self, for_s: float = 0.3, within_s: float = 30.0) -> MongoCounts:
        """Wait until nobody else has sent a command for a while; return the counts then."""
        give_up = time.monotonic() + within_s
        counts, since = self.counts(), time.monotonic()
        while time.monotonic() - since < for_s:
            if time.monotonic() > give_up:
                raise TimeoutError(f"MongoDB was not left alone for {for_s:g} s within {within_s:g} s")
            time.sleep(0.05)
            if (now := self.counts()).commands != counts.commands:
                counts, since = now, time.monotonic()
        return counts
