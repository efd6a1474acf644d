"""The composition root: what an application does with it, across threads and forks."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from outbox_core.bootstrap import Outbox
from outbox_core.domain.errors import InvalidInputError, TransientError
from outbox_core.domain.limits import Limits
from outbox_core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.embedded import EmbeddedMongo
    from outbox_core.ports.slots import Lane


class Heard:
    """Hints that are only noted down."""

    def __init__(self) -> None:
        self.drains: list[tuple[str, str | None]] = []
        self.turns: list[tuple[str, str | None]] = []
        self.slices: list[tuple[str, str]] = []

    def drain(self, tenant_id: str, token: str | None = None) -> bool:
        self.drains.append((tenant_id, token))
        return True

    def turn(self, tenant_id: str, token: str | None = None) -> bool:
        self.turns.append((tenant_id, token))
        return True

    def slice(self, tenant_id: str, token: str) -> bool:
        self.slices.append((tenant_id, token))
        return True

    def poll(self, tenant_id: str, consumer_id: str) -> bool:  # noqa: ARG002 - the port's names
        return False

    def wake(self, tenant_id: str) -> bool:  # noqa: ARG002 - the port's name
        return False

    def waiting(self, lane: Lane) -> int:  # noqa: ARG002 - the port's name
        return 0


@pytest.fixture
def settings(mongo_server: EmbeddedMongo, database_name: str) -> Settings:
    return Settings(mongo_url=SecretStr(mongo_server.url), mongo_db=database_name)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def outbox(settings: Settings, heard: Heard) -> Iterator[Outbox]:
    outbox = Outbox.from_settings(settings, hints=heard)
    outbox.ensure_schema()
    yield outbox
    outbox.close()


@pytest.mark.promise("E46")
def test_an_append_is_numbered_once_and_only_the_first_of_an_idle_tenant_hints(outbox: Outbox, heard: Heard) -> None:
    first = outbox.append("acme", type="order", event_id="order-1")
    again = outbox.append("acme", type="order", event_id="order-1")
    other = outbox.append("acme", type="order")
    assert (first.seq, first.duplicate) == (1, False)
    assert (again.seq, again.duplicate) == (1, True)
    assert other.seq > 1
    assert heard.turns == [("acme", None)]


def test_a_hint_of_the_applications_own_leaves_at_once_and_names_a_tenant(outbox: Outbox, heard: Heard) -> None:
    outbox.hint("acme")
    assert heard.turns == [("acme", None)]
    with pytest.raises(InvalidInputError, match="tenant"):
        outbox.hint("two words")
    assert len(heard.turns) == 1


@pytest.mark.promise("E02")
def test_what_a_transaction_writes_and_appends_commits_together_or_not_at_all(outbox: Outbox) -> None:
    def places(transaction: object, *, fails: bool) -> str:
        database, session = transaction.database, transaction.session  # type: ignore[attr-defined]
        database["orders"].insert_one({"_id": "failing" if fails else "kept"}, session=session)
        event_id: str = transaction.append(type="order", action="placed")  # type: ignore[attr-defined]
        if fails:
            raise LookupError("the application changed its mind")
        return event_id

    event_id = outbox.run_in_transaction("acme", lambda transaction: places(transaction, fails=False))
    with pytest.raises(LookupError):
        outbox.run_in_transaction("acme", lambda transaction: places(transaction, fails=True))
    store = outbox.tenant("acme")
    assert list(store.log.find([event_id])) == [event_id]
    with store.transactions.begin() as transaction:
        assert [order["_id"] for order in transaction.database["orders"].find()] == ["kept"]


@pytest.mark.promise("O06")
@pytest.mark.parametrize(
    ("tenant", "event", "named"),
    [
        ("two words", {"type": "order"}, "tenant"),
        ("acme", {"type": ""}, "type"),
        ("acme", {"type": "order", "event_id": "a/b"}, "event id"),
        ("acme", {"type": "order", "labels": "urgent"}, "labels"),
        ("acme", {"type": "order", "subject": 7}, "subject"),
        ("acme", {"type": "order", "data": ["no", "mapping"]}, "data"),
        ("acme", {"type": "order", "data": {"when": object()}}, "data"),
        ("acme", {"type": "order", "occurred_at": "yesterday"}, "occurred_at"),
    ],
)
def test_an_event_that_is_none_is_refused_by_name_and_nothing_is_written(
    tenant: str, event: dict[str, object], named: str, outbox: Outbox
) -> None:
    with pytest.raises(InvalidInputError, match=named):
        outbox.append(tenant, **event)
    assert outbox.tenant("acme").log.head().last_seq == 0


def test_threads_that_come_at_once_share_one_connection(settings: Settings) -> None:
    outbox = Outbox.from_settings(settings)
    stores: list[object] = []
    barrier = threading.Barrier(8)

    def asks() -> None:
        barrier.wait()
        stores.append(outbox.store)

    threads = [threading.Thread(target=asks) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 8
    assert len({id(store) for store in stores}) == 1
    outbox.close()


@pytest.mark.promise("E28")
@pytest.mark.scenario(29)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_connection_and_a_worker_name_of_its_own_and_leaves_the_parents_alone(
    outbox: Outbox,
) -> None:
    """The fork comes while another thread holds the lock."""
    outbox.append("acme", type="before")
    parents = outbox.runtime.worker
    reader, writer = os.pipe()
    with outbox._lock:
        child = os.fork()
        if child == 0:
            told = b"n"
            try:
                if outbox.append("acme", type="of-the-child").seq == 2 and outbox.runtime.worker != parents:
                    told = b"y"
            finally:
                os.write(writer, told)
                os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"y"
    os.close(reader)
    os.waitpid(child, 0)
    assert outbox.append("acme", type="after").seq == 3
    assert outbox.runtime.worker == parents
    closed = outbox.store
    outbox.close()
    assert outbox.store is not closed
    assert outbox.runtime.worker != parents


@pytest.mark.promise("C02")
@pytest.mark.parametrize("tenant", [None, 7, "", "a b", ["acme"], {"$gt": ""}, "x" * 65])
def test_a_message_that_lies_about_its_tenant_is_one_logged_refusal(
    tenant: object, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    assert outbox.drain_tenant(tenant) is None
    assert outbox.run_slice(tenant, "token") is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert all("was refused: tenant: " in record.getMessage() for record in caplog.records)


@pytest.mark.promise("C02")
@pytest.mark.parametrize("token", ["never-given", "x" * 64])
def test_a_forged_token_ends_the_slice_at_once(token: str, outbox: Outbox) -> None:
    outbox.append("acme", type="order")
    assert outbox.drain_tenant("acme", token) is None
    assert outbox.run_slice("acme", token) is None
    assert outbox.tenant("acme").progress.load().seq == 0


@pytest.mark.promise("O07")
def test_a_database_that_is_away_is_a_transient_error_that_a_tick_logs_in_one_line_without_a_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = "mongodb://user:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=100"
    outbox = Outbox.from_settings(
        Settings(mongo_url=SecretStr(url), limits=Limits(op_timeout=timedelta(milliseconds=300)))
    )
    with pytest.raises(TransientError):
        outbox.drain_tick()
    outbox.close()
    (record,) = [record for record in caplog.records if record.name == "outbox.bootstrap"]
    assert "the drain tick ended early" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "hunter2" not in caplog.text
