"""A broker that is cut off, hangs, takes no writes or is away, and a database that is: all come back by themselves."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import redis

from outbox_core.embedded import EmbeddedMongo
from tasks import hints
from tests.acceptance.application import hinting_outbox
from tests.acceptance.stack import children, running_stack
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from outbox_core.embedded import EmbeddedRedis, Process
    from tests.acceptance.stack import Stack

pytestmark = pytest.mark.slow

AWAY_S = float(os.environ.get("OUTBOX_TEST_AWAY_S", "4"))
"""How long a broker is away, or hangs; minutes show no more than seconds do."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """It takes connections and what they carry, and says nothing."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, 5, "it stands still")
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def all_alive(*processes: Process) -> bool:
    return all(process.poll() is None for process in processes)


def ticks(beat: Process) -> int:
    return beat.log.read_text("utf-8", "replace").count("Sending due task")


def says_more(process: Process, said: int, what: str = "") -> bool:
    """Whether its log has grown beyond so many characters, and tells of this there."""
    more = process.log.read_text("utf-8", "replace")[said:]
    return bool(more) and what in more


def has_others(worker: Process, former: set[int], count: int = 2) -> bool:
    return len(set(children(worker)) - former) == count


@pytest.mark.promise("C03")
@pytest.mark.scenario(38)
def test_a_worker_whose_connections_to_the_broker_are_killed_during_an_effect_runs_it_once(
    frail_stack: Stack, own_broker: EmbeddedRedis
) -> None:
    """CLIENT KILL, several times (celery 10205)."""
    worker, beat = frail_stack.worker(processes=2), frail_stack.beat()
    frail_stack.subscribe("acme", "hold-it")
    frail_stack.subscribe("apex", "note-it")
    frail_stack.append("acme")
    wait_until(lambda: frail_stack.starts, 15, "the bot started")
    with redis.Redis.from_url(own_broker.url) as client:
        for round_number in range(1, 4):
            assert client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") > 0
            frail_stack.append("apex", 2)
            wait_until(partial(frail_stack.all_done, "apex", 2 * round_number), 30, "rows after the cut")
    frail_stack.release()
    wait_until(lambda: frail_stack.all_done("acme", 1), 20, "the row that ran all along")
    assert set(frail_stack.runs.values()) == {1}
    assert len(frail_stack.starts) == 7
    assert all_alive(worker, beat)


@pytest.mark.promise("C03")
def test_a_hung_broker_holds_up_no_append_and_its_workers_and_beat_go_on_once_it_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mongo_server: EmbeddedMongo,
    own_broker: EmbeddedRedis,
    database_name: str,
) -> None:
    """The broker stands still until the last append has returned, so none of them can have waited for it."""
    senders: set[str] = set()
    send = hints._Producer.send

    def noted(self: Any, task: str, arguments: Any) -> None:  # noqa: ANN401 - as the original
        senders.add(threading.current_thread().name)
        send(self, task, arguments)

    monkeypatch.setattr(hints._Producer, "send", noted)
    with running_stack(
        tmp_path, monkeypatch, mongo_url=mongo_server.url, broker_url=own_broker.url, database=database_name
    ) as stack:
        worker, beat = stack.worker(processes=2), stack.beat()
        stack.subscribe("acme", "note-it")
        with closing(hinting_outbox(own_broker.url)) as application:
            application.append("acme", type="order")
            wait_until(lambda: stack.all_done("acme", 1), 15, "a row before")
            with stopped(own_broker.pid):
                for _ in range(20):
                    application.append("acme", type="order")
                assert psutil.Process(own_broker.pid).status() == psutil.STATUS_STOPPED
                time.sleep(AWAY_S)
        before = ticks(beat)
        wait_until(lambda: ticks(beat) > before, 30, "the beat ticks")
        wait_until(lambda: stack.all_done("acme", 21), 30, "all rows")
        assert all_alive(worker, beat)
    assert senders == {"outbox-hints"}
    assert set(stack.runs.values()) == {1}


READ_ONLY = {
    "a replica that lost its primary": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    "a primary that lost its replicas": (
        ("CONFIG", "SET", "min-replicas-to-write", "1"),
        ("CONFIG", "SET", "min-replicas-to-write", "0"),
    ),
}


@pytest.mark.promise("C03")
def test_a_broker_that_takes_no_writes_for_a_while_ends_neither_worker_nor_beat(
    frail_stack: Stack, own_broker: EmbeddedRedis
) -> None:
    worker, beat = frail_stack.worker(processes=2), frail_stack.beat()
    frail_stack.subscribe("acme", "note-it")
    rows = 0
    with redis.Redis.from_url(own_broker.url) as client:
        for how, (begin, end) in READ_ONLY.items():
            client.execute_command(*begin)
            with pytest.raises(redis.ResponseError):
                client.set("probe", "1")
            said = len(beat.log.read_text("utf-8", "replace"))
            frail_stack.append("acme", 5)
            rows += 5
            wait_until(partial(says_more, beat, said), 20, f"{how}: the beat noticed")
            time.sleep(1)  # An outage has a length; nothing tells of its middle.
            client.execute_command(*end)
            wait_until(partial(frail_stack.all_done, "acme", rows), 30, f"{how}: the rows")
            assert all_alive(worker, beat)
    assert set(frail_stack.runs.values()) == {1}


@pytest.mark.promise("C03")
def test_a_broker_that_is_away_for_a_while_is_found_again_by_workers_and_beats(
    frail_stack: Stack, own_broker: EmbeddedRedis
) -> None:
    first, second, beat = frail_stack.worker(processes=1), frail_stack.worker(processes=1), frail_stack.beat()
    frail_stack.subscribe("acme", "note-it", seconds=0.1)
    frail_stack.append("acme", 20)
    wait_until(lambda: frail_stack.runs, 15, "work is under way")
    own_broker.kill()
    frail_stack.append("acme", 20)
    time.sleep(AWAY_S)
    own_broker.start()
    wait_until(lambda: frail_stack.all_done("acme", 40), 40, "all rows")
    # Each of them works again, not only the one that was quicker.
    idle = {worker.pid: set(children(worker)) for worker in (first, second)}

    def both_at_work() -> bool:
        frail_stack.append("acme", 10)
        since = frail_stack.starts[40:]
        return all(pids & {pid for _, _, pid in since} for pids in idle.values())

    wait_until(both_at_work, 40, "both workers take rows")
    assert all_alive(first, second, beat)
    assert set(frail_stack.runs.values()) == {1}


@pytest.mark.promise("C03")
@pytest.mark.scenario(41)
def test_children_that_are_replaced_while_mongodb_is_down_live_and_work_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: EmbeddedRedis, database_name: str
) -> None:
    """No loop in which each replacement is killed because it does not come up (celery 4323)."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    with EmbeddedMongo(tmp_path / "mongo") as mongo:
        url, broker = mongo.url, redis_server.url
        with running_stack(tmp_path, monkeypatch, mongo_url=url, broker_url=broker, database=database_name) as stack:
            worker = stack.worker(processes=2)
            beat = stack.beat()
            stack.subscribe("acme", "note-it")
            stack.append("acme")
            wait_until(lambda: stack.all_done("acme", 1), 15, "a row before")
            mongo.kill()
            for _ in range(2):
                former = set(children(worker))
                for pid in former:
                    os.kill(pid, signal.SIGKILL)
                wait_until(partial(has_others, worker, former), 20, "others came in their place")
            replaced = set(children(worker))
            said = len(worker.log.read_text("utf-8", "replace"))
            wait_until(partial(says_more, worker, said, "ended early"), 20, "they work, in vain")
            mongo.start()
            stack.append("acme", 5)
            wait_until(lambda: stack.all_done("acme", 6), 30, "the rows after")
            assert set(children(worker)) == replaced
            assert all_alive(worker, beat)
    assert set(stack.runs.values()) == {1}
