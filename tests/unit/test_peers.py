"""What the benchmark's peers in Python bring along: pinned requirements, and code that runs without this project."""

import ast
import re
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
HOMES = sorted(file.parent for file in PEERS.glob("*/requirements.txt"))
THEIRS = sorted(file for home in HOMES for file in home.glob("*.py") if file.name != "__init__.py")
# Both are loaded in the peers' environments, where only the standard library is sure to be.
SHARED = {"benchmarks.ledger": PEERS.parent / "ledger.py", "benchmarks.peers.inside": PEERS / "inside.py"}


def modules_of(file: Path) -> set[str]:
    """Returns what a file imports, by whole names."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_there_are_peers_to_look_at() -> None:
    assert {"celery_redis", "dramatiq", "pgqueuer", "procrastinate", "python_outbox"} <= {home.name for home in HOMES}


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.name)
def test_a_peers_requirements_are_each_pinned_and_hold_no_address(home: Path) -> None:
    lines = (home / "requirements.txt").read_text("utf-8").splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line)] == []


@pytest.mark.parametrize("file", THEIRS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_runs_in_a_peers_environment_imports_nothing_of_this_project_but_what_is_shared(file: Path) -> None:
    ours = {name for name in modules_of(file) if name.split(".")[0] in {"benchmarks", "outbox_core", "tasks", "tests"}}
    assert ours <= set(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_what_is_shared_with_the_peers_imports_only_the_standard_library(name: str) -> None:
    assert {module.split(".")[0] for module in modules_of(SHARED[name])} <= sys.stdlib_module_names
