"""What a development stack is made of: servers, and programs of ours that run beside them."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from outbox_core.embedded import EmbeddedServerError, Process, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

READY_WITHIN = timedelta(seconds=60)
PROGRAM_GRACE = timedelta(seconds=10)
QUIET = timedelta(seconds=4)
"""A program that takes longer to stop says what it waits for."""
_LOG_BYTES = 64 * 1024


class Part(Protocol):
    """A server or a program of the stack."""

    name: str

    @property
    def log(self) -> Path: ...  # noqa: D102 - where it writes

    @property
    def pid(self) -> int: ...  # noqa: D102 - of the program itself

    @property
    def running(self) -> bool: ...  # noqa: D102 - was started and has not ended

    def start(self) -> None: ...  # noqa: D102 - returns when it works, or raises EmbeddedServerError

    def stop(self) -> None: ...  # noqa: D102 - warm, within its grace; a repeat call does nothing


@dataclass(slots=True)
class Program:
    """A program of ours as a part; `is_ready` is asked with what its log has said since the start."""

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str]
    supervisor: Supervisor
    is_ready: Callable[[str], bool]
    grace: timedelta = PROGRAM_GRACE
    lock_fd: int = -1
    on_long_stop: Callable[[], None] | None = None
    _process: Process | None = None
    _log_from: int = 0

    @property
    def pid(self) -> int:
        """The process id; EmbeddedServerError while it was not started."""
        if self._process is None:
            raise EmbeddedServerError(f"{self.name} is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start it, and return at once."""
        self._forget()
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        self._process = self.supervisor.spawn(
            self.name,
            self.argv,
            log=self.log,
            env=self.env,
            stop_grace=self.grace,
            pass_fds=[self.lock_fd] if self.lock_fd >= 0 else [],
        )

    def await_ready(self) -> None:
        """Wait until it works; EmbeddedServerError where it ends or takes too long."""
        if self._process is not None:
            self._process.await_ready(lambda: self.is_ready(self._said()), READY_WITHIN)

    def start(self) -> None:
        """Start it, and return when it works."""
        self.launch()
        self.await_ready()

    def stop(self) -> None:
        """TERM, wait for its grace, KILL."""
        if self._process is None:
            return
        # TERM once: a second one would make a worker's warm stop a cold one.
        self._process.signal(signal.SIGTERM)
        if not self._process.ended_within(min(QUIET, self.grace)):
            if self.on_long_stop is not None:
                self.on_long_stop()
            if not self._process.ended_within(self.grace):
                self._process.kill()
        self._forget()

    def _forget(self) -> None:
        if self._process is not None:
            self.supervisor.forget(self._process)
            self._process = None

    def _said(self) -> str:
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self._log_from)
            return log.read(_LOG_BYTES).decode("utf-8", "replace")
        return ""
