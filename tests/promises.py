"""Which promises of docs/guarantees.md a whole run has shown: a promise all of whose tests were skipped fails it.

A pytest plug-in. A part of the suite is judged by its tests alone: nothing is said there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

GUARANTEE = re.compile(r"^- \*\*([A-Z]\d\d)\*\* ", re.MULTILINE)
_PROPERTY = "promises"


def guaranteed(root: Path) -> list[str]:
    """Return the ids of docs/guarantees.md, in its order."""
    return GUARANTEE.findall((root / "docs" / "guarantees.md").read_text("utf-8"))


class Shown:
    """The outcomes of a run by the ids that its tests are marked with."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._deselected = 0
        self._outcomes: dict[str, set[str]] = defaultdict(set)
        self.missing: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # A report's properties travel from the processes that run the tests to the one that judges the run.
        for item in items:
            ids = [promise for marker in item.iter_markers("promise") for promise in marker.args]
            item.user_properties.append((_PROPERTY, ids))

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected += len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            for name, ids in report.user_properties:
                if name == _PROPERTY and isinstance(ids, list):
                    for promise in ids:
                        self._outcomes[promise].add(report.outcome)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        runs_for_another = hasattr(self._config, "workerinput")
        if session.exitstatus == pytest.ExitCode.OK and self._is_whole() and not runs_for_another:
            self.missing = [one for one in guaranteed(self._config.rootpath) if "passed" not in self._outcomes[one]]
            if self.missing:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.missing:
            terminalreporter.write_line(f"no test that passed shows {', '.join(self.missing)}", red=True)

    def _is_whole(self) -> bool:
        options = self._config.option
        choosing = ("keyword", "markexpr", "collectonly", "lf", "deselect", "ignore", "ignore_glob", "stepwise")
        chosen = self._deselected or any(getattr(options, name, None) for name in choosing)
        sources = pytest.Config.ArgsSource
        return not chosen and self._config.args_source in {sources.TESTPATHS, sources.INVOCATION_DIR}


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run; under xdist each process marks its reports, and the controlling one alone judges."""
    config.pluginmanager.register(Shown(config), "promises-shown")
