"""The import contracts hold, and each would notice a module that breaks it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("outbox_core", "tasks")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CONTRACTS = [contract["id"] for contract in PYPROJECT["tool"]["importlinter"]["contracts"]]

VIOLATIONS = [
    ("layers", "outbox_core/domain/violation.py", "import outbox_core.ports"),
    ("layers", "outbox_core/domain/violation.py", "import outbox_core.adapters"),
    ("layers", "outbox_core/ports/violation.py", "import outbox_core.application"),
    ("layers", "outbox_core/application/violation.py", "import outbox_core.adapters.mongo"),
    ("layers", "outbox_core/adapters/violation.py", "import outbox_core.embedded"),
    ("layers", "outbox_core/adapters/violation.py", "import outbox_core.webhook"),
    ("layers", "outbox_core/webhook/violation.py", "import outbox_core.cli"),
    ("layers", "outbox_core/unplaced.py", ""),
    ("core-without-celery", "outbox_core/adapters/violation.py", "import celery"),
    ("core-without-celery", "outbox_core/embedded/violation.py", "import redis"),
    ("core-without-celery", "outbox_core/application/violation.py", "from kombu import Queue"),
    ("core-without-celery", "outbox_core/application/violation.py", "def late():\n    import tasks"),
    ("pure-domain", "outbox_core/domain/violation.py", "import pydantic"),
    (
        "observers-only-observe",
        "outbox_core/application/lease_heart.py",
        "from outbox_core.application.delete_card import delete_card",
    ),
    ("mongo-in-one-place", "outbox_core/application/violation.py", "import pymongo"),
    ("mongo-in-one-place", "outbox_core/embedded/violation.py", "from bson import ObjectId"),
    ("core-without-celery", "outbox_core/adapters/violation.py", "import beat_schedule"),
]

UNNAMED = {"utils", "util", "common", "helper", "helpers", "manager", "managers"}


def lint(folder: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    chosen = [word for contract in contracts for word in ("--contract", contract)]
    program = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache", *chosen, "pyproject.toml"],
        cwd=folder,
        # The copy, not the installed project.
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def copy_of_the_tree(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_import_contracts_hold() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_contract_has_a_violation_that_it_must_notice() -> None:
    assert {contract for contract, _, _ in VIOLATIONS} == set(CONTRACTS)


@pytest.mark.parametrize(("contract", "module", "text"), VIOLATIONS)
def test_a_violating_module_breaks_its_contract(contract: str, module: str, text: str, tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    with (tree / module).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    done = lint(tree, contract)
    assert done.returncode != 0
    assert "BROKEN" in done.stdout, done.stdout + done.stderr


def imported(path: Path) -> set[str]:
    """The top-level names that a file imports anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def test_only_the_mongo_adapters_import_the_driver() -> None:
    """The contract exempts a folder; a second look, by syntax tree, keeps the exemption that narrow."""
    mongo = ROOT / "outbox_core" / "adapters" / "mongo"
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    drivers = [path for path in modules if imported(path) & {"pymongo", "bson", "gridfs"}]
    assert [path for path in drivers if not path.is_relative_to(mongo)] == []
    assert drivers


def test_the_beat_schedule_is_data_and_imports_nothing_of_ours() -> None:
    """It is a module, and import-linter reads packages only."""
    assert imported(ROOT / "beat_schedule.py") & set(PACKAGES) == set()


def test_no_module_has_a_name_that_says_nothing() -> None:
    named = [
        str(path.relative_to(ROOT))
        for folder in ("outbox_core", "tasks", "tests", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.stem in UNNAMED
    ]
    assert named == []
