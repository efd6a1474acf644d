"""Beats that are faster than their workers, and processes whose clock is far off."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import redis
from pymongo import MongoClient

from beat_schedule import TICKS
from tests.acceptance.shifted_clock import set_shift
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from outbox_core.embedded import EmbeddedMongo, EmbeddedRedis, Process
    from tests.acceptance.stack import Stack

pytestmark = pytest.mark.slow

TICK_S = 0.2
INTERVALS = 60
HOUR = 3_600
KINDS = ("outbox.drain_tick", "outbox.sweep_tick")
"""The ticks that come within a test."""

QUEUES = ("drain", "effects", "maintenance")


@pytest.fixture
def quick_ticks(monkeypatch: pytest.MonkeyPatch, frail_stack: Stack) -> Stack:
    for name in ("OUTBOX_DRAIN_TICK", "OUTBOX_SWEEP_TICK"):
        monkeypatch.setenv(name, f"{TICK_S * 1000:g}ms")
    return frail_stack


@pytest.fixture
def clock(quick_ticks: Stack) -> Path:
    """What moves the clocks of the processes that are started on it; at first they are right."""
    file = quick_ticks.folder / "clock"
    set_shift(file, 0)
    return file


def shifted(stack: Stack, clock: Path) -> Stack:
    stack.program = ["tests.acceptance.shifted_clock", str(clock), "celery"]
    return stack


def honest(stack: Stack) -> Stack:
    stack.program = ["celery"]
    return stack


def alarms(process: Process) -> list[str]:
    return [line for line in said(process) if "clock is" in line and "ERROR" in line]


def said(process: Process) -> list[str]:
    return process.log.read_text("utf-8", "replace").splitlines()


def kinds_in(client: Any, queue: str) -> Counter[str]:  # noqa: ANN401 - a client of redis
    return Counter(json.loads(line)["headers"]["task"] for line in client.lrange(queue, 0, -1))


def test_the_tests_know_which_ticks_are_frequent() -> None:
    assert {tick.task for tick in TICKS if tick.interval_seconds < 60} >= set(KINDS)


@pytest.mark.promise("C06")
@pytest.mark.scenario(43)
def test_while_long_bots_hold_every_process_no_more_than_one_tick_of_a_kind_and_beat_waits(
    quick_ticks: Stack, own_broker: EmbeddedRedis
) -> None:
    """Seen at django-celery-beat #331. Two beats, one killed and followed by another, the broker emptied midway."""
    stack = quick_ticks
    worker = stack.worker(processes=2)
    beats = [stack.beat(), stack.beat()]
    for tenant in ("held-1", "held-2"):
        stack.subscribe(tenant, "hold-it")
        stack.append(tenant)
    stack.subscribe("acme", "note-it")
    wait_until(lambda: len({pid for _, _, pid in stack.starts}) == 2, 40, "both processes are held")
    stack.append("acme", 5)
    most: Counter[str] = Counter()
    with redis.Redis.from_url(own_broker.url) as client:

        def look() -> Counter[str]:
            waiting = kinds_in(client, "maintenance")
            for kind, count in waiting.items():
                most[kind] = max(most[kind], count)
            others = sum(int(client.llen(queue)) for queue in QUEUES if queue != "maintenance")
            most["others"] = max(most["others"], others)
            return waiting

        def look_for(intervals: float) -> None:
            ends = time.monotonic() + intervals * TICK_S
            wait_until(lambda: look() and time.monotonic() >= ends, intervals * TICK_S + 30, "the time is over")

        wait_until(look, 30, "a tick waits")
        look_for(INTERVALS / 2)
        beats[0].kill()
        beats[0] = stack.beat()
        client.flushall()
        wait_until(lambda: set(KINDS) <= look().keys(), 30, "each kind comes again into an emptied broker")
        look_for(INTERVALS / 2)
        stack.release()
        wait_until(lambda: stack.all_done("acme", 5), 40, "all flows")
        wait_until(lambda: stack.all_done("held-1", 1) and stack.all_done("held-2", 1), 30, "the long ones end")
    print(f"most that waited in {INTERVALS} intervals of two beats: {dict(most)}")  # noqa: T201 - shown with -s
    assert all(most[kind] <= len(beats) for kind in KINDS)
    assert most["others"] <= 3 * stack.outbox.settings.limits.tenant_slots
    assert set(stack.runs.values()) == {1}
    assert not any(alarms(process) for process in (worker, *beats)), "their clocks agree"


@pytest.mark.promise("C06")
def test_a_worker_whose_clock_jumps_ahead_says_so_when_it_discards_and_works_on_once_that_is_mended(
    quick_ticks: Stack, clock: Path
) -> None:
    stack = quick_ticks
    worker = shifted(stack, clock).worker(processes=1)
    beat = honest(stack).beat()
    stack.subscribe("acme", "note-it")
    stack.append("acme", 2)
    wait_until(lambda: stack.all_done("acme", 2), 30, "it works while its clock is right")
    assert alarms(worker) == []
    set_shift(clock, HOUR)
    wait_until(lambda: alarms(worker), 30, "the alarm")
    stack.append("acme", 2)
    discarded = sum("Discarding revoked" in line for line in said(worker))
    wait_until(
        lambda: sum("Discarding revoked" in line for line in said(worker)) >= discarded + 6, 30, "it discards the ticks"
    )
    assert stack.all_done("acme", 2), "and does nothing else"
    set_shift(clock, 0)
    wait_until(lambda: stack.all_done("acme", 4), 30, "it works on")
    (alarm,) = alarms(worker)
    assert "clock is 3600 s ahead of the database's: this process discards the messages it takes" in alarm
    assert "so far: 0)" not in alarm
    assert alarms(beat) == []
    assert set(stack.runs.values()) == {1}


@pytest.mark.promise("C06", "E31")
def test_a_worker_whose_clock_is_off_at_its_start_says_so_and_runs_nothing_early(
    quick_ticks: Stack, clock: Path, mongo_server: EmbeddedMongo
) -> None:
    """Five minutes ahead, less than messages live; then an hour behind, where they live on."""
    stack = quick_ticks
    stack.subscribe("later", "note-it")
    stack.subscribe("acme", "note-it")
    (event_id,) = stack.append("later")
    stack.outbox.drain_tenant("later")
    in_two_minutes = [{"$set": {"not_before": {"$add": ["$$NOW", 120_000]}}}]
    with MongoClient[dict[str, Any]](mongo_server.url) as client:
        rows = client[stack.outbox.settings.mongo_db]["trigger_effects"]
        assert rows.update_many({"tenant_id": "later", "event_id": event_id}, in_two_minutes).modified_count == 1
    set_shift(clock, 300)
    worker = shifted(stack, clock).worker(processes=1)
    wait_until(lambda: alarms(worker), 30, "the alarm")
    assert "clock is 300 s ahead of" in alarms(worker)[0]
    honest(stack).beat()
    stack.append("acme")
    wait_until(lambda: stack.all_done("acme", 1), 30, "a row under a clock that is ahead")
    set_shift(clock, -HOUR)
    stack.append("acme")
    wait_until(lambda: stack.all_done("acme", 2), 30, "a row under one that is behind")
    assert stack.states("later") == {"pending": 1}
    assert set(stack.runs.values()) == {1}
    assert len(alarms(worker)) == 1, "nothing was discarded, and so its step back was not found"


@pytest.mark.promise("C06")
def test_a_beat_whose_clock_is_far_behind_says_so_since_workers_discard_its_ticks(
    quick_ticks: Stack, clock: Path
) -> None:
    stack = quick_ticks
    worker = stack.worker(processes=1)
    set_shift(clock, -HOUR)
    beat = shifted(stack, clock).beat()
    stack.subscribe("acme", "note-it")
    stack.append("acme")
    wait_until(lambda: alarms(beat), 30, "the alarm")
    wait_until(lambda: any("Discarding revoked" in line for line in said(worker)), 30, "its ticks are discarded")
    (alarm,) = alarms(beat)
    assert "clock is 3600 s behind the database's: other workers discard the messages that this process" in alarm
    assert stack.states("acme") == {}
    set_shift(clock, 0)
    wait_until(lambda: stack.all_done("acme", 1), 30, "the row, once its clock is right")
    assert alarms(worker) == []
