"""The observers of a chaos run; each leaves a line at its start and at its end in one file outside the store."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outbox_core import observer
from tests.chaos.bots import TRANSACTIONAL_LIMIT, first_time, write_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core import Observation

OBSERVATIONS = "observations"
SEEN_ONCE = "chaos_observed"
"""The collection into which the transactional observer writes one document for each event."""

SHAKY, COUNTING, WATCHING = "shaky-one", "counting-one", "watching-one"
HOSTED_BY_WORKERS = (SHAKY, COUNTING)
CONSUMERS = (*HOSTED_BY_WORKERS, WATCHING)
_AWHILE_S = 0.05


@contextmanager
def noted(told: Observation) -> Iterator[None]:
    """Leave a line at the start, and one at the end or the failure."""
    what = f"{told.consumer_id}|{told.event_id}"
    write_line(OBSERVATIONS, "start", what, told.attempt)
    try:
        yield
    except BaseException:
        write_line(OBSERVATIONS, "failed", what, told.attempt)
        raise
    write_line(OBSERVATIONS, "end", what, told.attempt)


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
