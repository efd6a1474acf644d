"""One tenant with very many due rows beside others with one each, on real workers: waiting times and caps (E42).

What is measured is read from the rows and from tenant_slots, by the server's clock.
"""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import psutil
import pytest
import redis

from outbox_core.adapters.mongo.client import connect
from tests.acceptance.stack import children
from tests.harness.examples import event, new_effect
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.database import Database

    from tests.acceptance.stack import Stack

BIG = "big"
SLICE = timedelta(seconds=1.5)
"""SLICE_TIME, and what the claim that it has in hand then takes."""


@pytest.fixture
def database(stack: Stack) -> Iterator[Database[dict[str, Any]]]:
    """The stack's database, past every port."""
    settings = stack.outbox.settings
    found = connect(settings.mongo_url.get_secret_value(), settings.mongo_db, settings.limits)
    with found.client:
        yield found


def owe(database: Database[dict[str, Any]], stack: Stack, tenant: str, count: int, name: str) -> None:
    """Write rows that are due now, as a drain does, and the events that they are of, past the tenant's counter."""
    store = stack.outbox.tenant(tenant)
    (found,) = database.aggregate([{"$documents": [{"now": "$$NOW"}]}])
    now = found["now"]
    first = database["board_events"].count_documents({"tenant_id": tenant})
    for start in range(first + 1, first + count + 1, 2_000):
        numbers = range(start, min(start + 2_000, first + count + 1))
        store.log.insert([event(n, f"{name}-{n}", tenant=tenant, now=now) for n in numbers])
        store.effects.materialize(
            [new_effect(n, "rule", tenant=tenant, bot_id="work-it", event_id=f"{name}-{n}") for n in numbers], now
        )


def waits(database: Database[dict[str, Any]], name: str) -> list[timedelta]:
    """How long each row of these events has waited from its birth until it was done, shortest first."""
    rows = list(database["trigger_effects"].find({"event_id": {"$regex": f"^{name}-"}}))
    assert {(row["state"], row["attempts"]) for row in rows} == {("done", 0)}, name
    return sorted(row["done_at"] - row["created_at"] for row in rows)


def live(database: Database[dict[str, Any]], *tenants: str) -> int:
    """Count what these tenants' rows are still owed, by the live index: looking must cost next to nothing."""
    query = {"tenant_id": {"$in": tenants}, "state": {"$in": ["pending", "claimed"]}}
    return database["trigger_effects"].count_documents(query)


class Watch:
    """Looks at the slots, the claims and the queue all the time, and keeps the most that it saw."""

    def __init__(self, database: Database[dict[str, Any]], broker_url: str) -> None:
        self.slots = self.workers = self.queued = self.ticks = self.looks = 0
        self._database = database
        self._broker = redis.Redis.from_url(broker_url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._broker.close()

    def __str__(self) -> str:
        most = f"slots {self.slots}, processes {self.workers}, queued {self.queued}, ticks {self.ticks}"
        return f"at most {most}, in {self.looks} looks"

    def _look(self) -> None:
        live = {"$size": {"$filter": {"input": "$slice", "as": "slot", "cond": {"$gt": ["$$slot.until", "$$NOW"]}}}}
        while not self._stop.wait(0.05):
            for found in self._database["tenant_slots"].aggregate(
                [{"$match": {"_id": BIG}}, {"$project": {"n": live}}]
            ):
                self.slots = max(self.slots, found["n"])
            claimed = {"tenant_id": BIG, "state": "claimed"}
            holders = self._database["trigger_effects"].distinct("claimed_by", claimed)
            alive = [holder for holder in holders if psutil.pid_exists(int(holder.split(":")[1]))]
            self.workers = max(self.workers, len(alive))
            self.queued = max(self.queued, int(self._broker.llen("effects")))
            self.ticks = max(self.ticks, int(self._broker.llen("maintenance")))
            self.looks += 1


def play(stack: Stack, database: Database[dict[str, Any]], *, rows: int, tenants: int) -> None:
    """Measure what the small tenants wait without the big one, and then with it."""
    small = [f"small-{number:02}" for number in range(tenants)]
    for tenant in [BIG, *small]:
        stack.subscribe(tenant, "work-it", seconds=0.002 if tenant == BIG else 0)
    stack.worker(processes=2)
    stack.beat()
    for tenant in small:
        owe(database, stack, tenant, 1, "alone")
    wait_until(lambda: not live(database, *small), 60, "the small tenants alone")
    owe(database, stack, BIG, rows, "bulk")
    wait_until(lambda: live(database, BIG) <= rows - 200, 30, "the big one is worked on")
    with Watch(database, stack.broker_url) as watch:
        for tenant in small:
            owe(database, stack, tenant, 1, "beside")
        wait_until(lambda: not live(database, *small), 60, "the small tenants beside the big one")
    left = live(database, BIG)
    assert left > 0, "the big tenant was at work all the time"
    limits = stack.outbox.settings.limits
    alone, beside = waits(database, "alone"), waits(database, "beside")
    print(  # noqa: T201 - the figures, shown with -s
        f"{tenants} small tenants beside one of {rows} rows ({left} left): waited {beside[tenants // 2]} in the middle,"
        f" {beside[-1]} at most; alone {alone[tenants // 2]}, {alone[-1]}; {watch}"
    )
    assert beside[-1] <= alone[-1] + limits.tenant_slots * SLICE + limits.sweep_tick
    assert watch.looks > 10
    assert watch.slots <= limits.tenant_slots
    assert watch.workers <= 2
    assert watch.queued <= (tenants + 1) * limits.tenant_slots
    assert database["trigger_effects"].count_documents({"attempts": {"$ne": 0}}) == 0


@pytest.mark.promise("E42")
def test_a_tenant_with_many_due_rows_delays_others_by_no_more_than_its_slots_and_a_tick(
    stack: Stack, database: Database[dict[str, Any]]
) -> None:
    play(stack, database, rows=4_000, tenants=20)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.promise("E42")
def test_a_tenant_with_a_hundred_thousand_due_rows_delays_ninety_nine_others_by_no_more_than_its_slots_and_a_tick(
    stack: Stack, database: Database[dict[str, Any]]
) -> None:
    play(stack, database, rows=100_000, tenants=99)


@pytest.mark.slow
@pytest.mark.promise("E42", "C06")
def test_a_tenants_cap_holds_under_hints_and_the_ticks_of_two_beats_and_after_a_kill(
    stack: Stack, database: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slots, four processes; ticks twice as fast as a slice, a hint for each claim; two processes are killed."""
    monkeypatch.setenv("OUTBOX_TENANT_SLOTS", "2")
    stack.subscribe(BIG, "work-it", seconds=0.01)
    worker = stack.worker(processes=4)
    stack.beat()
    stack.beat()
    owe(database, stack, BIG, 4_000, "bulk")
    rows = database["trigger_effects"]
    with Watch(database, stack.broker_url) as watch:
        wait_until(lambda: rows.count_documents({"state": "done"}) >= 200, 30, "it is worked on")
        doomed: set[int] = set()

        def found_at_work() -> bool:
            # Between two slices nobody holds a row.
            holders = {int(one.split(":")[1]) for one in rows.distinct("claimed_by", {"state": "claimed"})}
            doomed.update(holders & set(children(worker)))
            return bool(doomed)

        wait_until(found_at_work, 20, "somebody holds a row")
        assert len(doomed) <= 2
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        done = rows.count_documents({"state": "done"})
        wait_until(lambda: rows.count_documents({"state": "done"}) >= done + 400, 40, "others go on")
    print(watch)  # noqa: T201 - as above
    assert watch.looks > 50
    assert (watch.slots, watch.workers) == (2, 2)
    assert watch.queued <= 2
    assert watch.ticks <= 2 * 2, "two beats, of each kind of tick"
