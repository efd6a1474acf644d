"""What every case of the benchmark is given, and what it gives back."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable  # noqa: TC003 - a field's type
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people; what is computed from stands in the figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    note: str = ""

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"title": self.title, "columns": list(self.columns), "rows": self.rows, "note": self.note}

    def text(self) -> str:
        """Return it for a terminal."""
        widths = [max(len(row[at]) for row in (list(self.columns), *self.rows)) for at in range(len(self.columns))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (list(self.columns), *self.rows)
        ]
        return "\n".join([self.title, *lines, *([self.note] if self.note else [])])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case came to."""

    figures: dict[str, Any]
    tables: list[Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run of the benchmark: how large, how often, with whom, and where."""

    quick: bool
    rounds: int
    cache: Path
    scratch: Path
    contestants: tuple[str, ...] = ()
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    """What is known of each contestant that took part."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a contestant did not."""

    def size(self, full: _T, quick: _T) -> _T:
        """Return the size of a full run, or that of a quick one."""
        return quick if self.quick else full

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """Open an empty folder on the disk of the cache: a file system in memory would make every fsync free."""
        made = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def tell(self, text: str) -> None:
        """Say how far it is."""
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Case:
    """A case by its name: a question, and what answers it."""

    name: str
    title: str
    run: Callable[[Bench], Outcome]


def interleaved(bench: Bench, work: Sequence[tuple[str, Callable[[], _T]]]) -> dict[str, list[_T]]:
    """Run each in turn, A B C A B C, as often as the run has rounds; return what each gave, round by round."""
    found: dict[str, list[_T]] = {name: [] for name, _ in work}
    for number in range(bench.rounds):
        for name, step in work:
            found[name].append(step())
        bench.tell(f"  round {number + 1} of {bench.rounds}")
    return found
