"""The bot of the benchmark: it does nothing, so that what is measured is the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core import bot

if TYPE_CHECKING:
    from outbox_core import Run


@bot("count-it")
def count_it(_: Run) -> None:
    """Do nothing."""
