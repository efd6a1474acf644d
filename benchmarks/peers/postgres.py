"""A private PostgreSQL server, started bare: what the peers on PostgreSQL keep their jobs in.

It listens on the loopback alone, and `fsync` and `synchronous_commit` are said to be on, as they are by default.
Everything else is as PostgreSQL comes.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestant import Unavailable
from outbox_core.embedded import EmbeddedServerError
from outbox_core.embedded.server import HOST, START_WITHIN, EmbeddedServer

if TYPE_CHECKING:
    from outbox_core.embedded import Process, Supervisor

DURABILITY = "fsync=on, synchronous_commit=on"
SUPERUSER = "postgres"

_DEBIAN = Path("/usr/lib/postgresql")
_OLDEST = 15
# The server refuses to run as root: then it runs as one of these, the first that there is.
_USERS = ("postgres", "nobody")
_SCRATCH = ".bench"
"""The folder of the project in which the benchmark keeps its own."""


class Postgres(EmbeddedServer):
    """A PostgreSQL server with a fresh cluster in a folder."""

    name = "postgres"

    def __init__(self, folder: Path, *, supervisor: Supervisor | None = None) -> None:
        """Describe the server; `start` makes the cluster where there is none, and starts it.

        Raises:
            Unavailable: there is no PostgreSQL here.
        """
        super().__init__(folder, supervisor)
        self._programs = find_postgres()

    @property
    def url(self) -> str:
        """The connection string of the database `postgres`; anyone on the loopback may come in."""
        return f"postgresql://{SUPERUSER}@{HOST}:{self.port}/postgres"

    def stop(self) -> None:
        """End it without waiting for clients that are still connected, as TERM alone would. The data stays."""
        if self._process is not None:
            self._process.signal(signal.SIGINT)
        super().stop()

    def _prepare(self) -> list[str]:
        user = _other_user()
        data = self.folder / "data"
        if user is not None:
            _let_through(self.folder)
        if not (data / "PG_VERSION").exists():
            data.mkdir(mode=0o700, exist_ok=True)
            if user is not None:
                os.chown(data, user.pw_uid, user.pw_gid)
            self._initdb(data, user)
        return [
            *_as_user(user),
            str(self._programs / "postgres"),
            *("-D", str(data)),
            *("-c", f"listen_addresses={HOST}"),
            *("-c", "unix_socket_directories="),
            *("-c", "fsync=on"),
            *("-c", "synchronous_commit=on"),
            # Its statistics are a minute behind as it is, and a round lasts seconds: a queue that was empty when they
            # were made is then read by plans for an empty table, at twenty times the cost.
            *("-c", "autovacuum_naptime=1s"),
        ]

    def _port_arguments(self, port: int) -> list[str]:
        return ["-p", str(port)]

    def _await_ready(self, process: Process) -> None:
        process.await_ready(self._is_ready, START_WITHIN)

    def _is_ready(self) -> bool:
        asked = subprocess.run(
            [self._programs / "pg_isready", "-q", "-h", HOST, "-p", str(self.port), "-U", SUPERUSER],
            check=False,
            env=_environment(),
        )
        return asked.returncode == 0

    def _initdb(self, data: Path, user: pwd.struct_passwd | None) -> None:
        made = subprocess.run(
            [
                *_as_user(user),
                str(self._programs / "initdb"),
                *("-D", str(data)),
                *("-U", SUPERUSER),
                *("-A", "trust"),
                *("-E", "UTF8"),
                "--no-locale",
            ],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            env=_environment(),
        )
        if made.returncode != 0:
            raise EmbeddedServerError(f"initdb ended with {made.returncode}: {made.stderr.strip()}")


def find_postgres() -> Path:
    """Returns the folder of PostgreSQL's server programs.

    Raises:
        Unavailable: there are none, or none new enough.
    """
    folders = [found.resolve().parent for name in ("initdb", "postgres") if (found := _on_path(name))]
    folders += sorted(_DEBIAN.glob("*/bin"), key=lambda folder: _major(folder.parent.name), reverse=True)
    for folder in folders:
        if all((folder / name).is_file() for name in ("initdb", "postgres", "pg_isready")):
            version = postgres_version(folder)
            if _major(version) >= _OLDEST:
                return folder
    raise Unavailable(f"no PostgreSQL {_OLDEST} or newer found; on Debian or Ubuntu: apt install postgresql")


def postgres_version(programs: Path | None = None) -> str:
    """Returns the version of the server, as `15.18`.

    Raises:
        Unavailable: there is no PostgreSQL here.
    """
    said = subprocess.run(
        [(programs or find_postgres()) / "postgres", "--version"], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"\d+(\.\d+)*", said)
    return found.group() if found else said.strip()


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return None if found is None else Path(found)


def _major(version: str) -> int:
    digits = re.match(r"\d+", version)
    return int(digits.group()) if digits else 0


def _other_user() -> pwd.struct_passwd | None:
    """Returns as whom the server runs, or None where it may run as us.

    Raises:
        Unavailable: we are root, and there is no other user.
    """
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Unavailable("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")


def _as_user(user: pwd.struct_passwd | None) -> list[str]:
    """Returns the words that go before a command; they become that command, under the same process id."""
    if user is None:
        return []
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def _let_through(folder: Path) -> None:
    """Let another user pass through folders that the benchmark made for itself alone.

    Raises:
        Unavailable: a folder on the way is closed that is not the benchmark's own.
    """
    temporary = Path(tempfile.gettempdir()).resolve()
    for step in (folder.resolve(), *folder.resolve().parents):
        mode = step.stat().st_mode
        if mode & 0o001:
            continue
        if temporary not in step.parents and all(above.name != _SCRATCH for above in step.parents):
            raise Unavailable(f"PostgreSQL does not run as root, and no other user may enter {step}")
        step.chmod(mode & 0o7777 | 0o011)


def _environment() -> dict[str, str]:
    """Returns our environment without what steers PostgreSQL's programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
