"""What the oracle says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a history came to; `effects` by state, done ones by outcome as `done:<outcome>`."""

    events: int = 0
    tombstones: int = 0
    effects: Mapping[str, int] = field(default_factory=dict)
    executions: int = 0
    repeats: int = 0
    attempts: int = 0
    claims: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Each violation in one line that names its event or effect."""

    violations: tuple[str, ...]
    figures: Figures

    @property
    def holds(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    def require(self, where: object = "") -> Figures:
        """Return the figures; raise AssertionError that lists the violations where there are some."""
        if self.violations:
            lines = "\n  ".join(self.violations)
            raise AssertionError(f"{where}: {len(self.violations)} promises are broken\n  {lines}")
        return self.figures
