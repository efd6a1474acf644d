"""Whom a process tells of lifecycle events: its own listeners, a notice, and a sink for audits and metrics."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from outbox_core.domain.observer import forbid_in_observer

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from outbox_core.domain.consumer import PollReport
    from outbox_core.domain.lifecycle_event import LifecycleEvent

_log = logging.getLogger("outbox.lifecycle")


class ProcessOutlets:
    """Implements ports.runtime.Outlets for one process; safe for threads."""

    def __init__(
        self,
        bound: timedelta,
        *,
        notice: Callable[[LifecycleEvent], object] | None = None,
        sink: Callable[[PollReport], object] | None = None,
    ) -> None:
        """`bound` is the longest that a notice or a sink is waited for."""
        self._listeners: list[Callable[[LifecycleEvent], object]] = []
        self._notice = BoundedCall("the notice of a deletion", notice, bound) if notice else None
        self._sink = BoundedCall("the sink of polls", sink, bound) if sink else None

    def listen(self, listener: Callable[[LifecycleEvent], object]) -> Callable[[], None]:
        """Have a function called after each commit of this process; return what ends that."""
        self._listeners = [*self._listeners, listener]

        def leave() -> None:
            self._listeners = [one for one in self._listeners if one is not listener]

        return leave

    def committed(self, event: LifecycleEvent) -> None:
        """See the port."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # noqa: BLE001 - the named edge: a listener is foreign code
                # The change is committed: what a listener makes of it is its own matter.
                _log.exception("tenant %s: a listener failed at event %s", event.tenant_id, event.event_id)
        if self._notice is not None:
            forbid_in_observer("notify")
            self._notice.call(event)

    def polled(self, report: PollReport) -> None:
        """See the port."""
        if self._sink is not None:
            self._sink.call(report)


class BoundedCall:
    """Calls a function in a thread, and waits for it no longer than its bound.

    While a call hangs, later ones are dropped at once: one thread hangs, and no more. What it raises is logged.
    """

    def __init__(self, what: str, function: Callable[[Any], object], bound: timedelta) -> None:
        self._what = what
        self._function = function
        self._bound_s = bound.total_seconds()
        self._busy = threading.Lock()

    def call(self, argument: object) -> bool:
        """Call it; say whether it ended, well or not, within the bound."""
        if not self._busy.acquire(blocking=False):
            _log.warning("%s still hangs; this one is dropped", self._what)
            return False
        thread = threading.Thread(target=self._run, args=(argument,), name="outbox-outlet", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The process has as many threads as it may, or ends: nobody is told, and nothing hangs on that.
            self._busy.release()
            _log.warning("%s could not be called: %s", self._what, error)
            return False
        thread.join(self._bound_s)
        if thread.is_alive():
            _log.warning("%s took longer than %g s, and is not waited for", self._what, self._bound_s)
        return not thread.is_alive()

    def _run(self, argument: object) -> None:
        try:
            self._function(argument)
        except Exception as error:  # noqa: BLE001 - the named edge: a notice or a sink is foreign code
            _log.warning("%s failed: %s", self._what, type(error).__name__)
        finally:
            self._busy.release()
