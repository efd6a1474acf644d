"""What the real server and the real driver raise, and what this package makes of it: unknown is transient."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import InsertOne, MongoClient
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    DuplicateKeyError,
    ExecutionTimeout,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteConcernError,
    WriteError,
)
from pymongo.write_concern import WriteConcern

from outbox_core.adapters.mongo.client import connect
from outbox_core.adapters.mongo.errors import DRIVER_ERRORS, as_outbox_error
from outbox_core.application.run_in_transaction import run_in_transaction
from outbox_core.domain.errors import ContentionError, TransientError, UnreachableError, UnstorableRowError
from outbox_core.domain.limits import Limits
from outbox_core.embedded.server import HOST
from tests.cluster.failpoints import NETWORK_ERROR, failing, refused, write_concern_error
from tests.cluster.proxy import Proxy, ProxyThread
from tests.harness.examples import new_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo.database import Database

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.embedded import EmbeddedMongo
    from tests.harness.on_mongo import MongoHarness

LIMITS = Limits(op_timeout=timedelta(milliseconds=400))

Setting = tuple["Database[dict[str, Any]]", Proxy, MongoClient[dict[str, Any]]]


@pytest.fixture(scope="module")
def server(mongo_server: EmbeddedMongo) -> Iterator[MongoClient[dict[str, Any]]]:
    """A way past the proxy."""
    with MongoClient[dict[str, Any]](mongo_server.url, appname="test") as client:
        yield client


@pytest.fixture
def setting(mongo_server: EmbeddedMongo, server: MongoClient[dict[str, Any]], database_name: str) -> Iterator[Setting]:
    """The product's own connection, through a proxy."""
    with ProxyThread() as thread, ExitStack() as ends:
        proxy = Proxy(thread, lambda: mongo_server.port)
        ends.callback(proxy.close)
        database = connect(f"mongodb://{proxy.address}/?directConnection=true", database_name, LIMITS)
        ends.callback(database.client.close)
        database["things"].insert_one({"_id": 1})
        yield database, proxy, server
        server.drop_database(database_name)


def raised_by(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except DRIVER_ERRORS as error:
        return error
    raise AssertionError("nothing was raised")


def duplicate(setting: Setting) -> None:
    setting[0]["things"].insert_one({"_id": 1})


def duplicate_in_bulk(setting: Setting) -> None:
    setting[0]["things"].bulk_write([InsertOne({"_id": 1})], ordered=False)


def hung(setting: Setting) -> None:
    with setting[1].hanging():
        setting[0]["things"].find_one()


def cut_for_good(setting: Setting) -> None:
    with setting[1].turning_away():
        setting[0]["things"].update_many({}, {"$set": {"a": 1}})


def no_listener(_: Setting) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        url = f"mongodb://{HOST}:{taken.getsockname()[1]}/"
        database = connect(url, "none", LIMITS)
        with database.client:
            database["things"].find_one()


def too_slow(setting: Setting) -> None:
    setting[0]["things"].find_one({"$where": "sleep(3000) || true"})


def more_members_than_there_are(setting: Setting) -> None:
    things = setting[0].get_collection("things", write_concern=WriteConcern(w=2))
    things.update_one({"_id": 1}, {"$set": {"a": 2}})


def too_large(setting: Setting) -> None:
    setting[0]["things"].insert_one({"a": "x" * (17 * 2**20)})


def beyond_64_bits(setting: Setting) -> None:
    setting[0]["things"].insert_one({"a": 2**70})


def no_such_command(setting: Setting) -> None:
    setting[0].command("noSuchCommand")


def refused_by_a_validator(setting: Setting) -> None:
    setting[0].create_collection("strict", validator={"a": {"$type": "string"}})
    setting[0]["strict"].insert_one({"a": 1})


def write_conflict(setting: Setting) -> None:
    things, start = setting[0]["things"], setting[0].client.start_session
    with start() as one, start() as other, one.start_transaction(), other.start_transaction():
        things.update_one({"_id": 1}, {"$set": {"a": 1}}, session=one)
        things.update_one({"_id": 1}, {"$set": {"a": 2}}, session=other)


def placed(data: dict[str, Any]) -> Callable[[Setting], None]:
    def update_many(setting: Setting) -> None:
        """One that the driver never sends again."""
        with failing(setting[2], ["update"], data, times=None):
            setting[0]["things"].update_many({}, {"$set": {"a": 3}})

    return update_many


@pytest.mark.promise("E10", "E12")
@pytest.mark.parametrize(
    ("provoke", "raises", "becomes"),
    [
        (hung, NetworkTimeout, TransientError),
        # It meets the cut on the connection that it has, or as it makes another: a matter of milliseconds.
        (cut_for_good, AutoReconnect, (TransientError, UnreachableError)),
        (no_listener, ServerSelectionTimeoutError, UnreachableError),
        # Who is first, the server or the driver, is a matter of milliseconds.
        (too_slow, (ExecutionTimeout, NetworkTimeout), TransientError),
        (more_members_than_there_are, WriteConcernError, TransientError),
        (no_such_command, OperationFailure, TransientError),
        (duplicate, DuplicateKeyError, TransientError),
        (duplicate_in_bulk, BulkWriteError, TransientError),
        (write_conflict, OperationFailure, ContentionError),
        (too_large, Exception, UnstorableRowError),
        (beyond_64_bits, OverflowError, UnstorableRowError),
        (refused_by_a_validator, WriteError, UnstorableRowError),
        (placed(NETWORK_ERROR), AutoReconnect, TransientError),
        (placed(refused(10107)), NotPrimaryError, TransientError),
        (placed(refused(11602)), NotPrimaryError, TransientError),
        (placed(refused(13)), OperationFailure, TransientError),
        (placed(refused(9999)), OperationFailure, TransientError),
        (placed(refused(262)), OperationFailure, TransientError),
        (placed(write_concern_error(64)), WriteConcernError, TransientError),
        (placed(write_concern_error(91)), WriteConcernError, TransientError),
    ],
)
def test_what_the_driver_raises_is_definitive_only_where_the_server_judged_the_document(
    setting: Setting,
    provoke: Callable[[Setting], None],
    raises: type[Exception] | tuple[type[Exception], ...],
    becomes: type[Exception] | tuple[type[Exception], ...],
) -> None:
    error = raised_by(lambda: provoke(setting))
    assert isinstance(error, raises)
    assert type(as_outbox_error(error)) in (becomes if isinstance(becomes, tuple) else (becomes,))


@pytest.mark.promise("E02")
@pytest.mark.parametrize(
    "data", [NETWORK_ERROR, write_concern_error(64), write_concern_error(91), refused(189), refused(262), refused(9999)]
)
def test_a_commit_is_sent_again_whatever_it_was_refused_with_since_it_may_have_happened(
    mongo_harness: MongoHarness, data: dict[str, Any]
) -> None:
    """A transaction left open by an error that nobody knows made its own repeat wait for it, for up to a minute."""
    store, bodies = mongo_harness.acme, list[int]()

    def body(transaction: OutboxTransaction) -> None:
        bodies.append(1)
        transaction.append_event(new_event("a"))

    # Without the labels that the server adds to those that it knows, as a newer server's codes come.
    with failing(mongo_harness.database.client, ["commitTransaction"], {**data, "errorLabels": []}, times=2):
        run_in_transaction(store, mongo_harness.runtime(), body)
    assert bodies == [1]
    assert store.log.find(["a"]) == {"a": 1}
