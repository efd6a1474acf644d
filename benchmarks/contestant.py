"""What each queue that is measured looks like to the benchmark: the outbox, its peers and the raw limit alike.

The rules are the same for all. A job is a no-op that adds one to a counter: it appends its number to the ledger of its
process (`Ledger`), so that afterwards it is known that every job ran, and how often. Each contestant runs with the same
number of worker processes, on servers of its own that are started bare, set up as its own documents advise. What it
batches, it batches: the table says who does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a reader must know to judge a figure: versions, durability as set, and what is batched."""

    version: str
    durability: str
    batching: str
    notes: str = ""


class Deployment(Protocol):
    """Servers and workers of one contestant that run, idle and warm."""

    @property
    def servers(self) -> list[int]:
        """Process ids of the servers, whose CPU time is counted apart (children counted with them)."""
        ...

    @property
    def clients(self) -> list[int]:
        """Process ids of the workers (children counted with them)."""
        ...

    def enqueue(self, first: int, count: int) -> None:
        """Put jobs `first` to `first + count - 1` in, by the fastest way that the documents show; return when durable.

        May run in a process of its own where the peer needs one; the time of its start is then not part of this call.
        """
        ...

    def settled(self) -> int:
        """How many jobs the store says are done for good since the start; a finished job may be one that is gone."""
        ...


class Contestant(Protocol):
    """A queue that can be installed, and deployed with a number of worker processes."""

    @property
    def name(self) -> str:
        """What it is called in every table."""
        ...

    def prepare(self, cache: Path) -> Facts:
        """Install what is needed into `cache` (kept between runs); Unavailable says why it cannot be."""
        ...

    def deploy(self, folder: Path, cache: Path, processes: int) -> AbstractContextManager[Deployment]:
        """Start servers and workers in an empty folder; ready when the block opens, all ended when it closes.

        Workers write their ledgers into `folder / "ledger"`, one file a process.
        """
        ...


class Unavailable(Exception):  # noqa: N818 - it is no fault
    """This contestant cannot take part here; the message says why."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The files in which worker processes count: lines of a job's number and, where asked for, the time of its start.

    A line is `number` or `number start` with `start` in seconds of the system's clock. Workers write with a buffer, and
    flush it at least every 50 ms and at their end: the same for every contestant.
    """

    folder: Path
    counts: Counter[int] = field(default_factory=Counter)
    starts: dict[int, float] = field(default_factory=dict)

    def read(self) -> Ledger:
        """Read all files anew."""
        self.counts.clear()
        self.starts.clear()
        for path in self.folder.glob("*"):
            for line in path.read_text("ascii").splitlines():
                number, _, start = line.partition(" ")
                self.counts[int(number)] += 1
                if start:
                    self.starts[int(number)] = float(start)
        return self
