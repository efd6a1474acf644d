"""What is locked names no place, and what is promised to the packaging tools is there."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")


def test_the_lock_holds_no_address_no_option_and_no_path() -> None:
    for line in LOCK.splitlines():
        assert "://" not in line
        assert " @ " not in line
        assert not re.match(r"\s*-(?!-hash=sha256:)", line), line
        assert not re.search(r"(^|\s)[./~]?/\w", line), line


def test_every_locked_distribution_is_pinned_with_a_hash() -> None:
    entries = re.split(r"\n(?=[a-z0-9])", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE))
    assert len(entries) > 20
    for entry in entries:
        assert re.match(r"[a-z0-9][a-z0-9._-]*==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_every_direct_dependency_is_locked_and_bounded() -> None:
    wanted = list(chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()))
    for requirement in wanted:
        name, bounds = re.match(r"([A-Za-z0-9-]+)(?:\[\w+\])?(\S*)", requirement).groups()  # type: ignore[union-attr]
        assert re.search(rf"^{name.lower()}==", LOCK, re.MULTILINE), name
        assert "==" in bounds or {">", "<"} <= set(bounds), requirement


def test_the_packages_are_marked_as_typed() -> None:
    assert (ROOT / "outbox_core" / "py.typed").is_file()
    assert (ROOT / "tasks" / "py.typed").is_file()
