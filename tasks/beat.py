"""A beat that sends no tick of which the like may still wait: workers that are slower than it find no pile of them.

A tick says "look now"; one that waits says it as well as many. Celery's own scheduler, or any other, is harmless too,
but what it sends to workers whose processes are all held by long bots gathers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.beat import Scheduler as UpstreamScheduler

from tasks import clock
from tasks.queues import waiting_in

if TYPE_CHECKING:
    from celery.beat import ScheduleEntry

_logger = logging.getLogger(__name__)


class Scheduler(UpstreamScheduler):
    """Celery's in-memory scheduler, which looks into a tick's queue before it sends.

    It sends a tick where its queue is empty, or was found empty since this beat last sent one of that kind. So of each
    kind no more than one for each running beat waits, whatever the time and however often beats are restarted, and no
    kind takes another's place. What was left out comes at its next time, once what waits has been taken and the
    queue is found empty. A queue that nothing takes from has no use for more.
    """

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as Celery's
        """As Celery's; a beat that has just started does not know what waits, so it may send only into an empty one."""
        self._unsent: dict[str, set[str]] = {}
        super().__init__(*args, **options)

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:  # noqa: ANN401 - kombu's
        """Send what is due, if it is worth it; never raises, as Celery's own."""
        clock.look_aside("beat")
        if self._is_worth_sending(entry, producer):
            super().apply_entry(entry, producer=producer)
        else:
            _logger.debug("tick %s is not sent: its like may wait in the queue", entry.name)

    def _is_worth_sending(self, entry: ScheduleEntry, producer: Any) -> bool:  # noqa: ANN401 - kombu's
        queue = entry.options.get("queue")
        if queue is None:
            return True
        unsent = self._unsent.setdefault(queue, set())
        try:
            waiting = waiting_in(producer, queue)
        except Exception as error:  # noqa: BLE001 - the broker's edge: beat must outlive whatever it is
            # Publishing says what is wrong, or mends it, just as without a look.
            _logger.warning("beat cannot look into the queue %s: %s", queue, type(error).__name__)
            unsent.discard(entry.name)
            return True
        if not waiting:
            unsent.update(self.schedule)
        worth_it = entry.name in unsent
        unsent.discard(entry.name)
        return worth_it
