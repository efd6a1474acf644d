"""What repeated measurements come to: medians with their spread, ratios pair by pair, percentiles, fairness."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence  # noqa: TC003 - a field's type
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several measurements, and how far they lie apart."""

    median: float
    least: float
    most: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values), tuple(values))

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "values": list(self.values)}

    def text(self, digits: int = 3) -> str:
        """Return it as `median (least to most)`."""
        return f"{number(self.median, digits)} ({number(self.least, digits)} to {number(self.most, digits)})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return ours over theirs, each pair of one round against its own; what one side has more of is left out."""
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=False)])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that so large a share of all does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 where all get the same, 1/n where one gets all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, thousands set apart, and never with an exponent."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"
