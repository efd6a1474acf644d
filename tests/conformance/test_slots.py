"""What ports.slots promises, on both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from tests.harness.base import Harness

HOLD = timedelta(seconds=30)


@pytest.mark.promise("E42")
def test_a_tenant_has_its_slots_and_one_for_its_drain(harness: Harness) -> None:
    slots = harness.acme.slots
    tokens = [slots.take(Lane.SLICE, HOLD) for _ in range(harness.limits.tenant_slots)]
    assert None not in tokens
    assert len(set(tokens)) == harness.limits.tenant_slots
    assert slots.take(Lane.SLICE, HOLD) is None
    assert slots.take(Lane.DRAIN, HOLD) is not None
    assert slots.take(Lane.DRAIN, HOLD) is None
    assert harness.other.slots.take(Lane.DRAIN, HOLD) is not None


@pytest.mark.promise("E42")
def test_racing_offers_take_no_more_than_the_cap(harness: Harness) -> None:
    with ThreadPoolExecutor(12) as pool:
        tokens = list(pool.map(lambda _: harness.acme.slots.take(Lane.SLICE, HOLD), range(24)))
    assert sum(token is not None for token in tokens) == harness.limits.tenant_slots


@pytest.mark.promise("E42", "C02")
def test_a_token_is_good_for_one_rotation(harness: Harness) -> None:
    slots = harness.acme.slots
    token = slots.take(Lane.DRAIN, HOLD)
    assert token is not None
    fresh = slots.rotate(Lane.DRAIN, token, HOLD)
    assert fresh not in {None, token}
    assert slots.rotate(Lane.DRAIN, token, HOLD) is None
    assert slots.rotate(Lane.DRAIN, "forged", HOLD) is None
    assert slots.rotate(Lane.SLICE, str(fresh), HOLD) is None
    assert slots.take(Lane.DRAIN, HOLD) is None


def test_two_messages_with_one_token_rotate_it_once(harness: Harness) -> None:
    token = harness.acme.slots.take(Lane.SLICE, HOLD)
    assert token is not None
    with ThreadPoolExecutor(8) as pool:
        fresh = list(pool.map(lambda _: harness.acme.slots.rotate(Lane.SLICE, token, HOLD), range(8)))
    assert sum(one is not None for one in fresh) == 1


@pytest.mark.promise("E42")
def test_a_slot_that_nobody_gave_back_is_free_when_its_hold_is_over(harness: Harness) -> None:
    slots = harness.acme.slots
    token = slots.take(Lane.DRAIN, HOLD)
    assert token is not None
    harness.advance(HOLD - timedelta(seconds=5))
    assert slots.take(Lane.DRAIN, HOLD) is None
    harness.advance(timedelta(seconds=6))
    assert slots.rotate(Lane.DRAIN, token, HOLD) is None
    assert slots.extend(Lane.DRAIN, token, HOLD) is False
    assert slots.take(Lane.DRAIN, HOLD) is not None


def test_an_extended_slot_stays_held(harness: Harness) -> None:
    slots = harness.acme.slots
    token = slots.take(Lane.DRAIN, HOLD)
    assert token is not None
    for _ in range(3):
        harness.advance(timedelta(seconds=20))
        assert slots.extend(Lane.DRAIN, token, HOLD) is True
    assert slots.take(Lane.DRAIN, HOLD) is None
    assert slots.extend(Lane.DRAIN, "forged", HOLD) is False
    assert slots.rotate(Lane.DRAIN, token, HOLD) is not None


def test_a_slot_is_given_back_once_and_a_strange_token_frees_nothing(harness: Harness) -> None:
    slots = harness.acme.slots
    token = slots.take(Lane.DRAIN, HOLD)
    assert token is not None
    assert slots.give_back(Lane.DRAIN, "forged") is False
    assert slots.take(Lane.DRAIN, HOLD) is None
    assert [slots.give_back(Lane.DRAIN, token), slots.give_back(Lane.DRAIN, token)] == [True, False]
    assert slots.take(Lane.DRAIN, HOLD) is not None


def test_a_slot_that_lies_further_ahead_than_the_longest_hold_counts_as_over(harness: Harness) -> None:
    """The server's clock may step back at a failover."""
    token = harness.acme.slots.take(Lane.DRAIN, HOLD)
    assert token is not None
    harness.step_server_clock_back(timedelta(hours=1))
    assert harness.acme.slots.take(Lane.DRAIN, HOLD) is not None


@pytest.mark.promise("E42")
def test_a_slot_given_out_by_a_command_that_began_later_but_ran_first_is_held(harness: Harness) -> None:
    """Each of two racing commands has the time of its own beginning."""
    token = harness.acme.slots.take(Lane.DRAIN, HOLD)
    assert token is not None
    harness.step_server_clock_back(timedelta(seconds=1))
    assert harness.acme.slots.take(Lane.DRAIN, HOLD) is None
    assert harness.store.maintenance.take_slots(Lane.DRAIN, ["acme"], HOLD) == {}
    assert harness.acme.slots.extend(Lane.DRAIN, token, HOLD)
    harness.step_server_clock_back(timedelta(seconds=1))
    assert harness.acme.slots.rotate(Lane.DRAIN, token, HOLD) is not None


@pytest.mark.promise("E42")
def test_the_offer_takes_one_slot_of_each_tenant_that_has_one(harness: Harness) -> None:
    assert harness.acme.slots.take(Lane.DRAIN, HOLD) is not None
    taken = harness.store.maintenance.take_slots(Lane.DRAIN, ["acme", "other", "third"], HOLD)
    assert set(taken) == {"other", "third"}
    assert harness.other.slots.rotate(Lane.DRAIN, taken["other"], HOLD) is not None
    assert harness.store.maintenance.take_slots(Lane.DRAIN, ["acme", "other", "third"], HOLD) == {}
    assert harness.store.maintenance.take_slots(Lane.DRAIN, [], HOLD) == {}


@pytest.mark.promise("E42", "C02")
def test_one_tenants_token_opens_no_slot_of_another(harness: Harness) -> None:
    """An offer may draw one token for many tenants: it is each tenant's own all the same."""
    taken = harness.store.maintenance.take_slots(Lane.SLICE, ["acme"], HOLD)
    assert harness.other.slots.rotate(Lane.SLICE, taken["acme"], HOLD) is None
    assert harness.other.slots.give_back(Lane.SLICE, taken["acme"]) is False
    assert harness.acme.slots.rotate(Lane.SLICE, taken["acme"], HOLD) is not None
