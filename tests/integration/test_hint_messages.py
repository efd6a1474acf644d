"""What a hint is on the wire."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from tasks import transport
from tasks.hints import CeleryHints

if TYPE_CHECKING:
    from outbox_core.embedded import EmbeddedRedis

EXPIRES_S = 600


@pytest.mark.promise("C06", "C08")
def test_a_hint_is_json_carries_ids_alone_and_expires_as_a_tick_does(redis_server: EmbeddedRedis) -> None:
    """Else hints would gather while no worker runs, and all be read once one does."""
    url = f"{redis_server.url.rsplit('/', 1)[0]}/6"
    transport.register()
    app = Celery("of-the-test", broker=url)
    app.conf.update(
        task_queues=[Queue("effects")],  # type: ignore[no-untyped-call]  # kombu's
        task_default_queue="effects",
        task_ignore_result=True,
    )
    before = datetime.now(UTC)
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        hints = CeleryHints(app, expires_s=EXPIRES_S)
        assert hints.slice("acme", "token")
        assert hints.drain("acme")
        assert hints.turn("apex", "slot")
        assert hints.flush(10)
        sent = [json.loads(line) for line in cast("list[bytes]", client.lrange("effects", 0, -1))]
        client.flushdb()
    assert sorted(message["headers"]["task"] for message in sent) == [
        "outbox.drain_tenant",
        "outbox.run_slice",
        "outbox.run_turn",
    ]
    assert {message["content-type"] for message in sent} == {"application/json"}
    assert {"acme|token", "acme|None", "apex|slot"} == {
        "|".join(map(str, arguments(message).values())) for message in sent
    }
    for message in sent:
        expires = datetime.fromisoformat(message["headers"]["expires"])
        assert timedelta(0) <= expires - before - timedelta(seconds=EXPIRES_S) < timedelta(minutes=1)


def arguments(message: dict[str, Any]) -> dict[str, Any]:
    args, kwargs, _embed = json.loads(base64.b64decode(message["body"]))
    assert args == []
    assert isinstance(kwargs, dict)
    return kwargs
