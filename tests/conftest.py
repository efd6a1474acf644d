"""Servers that the tests share: one of each for every pytest-xdist worker."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest

from outbox_core.embedded import EmbeddedMongo, EmbeddedRedis
from tests.cluster.replica_set import ReplicaSet
from tests.harness.on_mongo import MongoDatabases, MongoHarness, mongo_databases
from tests.harness.twin import TwinHarness
from tests.promises import pytest_configure  # noqa: F401 - pytest calls it
from tests.simulation.crash.summary import pytest_terminal_summary  # noqa: F401 - pytest calls it

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.base import Harness


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is too long for every run: a run that is asked for it takes it in."""
    if os.environ.get("OUTBOX_TEST_LONG"):
        return
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="long: set OUTBOX_TEST_LONG=1"))


@pytest.fixture(scope="session")
def mongo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMongo]:
    """A replica set of one, in which failCommand may place faults, and what is past its time leaves within seconds."""
    folder = tmp_path_factory.mktemp("mongo")
    with EmbeddedMongo(folder, extra_parameters={"enableTestCommands": "1", "ttlMonitorSleepSecs": "1"}) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A broker; a test that empties or kills it must not share it with a test that minds."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """A replica set of three real servers; take `replica_set`, which is well at the start of each test."""
    with ReplicaSet(tmp_path_factory.mktemp("three")) as members:
        yield members


@pytest.fixture
def replica_set(three_members: ReplicaSet) -> ReplicaSet:
    """Three members that run, and hold the same: the test may disturb them."""
    three_members.heal()
    return three_members


@pytest.fixture
def database_name() -> str:
    """A database of the test's own."""
    return f"test_{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def harness_databases(mongo_server: EmbeddedMongo) -> Iterator[MongoDatabases]:
    """The database that the harness empties for each test: its schema costs a second, once."""
    yield from mongo_databases(mongo_server.url, f"harness_{uuid.uuid4().hex}")


@pytest.fixture
def twin() -> TwinHarness:
    """The in-memory twin alone."""
    return TwinHarness()


@pytest.fixture
def mongo_harness(harness_databases: MongoDatabases) -> MongoHarness:
    """The real store alone."""
    return MongoHarness(harness_databases.empty())


@pytest.fixture(params=["memory", "mongo"])
def harness(request: pytest.FixtureRequest) -> Harness:
    """Each store in turn: what holds on the one must hold on the other."""
    chosen: Harness = request.getfixturevalue("twin" if request.param == "memory" else "mongo_harness")
    return chosen
