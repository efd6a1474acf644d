"""Bots that do not end when they should."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from outbox_core import bot
from tests.acceptance.bots import note

if TYPE_CHECKING:
    from outbox_core import Run


@bot("overstay-it", time_limit=timedelta(seconds=1))
def overstay_it(run: Run) -> None:
    """As careless as bots are: it waits for ever, and goes on after every Exception."""
    note("starts", run)
    while True:
        try:
            time.sleep(60)
        except Exception:  # noqa: BLE001, S112 - that is what it shows
            continue


@bot("block-it", time_limit=timedelta(seconds=1))
def block_it(run: Run) -> None:
    """In its first try nothing but a SIGKILL ends it."""
    note("starts", run)
    if run.attempt == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
        while True:
            try:
                time.sleep(60)
            except BaseException:  # noqa: BLE001, S112 - as above
                continue
    note("runs", run)
