"""The README says what the code does: its diagram, its tables, its commands and its links."""

from __future__ import annotations

import dataclasses
import inspect
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import outbox_core
from outbox_core.adapters.mongo.schema import STEPS
from outbox_core.application.new_event import new_event
from outbox_core.cli.group import EXIT_CODES, Exit, outbox
from outbox_core.domain.bot import event_argument
from outbox_core.domain.effect_lifecycle import diagram
from outbox_core.domain.event import Attributes, Event
from outbox_core.domain.limits import Limits
from outbox_core.settings import Settings, parse_count, parse_duration, variable_names
from tasks.app import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
REFERENCE = (ROOT / "docs" / "reference.md").read_text("utf-8")
DOCUMENTS = sorted(path.relative_to(ROOT) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def table(under: str, document: str = README) -> list[list[str]]:
    """The rows of the first table under a heading, without its head."""
    section = document.split(f"\n## {under}\n", maxsplit=1)[1].split("\n## ", maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_it_can_be_read_in_one_sitting() -> None:
    assert len(README.splitlines()) <= 350


def test_its_diagram_is_the_state_machine() -> None:
    assert [block.strip() for block in blocks("mermaid") if block.startswith("stateDiagram")] == [diagram()]


def test_the_reference_s_table_of_settings_is_the_settings_with_their_defaults() -> None:
    shown = {name.strip("`"): default.strip("`") for name, default, _ in table("Configuration", REFERENCE)}
    assert sorted(shown) == sorted(variable_names())
    assert {tuple(row) for row in table("Configuration and data")} < {
        tuple(row) for row in table("Configuration", REFERENCE)
    }
    for limit in dataclasses.fields(Limits):
        text = shown[f"OUTBOX_{limit.name.upper()}"]
        assert limit.default == (parse_duration if isinstance(limit.default, timedelta) else parse_count)(text)
    settings = Settings.model_construct()
    assert shown["OUTBOX_MONGO_URL"] == settings.mongo_url.get_secret_value()
    assert shown["OUTBOX_BROKER_URL"] == settings.broker_url.get_secret_value()
    assert shown["OUTBOX_MONGO_DB"] == settings.mongo_db
    assert (shown["OUTBOX_HINTS"], settings.hints) == ("on", True)
    assert (shown["OUTBOX_BOTS"], settings.bots) == ("", ())
    assert (shown["OUTBOX_GITHUB_SECRET"], settings.github_secret) == ("", None)
    assert (shown["OUTBOX_WEBHOOK_SECRETS"], settings.webhook_secrets) == ("", {})
    assert (shown["OUTBOX_WEBHOOK_ALLOW_PRIVATE"], settings.webhook_allow_private) == ("off", ())


def test_the_reference_s_table_of_collections_is_the_schema() -> None:
    made = {collection.name for step in STEPS for collection in step.collections}
    assert {name.strip("`") for name, _ in table("Data", REFERENCE)} == made | {"schema_versions"}


def test_what_it_says_of_append_and_of_the_event_that_a_bot_receives_is_so() -> None:
    taken = re.search(r"`append` takes (.*?)\n- ", README, re.DOTALL)
    received = re.search(r"`args_var` names receives a dict: (.*?)\.\n", README, re.DOTALL)
    assert taken is not None
    assert received is not None
    keywords = set(inspect.signature(new_event).parameters) - {"entropy"}
    assert set(re.findall(r"`(\w+)`", taken[1])) == keywords
    event = Event(
        tenant_id="t",
        seq=1,
        event_id="e",
        attributes=Attributes(source="app", type="order"),
        data={},
        trace={},
        occurred_at=None,
        recorded_at=datetime(2026, 11, 30, tzinfo=UTC),
    )
    assert re.findall(r"`(\w+)`", received[1]) == list(event_argument(event))


def test_what_it_says_is_exported_is_exported() -> None:
    for name in ("InvalidInputError", "TransientError", "UnclearCommitError", "RetryLater", "DefinitiveError"):
        assert f"`{name}" in README
        assert issubclass(getattr(outbox_core, name), Exception)
        assert name in outbox_core.__all__


def test_its_exit_codes_are_those_of_the_commands() -> None:
    told = table("The command line")
    assert [int(code) for code, _ in told] == sorted(Exit)
    for code, meaning in told:
        assert f"{code}  {meaning}" in EXIT_CODES


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_command_of_ours_that_a_document_shows_exists(document: Path) -> None:
    commands = set(outbox.list_commands(None))  # type: ignore[arg-type]  # ours asks nothing of it
    text = (ROOT / document).read_text("utf-8")
    shown = set(re.findall(r"(?:^|`|bin/)outbox ([a-z]+)", text, re.MULTILINE))
    assert shown <= commands, shown - commands


def test_the_queues_it_names_are_the_queues() -> None:
    names = {queue.name for queue in app.conf.task_queues}
    assert names == {"drain", "effects", "lifecycle", "maintenance"}
    for choice in re.findall(r"-Q ([a-z,]+)", README):
        assert set(choice.split(",")) <= names
    assert "the queues `drain`, `effects`, `lifecycle` and `maintenance`" in re.sub(r"\s+", " ", README)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_link_leads_to_a_file(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text("utf-8"))
    assert [link for link in links if not (ROOT / document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    """Modules are named from the root, or from outbox_core."""
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.[a-z]+)?)`", (ROOT / document).read_text("utf-8")))
    places = (ROOT, ROOT / "outbox_core")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []
