"""What ports.maintenance promises, on both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.harness.examples import append, claim, materialize

if TYPE_CHECKING:
    from tests.harness.base import Harness

INTERVAL = timedelta(seconds=5)


@pytest.mark.promise("C06", "E31")
def test_the_servers_time_is_told_as_it_is_whatever_a_processes_clock_says(harness: Harness) -> None:
    before = harness.now()
    told = harness.store.maintenance.now()
    assert before <= told <= harness.now()
    assert told.tzinfo is not None


def test_of_any_number_of_beats_one_gets_the_tick(harness: Harness) -> None:
    tick = harness.store.maintenance.tick_due
    with ThreadPoolExecutor(8) as pool:
        first = list(pool.map(lambda _: tick("sweep", INTERVAL), range(16)))
    assert sum(first) == 1
    assert tick("drain", INTERVAL) is True
    harness.advance(timedelta(seconds=2))
    assert tick("sweep", INTERVAL) is False
    harness.advance(timedelta(seconds=4))
    with ThreadPoolExecutor(8) as pool:
        second = list(pool.map(lambda _: tick("sweep", INTERVAL), range(16)))
    assert sum(second) == 1


@pytest.mark.promise("C04")
def test_a_tick_set_by_a_command_that_began_later_but_ran_first_is_taken(harness: Harness) -> None:
    """Each of two racing commands has the time of its own beginning."""
    tick = harness.store.maintenance.tick_due
    assert tick("sweep", INTERVAL) is True
    harness.step_server_clock_back(timedelta(seconds=1))
    assert tick("sweep", INTERVAL) is False


def test_a_tick_that_lies_further_ahead_than_its_interval_counts_as_over(harness: Harness) -> None:
    tick = harness.store.maintenance.tick_due
    assert tick("sweep", INTERVAL) is True
    harness.step_server_clock_back(timedelta(hours=1))
    assert [tick("sweep", INTERVAL), tick("sweep", INTERVAL)] == [True, False]


@pytest.mark.promise("E16")
def test_undrained_tenants_are_told_in_pages_of_ascending_ids(harness: Harness) -> None:
    tenants = [f"t{number}" for number in range(5)]
    for tenant_id in reversed(tenants):
        append(harness.store.tenant(tenant_id), "e1")
    assert harness.store.tenant("t2").log.clear_undrained(1)
    maintenance = harness.store.maintenance
    assert maintenance.undrained_tenants("", 2) == ["t0", "t1"]
    assert maintenance.undrained_tenants("t1", 2) == ["t3", "t4"]
    assert maintenance.undrained_tenants("t4", 2) == []


@pytest.mark.promise("E16")
def test_due_tenants_are_those_with_a_due_row_longest_due_first(harness: Harness) -> None:
    lease = timedelta(seconds=60)
    for tenant_id in ("b", "a", "c", "d"):
        materialize(harness.store.tenant(tenant_id), 1, now=harness.now())
        harness.advance(timedelta(seconds=1))
    claim(harness.store.tenant("a"), 1, lease)
    harness.store.tenant("e").effects.claim_due(1, worker="w", lease=lease)
    assert harness.store.maintenance.due_tenants() == ["b", "c", "d"]
    harness.advance(timedelta(seconds=61))
    assert harness.store.maintenance.due_tenants() == ["b", "c", "d", "a"]
    materialize(harness.store.tenant("f"), 1, now=harness.now() + timedelta(hours=1))
    assert "f" not in harness.store.maintenance.due_tenants()


@pytest.mark.promise("E45")
@pytest.mark.parametrize("time", [None, "soon", 7, {"at": 1}], ids=["null", "text", "number", "document"])
def test_a_tenant_whose_only_row_could_never_be_due_is_swept(harness: Harness, time: object) -> None:
    (effect_id,) = materialize(harness.acme, 1, now=harness.now())
    harness.change("trigger_effects", effect_id, not_before=time)
    assert harness.store.maintenance.due_tenants() == ["acme"]
    assert claim(harness.acme, 10, INTERVAL).parked == 1
    assert harness.store.maintenance.due_tenants() == []


@pytest.mark.promise("E16")
def test_a_tenant_whose_flag_is_wrong_is_found_in_pages(harness: Harness) -> None:
    tenants = [f"t{number}" for number in range(5)]
    for tenant_id in tenants:
        store = harness.store.tenant(tenant_id)
        append(store, "e1", "e2")
        if tenant_id != "t1":
            assert store.log.clear_undrained(2)
    drained = harness.store.tenant("t3").progress
    read = drained.load()
    assert drained.commit(read, seq=2, marks=(), poison=read.poison, entry=None)
    found: list[str] = []
    after, pages = "", 0
    while True:
        lagging, after = harness.store.maintenance.lagging_tenants(after, 2)
        found += lagging
        pages += 1
        if not after:
            break
    assert found == ["t0", "t2", "t4"]
    assert pages == 3


@pytest.mark.promise("L20")
def test_bringing_the_schema_up_to_date_again_does_nothing(harness: Harness) -> None:
    harness.store.maintenance.ensure_schema()
    assert list(harness.store.maintenance.pending_schema()) == []
    assert list(harness.store.maintenance.ensure_schema()) == []
