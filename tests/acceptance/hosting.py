"""A plain process that hosts observers in threads: python -m tests.acceptance.hosting CONSUMER …"""

from __future__ import annotations

import importlib
import signal
import sys
from contextlib import ExitStack

from outbox_core import LifecycleConsumer, Outbox

STOPS = {signal.SIGTERM, signal.SIGINT}


def main(consumer_ids: list[str]) -> None:
    # Blocked before there is a thread, so that only `sigwait` takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    importlib.import_module("tests.acceptance.observers")
    outbox = Outbox.from_settings()
    with ExitStack() as running:
        for consumer_id in consumer_ids:
            running.enter_context(LifecycleConsumer(outbox, "acme", consumer_id))
        print("observing", flush=True)  # noqa: T201 - the test waits for it
        signal.sigwait(STOPS)
    outbox.close()


if __name__ == "__main__":
    main(sys.argv[1:])
