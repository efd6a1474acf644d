"""Whether this process's clock agrees with the database's.

The database's decides what is due, so a wrong clock runs nothing early. But Celery lets messages expire by the clocks
of who sends and who takes them: a worker that is far ahead discards them all, and whoever is far behind sends what all
others discard. Nothing else tells of that.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from outbox_core.bootstrap import Outbox
from outbox_core.domain.errors import OutboxError
from outbox_core.domain.limits import duration_text
from outbox_core.domain.rarely import Rarely
from tasks.app import settings

if TYPE_CHECKING:
    from outbox_core.ports.maintenance import Maintenance

TOLERATED_SHARE = 0.1
"""Clocks may differ by this share of TICK_EXPIRY: what waits is then still worth its message."""

_logger = logging.getLogger("outbox.clock")
_looks = {"ready": Rarely(), "beat": Rarely(), "discarded": Rarely(timedelta(minutes=1))}
_alarms = Rarely()
_discarded = 0


def note_discarded() -> None:
    """Take note of a message that was discarded as expired, and look whether the clock is why."""
    global _discarded  # noqa: PLW0603 - a process has one clock
    _discarded += 1
    look_aside("discarded")


def look_aside(why: str) -> None:
    """Compare the clocks once in a while, aside: whoever asks is neither held up nor told."""
    if _looks[why].is_time(why, time.monotonic()):
        threading.Thread(target=_look, name="outbox-clock", daemon=True).start()


def _look() -> None:
    # A connection of its own, and a short one: the process may fork, and its own may be in use.
    with closing(Outbox.from_settings(settings)) as outbox:
        compare(outbox.store.maintenance)


def compare(maintenance: Maintenance) -> None:
    """Raise the alarm, once an hour, where this process's clock is off; a database that is away tells nothing."""
    before = datetime.now(UTC)
    try:
        server = maintenance.now()
    except OutboxError as error:
        _logger.info("the clock was not compared with the database's: %s", error)
        return
    after = datetime.now(UTC)
    expiry = settings.limits.tick_expiry
    # The answer's time lies between the two, so neither its way nor a slow connection looks like a difference.
    for direction, off, lost in (
        ("ahead of", before - server, "this process discards the messages it takes"),
        ("behind", server - after, "other workers discard the messages that this process sends"),
    ):
        if off > TOLERATED_SHARE * expiry and _alarms.is_time(direction, time.monotonic()):
            _logger.error(
                "this process's clock is %.0f s %s the database's: %s that much too early, and from TICK_EXPIRY (%s) on"
                " every one; set the clock right, no restart is needed (discarded here so far: %d)",
                off.total_seconds(),
                direction,
                lost,
                duration_text(expiry),
                _discarded,
            )
