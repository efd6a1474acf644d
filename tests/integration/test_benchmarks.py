"""That the benchmarks run; what they measure, nothing here asserts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_benchmark_of_observing_tells_each_figure_beside_its_raw_limit() -> None:
    words = ["--only", "backlog", "deletes", "--events", "30", "--deletes", "6", "--writers", "1"]
    argv = [sys.executable, "-m", "benchmarks.lifecycle", *words]
    told = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert told.returncode == 0, told.stderr[-2_000:]
    for figure in ("plain", "idempotent", "transactional", "1 tenant"):
        assert re.search(rf"{figure}.*/s.*bare .*/s.*% of it", told.stdout), told.stdout
