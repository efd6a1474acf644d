"""A process of its own that observes, without Celery, killed at any line: `python -m tests.chaos.watcher`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from outbox_core import LifecycleConsumer, Outbox
from outbox_core.domain.consumer import Start
from outbox_core.domain.observer import Observer
from tests.chaos.journal import WATCHING, noted
from tests.chaos.load import LIFE

if TYPE_CHECKING:
    from outbox_core import Observation


def watch(told: Observation) -> None:
    """May be told twice what it had in hand when it was struck."""
    with noted(told):
        time.sleep(0.1)


if __name__ == "__main__":
    sys.stdout.write("watcher: ready\n")
    sys.stdout.flush()
    observer = Observer(consumer_id=WATCHING, function=watch, start=Start.BEGINNING)
    LifecycleConsumer(Outbox.from_settings(), LIFE, observer).run()
