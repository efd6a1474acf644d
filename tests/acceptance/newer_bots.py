"""The bots of a newer version: those of the older one, and one that the older does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core import bot
from tests.acceptance.bots import note

if TYPE_CHECKING:
    from outbox_core import Run


@bot("new-it")
def new_it(run: Run) -> None:
    note("starts", run)
    note("runs", run)
