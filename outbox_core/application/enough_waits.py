"""Whether a tick need not offer anything: the workers have not got to what was offered before."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.slots import Lane

ENOUGH = 1_000
"""Messages that keep the workers busy until the next tick."""

_log = logging.getLogger("outbox.slots")


def enough_waits(runtime: Runtime, lane: Lane, offers: int) -> bool:
    """Say whether so much waits that not even all `offers` at once could have made it, and no less than ENOUGH.

    While long bots hold every process of a lane, the slots of its messages end and the tenants would be offered again,
    and again. What waits is then surplus; once processes are free they are through with it at once, and the next tick
    offers what is left (C06).
    """
    waiting = runtime.hints.waiting(lane)
    enough = waiting >= max(ENOUGH, offers)
    if enough:
        _log.info("no %s is offered: %d wait for a worker", lane, waiting)
    return enough
