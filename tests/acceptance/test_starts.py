"""A worker that cannot work says why in one line and ends; one that can work says with what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outbox_core.embedded import EmbeddedMongo
from tests.acceptance.stack import running_stack
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from outbox_core.embedded import EmbeddedRedis, Process
    from tests.acceptance.stack import Stack

pytestmark = pytest.mark.slow


def ended(process: Process) -> tuple[int, list[str]]:
    """Wait for the end; return the exit code, and the lines of ours."""
    wait_until(lambda: process.poll() is not None, 30, "the process ended")
    code, said = process.poll(), process.log.read_text("utf-8")
    assert code is not None
    assert "Traceback" not in said
    return code, [line for line in said.splitlines() if line.startswith("outbox: ")]


@pytest.mark.promise("O06", "E06")
@pytest.mark.scenario(32)
@pytest.mark.parametrize("command", ["worker", "beat"])
def test_a_limit_that_breaks_a_relation_ends_the_start_by_its_name(
    command: str, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_GAP_GRACE", "1s")
    code, lines = ended(stack.celery(command, name=command))
    assert code == 2
    assert len(lines) == 1
    assert "OP_TIMEOUT" in lines[0]
    assert "GAP_GRACE" in lines[0]


@pytest.mark.promise("O06", "O07")
@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("OUTBOX_BOTS", "no_such_bots", "outbox: OUTBOX_BOTS: there is no module no_such_bots"),
        ("OUTBOX_DRAIN_TICK", "soon", "outbox: OUTBOX_DRAIN_TICK: 'soon' is not a duration"),
        ("OUTBOX_MONGO_URL", "http://user:hunter2@host", "outbox: OUTBOX_MONGO_URL: must begin with mongodb://"),
        ("OUTBOX_MONGO_URL", "mongodb://user:hunter2@host:port/", "outbox: "),
    ],
)
def test_a_wrong_setting_ends_a_workers_start_with_one_line_and_shows_no_secret(
    variable: str, text: str, said: str, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    process = stack.celery("worker", "--pool=solo", name="worker")
    code, lines = ended(process)
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith(said)
    assert "hunter2" not in process.log.read_text("utf-8")


def test_other_celery_commands_do_not_mind_a_wrong_setting(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_DRAIN_TICK", "soon")
    process = stack.celery("--version", name="version")
    assert ended(process)[0] == 0


@pytest.mark.promise("C03", "L20")
def test_a_worker_that_starts_before_its_database_says_so_and_works_once_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: EmbeddedRedis, database_name: str
) -> None:
    with EmbeddedMongo(tmp_path / "mongo") as mongo:
        url, broker = mongo.url, redis_server.url
        with running_stack(tmp_path, monkeypatch, mongo_url=url, broker_url=broker, database=database_name) as stack:
            mongo.kill()
            worker = stack.worker(processes=1)
            stack.beat()
            assert "run `outbox schema`" in worker.log.read_text("utf-8")
            mongo.start()
            stack.subscribe("acme", "note-it")
            stack.append("acme")
            wait_until(lambda: stack.all_done("acme", 1), 20, "the row is done")
            assert worker.poll() is None


@pytest.mark.promise("L20")
def test_a_worker_brings_the_schema_up_to_date_before_it_takes_work(stack: Stack) -> None:
    store = stack.outbox.tenant("acme")
    with store.transactions.begin() as transaction:
        database = transaction.database
    database.client.drop_database(database.name)
    assert stack.outbox.store.maintenance.pending_schema()
    stack.worker(processes=1)
    assert not stack.outbox.store.maintenance.pending_schema()
