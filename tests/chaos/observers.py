"""The observers of a chaos run; each leaves a line at its start and at its end in one file outside the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from outbox_core import observer
from tests.chaos.journal import COUNTING, SEEN_ONCE, SHAKY, TRANSACTIONAL_LIMIT, first_time, noted

if TYPE_CHECKING:
    from outbox_core import Observation

_AWHILE_S = 0.05


@observer(SHAKY, start="beginning")
def shaky(told: Observation) -> None:
    """May be told twice; fails in its first try of every third event."""
    with noted(told):
        time.sleep(_AWHILE_S)
        if told.event.sequence % 3 == 0 and first_time(told.event_id):
            raise RuntimeError("not this time")


@observer(COUNTING, start="beginning", transactional=True, time_limit=TRANSACTIONAL_LIMIT)
def counting(told: Observation) -> None:
    """Sees each event exactly once: what it writes commits with its cursor."""
    with noted(told):
        if told.transaction is None:
            raise RuntimeError("not transactional")
        document = {"event_id": told.event_id, "sequence": told.event.sequence, "tenant_id": told.tenant}
        told.transaction.database[SEEN_ONCE].insert_one(document, session=told.transaction.session)
        time.sleep(_AWHILE_S)
