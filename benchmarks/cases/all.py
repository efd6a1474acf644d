"""Every case, in the order in which a whole run measures them."""

from __future__ import annotations

from benchmarks.cases import throughput

CASES = (*throughput.CASES,)
