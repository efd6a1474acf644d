"""A consumer hosted in any process: in a thread of its own, or polled by hand."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.bots import observers
from outbox_core.domain.consumer import Poll, PollReport
from outbox_core.domain.errors import ConfigurationError, OutboxError
from outbox_core.domain.observer import Observer

if TYPE_CHECKING:
    from outbox_core.bootstrap import Outbox
    from outbox_core.domain.lifecycle_event import LifecycleEvent

_AT_ONCE = timedelta(0)
_NOTHING_TO_DO = frozenset({Poll.IDLE, Poll.PAUSED, Poll.STOPPED, Poll.RETIRED, Poll.UNREGISTERED})
_log = logging.getLogger("outbox.lifecycle")


class LifecycleConsumer:
    """Observes one tenant's lifecycle stream in this process.

    `observer` is one that `@observer` registered, by its consumer id, or an `Observer`. `run` registers the consumer
    with the start that the observer declares, where it is not registered; a retired one is left retired. Use `run` in a
    thread of your own, `start` and `stop`, or the object as a context manager; or call `poll_once`.
    """

    def __init__(self, outbox: Outbox, tenant: str, observer: Observer | str) -> None:
        """Describe it; nothing is sent yet. Raises ConfigurationError for an observer that is not registered."""
        self._outbox = outbox
        self._tenant = tenant
        self._observer = observer if isinstance(observer, Observer) else _registered(observer)
        self._changed = threading.Condition()
        self._stopping = False
        self._woken = False
        self._registered = False
        self._idle_polls = 0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def consumer_id(self) -> str:
        """The consumer's id."""
        return self._observer.consumer_id

    def register(self) -> None:
        """Register the consumer where it is not, with the start that its observer declares; a retired one stays so."""
        consumers = self._outbox.consumers(self._tenant)
        if all(one.consumer_id != self.consumer_id for one in consumers.all()):
            consumers.register(self.consumer_id, start=self._observer.start, by=self.consumer_id)
        self._registered = True

    def poll_once(self) -> PollReport:
        """Poll once, for about a second, in this thread. Raises TransientError: nothing is lost then."""
        if not self._registered:
            self.register()
        store, runtime = self._outbox.tenant(self._tenant), self._outbox.runtime
        report = observe_lifecycle(store, runtime, self._observer)
        # Errors and another's lease are no idleness (L15); who waits for an operator costs as little as who is idle.
        self._idle_polls = self._idle_polls + 1 if report.poll in _NOTHING_TO_DO else 0
        return report

    def run(self) -> None:
        """Poll until `stop` is called, from another thread; return when the poll in hand has ended.

        A store that does not answer is waited for. Between polls it waits longer each time that it finds nothing, and
        looks at once where this process itself has committed a change.
        """
        leave = self._outbox.listen(self._on_commit)
        try:
            while not self._wait(self._poll()):
                pass
        finally:
            leave()

    def start(self) -> None:
        """Run in a thread; a repeat does nothing. A process that was forked has none, and may start its own."""
        if self._thread is None or not self._thread.is_alive():
            self._stopping = False
            self._thread = threading.Thread(target=self.run, name=f"outbox-{self.consumer_id}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End `run`, and wait for the thread that `start` made; a repeat does nothing."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def wake(self) -> None:
        """Have `run` look now: whatever tells of a change may call it. It is never needed (L17)."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _on_commit(self, event: LifecycleEvent) -> None:
        if event.tenant_id == self._tenant:
            self.wake()

    def _poll(self) -> timedelta:
        """Poll, and return for how long to wait."""
        limits = self._outbox.settings.limits
        try:
            report = self.poll_once()
        except OutboxError as error:
            _log.warning("tenant %s: consumer %s ended a poll early: %s", self._tenant, self.consumer_id, error)
            return limits.consumer_poll
        except Exception:  # noqa: BLE001 - the named edge: a thread that ends would observe no more, and nobody see it
            _log.exception("tenant %s: consumer %s ended a poll by a fault", self._tenant, self.consumer_id)
            return limits.consumer_poll
        if report.more:
            return _AT_ONCE
        if report.wait is not None:
            return min(report.wait, limits.consumer_idle_cap)
        return limits.idle_delay(max(0, self._idle_polls - 1)) * self._outbox.runtime.entropy.jitter()

    def _wait(self, duration: timedelta) -> bool:
        """Wait, unless woken; say whether to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._woken, duration.total_seconds())
            self._woken = False
            return self._stopping


def _registered(consumer_id: str) -> Observer:
    found = observers.get(consumer_id)
    if found is None:
        raise ConfigurationError(f"no observer {consumer_id!r} is registered; import the module with its @observer")
    return found
