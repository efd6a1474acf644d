"""A private mongod, run as a replica set of one, which is what transactions need."""

from __future__ import annotations

from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from outbox_core.adapters.mongo.replica_set import await_primary
from outbox_core.embedded.programs import check_mongod, find_mongod, runnable
from outbox_core.embedded.server import HOST, START_WITHIN, EmbeddedServer, port_is_open

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from outbox_core.embedded.supervisor import Process, Supervisor

CACHE_GB = 0.25
"""Without a limit mongod takes half the machine's memory."""

OPLOG_MB = 64

# Where the port had to change, and whoever took the old one accepts connections but never answers,
# mongod looks for itself there for half a minute before it takes its new address.
_PRIMARY_WITHIN = timedelta(seconds=90)

_EXITS = {
    48: "its port is taken",
    62: "its data was written by another version of MongoDB",
    100: "its folder is in use by another mongod, or holds data that it cannot read",
}


class EmbeddedMongo(EmbeddedServer):
    """A private replica set of one member in a folder."""

    name = "mongod"

    def __init__(
        self,
        folder: Path,
        *,
        replica_set: str = "outbox",
        extra_parameters: Mapping[str, str] = MappingProxyType({}),
        oplog_mb: int = OPLOG_MB,
        supervisor: Supervisor | None = None,
    ) -> None:
        """Describe the server; `start` starts it.

        Args:
            folder: where everything of it lies; made if missing.
            replica_set: its name; it cannot change once the folder holds data.
            extra_parameters: server parameters, as `--setParameter name=value`.
            oplog_mb: the size of the oplog.
            supervisor: who runs it; None makes one of its own.
        """
        super().__init__(folder, supervisor)
        self.replica_set = replica_set
        self.extra_parameters = dict(extra_parameters)
        self.oplog_mb = oplog_mb

    @property
    def url(self) -> str:
        """The connection string, with the replica set's name."""
        return f"mongodb://{HOST}:{self.port}/?replicaSet={self.replica_set}"

    def _prepare(self) -> list[str]:
        program = runnable(find_mongod(), self.folder)
        check_mongod(program)
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        parameters = {"diagnosticDataCollectionEnabled": "false", **self.extra_parameters}
        return [
            str(program),
            *("--dbpath", str(data)),
            *("--replSet", self.replica_set),
            *("--bind_ip", HOST),
            "--nounixsocket",
            *("--wiredTigerCacheSizeGB", str(CACHE_GB)),
            *("--oplogSize", str(self.oplog_mb)),
            *(word for name, value in parameters.items() for word in ("--setParameter", f"{name}={value}")),
        ]

    def _port_arguments(self, port: int) -> list[str]:
        return ["--port", str(port)]

    def _await_ready(self, process: Process) -> None:
        # The port first: a driver that finds it closed looks again only after half a second.
        process.await_ready(lambda: port_is_open(self.port), START_WITHIN)
        await_primary(
            HOST,
            self.port,
            replica_set=self.replica_set,
            within=_PRIMARY_WITHIN,
            pid=process.pid,
            alive=lambda: process.poll() is None,
        )

    def _explain_exit(self, code: int) -> str | None:
        return _EXITS.get(code)
