"""What a job of the benchmark does: it adds one to a counter, by noting its number in the ledger of its process.

Only the standard library: the peers' workers import this from environments of their own. The counter that a job moves
is a list in memory; a thread writes it down every 50 ms, the same for every contestant (see contestant.Ledger).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path

FOLDER = "BENCH_LEDGER"
"""The environment variable that names the folder."""

FLUSH_S = 0.05


class Page:
    """The ledger of one process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.pid = os.getpid()
        self._noted: deque[tuple[int, float]] = deque()
        self._file = os.open(folder / str(self.pid), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        threading.Thread(target=self._write, name="ledger", daemon=True).start()

    def note(self, number: int) -> None:
        """Count one run of this job, and when it began."""
        self._noted.append((number, time.time()))

    def flush(self) -> None:
        """Write down what is noted."""
        lines = []
        while self._noted:
            number, start = self._noted.popleft()
            lines.append(f"{number} {start:.6f}\n")
        if lines:
            os.write(self._file, "".join(lines).encode("ascii"))

    def _write(self) -> None:
        while True:
            time.sleep(FLUSH_S)
            self.flush()


_pages: dict[int, Page] = {}


def count(number: int) -> None:
    """Count one run of this job. A forked child begins a page of its own."""
    page = _pages.get(os.getpid())
    if page is None:
        page = _pages.setdefault(os.getpid(), Page(Path(os.environ[FOLDER])))
    page.note(number)
