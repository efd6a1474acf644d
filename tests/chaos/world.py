"""The deployment under fire: its seats, what sits in them now, and what was seen of them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from outbox_core.embedded import EmbeddedServerError
from outbox_core.embedded.supervisor import wait_for
from tests.acceptance.stack import READY_WITHIN, Stack, children
from tests.chaos.journal import EXECUTIONS, OBSERVATIONS
from tests.chaos.plan import BEAT_LANES, WATCHER, WORKER_LANES

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.embedded import EmbeddedRedis, Process
    from tests.cluster.replica_set import ReplicaSet

Line = tuple[str, str, int, int, float]
"""A line of a journal of calls: the phase, the effect or the consumer's event, the attempt, the process, and when."""

CLOCKS = Path(__file__).parent / "clock"
PRODUCER = "producer"
POOL = 2
_LOOK_S = 0.1
_STARTS = 3
_LOOKS_AT_A_POOL = 40
"""Asking for a process's children reads all processes of the machine."""


@dataclass(slots=True)
class Seat:
    """A place in the deployment that is to be taken again whenever its process has ended."""

    name: str
    start: Callable[[dict[str, str]], Process]
    ready: str
    """What its log says once it works."""
    variables: dict[str, str] = field(default_factory=dict)
    process: Process | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while it is struck: an end meanwhile is ours."""

    @property
    def alive(self) -> Process:
        if self.process is None:
            raise EmbeddedServerError(f"nobody sits at {self.name}")
        return self.process


@dataclass(frozen=True, slots=True)
class Killed:
    """Processes that were killed at an instant of the kernel's clock."""

    at: float
    pids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Caught:
    """A process that stands still, and what it was at."""

    pid: int
    at: str

    def __str__(self) -> str:
        return f"{self.pid} at {self.at}"


class Watched:
    """A journal of calls, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lock = threading.Lock()
        self.lines: list[Line] = []
        self._open: dict[int, str] = {}

    def at_work(self) -> dict[int, str]:
        """Return which process is at what now."""
        with self._lock:
            self._read()
            return dict(self._open)

    def all(self) -> list[Line]:
        """Return every line so far: the phase, what it is of, the attempt, the process, and when."""
        with self._lock:
            self._read()
            return list(self.lines)

    def _read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as journal:
            journal.seek(self._offset)
            read = journal.read()
        whole = read[: read.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            phase, effect_id, attempt, pid, at = json.loads(line)
            self.lines.append((phase, effect_id, attempt, pid, at))
            if phase == "start":
                self._open[pid] = effect_id
            else:
                self._open.pop(pid, None)


class World:
    """All processes of a deployment and what they stand on; who ends without being struck is noted, and replaced."""

    def __init__(self, stack: Stack, mongo: ReplicaSet, broker: EmbeddedRedis, producer: list[str]) -> None:
        self.stack = stack
        self.mongo = mongo
        self.broker = broker
        self.watched = Watched(stack.folder / EXECUTIONS)
        self.observed = Watched(stack.folder / OBSERVATIONS)
        self.killed: list[Killed] = []
        self.ended_by_themselves: list[str] = []
        self.logs: list[Path] = []
        self.pausing = threading.Lock()
        """Held while a whole pool stands still: somebody must be there to take its rows."""
        self._producer = producer
        self._sender = Celery("chaos", broker=stack.broker_url)
        self._producers = 0
        self.seats = {
            **{name: Seat(name, self._worker, " ready.") for name in WORKER_LANES},
            **{name: Seat(name, self._beat, "beat: Starting") for name in BEAT_LANES},
            PRODUCER: Seat(PRODUCER, self._produce, "producer: ready"),
            WATCHER: Seat(WATCHER, self._observe, "watcher: ready"),
        }
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._keep_watch, name="watch", daemon=True)

    def start(self) -> None:
        """Seat everybody, and keep watch."""
        threads = [threading.Thread(target=self.take, args=(seat,)) for seat in self.seats.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._watch.start()

    def stop_watch(self) -> None:
        """Take no more note of who ends."""
        self._stop.set()
        if self._watch.is_alive():
            self._watch.join()

    def take(self, seat: Seat) -> None:
        """Start a process for a seat, and wait until it works; one that ends before is noted, and tried again."""
        with seat.lock:
            for _ in range(_STARTS):
                process = seat.process = seat.start(seat.variables)
                self.logs.append(process.log)
                self._await_ready(process, seat.ready)
                if process.poll() is None:
                    return
                self._note_end(seat)
        raise EmbeddedServerError(f"{seat.name} does not come up in {_STARTS} starts")

    @staticmethod
    def _await_ready(process: Process, ready: str) -> None:
        wait_for(lambda: process.poll() is not None or ready in process.log.read_text("utf-8", "replace"), READY_WITHIN)

    def vacate(self, seat: Seat) -> None:
        """Kill the process of a seat, and all that it started, with -9."""
        with seat.lock:
            process = seat.alive
            pids = frozenset({process.pid, *children(process)})
            process.kill()
            self.killed.append(Killed(now(), pids))
            self.stack.forget(process)
            seat.process = None

    def vacate_if_taken(self, name: str) -> None:
        """End who sits there for good."""
        seat = self.seats[name]
        with seat.lock:
            if seat.process is not None:
                self.vacate(seat)

    def kill_child(self, pid: int) -> None:
        """Kill one process of a pool with -9; its parent replaces it."""
        os.kill(pid, signal.SIGKILL)
        self.killed.append(Killed(now(), frozenset({pid})))

    @staticmethod
    def pause(pids: list[int]) -> list[int]:
        """Stop processes where they stand; return them."""
        for one in pids:
            os.kill(one, signal.SIGSTOP)
        return pids

    @staticmethod
    def wake(pids: list[int]) -> None:
        """Let them go on, those that are still there."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def at_work(self) -> dict[int, str]:
        """Return which process runs which effect, or observes what, now."""
        return {**self.observed.at_work(), **self.watched.at_work()}

    def caught(self, seat: Seat, draw: float, prefer: str = "", within_s: float = 4.0) -> Caught:
        """Stop a process that sits here in the middle of a bot or an observer, where one is met in time, else any.

        Whoever is found at work may have ended by the time that it stands still: it is looked at again then. One that
        runs for the rule `prefer` comes first.
        """
        deadline = time.monotonic() + within_s
        pool: list[int] = []
        for look in count():
            if look % _LOOKS_AT_A_POOL == 0:
                pool = [seat.alive.pid] if seat.name == WATCHER else sorted(children(seat.alive))
            at_work = self.at_work()
            busy = [pid for pid in pool if pid in at_work]
            busy = [pid for pid in busy if prefer and at_work[pid].endswith(f"|{prefer}")] or busy
            late = time.monotonic() > deadline
            if busy or (late and pool):
                chosen = (busy or pool)[int(draw * len(busy or pool))]
                self.pause([chosen])
                if late or chosen in self.at_work():
                    return Caught(chosen, self.at_work().get(chosen, "nothing"))
                self.wake([chosen])
            time.sleep(0.005)
        raise AssertionError

    def hold_a_message(self, within_s: float = 3.0) -> int:
        """Have a worker take a tick of later, which it holds unacknowledged; return how many are held."""
        with (
            suppress(OperationalError),
            self._sender.connection_for_write() as connection,
            connection.Producer() as producer,
        ):
            self._sender.send_task(
                "outbox.sweep_tick", routing_key="maintenance", exchange="", countdown=600, producer=producer
            )
        with self.broker_client() as client, suppress(redis.RedisError):
            wait_for(lambda: int(client.hlen("unacked")) > 0, timedelta(seconds=within_s))
            return int(client.hlen("unacked"))
        return 0

    def broker_client(self) -> redis.Redis:
        """Ask the broker, without waiting long."""
        return redis.Redis(port=self.broker.port, socket_timeout=2, socket_connect_timeout=2)

    def _worker(self, variables: dict[str, str]) -> Process:
        options = ["--concurrency", str(POOL), "--without-gossip", "--without-mingle", "-n", f"w{len(self.logs)}@chaos"]
        return self.stack.celery("worker", "--loglevel=INFO", *options, name="worker", **variables)

    def _beat(self, variables: dict[str, str]) -> Process:
        return self.stack.celery("beat", "--loglevel=INFO", name="beat", **variables)

    def _produce(self, variables: dict[str, str]) -> Process:
        self._producers += 1
        words = [f"proc{self._producers}", *self._producer]
        return self.stack.python("tests.chaos.producer", *words, name=PRODUCER, **variables)

    def _observe(self, variables: dict[str, str]) -> Process:
        return self.stack.python("tests.chaos.watcher", name=WATCHER, **variables)

    def _keep_watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            for seat in self.seats.values():
                if seat.lock.acquire(blocking=False):
                    try:
                        self._look_at(seat)
                    finally:
                        seat.lock.release()

    def _look_at(self, seat: Seat) -> None:
        process = seat.process
        if process is None or process.poll() is None:
            return
        self._note_end(seat)
        self.take(seat)

    def _note_end(self, seat: Seat) -> None:
        process = seat.alive
        said = f"{seat.name} ended with {process.poll()}: {process.log} ends: {process.log_tail()}"
        self.ended_by_themselves.append(said)
        self.stack.forget(process)
        seat.process = None


def shifted(seconds: float) -> dict[str, str]:
    """Return the variables of a process whose clock is so many seconds ahead."""
    path = os.pathsep.join([str(CLOCKS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"CHAOS_CLOCK_SHIFT_S": f"{seconds:.3f}", "PYTHONPATH": path} if seconds else {}


def now() -> float:
    """Return the kernel's time, which no shift of a process touches."""
    return time.clock_gettime(time.CLOCK_REALTIME)
