"""Limits hold their relations, and name both sides of one that is broken."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from outbox_core.domain.errors import ConfigurationError
from outbox_core.domain.limits import EVENT_BYTES_CEILING, Limits, duration_text
from outbox_core.settings import parse_duration

S, M, H = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)

BROKEN: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"op_timeout": 30 * S, "effect_lease": 5 * M, "kill_grace": 1 * M, "consumer_lease": 1 * M},
        ("OP_TIMEOUT", "GAP_GRACE"),
    ),
    ({"gap_grace": 10 * S}, ("OP_TIMEOUT", "GAP_GRACE")),
    ({"effect_lease": 22 * S}, ("EFFECT_LEASE", "OP_TIMEOUT")),
    ({"slice_time": 20 * S}, ("SLICE_TIME", "EFFECT_LEASE")),
    ({"consumer_lease": 10 * S}, ("CONSUMER_LEASE", "OP_TIMEOUT")),
    ({"consumer_poll": 61 * S}, ("CONSUMER_POLL", "CONSUMER_IDLE_CAP")),
    ({"slot_hold": 1 * S}, ("SLICE_TIME", "SLOT_HOLD")),
    ({"tick_expiry": 5 * S}, ("TICK_EXPIRY", "DRAIN_TICK", "SWEEP_TICK")),
    ({"claim_batch": 201}, ("CLAIM_BATCH",)),
    ({"command_rows": 1_001}, ("COMMAND_ROWS",)),
    ({"max_event_bytes": EVENT_BYTES_CEILING + 1}, ("MAX_EVENT_BYTES",)),
    ({"transactional_time_limit": 46 * S}, ("TRANSACTIONAL_TIME_LIMIT",)),
    ({"effect_time_limit": 2 * M, "max_time_limit": 1 * M}, ("EFFECT_TIME_LIMIT", "MAX_TIME_LIMIT")),
    ({"kill_grace": 10 * S}, ("KILL_GRACE", "OP_TIMEOUT")),
    ({"backoff_base": 11 * M}, ("BACKOFF_BASE", "BACKOFF_CAP")),
    ({"max_time_limit": H + S}, ("MAX_TIME_LIMIT",)),
]


@pytest.mark.promise("E06")
@pytest.mark.parametrize(("values", "names"), BROKEN, ids=[" ".join(names) for _, names in BROKEN])
def test_a_broken_relation_is_refused_by_name_and_by_itself(values: dict[str, Any], names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        Limits(**values)
    text = str(refusal.value)
    assert all(name in text for name in names)
    assert ";" not in text
    assert "\n" not in text


@pytest.mark.promise("E06")
@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_no_limit_is_nothing(name: str) -> None:
    nothing: Any = timedelta(0) if isinstance(getattr(Limits(), name), timedelta) else 0
    with pytest.raises(ConfigurationError, match=name.upper()):
        Limits(**{name: nothing})
    with pytest.raises(ConfigurationError, match=name.upper()):
        Limits(**{name: -(getattr(Limits(), name))})


@pytest.mark.promise("E06")
def test_every_broken_relation_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        Limits(op_timeout=H, claim_batch=0, backoff_cap=1 * S)
    assert all(name in str(refusal.value) for name in ("GAP_GRACE", "EFFECT_LEASE", "CLAIM_BATCH", "BACKOFF_CAP"))


@pytest.mark.promise("E06")
def test_every_relation_of_the_table_is_tried() -> None:
    """Each broken example breaks one relation, and no relation is left out."""
    of_one_limit = len(fields(Limits))
    assert len(Limits()._relations()) - of_one_limit == len({names for _, names in BROKEN})


def test_the_defaults_hold_and_what_follows_from_them() -> None:
    limits = Limits()
    assert limits.mark_interval == 5 * S
    assert limits.renew_interval == 20 * S


@pytest.mark.parametrize("text", ["1ms", "500ms", "1500ms", "10s", "90s", "10m", "2h", "1d", "36h"])
def test_a_duration_is_told_in_the_notation_in_which_it_is_set(text: str) -> None:
    assert duration_text(parse_duration(text)) == text
    assert duration_text(timedelta(0)) == "0s"
