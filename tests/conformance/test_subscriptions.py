"""What ports.subscriptions promises, on both stores."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.errors import SubscriptionNotFoundError
from outbox_core.domain.sequence import Horizon
from outbox_core.domain.subscription import Subscription
from tests.harness.examples import subscription

if TYPE_CHECKING:
    from tests.harness.base import Harness


def test_a_rule_is_read_back_as_it_was_stored(harness: Harness) -> None:
    rule = subscription(
        repo="o/r",
        sources=("app",),
        types=("t",),
        actions=("a", "b"),
        repos=("o/r",),
        authors=("ann",),
        subject_states=("open",),
        labels=("Ñ",),
        vars={"n": 1, "deep": {"x": [1]}},
        args_var="event",
        origin="cli",
        created_by="ann",
        horizon=Horizon(7, ((3, 4),)),
        created_at=harness.now(),
    )
    assert harness.acme.subscriptions.add(rule) is True
    assert harness.acme.subscriptions.enabled() == [rule]
    assert harness.acme.subscriptions.all() == [rule]
    assert harness.acme.subscriptions.get(["sub", "none"]) == {"sub": rule}


def test_a_rule_with_an_id_that_exists_is_left_as_it_is(harness: Harness) -> None:
    assert harness.acme.subscriptions.add(subscription(bot_id="first")) is True
    assert harness.acme.subscriptions.add(subscription(bot_id="second")) is False
    (kept,) = harness.acme.subscriptions.all()
    assert kept.bot_id == "first"


@pytest.mark.promise("E07")
def test_enabling_sets_a_new_horizon_and_enabling_again_leaves_it(harness: Harness) -> None:
    rules = harness.acme.subscriptions
    rules.add(subscription(horizon=Horizon(1)))
    assert rules.set_enabled("sub", enabled=True, horizon=Horizon(5)) is False
    assert rules.enabled()[0].horizon == Horizon(1)
    assert [rules.set_enabled("sub", enabled=False), rules.set_enabled("sub", enabled=False)] == [True, False]
    assert rules.enabled() == []
    assert [rule.enabled for rule in rules.all()] == [False]
    assert rules.set_enabled("sub", enabled=True, horizon=Horizon(9, ((8, 8),))) is True
    assert rules.enabled()[0].horizon == Horizon(9, ((8, 8),))


def test_a_rule_that_does_not_exist_is_neither_enabled_nor_disabled(harness: Harness) -> None:
    for enabled in (True, False):
        with pytest.raises(SubscriptionNotFoundError):
            harness.acme.subscriptions.set_enabled("none", enabled=enabled, horizon=Horizon(1))
    assert harness.acme.subscriptions.all() == []


def test_a_rule_is_removed_once(harness: Harness) -> None:
    harness.acme.subscriptions.add(subscription())
    assert [harness.acme.subscriptions.remove("sub"), harness.acme.subscriptions.remove("sub")] == [True, False]
    assert harness.acme.subscriptions.get(["sub"]) == {}


def test_rules_come_by_id(harness: Harness) -> None:
    for sub_id in ("c", "a", "b"):
        harness.acme.subscriptions.add(subscription(sub_id))
    assert [rule.sub_id for rule in harness.acme.subscriptions.all()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "broken",
    [
        {"bot_id": None},
        {"match": {"labels": "x"}},
        {"vars": {"not a name": 1}},
        {"holes": [[1]]},
        {"holes": [["a", "b"]]},
        {"from_seq": "x"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_rule_that_does_not_decode_matches_nothing_and_is_told_of(
    harness: Harness, broken: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    for sub_id in ("good", "sub"):
        harness.acme.subscriptions.add(subscription(sub_id))
    harness.change("trigger_subscriptions", "acme|sub", **broken)
    with caplog.at_level(logging.ERROR):
        assert [rule.sub_id for rule in harness.acme.subscriptions.enabled()] == ["good"]
    (record,) = caplog.records
    assert (record.levelno, "acme" in record.getMessage()) == (logging.ERROR, True)
    read = harness.acme.subscriptions.get(["good", "sub"])
    assert isinstance(read["good"], Subscription)
    assert isinstance(read["sub"], str)


@pytest.mark.promise("O08")
def test_a_rule_of_another_version_has_defaults_and_keeps_what_this_one_does_not_know(harness: Harness) -> None:
    document = {"_id": "acme|sub", "tenant_id": "acme", "sub_id": "sub", "bot_id": "bot", "of_a_later_version": 1}
    harness.put_raw("trigger_subscriptions", document)
    (rule,) = harness.acme.subscriptions.enabled()
    assert replace(rule, created_at=None) == subscription()
    assert harness.acme.subscriptions.set_enabled("sub", enabled=False) is True
    (stored,) = harness.raw("trigger_subscriptions")
    assert (stored["of_a_later_version"], stored["enabled"]) == (1, False)
