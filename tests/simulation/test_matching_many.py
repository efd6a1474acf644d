"""Many rules, read and matched batch after batch: what is kept of them between two is never what they were."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.enable_subscription import enable_subscription
from tests.harness.examples import subscription
from tests.simulation.play import append, drain_whole, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.base import Harness

SOME = ("a", "b", "c")


def owed(harness: Harness, event_id: str) -> dict[str, str]:
    """Return which rules an event was owed to, and the bot of each."""
    rows = harness.raw("trigger_effects", tenant_id="acme", event_id=event_id)
    return {row["sub_id"]: row["bot_id"] for row in rows}


def rename(harness: Harness) -> None:
    harness.change("trigger_subscriptions", "acme|b", bot_id="another-bot")


def narrow(harness: Harness) -> None:
    harness.change("trigger_subscriptions", "acme|b", match={"types": ["refund"]})


def damage(harness: Harness) -> None:
    harness.change("trigger_subscriptions", "acme|b", match={"types": "order"})


def remove(harness: Harness) -> None:
    harness.acme.subscriptions.remove("b")


def disable(harness: Harness) -> None:
    harness.acme.subscriptions.set_enabled("b", enabled=False)


CHANGES: dict[str, tuple[Callable[[Harness], None], dict[str, str]]] = {
    "its bot": (rename, {"a": "bot", "b": "another-bot", "c": "bot"}),
    "its terms": (narrow, {"a": "bot", "c": "bot"}),
    "damaged": (damage, {"a": "bot", "c": "bot"}),
    "removed": (remove, {"a": "bot", "c": "bot"}),
    "disabled": (disable, {"a": "bot", "c": "bot"}),
}


@pytest.mark.promise("E34", "E20")
@pytest.mark.parametrize(("change", "then"), CHANGES.values(), ids=CHANGES)
def test_a_rule_that_was_changed_between_two_batches_is_judged_as_it_is(
    harness: Harness, change: Callable[[Harness], None], then: dict[str, str]
) -> None:
    for sub_id in SOME:
        add_subscription(harness.acme, subscription(sub_id, types=("order",)))
    for event_id in ("first", "second"):
        append(harness.acme, harness.runtime(), event_id, type="order")
        drain_whole(harness.acme, harness.runtime())
        assert owed(harness, event_id) == dict.fromkeys(SOME, "bot")
    before = harness.raw("trigger_subscriptions", _id="acme|b")
    change(harness)
    append(harness.acme, harness.runtime(), "third", type="order")
    drain_whole(harness.acme, harness.runtime())
    assert owed(harness, "third") == then
    harness.put_raw("trigger_subscriptions", before[0])
    append(harness.acme, harness.runtime(), "fourth", type="order")
    drain_whole(harness.acme, harness.runtime())
    assert owed(harness, "fourth") == dict.fromkeys(SOME, "bot")


@pytest.mark.promise("E07")
def test_a_horizon_that_moved_between_two_batches_is_the_one_that_counts(harness: Harness) -> None:
    """The rule's terms are what they were, so nothing but its horizon tells the two apart."""
    add_subscription(harness.acme, subscription("a", types=("order",)))
    append(harness.acme, harness.runtime(), "first", type="order")
    drain_whole(harness.acme, harness.runtime())
    append(harness.acme, harness.runtime(), "missed", type="order")
    harness.acme.subscriptions.set_enabled("a", enabled=False)
    enable_subscription(harness.acme, "a")
    append(harness.acme, harness.runtime(), "after", type="order")
    drain_whole(harness.acme, harness.runtime())
    assert set(rows_of(harness, "acme")) == {"first|a", "after|a"}


@pytest.mark.promise("E20", "L21")
def test_equal_rules_of_two_tenants_owe_each_its_own(harness: Harness) -> None:
    stores = {"acme": harness.acme, "other": harness.other}
    for tenant, store in stores.items():
        add_subscription(store, subscription("a", tenant=tenant, bot_id=f"bot-of-{tenant}", types=("order",)))
    for tenant, store in stores.items():
        append(store, harness.runtime(), f"of-{tenant}", type="order")
        drain_whole(store, harness.runtime())
    rows = {row["_id"]: row["bot_id"] for row in harness.raw("trigger_effects")}
    assert rows == {"acme|of-acme|a": "bot-of-acme", "other|of-other|a": "bot-of-other"}


@pytest.mark.promise("E34")
def test_a_rule_that_cannot_be_read_is_told_of_at_each_batch(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    for sub_id in SOME:
        add_subscription(harness.acme, subscription(sub_id))
    damage(harness)
    for event_id in ("first", "second"):
        append(harness.acme, harness.runtime(), event_id)
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            drain_whole(harness.acme, harness.runtime())
        assert [record.getMessage() for record in caplog.records if "acme|b" in record.getMessage()]
        assert owed(harness, event_id) == {"a": "bot", "c": "bot"}


@pytest.mark.promise("E34")
def test_what_a_reader_does_to_a_rule_changes_it_for_nobody(harness: Harness) -> None:
    """A bot may change the arguments that it is given."""
    add_subscription(harness.acme, subscription("a", vars={"list": [1]}))
    rules = harness.acme.subscriptions
    assert rules.enabled()[0].vars == {"list": [1]}
    for _ in range(2):
        read = rules.get(["a"])["a"]
        assert not isinstance(read, str)
        assert read.vars == {"list": [1]}
        read.vars["list"].append(2)
    assert rules.enabled()[0].vars == {"list": [1]}


@pytest.mark.promise("E20")
def test_each_of_many_events_is_owed_to_its_own_of_very_many_rules(harness: Harness) -> None:
    """More rules than share one part of the index, and a few that ask for nothing."""
    for number in range(1_100):
        harness.acme.subscriptions.add(subscription(f"s{number:04d}", types=(f"t{number}",), labels=("gift",)))
    for sub_id in ("all", "zz"):
        harness.acme.subscriptions.add(subscription(sub_id))
    numbers = (0, 1, 1_021, 1_022, 1_023, 1_024, 1_099)
    for number in numbers:
        append(harness.acme, harness.runtime(), f"e{number}", type=f"t{number}", labels=("Gift",))
    append(harness.acme, harness.runtime(), "bare", type="t0")
    drain_whole(harness.acme, harness.runtime())
    expected = {f"e{number}|{sub_id}" for number in numbers for sub_id in ("all", "zz", f"s{number:04d}")}
    assert set(rows_of(harness, "acme")) == expected | {"bare|all", "bare|zz"}
