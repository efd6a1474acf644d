"""Servers that the tests share: one of each for every pytest-xdist worker."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from outbox_core.embedded import EmbeddedMongo, EmbeddedRedis

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def mongo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMongo]:
    """A replica set of one, in which failCommand may place faults."""
    folder = tmp_path_factory.mktemp("mongo")
    with EmbeddedMongo(folder, extra_parameters={"enableTestCommands": "1"}) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A broker; a test that empties or kills it must not share it with a test that minds."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def database_name() -> str:
    """A database of the test's own."""
    return f"test_{uuid.uuid4().hex}"
