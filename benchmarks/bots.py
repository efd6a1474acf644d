"""The bot of the benchmark: it counts, so that what is measured is the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.jobs import BOT, PREFIX
from benchmarks.ledger import count
from outbox_core import bot

if TYPE_CHECKING:
    from outbox_core import Run


@bot(BOT)
def count_it(run: Run) -> None:
    """Count the job, whose number its event carries as its id."""
    count(int(run.event.event_id.removeprefix(PREFIX)))
