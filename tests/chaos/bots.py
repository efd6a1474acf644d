"""The bots of a chaos run; each leaves a line at its start and at its end in one file outside the store."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from outbox_core import bot, projector
from outbox_core.domain.errors import DefinitiveError, RetryLater
from tests.chaos.journal import COUNTED, SLOW_LIMIT, TRANSACTIONAL_LIMIT, first_time, note

if TYPE_CHECKING:
    from outbox_core import Projection, Run


@bot("plain")
def plain(run: Run, seconds: float = 0.05) -> None:
    note("start", run)
    time.sleep(seconds)
    note("end", run)


@bot("slow", time_limit=SLOW_LIMIT)
def slow(run: Run, seconds: float) -> None:
    """Outlasts its lease, which its worker renews."""
    note("start", run)
    time.sleep(seconds)
    note("end", run)


@bot("counted", transactional=True, time_limit=TRANSACTIONAL_LIMIT)
def counted(run: Run, seconds: float = 0.03) -> None:
    """Happens exactly once: what it writes commits with its row, and so does the event it appends now and then."""
    note("start", run)
    transaction = run.transaction
    if transaction is None:
        raise RuntimeError("not transactional")
    document = {"effect_id": run.effect_id, "tenant_id": run.tenant, "attempt": run.attempt}
    transaction.database[COUNTED].insert_one(document, session=transaction.session)
    time.sleep(seconds)
    if run.event.seq % 10 == 0:
        transaction.append(type="report", action="counted", subject=run.event.event_id)
    note("end", run)


@bot("shaky")
def shaky(run: Run) -> None:
    """Raises in its first try, and for one event in eleven for good."""
    note("start", run)
    if run.event.seq % 11 == 0:
        note("failed", run)
        raise DefinitiveError("not this one, ever")
    if first_time(run.effect_id):
        note("failed", run)
        raise RuntimeError("not this time")
    note("end", run)


@bot("later")
def later(run: Run) -> None:
    """Asks once to be called again."""
    note("start", run)
    if first_time(run.effect_id):
        note("failed", run)
        raise RetryLater(timedelta(seconds=1))
    note("end", run)


@projector("mirror")
def mirror(projection: Projection) -> None:
    note("start", projection)
    note("end", projection)
