"""Workers and the broker are killed with -9 in the middle of work; workers are told to stop; others join."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import redis
from celery import Celery

from outbox_core.domain.limits import TRANSACTIONAL_MARGIN
from tests.acceptance.stack import children
from tests.waiting import wait_until

if TYPE_CHECKING:
    from outbox_core.embedded import EmbeddedRedis
    from tests.acceptance.stack import Stack

pytestmark = pytest.mark.slow


@pytest.mark.promise("C04", "E28")
def test_a_worker_killed_in_the_middle_of_a_bot_gives_its_row_back_after_one_lease(stack: Stack) -> None:
    doomed = stack.worker(processes=1)
    stack.beat()
    stack.subscribe("acme", "hold-it")
    stack.append("acme")
    wait_until(lambda: stack.starts, 15, "the bot started")
    doomed.kill()
    killed_at = time.monotonic()
    stack.worker(processes=1)
    stack.release()
    limits = stack.outbox.settings.limits
    bound = (limits.effect_lease + limits.sweep_tick + limits.slot_hold).total_seconds() + 5
    wait_until(lambda: stack.all_done("acme", 1), bound, "the row is done")
    assert time.monotonic() - killed_at < bound
    (effect, first_attempt, first_pid), (again, second_attempt, second_pid) = stack.starts
    assert effect == again
    assert (first_attempt, second_attempt) == (1, 2)
    assert first_pid != second_pid
    assert list(stack.runs.values()) == [1]


@pytest.mark.promise("C04", "E37")
def test_a_transactional_bot_whose_process_is_killed_before_its_commit_writes_once(stack: Stack) -> None:
    stack.worker(processes=1)
    stack.beat()
    stack.subscribe("acme", "count-it", seconds=0.5)
    stack.append("acme")
    wait_until(lambda: stack.starts, 15, "the bot started")
    os.kill(stack.starts[0][2], signal.SIGKILL)
    # Its row is leased for the bot's limit and a margin, since a commit must land inside the lease.
    limits = stack.outbox.settings.limits
    bound = (timedelta(seconds=2) + TRANSACTIONAL_MARGIN + limits.sweep_tick + limits.slot_hold).total_seconds() + 5
    wait_until(lambda: stack.all_done("acme", 1), bound, "the row is done")
    assert len(stack.starts) == 2
    with stack.outbox.tenant("acme").transactions.begin() as transaction:
        assert transaction.database["counted"].count_documents({}) == 1


@pytest.mark.promise("C05", "E41")
@pytest.mark.scenario(58)
def test_a_worker_told_to_stop_finishes_its_row_and_gives_back_the_rest_with_no_attempt_spent(stack: Stack) -> None:
    worker = stack.worker(processes=1)
    beat = stack.beat()
    stack.subscribe("acme", "hold-it")
    stack.append("acme", 5)
    wait_until(lambda: stack.starts, 15, "a bot started")
    beat.stop()
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "shutdown" in worker.log.read_text("utf-8").lower(), 10, "the worker heard it")
    stack.release()
    wait_until(lambda: worker.poll() is not None, 15, "the worker ended")
    ran = sum(stack.runs.values())
    assert ran == 1
    rows = stack.outbox.tenant("acme").effects.list()
    assert sorted((row["state"], row["attempts"]) for row in rows) == [("done", 0), *[("pending", 0)] * 4]
    other = stack.worker(processes=1)
    stack.beat()
    wait_until(lambda: stack.all_done("acme", 5), 10, "the others, without waiting for a lease")
    assert other.poll() is None


@pytest.mark.promise("C11")
def test_a_second_worker_takes_a_share_of_the_rows_with_no_setting_changed(stack: Stack) -> None:
    first = stack.worker(processes=1)
    stack.beat()
    stack.subscribe("acme", "note-it", seconds=0.05)
    stack.append("acme", 150)
    wait_until(lambda: stack.runs, 15, "the first worker works")
    second = stack.worker(processes=1)
    pools = {name: set(children(worker)) for name, worker in (("first", first), ("second", second))}
    wait_until(lambda: stack.all_done("acme", 150), 30, "all rows done")
    shares = {name: sum(pid in pids for _, _, pid in stack.starts) for name, pids in pools.items()}
    assert shares["first"] + shares["second"] == 150
    assert shares["second"] >= 15
    assert set(stack.runs.values()) == {1}


def send_tick(broker_url: str, *, countdown: float) -> None:
    app = Celery("sender", broker=broker_url)
    with app.connection_for_write() as connection, connection.Producer() as producer:
        app.send_task(
            "outbox.sweep_tick", routing_key="maintenance", exchange="", countdown=countdown, producer=producer
        )


def unacknowledged(broker_url: str) -> int:
    with redis.Redis.from_url(broker_url) as client:
        return int(client.hlen("unacked"))


@pytest.mark.promise("C03")
@pytest.mark.scenario(35, 36, 37)
def test_a_broker_killed_under_a_busy_worker_and_restarted_empty_ends_no_worker_and_loses_no_row(
    frail_stack: Stack, own_broker: EmbeddedRedis
) -> None:
    """One effect runs, others wait in the queue; the worker lives, and what comes after the reconnect is taken."""
    worker, beat = frail_stack.worker(processes=2), frail_stack.beat()
    frail_stack.subscribe("acme", "hold-it")
    frail_stack.subscribe("apex", "note-it", seconds=0.01)
    frail_stack.append("acme")
    wait_until(lambda: frail_stack.starts, 15, "the bot started")
    frail_stack.append("apex", 30)
    wait_until(lambda: len(frail_stack.starts) > 3, 10, "the queue is in use")
    for _ in range(2):
        # What a worker has taken and not acknowledged yet is what the fault upstream needs; a tick of later is that.
        send_tick(own_broker.url, countdown=600)
        wait_until(lambda: unacknowledged(own_broker.url) > 0, 10, "the worker holds a message")
        own_broker.kill()
        time.sleep(1)  # An outage has a length; nothing tells of its middle.
        own_broker.start()
        frail_stack.append("apex", 10)
    wait_until(lambda: frail_stack.all_done("apex", 50), 40, "rows that came before, during and after the outage")
    frail_stack.release()
    wait_until(lambda: frail_stack.all_done("acme", 1), 20, "the row that ran all along")
    assert worker.poll() is None
    assert beat.poll() is None
    assert set(frail_stack.runs.values()) == {1}
