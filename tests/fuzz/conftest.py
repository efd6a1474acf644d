"""A campaign tells how many bad inputs it tried, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fuzz.profile import CAMPAIGN, tried

if TYPE_CHECKING:
    import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if CAMPAIGN:
        terminalreporter.section(f"{tried.total():,} bad inputs")
        for what, count in sorted(tried.items()):
            terminalreporter.write_line(f"{count:>9,}  {what}")
