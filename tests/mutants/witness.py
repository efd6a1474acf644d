"""A pytest plug-in that writes down what failed, where in the run, and from where the code came.

It is copied beside each trial's tree and imports nothing of the project, so it works in any tree.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


class Witness:
    """What a run came to, written as one JSON document at its end."""

    def __init__(self, report: Path, packages: list[str]) -> None:
        self._report = report
        self._packages = packages
        self._passed = 0
        self._failures: list[dict[str, Any]] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report.nodeid, "collect", "", report.longreprtext)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            raised = call.excinfo
            error, text = (raised.typename, str(raised.value)) if raised else ("", report.longreprtext)
            self._note(item.nodeid, report.when, error, text)
        self._passed += report.when == "call" and report.passed
        return report

    def pytest_sessionfinish(self) -> None:
        origins = {name: spec.origin for name in self._packages if (spec := find_spec(name)) is not None}
        told = {"passed": self._passed, "failures": self._failures, "origins": origins}
        self._report.write_text(json.dumps(told), "utf-8")

    def _note(self, test: str, when: str, error: str, text: str) -> None:
        self._failures.append({"test": test, "when": when, "error": error, "text": text[-2_000:]})


def pytest_configure(config: pytest.Config) -> None:
    packages = os.environ["MUTANTS_PACKAGES"].split(",")
    config.pluginmanager.register(Witness(Path(os.environ["MUTANTS_REPORT"]), packages), "mutants-witness")
