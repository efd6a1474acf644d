"""Some hundred forged messages at a real worker, on a real broker: it lives, and honest work goes on."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.acceptance.stack import children
from tests.fuzz.forged import EMBED, Forged, forgeries, honest
from tests.fuzz.hostile import as_json
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.acceptance.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Generating overly large repr")]

COUNT = 100
QUEUES = ("drain", "effects", "maintenance")


def forged_messages(count: int) -> list[Forged]:
    """Return the same messages each time."""
    made: list[Forged] = []

    @seed(20261130)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(one=forgeries())
    def make(one: Forged) -> None:
        made.append(one)

    make()
    return made


def lines(forged: list[Forged]) -> list[tuple[str, str]]:
    """Return queue and line of each, some doubled, in any order."""
    written = [(one.queue, one.envelope()) for one in forged]
    chance = random.Random(20261130)  # noqa: S311 - the same order each time is the point
    whole = [*written, *chance.sample(written, len(written) // 10)]
    chance.shuffle(whole)
    return whole


@pytest.mark.promise("C02")
@pytest.mark.timeout(240)
def test_hundreds_of_forged_messages_end_no_worker_run_nothing_again_and_stop_no_honest_work(stack: Stack) -> None:
    worker = stack.worker(processes=2)
    beat = stack.beat()
    for tenant in ("acme", "other"):
        stack.subscribe(tenant, "note-it")
    stack.append("acme", 5)
    wait_until(lambda: stack.all_done("acme", 5), 60, "the rows before")
    before = set(children(worker))
    with redis.Redis.from_url(stack.broker_url) as broker:
        for queue, line in lines(forged_messages(COUNT)):
            broker.lpush(queue, line)
        stack.append("acme", 5)
        stack.append("other", 5)
        wait_until(lambda: stack.all_done("acme", 10) and stack.all_done("other", 5), 90, "the rows after")
        wait_until(lambda: not any(broker.llen(queue) for queue in QUEUES), 60, "all was read")
    assert set(stack.runs.values()) == {1}, "something ran twice"
    assert worker.poll() is None
    assert beat.poll() is None
    assert set(children(worker)) == before, "a child died of a message"
    said = worker.log.read_text("utf-8", "replace")
    assert said.count("a message was refused: ") > COUNT // 10
    assert max(len(line) for line in said.splitlines()) < 3_000
    assert stack.outbox.tenant("nobody").log.head().last_seq == 0


@pytest.mark.promise("C02")
@pytest.mark.timeout(180)
def test_a_time_limit_in_a_message_kills_no_bot_and_what_it_links_is_not_published(stack: Stack) -> None:
    """A bot is in hand while messages come that would kill its process after a moment, and publish others."""
    worker = stack.worker(processes=1)
    stack.subscribe("acme", "hold-it")
    stack.append("acme")
    assert stack.outbox.drain_tenant("acme") is not None
    message = honest("outbox.run_slice", tenant="acme")
    body = as_json([[], {"tenant": "acme"}, EMBED])
    killing = message._replace(
        body=body, headers={**message.headers, "timelimit": [0.5, 0.5], "eta": None, "callbacks": EMBED["callbacks"]}
    )
    before = set(children(worker))
    with redis.Redis.from_url(stack.broker_url) as broker:
        broker.lpush("effects", killing.envelope())
        wait_until(lambda: len(stack.starts) == 1, 60, "the bot runs")
        # Longer than the limit that the message set: the pool looks each second.
        begun = broker.time()[0]
        wait_until(lambda: broker.time()[0] >= begun + 3, 30, "some seconds pass at the broker")
        stack.release()
        wait_until(lambda: stack.all_done("acme", 1), 30, "the bot ends")
        waiting = [json.loads(message)["headers"]["task"] for message in broker.lrange("maintenance", 0, -1)]
        assert set(waiting) <= {"outbox.prune"}, "what a message linked was published"
    assert set(children(worker)) == before
    assert [attempt for _, attempt, _ in stack.starts] == [1]
