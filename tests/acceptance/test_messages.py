"""Messages that lie, that repeat, and that no worker may read: nothing runs twice, and no worker falls."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from tests.acceptance.stack import children
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.acceptance.stack import Stack

pytestmark = pytest.mark.slow


class Forger:
    """Sends any message, as whoever reaches the broker can."""

    def __init__(self, broker_url: str) -> None:
        self._app = Celery("forger", broker=broker_url)
        queues = [Queue(name) for name in ("drain", "effects", "maintenance")]  # type: ignore[no-untyped-call]
        self._app.conf.update(task_queues=queues, task_default_queue="maintenance")

    def send(self, task: str, arguments: Mapping[str, object] | None = None, *, queue: str, **options: Any) -> None:  # noqa: ANN401
        self._app.send_task(task, kwargs=arguments, queue=queue, **options)

    def publish(self, body: object, *, queue: str, **options: Any) -> None:  # noqa: ANN401 - any message is the point
        with self._app.connection_for_write() as connection:
            connection.Producer().publish(body, routing_key=queue, **options)


class Exploded:
    """What unpickling this would do is seen in a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (open, (self.path, "w"))


@pytest.mark.promise("C08")
def test_a_pickled_message_is_refused_unread_and_the_worker_works_on(stack: Stack) -> None:
    worker = stack.worker(processes=1)
    stack.beat()
    forger = Forger(stack.broker_url)
    trap = stack.folder / "unpickled"
    forger.publish(
        pickle.dumps(((), {"tenant": Exploded(str(trap))}, {})),
        queue="effects",
        content_type="application/x-python-serialize",
        content_encoding="binary",
        headers={"task": "outbox.run_slice", "id": "1", "lang": "py"},
    )
    wait_until(lambda: "ContentDisallowed" in worker.log.read_text("utf-8"), 15, "the refusal in the log")
    stack.subscribe("acme", "note-it")
    stack.append("acme")
    wait_until(lambda: stack.all_done("acme", 1), 15, "a later effect")
    assert not trap.exists()
    assert worker.poll() is None


HOSTILE: list[dict[str, object]] = [
    {},
    {"tenant": None, "token": None},
    {"tenant": 7},
    {"tenant": ["acme"]},
    {"tenant": {"$ne": ""}},
    {"tenant": "acme|apex"},
    {"tenant": "../acme"},
    {"tenant": "x" * 100_000},
    {"tenant": "\ud800"},
    {"tenant": "acme", "token": {"$gt": ""}},
    {"tenant": "acme", "token": 7},
    {"tenant": "acme", "token": ""},
    {"tenant": "acme", "token": "forged"},
    {"tenant": "acme", "token": "x" * 100_000},
    {"tenant": "nobody", "token": "forged"},
    {"tenant": "acme", "later": "what a newer sender adds"},
]


@pytest.mark.promise("C02")
def test_forged_and_doubled_messages_run_nothing_twice_and_end_no_worker(stack: Stack) -> None:
    worker = stack.worker(processes=2)
    beat = stack.beat()
    stack.subscribe("acme", "note-it")
    stack.subscribe("apex", "note-it")
    stack.append("acme", 5)
    wait_until(lambda: stack.all_done("acme", 5), 15, "the rows before")
    before = set(children(worker))
    forger = Forger(stack.broker_url)
    for arguments in HOSTILE:
        forger.send("outbox.run_slice", arguments, queue="effects")
        forger.send("outbox.drain_tenant", arguments, queue="drain")
    for tick in ("outbox.drain_tick", "outbox.sweep_tick", "outbox.repair_undrained"):
        for _ in range(20):
            forger.send(tick, {"unknown": [1, 2]}, queue="maintenance")
        forger.send(tick, args=["positional"], queue="maintenance")
    forger.send("outbox.no_such_task", {}, queue="maintenance")
    forger.send("os.system", {"command": "true"}, queue="effects")
    forger.send("outbox.run_slice", {"tenant": "acme"}, queue="effects", expires=-60)
    for body in ("not json", "[]", "{}", "[1,2,3]", '[[],"text",{}]', "null", '[[],{"tenant":"acme"},7]'):
        headers = {"task": "outbox.run_slice", "id": "forged", "lang": "py"}
        forger.publish(
            body, queue="effects", content_type="application/json", content_encoding="utf-8", headers=headers
        )
        forger.publish(body, queue="effects", content_type="application/json", headers={**headers, "task": ["x"]})
        forger.publish(body, queue="effects", content_type="application/json", content_encoding="utf-8")
    stack.append("acme", 5)
    stack.append("apex", 5)
    wait_until(lambda: stack.all_done("acme", 10) and stack.all_done("apex", 5), 20, "the rows after")
    with redis.Redis.from_url(stack.broker_url) as client:
        wait_until(lambda: not any(client.llen(queue) for queue in ("drain", "effects")), 20, "all was read")
    assert set(stack.runs.values()) == {1}
    assert worker.poll() is None
    assert beat.poll() is None
    assert set(children(worker)) == before
    said = worker.log.read_text("utf-8", "replace")
    assert "a message for run_slice was refused: tenant: " in said
    assert max(len(line) for line in said.splitlines() if "was refused" in line) < 400
    assert stack.outbox.tenant("nobody").log.head().last_seq == 0


@pytest.mark.promise("C02")
def test_a_line_that_is_no_message_is_dropped_and_does_not_stop_its_queue(stack: Stack) -> None:
    """Not even the broker's own envelope is right."""
    worker = stack.worker(processes=1)
    stack.beat()
    envelopes: tuple[dict[str, object], ...] = (
        {},
        {"body": "bm8=", "headers": {}, "properties": {}},
        {"body": 7, "properties": {"delivery_tag": 1}},
    )
    with redis.Redis.from_url(stack.broker_url) as client:
        for line in ("", "no json", b"\xff\xfe", "[]", "7", "null", *map(json.dumps, envelopes)):
            client.lpush("effects", line)
            client.lpush("maintenance", line)
    stack.subscribe("acme", "note-it")
    stack.append("acme")
    wait_until(lambda: stack.all_done("acme", 1), 20, "a later effect")
    assert worker.poll() is None
