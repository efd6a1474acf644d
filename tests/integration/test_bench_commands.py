"""The counts that the quick benchmark takes, on a real worker: exact on any machine. No time is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.cases.commands import counted
from benchmarks.outbox_contestant import OutboxContestant
from benchmarks.rounds import Running, Tally
from outbox_core.bots import registry

if TYPE_CHECKING:
    from pathlib import Path


LONE = 12
FULL = 0.1
"""Two to append and ten for each 200: 0.052. A busy machine needs some slices more, of a few commands each."""


@pytest.fixture(autouse=True)
def _own_bots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark's bot is known to no test after this one."""
    monkeypatch.setattr(registry, "_bots", dict(registry._bots))


@pytest.mark.slow
def test_a_lone_effect_costs_twelve_commands_and_one_of_full_batches_about_a_twentieth(tmp_path: Path) -> None:
    jobs = 1_000
    with OutboxContestant(name="outbox", beat=False).deploy(tmp_path, tmp_path, processes=1) as deployment:
        one = Running("outbox", deployment, tmp_path, Tally(tmp_path / "ledger"))
        figures = counted(one, deployment, jobs, times=3).figures
        assert one.check() == ""
    assert figures["lone"]["total"] == LONE, figures["lone"]
    assert figures["full"]["total"] <= FULL, figures["full"]
