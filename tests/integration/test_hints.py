"""Hints leave from a background thread: an append never waits for the broker, whatever that does."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from outbox_core.embedded import EmbeddedRedis
from outbox_core.ports.slots import Lane
from tasks import transport
from tasks.hints import BackgroundSender, CeleryHints
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class Recorder:
    """A way to the broker that notes what goes through it, and may be told to fail or to hang."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, object]]] = []
        self.opened = 0
        self.closed = 0
        self.broken = False
        self.open_gate = threading.Event()
        self.open_gate.set()

    def connect(self) -> Recorder:
        self.opened += 1
        return self

    def send(self, task: str, arguments: Mapping[str, object]) -> None:
        self.open_gate.wait(30)
        if self.broken:
            raise ConnectionError("no broker")
        self.sent.append((task, dict(arguments)))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.open_gate.set()


def test_what_is_offered_is_sent_in_order_over_one_connection(recorder: Recorder) -> None:
    sender = BackgroundSender(recorder.connect)
    for number in range(50):
        sender.offer("task", {"number": number})
    assert sender.flush(5)
    assert [arguments["number"] for _, arguments in recorder.sent] == list(range(50))
    assert (recorder.opened, sender.dropped) == (1, 0)


@pytest.mark.promise("C03")
def test_a_broker_that_hangs_holds_nobody_up_and_what_does_not_fit_is_dropped(recorder: Recorder) -> None:
    recorder.open_gate.clear()
    sender = BackgroundSender(recorder.connect, capacity=10)
    started = time.monotonic()
    for number in range(1_000):
        sender.offer("task", {"number": number})
    assert time.monotonic() - started < 0.5
    assert not sender.flush(0.05)
    assert sender.dropped in {989, 990}  # One of them may be with the thread already.
    recorder.open_gate.set()
    assert sender.flush(5)
    assert len(recorder.sent) == 1_000 - sender.dropped


def test_after_a_failure_nothing_is_sent_for_a_pause_and_then_it_flows_over_a_new_connection(
    recorder: Recorder,
) -> None:
    recorder.broken = True
    sender = BackgroundSender(recorder.connect, pause_s=0.2)
    sender.offer("task", {"number": 1})
    wait_until(lambda: sender.dropped == 1)
    recorder.broken = False
    sender.offer("task", {"number": 2})
    assert sender.flush(5)
    assert recorder.sent == []
    assert sender.dropped == 2

    def flows() -> bool:
        sender.offer("task", {"number": 3})
        return sender.flush(5) and bool(recorder.sent)

    wait_until(flows)
    assert (recorder.opened, recorder.closed) == (2, 1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_sends_its_own_over_a_connection_of_its_own(recorder: Recorder) -> None:
    """A thread of the parent holds the lock, and one is in the middle of a send, when the fork comes."""
    recorder.open_gate.clear()
    sender = BackgroundSender(recorder.connect)
    sender.offer("parents", {})
    wait_until(lambda: recorder.opened == 1)
    reader, writer = os.pipe()
    with sender._changed:
        child = os.fork()
        if child == 0:
            recorder.open_gate = threading.Event()
            recorder.open_gate.set()
            sender.offer("childs", {})
            told = sender.flush(5) and [task for task, _ in recorder.sent] == ["childs"] and recorder.opened == 2
            os.write(writer, b"y" if told else b"n")
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"y"
    os.close(reader)
    os.waitpid(child, 0)
    recorder.open_gate.set()
    assert sender.flush(5)
    assert [task for task, _ in recorder.sent] == ["parents"]


def celery_app(url: str) -> Celery:
    transport.register()
    app = Celery("of-the-test", broker=url)
    app.conf.update(
        task_queues=[Queue("drain"), Queue("effects")],  # type: ignore[no-untyped-call]  # kombu's
        task_default_queue="drain",
        task_create_missing_queues=False,
        task_routes={
            "outbox.drain_tenant": {"queue": "drain"},
            "outbox.run_slice": {"queue": "effects"},
            "outbox.run_turn": {"queue": "effects"},
        },
        task_ignore_result=True,
    )
    return app


@pytest.mark.promise("C01")
def test_hints_reach_their_queues_also_after_the_broker_was_emptied(redis_server: EmbeddedRedis) -> None:
    with redis.Redis.from_url(f"{redis_server.url.rsplit('/', 1)[0]}/5") as client:
        client.flushdb()
        hints = CeleryHints(celery_app(f"{redis_server.url.rsplit('/', 1)[0]}/5"), expires_s=600)
        hints.drain("acme")
        hints.slice("acme", "token")
        assert hints.flush(5)
        assert (client.llen("drain"), client.llen("effects")) == (1, 1)
        hints.turn("acme")
        hints.turn("acme", "token")
        assert hints.flush(5)
        assert (client.llen("drain"), client.llen("effects")) == (1, 3)
        hints.slice("acme", "another")
        assert hints.flush(5)
        assert (hints.waiting(Lane.DRAIN), hints.waiting(Lane.SLICE)) == (1, 4)
        client.flushdb()
        hints.drain("acme")
        assert hints.flush(5)
        assert client.llen("drain") == 1
        client.flushdb()


@pytest.fixture
def silent_address() -> Iterator[str]:
    """A broker that accepts connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(50)
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.mark.promise("C03")
def test_a_silent_broker_delays_a_hint_by_nothing_and_its_thread_by_a_second_at_most(silent_address: str) -> None:
    hints = CeleryHints(celery_app(silent_address), expires_s=600)
    background: Any = hints._background
    started = time.monotonic()
    hints.drain("acme")
    assert time.monotonic() - started < 0.1
    wait_until(lambda: background.dropped == 1, timeout=3)
    started = time.monotonic()
    assert hints.waiting(Lane.SLICE) == 0
    assert time.monotonic() - started < 3


@pytest.mark.promise("C03")
def test_hints_to_a_dead_broker_are_dropped_and_flow_again_once_it_is_back(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as broker:
        hints = CeleryHints(celery_app(broker.url), expires_s=600)
        background: Any = hints._background
        hints.slice("acme", "token")
        assert hints.flush(5)
        broker.kill()
        hints.slice("acme", "token")
        wait_until(lambda: background.dropped == 1, timeout=3)
        broker.start()

        def arrives() -> bool:
            hints.slice("acme", "token")
            with redis.Redis.from_url(broker.url) as client:
                return bool(hints.flush(1) and client.llen("effects"))

        wait_until(arrives)
