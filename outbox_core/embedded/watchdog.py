"""Ends the children of a process that can no longer do so, because it was killed with -9.

One file, two small programs, both started by the supervisor as a script, so that they import
nothing but the standard library and are up within some milliseconds:

- ``watchdog.py watch`` reads lines on stdin until its end: the far end is held by the parent, so
  the end of the stream is the parent's death (or its orderly close, when nothing is left to end).
- ``watchdog.py run FD GRACE_MS PROGRAM [ARG...]`` writes its own process id to that same stream,
  through the inherited descriptor FD, and then becomes PROGRAM.

Why the child announces itself: were it the parent that did, a kill -9 between starting the child
and announcing it would leak the child. Here the child holds the stream open until it has written
its line, and closes it by becoming PROGRAM; so whenever the watchdog reads the end of the stream
it has also read about every child there is. A child that dies before its line needs no ending.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from dataclasses import dataclass

_POLL_S = 0.02
_KILL_WAIT_S = 5.0
_READ_BYTES = 65_536


@dataclass(slots=True)
class _Child:
    """A process to end: the leader of its own session, and so of its own process group."""

    pid: int
    grace_s: float
    pidfd: int | None
    """Names this very process, also once its id has been given to another; None off Linux."""

    @classmethod
    def open(cls, pid: int, grace_s: float) -> _Child | None:
        """Returns None if the process has ended already."""
        if sys.platform != "linux":
            return cls(pid, grace_s, None)
        try:
            return cls(pid, grace_s, os.pidfd_open(pid))
        except ProcessLookupError:
            return None
        except OSError:  # A kernel before 5.3.
            return cls(pid, grace_s, None)

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if sys.platform == "linux" and self.pidfd is not None:
                signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
            else:
                os.kill(self.pid, signal.SIGTERM)

    def kill_group(self) -> None:
        # By group: a worker that is killed leaves its pool. The id of a group is not given to
        # another process while the group has members.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def ended_within(self, seconds: float) -> bool:
        if self.pidfd is not None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        deadline = time.monotonic() + seconds
        while True:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)


def watch(stream_fd: int) -> None:
    """Read announcements until the stream ends, then end the last child first."""
    # The session is our own, yet a shutdown of the machine signals everyone: first the parent
    # gets its chance to stop its children in order, and closing the stream stops us.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)

    children: dict[int, _Child] = {}
    pending = b""
    while chunk := os.read(stream_fd, _READ_BYTES):
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            _take(line.decode("ascii").split(), children)

    for child in reversed(children.values()):
        child.terminate()
        child.ended_within(child.grace_s)
        child.kill_group()
        child.ended_within(_KILL_WAIT_S)


def _take(words: list[str], children: dict[int, _Child]) -> None:
    match words:
        case ["add", pid, grace_ms]:
            child = _Child.open(int(pid), int(grace_ms) / 1000)
            if child is not None:
                children[child.pid] = child
        case ["gone", pid]:
            gone = children.pop(int(pid), None)
            if gone is not None:
                gone.close()
        case _:  # Nothing else is ever written; a watchdog that dies of a line would protect no one.
            pass


def run(stream_fd: int, grace_ms: int, argv: list[str]) -> None:
    """Announce this process, then become the program.

    Raises:
        OSError: the program cannot be executed.
    """
    # A line below PIPE_BUF bytes is written whole or not at all, whoever else writes.
    os.write(stream_fd, f"add {os.getpid()} {grace_ms}\n".encode("ascii"))
    os.set_inheritable(stream_fd, False)
    # Python ignores these for itself; an ignored signal would stay so in the program.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.execvp(argv[0], argv)  # noqa: S606  (No shell is the point.)


def main(argv: list[str]) -> int:
    """The command line of both programs; returns the exit code."""
    match argv:
        case ["watch"]:
            watch(sys.stdin.fileno())
            return 0
        case ["run", stream_fd, grace_ms, *program] if program:
            try:
                run(int(stream_fd), int(grace_ms), program)
            except OSError as error:
                sys.stderr.write(f"{program[0]}: {error.strerror}\n")
            return 127
        case _:
            sys.stderr.write("usage: watchdog.py watch | run FD GRACE_MS PROGRAM [ARG...]\n")
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
