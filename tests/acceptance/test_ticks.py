"""Ticks alone find the work, whatever becomes of the broker and of the beats; hints only make it quick."""

from __future__ import annotations

import random
import statistics
import threading
import time
from typing import TYPE_CHECKING

import pytest
import redis

from outbox_core.domain.limits import Limits
from tests.acceptance.application import hinting_outbox
from tests.acceptance.stack import running_stack
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from outbox_core.embedded import EmbeddedMongo, EmbeddedRedis
    from tests.acceptance.stack import Stack

pytestmark = pytest.mark.slow


@pytest.mark.promise("C01")
def test_an_event_becomes_one_run_of_its_bot_with_no_hint_at_all(frail_stack: Stack) -> None:
    frail_stack.worker(processes=1)
    frail_stack.beat()
    frail_stack.subscribe("acme", "note-it")
    frail_stack.append("acme", 3)
    wait_until(lambda: frail_stack.all_done("acme", 3), 15, "all rows done")
    assert sorted(frail_stack.runs.values()) == [1, 1, 1]


@pytest.mark.promise("C01")
@pytest.mark.scenario(39)
def test_a_broker_emptied_at_random_moments_delays_effects_by_a_tick_of_each_kind_and_a_slots_hold(
    frail_stack: Stack, own_broker: EmbeddedRedis
) -> None:
    frail_stack.worker(processes=2)
    frail_stack.beat()
    frail_stack.subscribe("acme", "note-it")
    frail_stack.subscribe("apex", "count-it")
    chance = random.Random(7)  # noqa: S311 - a seed makes the moments repeatable
    ended = time.monotonic() + 6
    appended = 0
    with redis.Redis.from_url(own_broker.url) as client:
        while time.monotonic() < ended:
            frail_stack.append("acme", 2)
            frail_stack.append("apex", 1)
            appended += 1
            client.flushall()
            time.sleep(chance.uniform(0.0, 0.25))
        client.flushall()
    limits = frail_stack.outbox.settings.limits
    bound = (limits.drain_tick + limits.sweep_tick + limits.slot_hold).total_seconds()
    idle_worker_s = 4  # Two cores for all of this; the bound is for workers that idle.
    wait_until(
        lambda: frail_stack.all_done("acme", 2 * appended) and frail_stack.all_done("apex", appended),
        bound + idle_worker_s,
        "every event became its effect",
    )
    assert set(frail_stack.runs.values()) == {1}


@pytest.mark.promise("C04")
@pytest.mark.scenario(42)
def test_two_beats_of_which_one_is_killed_and_restarted_double_nothing_and_leave_no_gap(frail_stack: Stack) -> None:
    frail_stack.worker(processes=2)
    first, _second = frail_stack.beat(), frail_stack.beat()
    frail_stack.subscribe("acme", "note-it")
    frail_stack.append("acme", 10)
    wait_until(lambda: frail_stack.all_done("acme", 10), 15, "the rows under two beats")
    first.kill()
    frail_stack.append("acme", 10)
    wait_until(lambda: frail_stack.all_done("acme", 20), 10, "the rows under the other beat alone")
    frail_stack.beat()
    frail_stack.append("acme", 10)
    wait_until(lambda: frail_stack.all_done("acme", 30), 10, "the rows after its restart")
    assert set(frail_stack.runs.values()) == {1}
    store = frail_stack.outbox.tenant("acme")
    assert store.progress.load().seq == store.log.head().last_seq == 30


@pytest.mark.promise("E16", "C01")
@pytest.mark.scenario(61)
def test_with_hints_it_is_milliseconds_not_ticks_from_an_append_to_its_row(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mongo_server: EmbeddedMongo,
    redis_server: EmbeddedRedis,
    database_name: str,
) -> None:
    """Appends race drains at about 50 a second from two threads; a tick would come after a minute."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    with running_stack(
        tmp_path,
        monkeypatch,
        mongo_url=mongo_server.url,
        broker_url=redis_server.url,
        database=database_name,
        OUTBOX_DRAIN_TICK="60s",
        OUTBOX_SWEEP_TICK="60s",
    ) as stack:
        stack.worker(processes=2)
        stack.subscribe("acme", "note-it")
        application = hinting_outbox(redis_server.url)

        def appends(seed: int) -> None:
            chance = random.Random(seed)  # noqa: S311 - a seed makes the moments repeatable
            for _ in range(75):
                application.append("acme", type="order", action="placed")
                time.sleep(chance.uniform(0.0, 0.08))

        threads = [threading.Thread(target=appends, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: stack.all_done("acme", 150), 10, "all rows done, without one tick")
        waits = sorted(row_waits(stack))
        application.close()
    assert len(waits) == 150
    assert statistics.median(waits) < 0.25
    assert waits[-1] < Limits().drain_tick.total_seconds()
    assert set(stack.runs.values()) == {1}


def row_waits(stack: Stack) -> list[float]:
    """Seconds from each event's number to its row, by the server's clock."""
    store = stack.outbox.tenant("acme")
    rows = store.effects.list(limit=1_000)
    recorded = {entry.seq: entry.recorded_at for entry in store.log.read_after(0, 1_000)}  # type: ignore[union-attr]
    return [(row["created_at"] - recorded[row["seq"]]).total_seconds() for row in rows]
