"""The scheduler that sends no tick of which the like may wait, over a broker in this process's memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu.entity import Queue

from tasks import beat, clock
from tasks.beat import Scheduler
from tasks.queues import waiting_in

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.promise("C06")

QUEUE = "ticks-of-a-test"
OTHER = "others-of-a-test"


def entry(queue: str | None = QUEUE) -> dict[str, Any]:
    return {"task": "nobody.knows", "schedule": 1.0, "options": {} if queue is None else {"queue": queue}}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(clock, "look_aside", lambda _why: None)
    broker = Broker()
    broker.empty()
    yield broker
    broker.empty()


class Broker:
    def __init__(self) -> None:
        self.app = Celery(broker="memory://", set_as_current=False)
        self.app.conf.update(
            task_queues=[Queue(QUEUE), Queue(OTHER)],  # type: ignore[no-untyped-call]  # kombu's
            task_default_queue=OTHER,
            beat_schedule={"a": entry(), "b": entry(), "elsewhere": entry(OTHER), "anywhere": entry(None)},
        )
        self.connection = self.app.connection_for_write()
        self.channel = self.connection.default_channel

    def beat(self) -> Beat:
        return Beat(self)

    def waiting(self, queue: str = QUEUE) -> int:
        return int(self.channel.queue_declare(queue=queue).message_count)

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            self.channel.basic_get(QUEUE, no_ack=True)

    def empty(self) -> None:
        for queue in (QUEUE, OTHER):
            self.channel.queue_declare(queue=queue)
            self.channel.queue_purge(queue)


class Beat:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scheduler = Scheduler(app=broker.app)

    def tick(self, *names: str, queue: str = QUEUE) -> int:
        """Let these ticks be due; return how many messages that made."""
        before = self._broker.waiting(queue)
        for name in names:
            self._scheduler.apply_entry(self._scheduler.schedule[name], producer=self._scheduler.producer)
        return self._broker.waiting(queue) - before


def test_however_often_a_tick_is_due_one_of_each_kind_waits(broker: Broker) -> None:
    one = broker.beat()
    assert one.tick(*"ab" * 60) == 2
    broker.take()
    assert one.tick(*"ab" * 60) == 0, "one of the two still waits, and it may be of either kind"
    broker.take()
    assert one.tick(*"ab" * 60) == 2


def test_a_kind_that_comes_late_finds_its_place_whatever_waits(broker: Broker) -> None:
    one = broker.beat()
    assert one.tick(*"aaaa") == 1
    assert one.tick(*"bbbb") == 1


def test_beats_add_one_of_each_kind_each_at_most_and_those_that_are_started_meanwhile_none(broker: Broker) -> None:
    first, second = broker.beat(), broker.beat()
    assert first.tick("a") == 1
    broker.take()
    assert second.tick("a") == 1
    assert first.tick("a", "b", "a", "b") == 1
    assert second.tick("a", "b", "a", "b") == 1
    for _ in range(5):
        assert broker.beat().tick(*"ab" * 10) == 0
    broker.take(3)
    assert broker.beat().tick(*"ab" * 10) == 2


def test_a_flood_holds_ticks_back_until_it_has_been_read_and_a_broker_that_is_emptied_does_not(broker: Broker) -> None:
    one = broker.beat()
    for _ in range(20):
        broker.app.send_task("forged", queue=QUEUE, connection=broker.connection)
    assert one.tick("a", "b") == 0
    broker.take(20)
    assert one.tick("a", "b") == 2
    broker.empty()
    assert one.tick("a", "b") == 2


def test_what_waits_in_one_queue_holds_nothing_of_another_back_nor_what_names_none(broker: Broker) -> None:
    one = broker.beat()
    assert one.tick("a", "b") == 2
    assert one.tick("elsewhere", "elsewhere", queue=OTHER) == 1
    assert one.tick("anywhere", "anywhere", queue=OTHER) == 2


def test_where_a_queue_cannot_be_looked_into_beat_sends_as_it_did_and_says_so(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_producer: object, _queue: str) -> int:
        raise ConnectionError("away")

    one = broker.beat()
    assert one.tick("b") == 1
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(beat, "waiting_in", away)
        assert one.tick("a", "a") == 2
    assert "beat cannot look into the queue ticks-of-a-test: ConnectionError" in caplog.text
    assert one.tick("a", "a") == 0, "it has sent one since the queue was empty"


def test_a_tick_that_could_not_be_sent_is_sent_once_the_queue_is_found_empty(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object, **_options: object) -> None:
        raise ConnectionError("away")

    one = broker.beat()
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "send_task", fails)
        assert one.tick("a") == 0
    assert one.tick("a") == 1


def test_a_queue_is_counted_over_all_its_priorities(broker: Broker) -> None:
    producer = broker.app.amqp.Producer(broker.connection)
    for priority in (0, 5, 9):
        broker.app.send_task("one", queue=QUEUE, priority=priority, producer=producer)
    assert waiting_in(producer, QUEUE) == 3
