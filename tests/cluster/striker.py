"""Counts the commands that the product sends, and does something at one of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pymongo import MongoClient
from pymongo.monitoring import CommandListener

from outbox_core.adapters.mongo.client import database_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.database import Database
    from pymongo.monitoring import CommandFailedEvent, CommandStartedEvent, CommandSucceededEvent

    from outbox_core.domain.limits import Limits


def _nothing(command: str) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A command: its name, what it is about, and whether it asks for a majority (inside a transaction none does)."""

    name: str
    collection: str
    durable: bool

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.name in {"find", "aggregate", "getMore"}


class Striker(CommandListener):
    """Calls `before` as the chosen command is about to be sent, and `after` once it was answered, or has failed.

    Both are called in the thread that sends it, which waits. The driver's own looks at the servers are no commands.
    """

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        """The commands so far."""
        self.struck: list[str] = []
        self._lock = threading.Lock()
        self._at: int | str = 0
        self._before: Callable[[str], None] = _nothing
        self._after: Callable[[str], None] = _nothing
        self._requests: set[int] = set()

    def strike(
        self,
        at: int | str,
        before: Callable[[str], None],
        after: Callable[[str], None] = _nothing,
        *,
        collection: str = "",
    ) -> None:
        """Strike once: at the n-th command from now (from 1), or at the next of a name, on a collection if said."""
        with self._lock:
            self.sent.clear()
            self.struck.clear()
            self._requests.clear()
            self._at = f"{at} {collection}" if collection else at
            self._before, self._after = before, after

    def started(self, event: CommandStartedEvent) -> None:
        with self._lock:
            name = event.command_name
            sent = Sent(name, str(event.command.get(name)), durable="writeConcern" in event.command)
            self.sent.append(sent)
            if self.struck or self._at not in {len(self.sent), name, f"{name} {sent.collection}"}:
                return
            self.struck.append(name)
            self._requests.add(event.request_id)
        self._before(event.command_name)

    def failed(self, event: CommandFailedEvent) -> None:
        if event.request_id in self._requests:
            self._after(event.command_name)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        if event.request_id in self._requests:
            self._after(event.command_name)


def listened(
    url: str, db_name: str, striker: Striker, limits: Limits, *, retries: bool = True
) -> Database[dict[str, Any]]:
    """Return the product's handle of a database whose commands go by a striker; without `retries` the driver has none.

    As `client.connect` makes it, which takes no listener.
    """
    timeout_ms = int(limits.op_timeout.total_seconds() * 1000)
    client: MongoClient[dict[str, Any]] = MongoClient(
        url,
        appname="outbox",
        timeoutMS=timeout_ms,
        serverSelectionTimeoutMS=timeout_ms,
        connectTimeoutMS=timeout_ms,
        retryWrites=retries,
        retryReads=retries,
        event_listeners=[striker],
    )
    return database_of(client, db_name)
