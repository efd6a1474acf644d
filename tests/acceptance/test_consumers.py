"""Consumers with real processes: hosted by workers and by threads, killed, doubled, told to stop, and idle."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from outbox_core.bootstrap import Outbox
from outbox_core.domain.errors import TransientError
from outbox_core.domain.lifecycle_event import LifecycleEvent
from outbox_core.domain.limits import TRANSACTIONAL_MARGIN
from tasks import transport
from tasks.hints import CeleryHints
from tests.acceptance.stack import READY_WITHIN, ROOT, STOP_GRACE, Stack, children, running_stack
from tests.harness.on_mongo import MongoHarness
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pymongo.database import Database

    from outbox_core.embedded import EmbeddedMongo, EmbeddedRedis, Process

pytestmark = pytest.mark.slow

OBSERVERS = "tests.acceptance.observers"
SHORT = {
    "OUTBOX_BOTS": OBSERVERS,
    "OUTBOX_HINTS": "off",
    "OUTBOX_CONSUMER_POLL": "250ms",
    "OUTBOX_CONSUMER_IDLE_STEP": "100ms",
    "OUTBOX_CONSUMER_IDLE_CAP": "1s",
    "OUTBOX_CONSUMER_LEASE": "3500ms",
}
"""Short times; what tells of a change sends no hint, so that ticks find it."""

SEEN_S = 20.0
"""How long a busy machine may take for what takes a second."""


class Deployment:
    """Workers that host the observers of this folder's `observers`, and what these have seen."""

    def __init__(self, stack: Stack, database: Database[dict[str, Any]]) -> None:
        self.stack = stack
        self.database = database
        self.boards = stack.outbox.boards("acme")
        self.consumers = stack.outbox.consumers("acme")
        self.boards.create_board("bugs", ["todo"])

    def put(self, *card_ids: str) -> None:
        for card_id in card_ids:
            self.boards.create_card("bugs", "A card", card_id=card_id)

    def delete(self, *card_ids: str) -> None:
        for card_id in card_ids:
            self.boards.delete_card(card_id)

    def told(self, name: str) -> list[str]:
        """Return the cards of a trace's events, in order, as often as they are there."""
        return [words[0].split(":")[1] for words in self.words(name)]

    def words(self, name: str) -> list[list[str]]:
        return [line.split() for line in self.stack._lines(name)]

    def hold(self, name: str) -> Path:
        """Hold an observer back until the file is gone."""
        file = self.stack.folder / f"{name}.hold"
        file.touch()
        return file

    def at_rest(self, *consumer_ids: str) -> bool:
        """Say whether these have acknowledged everything and gave their lease back."""
        lags = self.consumers.state().lags
        return all(lags[one] == 0 and not self.consumers.get(one).lease_owner for one in consumer_ids)

    def advance(self, delta: timedelta) -> None:
        """Let time pass for what is stored."""
        MongoHarness(self.database).advance(delta)

    @contextmanager
    def failing(self, **data: Any) -> Iterator[None]:  # noqa: ANN401 - as MongoDB's fail point
        """Have the server refuse commands."""
        admin = self.database.client.admin
        admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
        try:
            yield
        finally:
            admin.command("configureFailPoint", "failCommand", mode="off")


@pytest.fixture
def deploy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mongo_server: EmbeddedMongo,
    redis_server: EmbeddedRedis,
    database_name: str,
) -> Iterator[Deployment]:
    """A deployment without a process yet; its broker is empty."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    urls = {"mongo_url": mongo_server.url, "broker_url": redis_server.url}
    with (
        running_stack(tmp_path, monkeypatch, database=database_name, **urls, **SHORT) as stack,
        MongoClient[dict[str, Any]](mongo_server.url) as client,
    ):
        yield Deployment(stack, client[database_name])


def messages(worker: Process, task: str) -> int:
    """Count the messages of a task that a worker has taken."""
    return len(re.findall(rf"Task {task}\[\S+\] received", worker.log.read_text("utf-8", "replace")))


def await_ticks(worker: Process) -> None:
    ticks = messages(worker, "outbox.consumers_tick")
    wait_until(lambda: messages(worker, "outbox.consumers_tick") > ticks + 3, SEEN_S, "more ticks")


def hints_by(broker_url: str) -> CeleryHints:
    """What an application has that imports `tasks`, without the settings which that read at its import."""
    transport.register()
    app = Celery("application", broker=broker_url)
    lifecycle = {"queue": "lifecycle"}
    app.conf.update(
        task_queues=[Queue(name) for name in ("drain", "lifecycle", "maintenance")],  # type: ignore[no-untyped-call]  # kombu's
        task_default_queue="drain",
        task_routes={
            "outbox.wake_consumers": lifecycle,
            "outbox.poll_consumer": lifecycle,
            "outbox.prune": {"queue": "maintenance"},
        },
    )
    return CeleryHints(app, 600)


@pytest.mark.promise("L05", "L06", "L12", "L15", "L17", "L22")
def test_deletions_of_another_process_reach_a_workers_observers_by_ticks_alone_and_sooner_by_hints(
    deploy: Deployment, redis_server: EmbeddedRedis
) -> None:
    deploy.put("before", "c1", "c2", "c3", "c4")
    deploy.delete("before")
    worker, beat = deploy.stack.worker(processes=2), deploy.stack.beat()
    wait_until(lambda: messages(worker, "outbox.consumers_tick") > 2, SEEN_S, "ticks")
    assert messages(worker, "outbox.poll_consumer") == 0, "nobody is registered"
    for name, start in (("plain", "beginning"), ("counts", "beginning"), ("batches", "latest")):
        deploy.consumers.register(name, start=start)
    ids = ("plain", "counts", "batches")
    wait_until(lambda: deploy.at_rest(*ids), SEEN_S, "each has begun")
    assert deploy.told("plain.returns") == deploy.told("counts.returns") == ["before"]
    assert deploy.stack._lines("reconciled") == ["batches 4 it starts at the latest event"]
    # Idle, they cost ticks, and no message of their own.
    await_ticks(worker)
    polls = messages(worker, "outbox.poll_consumer")
    await_ticks(worker)
    assert messages(worker, "outbox.poll_consumer") == polls
    deploy.delete("c1")
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    deploy.boards.restore_card("c1")
    deploy.delete("c2")
    wait_until(lambda: deploy.at_rest(*ids), SEEN_S + 2, "ticks alone found them")
    beat.stop()
    application = Outbox.from_settings(hints=hints_by(redis_server.url))
    for name in ("c3", "c4"):
        application.boards("acme").delete_card(name)
        wait_until(lambda name=name: name in deploy.told("plain.returns"), SEEN_S, "a hint, with no beat at all")  # type: ignore[misc]
    application.close()
    wait_until(lambda: deploy.at_rest(*ids), SEEN_S, "all is acknowledged")
    # The first deletion of c1 may have been undone before its turn; then it was passed, and recorded.
    seen = deploy.told("plain.returns")
    assert seen[0] == "before"
    assert seen[-4:] == ["c1", "c2", "c3", "c4"]
    assert deploy.told("counts.returns")[-4:] == deploy.told("batches.returns")[-4:] == seen[-4:]
    counted = [row["event_id"] for row in deploy.database["counted"].find()]
    assert len(counted) == len(set(counted)) == len(deploy.told("counts.returns"))
    assert {words[3] for words in deploy.words("plain.returns")} == {"other"}


@pytest.mark.promise("L06", "L07")
def test_a_worker_killed_between_an_observers_return_and_its_ack_is_told_that_event_again_and_no_other(
    deploy: Deployment,
) -> None:
    deploy.put("c1", "c2", "c3")
    deploy.consumers.register("plain", start="beginning")
    deploy.consumers.register("counts", start="beginning")
    doomed = deploy.stack.worker(processes=2)
    deploy.stack.beat()
    deploy.delete("c1")
    wait_until(lambda: deploy.at_rest("plain", "counts"), SEEN_S, "the first event")
    holds = [deploy.hold("plain"), deploy.hold("counts")]
    deploy.delete("c2", "c3")
    for name in ("plain", "counts"):
        wait_until(lambda name=name: "c2" in deploy.told(f"{name}.begins"), SEEN_S, "it is at the second event")  # type: ignore[misc]
    # An acknowledgement hangs at the server, and is refused after that: the cursor does not move.
    namespace = f"{deploy.database.name}.lifecycle_consumer_cursors"
    refused = {"failCommands": ["update", "findAndModify"], "errorCode": 50, "namespace": namespace}
    with deploy.failing(**refused, blockConnection=True, blockTimeMS=1_000):
        for hold in holds:
            hold.unlink()
        for name in ("plain", "counts"):
            wait_until(lambda name=name: "c2" in deploy.told(f"{name}.returns"), SEEN_S, "it returned")  # type: ignore[misc]
        doomed.kill()
    assert [deploy.consumers.get(name).cursor for name in ("plain", "counts")] == [1, 1]
    assert deploy.database["counted"].count_documents({}) == 1
    deploy.advance(timedelta(seconds=2) + TRANSACTIONAL_MARGIN)
    deploy.stack.worker(processes=2)
    wait_until(lambda: deploy.at_rest("plain", "counts"), SEEN_S, "the others")
    assert deploy.told("plain.returns") == ["c1", "c2", "c2", "c3"]
    # It was called again, and what it wrote is there once.
    counted = [row["event_id"].split(":")[1] for row in deploy.database["counted"].find().sort("_id", 1)]
    assert sorted(counted) == ["c1", "c2", "c3"]
    assert {words[1] for words in deploy.words("plain.returns")} == {"1"}, "a death is no failed try"


@pytest.mark.promise("L06", "L07", "L15")
def test_of_two_pools_under_one_id_one_works_and_one_told_to_stop_in_mid_batch_hands_over_at_once(
    deploy: Deployment, redis_server: EmbeddedRedis
) -> None:
    cards = [f"c{number}" for number in range(8)]
    deploy.put(*cards)
    for name in ("plain", "counts"):
        deploy.consumers.register(name, start="beginning")
    workers = [deploy.stack.worker(processes=2), deploy.stack.worker(processes=2)]
    pools = [set(children(worker)) for worker in workers]
    hold = deploy.hold("plain")
    deploy.delete(*cards)
    beat = deploy.stack.beat()
    wait_until(lambda: deploy.told("plain.begins"), SEEN_S, "one of them is at it")
    # Whoever is free is told to poll it as well, while the lease is held.
    hints, polls = hints_by(redis_server.url), sum(messages(worker, "outbox.poll_consumer") for worker in workers)
    for _ in range(3):
        hints.poll("acme", "plain")
        assert hints.flush()
    wait_until(
        lambda: sum(messages(worker, "outbox.poll_consumer") for worker in workers) >= polls + 3, SEEN_S, "they came"
    )
    pid = int(deploy.words("plain.begins")[0][2])
    at_it = next(index for index, pool in enumerate(pools) if pid in pool)
    workers[at_it].signal(signal.SIGTERM)
    wait_until(lambda: "shutdown" in workers[at_it].log.read_text("utf-8").lower(), SEEN_S, "it heard it")
    hold.unlink()
    wait_until(lambda: workers[at_it].poll() is not None, STOP_GRACE.total_seconds(), "it ended by itself")
    assert f":{pid}:" not in deploy.consumers.get("plain").lease_owner, "the lease was given back"
    wait_until(lambda: deploy.at_rest("plain", "counts"), SEEN_S, "the other does the rest")
    beat.stop()
    assert deploy.told("plain.returns") == cards
    assert deploy.told("counts.returns") == cards
    assert [row["event_id"].split(":")[1] for row in deploy.database["counted"].find().sort("_id", 1)] == cards
    (first, *_, last) = [int(words[2]) for words in deploy.words("plain.returns")]
    assert first in pools[at_it]
    assert last in pools[1 - at_it]


class Hosted:
    """A plain process that observes in threads."""

    def __init__(self, deploy: Deployment) -> None:
        self._stack = deploy.stack

    def start(self, *consumer_ids: str) -> Process:
        argv = [sys.executable, "-m", "tests.acceptance.hosting", *consumer_ids]
        log = self._stack.folder / "hosting.log"
        process = self._stack._supervisor.spawn("hosting", argv, log=log, cwd=ROOT, stop_grace=STOP_GRACE)
        before = len(self._stack._lines("hosting.log"))
        process.await_ready(lambda: len(self._stack._lines("hosting.log")) > before, READY_WITHIN)
        return process


@pytest.mark.promise("L05", "L06", "L22")
def test_a_consumer_in_a_thread_of_a_plain_process_stops_cleanly_and_goes_on_after_a_restart(
    deploy: Deployment,
) -> None:
    deploy.put("c1", "c2", "c3")
    hosted = Hosted(deploy)
    first = hosted.start("plain")
    # It registers itself, with the start that its observer declares.
    wait_until(lambda: [one.consumer_id for one in deploy.consumers.all()] == ["plain"], SEEN_S, "its registration")
    deploy.delete("c1")
    wait_until(lambda: deploy.at_rest("plain") and deploy.told("plain.returns"), SEEN_S, "the first event")
    hold = deploy.hold("plain")
    deploy.delete("c2", "c3")
    wait_until(lambda: "c2" in deploy.told("plain.begins"), SEEN_S, "it is at the second event")
    first.signal(signal.SIGTERM)
    # The call in hand is waited for, and acknowledged; nothing is begun after it.
    assert not first.ended_within(timedelta(milliseconds=300))
    hold.unlink()
    assert first.ended_within(STOP_GRACE)
    assert first.poll() == 0
    row = deploy.consumers.get("plain")
    assert (row.lease_owner, row.cursor) == ("", len(deploy.told("plain.returns")))
    hosted.start("plain")
    wait_until(lambda: deploy.at_rest("plain"), SEEN_S, "the rest")
    assert deploy.told("plain.returns") == ["c1", "c2", "c3"]


FORKS = """
import os
from outbox_core import Outbox
outbox, other = Outbox.from_settings(), Outbox.from_settings()
outbox.boards("acme").delete_card("c1")
child = os.fork()
outbox.boards("acme").delete_card("c3" if child else "c2")
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
other.boards("acme").delete_card("c4")
outbox.close()
outbox.boards("acme").delete_card("c5")
"""


@pytest.mark.promise("L08")
def test_a_process_is_one_writer_whatever_it_opens_and_a_fork_of_it_is_another(deploy: Deployment) -> None:
    cards = [f"c{number}" for number in range(1, 6)]
    deploy.put(*cards)
    subprocess.run([sys.executable, "-c", FORKS], check=True, cwd=ROOT)
    page = deploy.stack.outbox.tenant("acme").stream.read_after(0, 10)
    writers = {one.task_id: one.writer_process_id for one in page.entries if isinstance(one, LifecycleEvent)}
    assert sorted(writers) == cards
    parent, child = writers["c1"], writers.pop("c2")
    assert set(writers.values()) == {parent}
    assert child != parent
    assert deploy.stack.outbox.runtime.writer not in {parent, child}


@pytest.mark.promise("L05", "L06", "L17")
def test_a_primary_that_steps_down_in_mid_poll_loses_nothing_and_doubles_nothing_for_a_transactional_observer(
    deploy: Deployment,
) -> None:
    cards = [f"c{number}" for number in range(6)]
    deploy.put(*cards)
    Hosted(deploy).start("plain", "counts")
    holds = [deploy.hold("plain"), deploy.hold("counts")]
    deploy.delete(cards[0])
    for name in ("plain", "counts"):
        wait_until(lambda name=name: deploy.told(f"{name}.begins"), SEEN_S, "it is in its observer")  # type: ignore[misc]
    admin = deploy.database.client.admin
    with suppress(AutoReconnect):
        admin.command("replSetStepDown", 1, force=True)
    for hold in holds:
        hold.unlink()
    for card in cards[1:]:
        wait_until(lambda card=card: deleted(deploy, card), SEEN_S, f"{card} is deleted")  # type: ignore[misc]
    wait_until(lambda: deploy.at_rest("plain", "counts"), SEEN_S + 20, "all is observed")
    # A plain observer may be told twice what it had in hand, and no event is left out.
    told = deploy.told("plain.returns")
    assert sorted(set(told), key=told.index) == cards
    assert [row["event_id"].split(":")[1] for row in deploy.database["counted"].find().sort("_id", 1)] == cards


def deleted(deploy: Deployment, card: str) -> bool:
    try:
        deploy.delete(card)
    except TransientError:
        return False
    return True


@pytest.mark.promise("L13")
def test_a_pool_that_starts_prunes_what_is_old_once_with_no_beat_at_all(
    deploy: Deployment, redis_server: EmbeddedRedis
) -> None:
    deploy.put("c1", "c2", "c3", "c4")
    deploy.delete("c1", "c2", "c3")
    # The consumer holds the third event.
    deploy.consumers.register("plain", start="beginning")
    deploy.database["lifecycle_consumer_cursors"].update_one({}, {"$set": {"last_acked_sequence": 2}})
    deploy.advance(timedelta(days=31))
    deploy.delete("c4")
    worker = deploy.stack.worker(processes=1)
    stream = deploy.stack.outbox.tenant("acme").stream
    wait_until(lambda: stream.floor() == 3, SEEN_S, "it is pruned")
    assert stream.head() == 4
    # Another pool that starts asks again: it was done.
    deploy.consumers.retire("plain")
    hints = hints_by(redis_server.url)
    hints.prune()
    wait_until(
        lambda: worker.log.read_text("utf-8").count("Task outbox.prune[") == 4, SEEN_S, "two were taken, and have ended"
    )
    assert stream.floor() == 3
