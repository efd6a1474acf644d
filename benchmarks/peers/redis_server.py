"""A private Valkey or Redis that writes down what it is told: what the peers on Redis keep their jobs in."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.contestant import Unavailable
from outbox_core.embedded import EmbeddedRedis, EmbeddedServerError, find_redis
from outbox_core.embedded.programs import runnable

if TYPE_CHECKING:
    from outbox_core.embedded import Supervisor

Fsync = Literal["always", "everysec"]

DURABILITY: dict[Fsync, str] = {
    "always": "append-only file, appendfsync always: flushed to disk before it answers",
    "everysec": "append-only file, appendfsync everysec: a crash of the machine loses up to a second or two",
}


class AppendOnlyRedis(EmbeddedRedis):
    """A server with an append-only file, flushed to disk as told."""

    def __init__(self, folder: Path, *, fsync: Fsync, supervisor: Supervisor | None = None) -> None:
        """Describe the server; `start` starts it."""
        super().__init__(folder, persistence=True, supervisor=supervisor)
        self.fsync = fsync

    def _prepare(self) -> list[str]:
        return [*super()._prepare(), "--appendfsync", self.fsync]


def redis_version() -> str:
    """Returns the name and version of the server, as `Valkey 9.1.2`.

    Raises:
        Unavailable: there is none here.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            program = runnable(find_redis(), Path(folder))
            said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    except EmbeddedServerError as error:
        raise Unavailable(str(error)) from error
    found = re.match(r"(\w+) server v=(\S+)", said)
    return f"{found.group(1)} {found.group(2)}" if found else said.strip()
