"""What the matrix covered, in one line for each store at the end of a run; under xdist as well."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tests.simulation.crash.matrix import Covered

if TYPE_CHECKING:
    import pytest

_PROPERTY = "crash-matrix"


def note(request: pytest.FixtureRequest, store: str, covered: Covered) -> None:
    """Put what a test covered into its report, which travels to the process that prints the summary."""
    fields = {field.name: getattr(covered, field.name) for field in dataclasses.fields(covered)}
    request.node.user_properties.append((_PROPERTY, json.dumps([store, fields])))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many points were struck on each store."""
    stores: dict[str, Covered] = defaultdict(Covered)
    for report in terminalreporter.getreports("passed"):
        for name, told in getattr(report, "user_properties", ()):
            if name == _PROPERTY:
                store, fields = json.loads(told)
                counters = {key: Counter(value) for key, value in fields.items() if isinstance(value, dict)}
                stores[store] += Covered(executions=fields["executions"], **counters)
    for store, covered in sorted(stores.items()):
        terminalreporter.write_line(f"crash matrix on {store}: {covered}")
