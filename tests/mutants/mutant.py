"""What a mutant is, and the list of them: data in `catalogue/*.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

CATALOGUE = Path(__file__).with_name("catalogue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of the code, what it would cost a user, and the tests of which one must fail.

    `tests` are files or node ids, `only` a `-k` expression over them.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    promises: tuple[str, ...]
    tests: tuple[str, ...]
    only: str = ""

    def applied_to(self, text: str) -> str:
        """Return the file's text with the change made; raise ValueError where `old` does not stand in it just once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: the text to replace stands {found} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def load(catalogue: Path = CATALOGUE) -> tuple[Mutant, ...]:
    """Read the list, file by file in the order of their names."""
    return tuple(
        Mutant(**{**entry, "promises": tuple(entry["promises"]), "tests": tuple(entry["tests"])})
        for path in sorted(catalogue.glob("*.toml"))
        for entry in tomllib.loads(path.read_text("utf-8"))["mutant"]
    )
