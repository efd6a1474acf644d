"""Runs child programs, stops them in reverse order, and leaves none behind however we end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from outbox_core.embedded.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

STOP_GRACE = timedelta(seconds=10)
"""How long a child may take to end after TERM before it is killed, unless its spawn says more."""

_POLL_S = 0.02
_TAIL_LINES = 5
_TAIL_BYTES = 8_192

_WATCHDOG = Path(__file__).with_name("watchdog.py")
# Isolated and without site-packages: a start in some milliseconds, whatever is installed.
_WATCHDOG_ARGV = (sys.executable, "-I", "-S", str(_WATCHDOG))


class Process:
    """One child program, the leader of its own session: no Ctrl-C of a terminal reaches it.

    Made by `Supervisor.spawn`. Safe to use from several threads.
    """

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path, stop_grace: timedelta) -> None:
        self.name = name
        self.log = log
        """Where its stdout and stderr go."""
        self.stop_grace = stop_grace
        self._popen = popen
        self._swept = False

    @property
    def pid(self) -> int:
        """The process id; of the program itself, not of a wrapper around it."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Returns the exit code, -N if signal N ended it, or None while it runs."""
        code = self._popen.poll()
        if code is not None and not self._swept:
            self._swept = True
            self._kill_group()
        return code

    def ended_within(self, within: timedelta) -> bool:
        """Wait for the end; returns whether it came in time."""
        return wait_for(lambda: self.poll() is not None, within)

    def await_ready(self, ready: Callable[[], bool], within: timedelta) -> None:
        """Wait until `ready` returns true.

        Raises:
            EmbeddedServerError: the program ended first, or `within` passed; the message carries
                the last lines of the log. The program is not stopped.
        """
        if not wait_for(lambda: self.poll() is not None or ready(), within):
            raise EmbeddedServerError(
                f"{self.name} was not ready within {within.total_seconds():g} s; "
                f"its log {self.log} ends: {self.log_tail()}"
            )
        code = self.poll()
        if code is not None:
            raise EmbeddedServerError(
                f"{self.name} ended with {code} before it was ready; its log {self.log} ends: {self.log_tail()}"
            )

    def log_tail(self) -> str:
        """Returns the last lines of the log, joined in one."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
            return " | ".join(lines[-_TAIL_LINES:]) or "(empty)"
        return "(unreadable)"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program alone; nothing happens if it has ended."""
        self._popen.send_signal(number)

    def stop(self) -> int:
        """TERM, wait for `stop_grace`, KILL; returns the exit code. Repeat calls only return it."""
        self.signal(signal.SIGTERM)
        if not self.ended_within(self.stop_grace):
            return self.kill()
        return self._exit_code()

    def kill(self) -> int:
        """KILL at once, its whole process group; returns the exit code."""
        if self.poll() is None:
            self._kill_group()
        return self._exit_code()

    def _exit_code(self) -> int:
        self._popen.wait()
        code = self.poll()
        if code is None:
            raise EmbeddedServerError(f"{self.name} ({self.pid}) cannot be ended")
        return code

    def _kill_group(self) -> None:
        # What the program started may outlive it: a pool of a worker that was killed.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class Supervisor:
    """Children that end with us: in order by `stop_all`, or by a watchdog after a kill -9 of us.

    The watchdog is a small process of its own, started with the first child. Use it as a context
    manager. Not to be used on both sides of a fork: the fork's copy would keep the watchdog waiting.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: list[Process] = []
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_all()

    @property
    def processes(self) -> tuple[Process, ...]:
        """Every child not yet stopped, in the order of starting; some may have died."""
        return tuple(self._processes)

    def dead(self) -> tuple[Process, ...]:
        """Returns the children that ended without being asked to, in the order of starting."""
        return tuple(process for process in self.processes if process.poll() is not None)

    def spawn(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stop_grace: timedelta = STOP_GRACE,
        pass_fds: Sequence[int] = (),
    ) -> Process:
        """Start a program and return at once; `Process.await_ready` waits for it.

        Args:
            name: what messages call it.
            argv: the program, by path or by a name on PATH, and its arguments.
            log: stdout and stderr are appended here; its folder must exist.
            env: the whole environment; None passes ours on.
            cwd: where it runs; None is where we do.
            stop_grace: how long it may take to end after TERM before KILL.
            pass_fds: descriptors that it inherits.

        Raises:
            EmbeddedServerError: the program does not exist, or the log cannot be written.
        """
        path = (env if env is not None else os.environ).get("PATH")
        if shutil.which(str(argv[0]), path=path) is None:
            raise EmbeddedServerError(f"{name} cannot be started: no program {argv[0]}")
        with self._lock:
            stream_fd = self._watchdog_stream()
            grace_ms = str(round(stop_grace / timedelta(milliseconds=1)))
            try:
                with log.open("ab") as output:
                    popen = subprocess.Popen(  # Its end is waited for by stop.
                        [*_WATCHDOG_ARGV, "run", str(stream_fd), grace_ms, *map(str, argv)],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=env,
                        cwd=cwd,
                        start_new_session=True,
                        pass_fds=(stream_fd, *pass_fds),
                    )
            except OSError as error:
                raise EmbeddedServerError(f"{name} cannot be started: {error}") from error
            process = Process(name, popen, log, stop_grace)
            self._processes.append(process)
            return process

    def forget(self, process: Process) -> None:
        """Take a child that has ended off the books; a repeat call does nothing.

        Raises:
            EmbeddedServerError: it still runs.
        """
        if process.poll() is None:
            raise EmbeddedServerError(f"{process.name} still runs")
        with self._lock:
            if process not in self._processes:
                return
            self._processes.remove(process)
            if self._watchdog is not None and self._watchdog.stdin is not None:
                # A watchdog that was killed is found out by the next spawn.
                with contextlib.suppress(BrokenPipeError):
                    os.write(self._watchdog.stdin.fileno(), f"gone {process.pid}\n".encode("ascii"))

    def stop_all(self) -> None:
        """Stop every child, the last one first, then the watchdog. A repeat call does nothing.

        An interrupt during the wait leaves the rest to `kill_all`, or to the watchdog, which ends
        them once this process has.
        """
        for process in reversed(self.processes):
            process.stop()
            self.forget(process)
        with self._lock:
            if self._watchdog is not None:
                self._end_watchdog(self._watchdog)
                self._watchdog = None

    def kill_all(self) -> None:
        """KILL every child at once, as a crash would; a repeat call does nothing."""
        for process in reversed(self.processes):
            process.kill()
            self.forget(process)

    def _watchdog_stream(self) -> int:
        """Returns the descriptor that children announce themselves on; starts the watchdog."""
        if self._watchdog is not None and self._watchdog.poll() is not None:
            raise EmbeddedServerError("the watchdog was killed: stop all, and start again")
        if self._watchdog is None:
            self._watchdog = subprocess.Popen(
                [*_WATCHDOG_ARGV, "watch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",  # It must keep no folder from being removed.
                start_new_session=True,
            )
        if self._watchdog.stdin is None:
            raise EmbeddedServerError("the watchdog has no stream")
        return self._watchdog.stdin.fileno()

    @staticmethod
    def _end_watchdog(watchdog: subprocess.Popen[bytes]) -> None:
        if watchdog.stdin is not None:
            watchdog.stdin.close()
        watchdog.wait()


def wait_for(condition: Callable[[], bool], within: timedelta) -> bool:
    """Poll until the condition holds; returns whether it did within the time."""
    deadline = time.monotonic() + within.total_seconds()
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
