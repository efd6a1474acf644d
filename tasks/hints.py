"""Hints as Celery messages: sent from a background thread, dropped rather than waited for.

Latency comes from hints, correctness from the ticks. So an append never waits for the broker, a broker that hangs costs
hints for a moment, and a fork starts over with nothing queued.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from outbox_core.ports.slots import Lane
from tasks.queues import waiting_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

CAPACITY = 1_000
PAUSE_S = 1.0
"""How long nothing is sent after a failure: a hung broker then costs a thread half a second in three halves."""

FLUSH_S = 1.0
_SOCKET_S = 0.25
_TASKS = {Lane.DRAIN: "outbox.drain_tenant", Lane.SLICE: "outbox.run_slice"}

_logger = logging.getLogger(__name__)


class Sender(Protocol):
    """An open way to the broker; used by one thread of one process."""

    def send(self, task: str, arguments: Mapping[str, object]) -> None:
        """Send within a bounded time, or raise."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class BackgroundSender:
    """A bounded queue and the one thread that empties it; `offer` never blocks and never raises.

    After a failure what is queued is dropped, and for PAUSE_S so is what comes. A forked child starts with an empty
    queue and a connection of its own; what its parent had queued the parent sends.
    """

    _changed: threading.Condition
    _queued: deque[tuple[str, Mapping[str, object]]]
    _thread: threading.Thread | None
    _sending: bool
    _paused_until: float
    _failing: bool

    def __init__(self, connect: Callable[[], Sender], *, capacity: int = CAPACITY, pause_s: float = PAUSE_S) -> None:
        self._connect = connect
        self._capacity = capacity
        self._pause_s = pause_s
        self.dropped = 0
        self._start_over()
        _forget_in_children(self)

    def offer(self, task: str, arguments: Mapping[str, object]) -> bool:
        """Queue a message; False where it was dropped: the queue is full, or the broker has just failed."""
        with self._changed:
            if (task, arguments) in self._queued:
                # What is not sent yet says it already.
                return True
            if len(self._queued) >= self._capacity or time.monotonic() < self._paused_until:
                self.dropped += 1
                return False
            self._queued.append((task, arguments))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outbox-hints", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until all is sent or dropped, at most `timeout_s`; say whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued and not self._sending, timeout_s)

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        self._queued = deque()
        self._thread = None
        self._sending = False
        self._paused_until = 0.0
        self._failing = False

    def _run(self) -> None:
        sender: Sender | None = None
        while True:
            with self._changed:
                self._sending = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queued)
                task, arguments = self._queued.popleft()
                self._sending = True
            try:
                sender = sender or self._connect()
                sender.send(task, arguments)
            except Exception as error:  # noqa: BLE001 - the hint queue's edge: whatever it is, a tick covers it
                _close(sender)
                sender = None
                self._pause(error)
            else:
                self._resumed()

    def _pause(self, error: Exception) -> None:
        with self._changed:
            self.dropped += 1 + len(self._queued)
            self._queued.clear()
            self._paused_until = time.monotonic() + self._pause_s
            first, self._failing = not self._failing, True
        if first:
            _logger.warning("hints are paused, ticks find the work: the broker failed with %s", type(error).__name__)

    def _resumed(self) -> None:
        if self._failing:
            self._failing = False
            _logger.info("hints flow again")


def _close(sender: Sender | None) -> None:
    if sender is not None:
        with suppress(Exception):
            sender.close()


def _forget_in_children(sender: BackgroundSender) -> None:
    """Another thread may hold the lock at the moment of a fork, and threads do not survive one."""
    reference = weakref.ref(sender)

    def start_over() -> None:
        if (alive := reference()) is not None:
            alive._start_over()  # noqa: SLF001 - this module's own class

    os.register_at_fork(after_in_child=start_over)


class CeleryHints:
    """Implements ports.hints.Hints over a Celery application; each kind is a message that carry ids only."""

    def __init__(self, app: Celery, expires_s: float) -> None:
        self._app = app
        self._expires_s = expires_s
        self._background = BackgroundSender(lambda: _Producer(app, expires_s))
        atexit.register(self._background.flush)

    def drain(self, tenant_id: str, token: str | None = None) -> bool:
        """See the port."""
        return self._background.offer(_TASKS[Lane.DRAIN], {"tenant": tenant_id, "token": token})

    def turn(self, tenant_id: str, token: str | None = None) -> bool:
        """See the port."""
        return self._background.offer("outbox.run_turn", {"tenant": tenant_id, "token": token})

    def slice(self, tenant_id: str, token: str) -> bool:
        """See the port."""
        return self._background.offer(_TASKS[Lane.SLICE], {"tenant": tenant_id, "token": token})

    def waiting(self, lane: Lane) -> int:
        """See the port. Over a connection for this question alone: a tick asks it once."""
        producer = _Producer(self._app, self._expires_s)
        try:
            return producer.waiting(_TASKS[lane])
        except Exception as error:  # noqa: BLE001 - the hint queue's edge: an offer then finds out by itself
            _logger.info("the broker does not say what waits: %s", type(error).__name__)
            return 0
        finally:
            _close(producer)

    def poll(self, tenant_id: str, consumer_id: str) -> bool:
        """See the port."""
        return self._background.offer("outbox.poll_consumer", {"tenant": tenant_id, "consumer": consumer_id})

    def wake(self, tenant_id: str) -> bool:
        """See the port."""
        return self._background.offer("outbox.wake_consumers", {"tenant": tenant_id})

    def prune(self) -> None:
        """Ask for a pruning of what is old; it is done once however many ask, and not again before it is due."""
        self._background.offer("outbox.prune", {})

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until all is sent or dropped; best effort, before a process ends."""
        return self._background.flush(timeout_s)


class _Producer:
    """A connection of its own, with short time-outs: the application's may wait for minutes."""

    def __init__(self, app: Celery, expires_s: float) -> None:
        options = {"socket_timeout": _SOCKET_S, "socket_connect_timeout": _SOCKET_S, "max_retries": 1}
        self._app = app
        self._expires_s = expires_s
        self._connection: Any = app.connection_for_write(transport_options=options)
        self._producer: Any = app.amqp.Producer(self._connection, auto_declare=False)

    def send(self, task: str, arguments: Mapping[str, object]) -> None:
        """See Sender. Nothing is declared: the queue is addressed by its name, which survives an emptied broker."""
        self._app.send_task(task, kwargs=dict(arguments), producer=self._producer, declare=[], expires=self._expires_s)

    def waiting(self, task: str) -> int:
        """Return how many messages wait in the queue of this task, within a bounded time, or raise."""
        return waiting_in(self._producer, self._app.amqp.router.route({}, task)["queue"].name)

    def close(self) -> None:
        """See Sender."""
        self._connection.release()
