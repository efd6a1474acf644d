"""Every kind of fault, once or more, at real processes: the short form of `make chaos`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.stack import ROOT
from tests.chaos.plan import BY_NAME

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SEED = 4269
"""Its plan throws every kind within so short a time."""

SECONDS = 14


@pytest.mark.promise("C01", "C03", "C04", "C07", "E26", "E31", "E36", "E37", "L01", "L04", "L05", "L06", "L07")
@pytest.mark.timeout(600)
def test_under_every_kind_of_fault_nothing_is_lost_nothing_doubled_and_no_process_ends_by_itself(
    tmp_path: Path,
) -> None:
    ledger = tmp_path / "ledger"
    words = ["--seconds", str(SECONDS), "--seed", str(SEED), "--writers", "1", "--ledger", str(ledger)]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-8_000:] + ended.stderr[-4_000:]
    said = json.loads(ledger.read_text("utf-8"))
    assert set(said["thrown"]) == set(BY_NAME)
    found = said["found"]
    assert found["events"] > 0
    assert found["effects done:delivered"] > 0
    assert found["processes killed"] > 0
    assert found["lifecycle events task:deleted"] > 0
    assert found["lifecycle events observed"] > 0
    assert found["lifecycle tries failed"] > 0
    assert (found["lost"], found["doubled"], found["promises broken"]) == (0, 0, 0)
