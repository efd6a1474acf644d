"""The deployment files: valid, complete, and running what the embedded stack runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from outbox_core.cli import programs
from outbox_core.settings import variable_names

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose" / "compose.yaml"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(COMPOSE)
    found: dict[str, Any] = loaded["services"]
    return found


def test_the_compose_file_keeps_to_its_specification() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_compose_program_accepts_it_where_there_is_one(tmp_path: Path) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose on this machine")
    shutil.copy(COMPOSE, tmp_path / "compose.yaml")
    shutil.copy(COMPOSE.with_name("env.example"), tmp_path / ".env")
    checked = subprocess.run(
        [program, "-f", str(tmp_path / "compose.yaml"), "config", "-q"],
        env={**os.environ, "FLOWER_BASIC_AUTH": "user:password"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.promise("C10")
def test_the_commands_in_compose_are_those_of_the_embedded_stack(services: dict[str, Any]) -> None:
    celery = {name: tuple(s["command"][1:]) for name, s in services.items() if s.get("command", [""])[0] == "celery"}
    assert celery == {
        "worker": programs.worker(4),
        "beat-1": programs.beat(),
        "beat-2": programs.beat(),
        "flower": programs.flower("0.0.0.0", 5555),  # noqa: S104 - inside its container
    }


def test_no_application_service_runs_without_the_schema_or_as_root(services: dict[str, Any]) -> None:
    ours = {name: s for name, s in services.items() if s.get("image") == "${APP_IMAGE:-effect-outbox}"}
    assert set(ours) == {"schema", "worker", "beat-1", "beat-2", "flower"}
    for name, service in ours.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert service["env_file"] == ".env", "every setting of the file reaches it"
        if name != "schema":
            assert service["depends_on"]["schema"] == {"condition": "service_completed_successfully"}, name
    assert re.search(r"^USER 10001$", (ROOT / "compose" / "Dockerfile").read_text(), re.MULTILINE)


def test_every_setting_in_compose_and_its_example_is_a_setting(services: dict[str, Any]) -> None:
    known = set(variable_names())
    used = {name for s in services.values() for name in s.get("environment", {}) if name.startswith("OUTBOX_")}
    example = set(re.findall(r"^#? ?(OUTBOX_\w+)=", (ROOT / "compose" / "env.example").read_text(), re.MULTILINE))
    assert used
    assert used <= known
    assert example == used


@pytest.mark.promise("O07")
def test_no_secret_stands_in_a_command(services: dict[str, Any]) -> None:
    for name, service in services.items():
        line = " ".join(service.get("command", []))
        assert not re.search(r"auth|requirepass|://[^/\s]*@|OUTBOX_", line), f"{name}: {line}"
    assert "${FLOWER_BASIC_AUTH:?" in services["flower"]["environment"]["FLOWER_BASIC_AUTH"]


def test_only_flower_is_published_and_only_on_this_host(services: dict[str, Any]) -> None:
    assert {name: s["ports"] for name, s in services.items() if "ports" in s} == {
        "flower": ["127.0.0.1:${FLOWER_PORT:-5555}:5555"]
    }


def test_the_image_installs_the_locked_versions_and_no_server() -> None:
    image = dict(PIN.findall((ROOT / "compose" / "requirements.lock").read_text()))
    whole = dict(PIN.findall((ROOT / "requirements.lock").read_text()))
    assert {"celery", "pymongo", "flower"} <= set(image)
    assert {name: whole.get(name) for name in image} == image
    assert not {name for name in image if "fiftyone" in name or "valkey" in name or name == "pytest"}
    dockerfile = (ROOT / "compose" / "Dockerfile").read_text()
    assert "--require-hashes -r compose/requirements.lock" in dockerfile


def test_the_image_gets_each_file_that_its_build_copies() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for line in (ROOT / "compose" / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            copied.update(line.split()[1:-1])
    assert copied == allowed
