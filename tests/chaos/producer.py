"""A producer in a process of its own, killed at any line: `python -m tests.chaos.producer NAME SEED PACE`."""

from __future__ import annotations

import sys
import threading

from tasks import outbox
from tests.chaos.journal import FOLDER
from tests.chaos.load import Journal, Producer

if __name__ == "__main__":
    name, seed, pace = sys.argv[1:]
    sys.stdout.write("producer: ready\n")
    sys.stdout.flush()
    Producer(outbox, Journal(FOLDER), name, seed).run(threading.Event(), float(pace))
