"""What the acceptance tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from outbox_core.embedded import EmbeddedRedis
from tests.acceptance.stack import Stack, running_stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from outbox_core.embedded import EmbeddedMongo


@pytest.fixture
def stack(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mongo_server: EmbeddedMongo,
    redis_server: EmbeddedRedis,
    database_name: str,
) -> Iterator[Stack]:
    """A deployment without a process yet, on a broker that is empty and stays."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    with running_stack(
        tmp_path, monkeypatch, mongo_url=mongo_server.url, broker_url=redis_server.url, database=database_name
    ) as stack:
        yield stack


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A broker that the test may kill."""
    with EmbeddedRedis(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def frail_stack(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mongo_server: EmbeddedMongo,
    own_broker: EmbeddedRedis,
    database_name: str,
) -> Iterator[Stack]:
    """A deployment on a broker of its own, that sends no hint: ticks alone find the work."""
    with running_stack(
        tmp_path,
        monkeypatch,
        mongo_url=mongo_server.url,
        broker_url=own_broker.url,
        database=database_name,
        OUTBOX_HINTS="off",
    ) as stack:
        yield stack
