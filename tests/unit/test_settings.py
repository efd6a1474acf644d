"""Settings come from OUTBOX_* variables; every wrong one is named in one line, and no secret is shown."""

from __future__ import annotations

import os
from dataclasses import fields
from datetime import timedelta

import pytest

from outbox_core.domain.errors import ConfigurationError
from outbox_core.domain.limits import Limits
from outbox_core.settings import Settings, load_settings, parse_count, parse_duration, variable_names


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OUTBOX_"):
            monkeypatch.delenv(name)


def refusal() -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_without_any_variable_the_defaults_hold() -> None:
    settings = load_settings()
    assert settings.limits == Limits()
    assert settings.mongo_db == "outbox"
    assert settings.bots == ()
    assert settings.hints is True
    assert settings.github_secret is None


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("30s", timedelta(seconds=30)),
        ("500ms", timedelta(milliseconds=500)),
        ("10m", timedelta(minutes=10)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("0.5", timedelta(milliseconds=500)),
        ("45", timedelta(seconds=45)),
        (" 1.5 s ", timedelta(milliseconds=1500)),
        ("0", timedelta(0)),
    ],
)
def test_a_duration_is_a_number_with_its_unit_or_plain_seconds(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.scenario(32)
@pytest.mark.promise("E06", "O06")
@pytest.mark.parametrize(
    "text", ["", " ", "s", "-5s", "5 minutes", "1e3", "inf", "nan", "0.00001s", "99999999d", "5,5s", "٣s", "1m30s"]
)
def test_a_duration_that_does_not_parse_is_refused_with_its_name_and_an_example(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_GAP_GRACE", text)
    said = refusal()
    assert said.startswith("OUTBOX_GAP_GRACE: ")
    assert "for example" in said


@pytest.mark.parametrize("text", ["", "two", "1.5", "-1", "1_000", "0x10", "²", "9" * 13])
def test_a_count_that_is_no_whole_number_is_refused_with_its_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_EVENT_BATCH", text)
    assert refusal().startswith("OUTBOX_EVENT_BATCH: ")
    with pytest.raises(ValueError, match="whole number"):
        parse_count(text)


@pytest.mark.promise("E06")
def test_every_limit_is_a_variable_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in fields(Limits):
        assert f"OUTBOX_{field.name.upper()}" in variable_names()
    monkeypatch.setenv("OUTBOX_DRAIN_TICK", "500ms")
    monkeypatch.setenv("OUTBOX_TENANT_SLOTS", "7")
    limits = load_settings().limits
    assert limits.drain_tick == timedelta(milliseconds=500)
    assert limits.tenant_slots == 7
    assert limits.sweep_tick == Limits().sweep_tick


@pytest.mark.promise("E06")
@pytest.mark.parametrize(
    ("variable", "text", "named"),
    [
        ("OUTBOX_OP_TIMEOUT", "30s", ("OP_TIMEOUT", "GAP_GRACE")),
        ("OUTBOX_EFFECT_LEASE", "20s", ("EFFECT_LEASE", "OP_TIMEOUT")),
        ("OUTBOX_DRAIN_TICK", "0", ("DRAIN_TICK", "above 0")),
        ("OUTBOX_CLAIM_BATCH", "201", ("CLAIM_BATCH", "200")),
        ("OUTBOX_TENANT_SLOTS", "0", ("TENANT_SLOTS", "at least 1")),
    ],
)
def test_limits_that_break_a_relation_are_refused_by_name(
    variable: str, text: str, named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    said = refusal()
    for name in named:
        assert name in said


def test_bots_are_modules_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_BOTS", "shop.bots, billing.bots,")
    assert load_settings().bots == ("shop.bots", "billing.bots")
    monkeypatch.setenv("OUTBOX_BOTS", "shop/bots.py")
    assert refusal().startswith("OUTBOX_BOTS: 'shop/bots.py' is no name of a module")


def test_hints_are_on_or_off_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_HINTS", "off")
    assert load_settings().hints is False
    monkeypatch.setenv("OUTBOX_HINTS", "of")
    assert refusal() == "OUTBOX_HINTS: 'of' is neither on nor off"


@pytest.mark.promise("O06")
def test_an_unknown_variable_is_refused_with_the_name_it_resembles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_DRAIN_TIC", "1s")
    assert refusal() == "OUTBOX_DRAIN_TIC is no setting; did you mean OUTBOX_DRAIN_TICK?"
    monkeypatch.delenv("OUTBOX_DRAIN_TIC")
    monkeypatch.setenv("OUTBOX_LIMITS", "{}")
    assert "OUTBOX_LIMITS is no setting" in refusal()


def test_variables_of_tests_of_the_development_stack_and_of_kubernetes_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (
        "OUTBOX_TEST_DATA",
        "OUTBOX_DEV_FOLDER",
        "OUTBOX_SERVICE_HOST",
        "OUTBOX_MONGO_SERVICE_PORT_MONGODB",
        "OUTBOX_PORT",
        "OUTBOX_MONGO_PORT_27017_TCP_ADDR",
    ):
        monkeypatch.setenv(name, "x")
    assert load_settings().limits == Limits()


@pytest.mark.promise("O06")
def test_all_that_is_wrong_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_DRAIN_TICK", "soon")
    monkeypatch.setenv("OUTBOX_EVENT_BATCH", "many")
    monkeypatch.setenv("OUTBOX_MONGO_DB", "a b")
    said = refusal()
    assert [part.split(":")[0] for part in said.split("; ") if part.startswith("OUTBOX_")] == [
        "OUTBOX_DRAIN_TICK",
        "OUTBOX_EVENT_BATCH",
        "OUTBOX_MONGO_DB",
    ]


@pytest.mark.promise("O06", "O07")
@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("OUTBOX_MONGO_URL", "mongo://user:hunter2@host"),
        ("OUTBOX_MONGO_URL", ""),
        ("OUTBOX_BROKER_URL", "amqp://user:hunter2@host"),
        ("OUTBOX_BROKER_URL", "redis://:hunter2@host:port"),
        ("OUTBOX_BROKER_URL", ""),
        ("OUTBOX_GITHUB_SECRET", ""),
    ],
)
def test_a_wrong_address_is_named_and_its_password_is_not(
    variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    said = refusal()
    assert said.startswith(f"{variable}: ")
    assert "hunter2" not in said


@pytest.mark.promise("O07")
def test_no_secret_is_in_what_settings_print_as(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_MONGO_URL", "mongodb://user:hunter2@host/")
    monkeypatch.setenv("OUTBOX_BROKER_URL", "redis://:hunter2@host/0")
    monkeypatch.setenv("OUTBOX_GITHUB_SECRET", "hunter2")
    settings = load_settings()
    assert isinstance(settings, Settings)
    assert settings.github_secret is not None
    assert settings.github_secret.get_secret_value() == "hunter2"
    for text in (repr(settings), str(settings), settings.model_dump_json(exclude={"limits"})):
        assert "hunter2" not in text
