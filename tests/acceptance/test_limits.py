"""Limits of time and of knowledge in real worker processes: bots that overstay, and two versions on one database."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from outbox_core.adapters.mongo.client import connect
from tests.acceptance.stack import children
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.collection import Collection

    from tests.acceptance.stack import Stack

pytestmark = pytest.mark.slow


@pytest.fixture
def rows(stack: Stack) -> Iterator[Collection[dict[str, Any]]]:
    """The rows, past every port."""
    settings = stack.outbox.settings
    database = connect(settings.mongo_url.get_secret_value(), settings.mongo_db, settings.limits)
    with database.client:
        yield database["trigger_effects"]


def has(rows: Collection[dict[str, Any]], query: dict[str, Any], count: int) -> bool:
    return rows.count_documents(query) == count


def make_due(rows: Collection[dict[str, Any]], tenant: str) -> None:
    """Let the time pass for which rows wait, at no real time."""
    waiting = {"tenant_id": tenant, "state": "pending"}
    rows.update_many(waiting, [{"$set": {"not_before": "$$NOW"}}])


@pytest.mark.promise("E32")
def test_a_bot_that_never_returns_is_interrupted_in_its_process_and_parks_after_its_budget(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_BOTS", "tests.acceptance.bots,tests.acceptance.stubborn_bots")
    monkeypatch.setenv("OUTBOX_MAX_EFFECT_ATTEMPTS", "2")
    worker = stack.worker(processes=1)
    stack.beat()
    pool = children(worker)
    stack.subscribe("acme", "overstay-it")
    stack.subscribe("apex", "note-it")
    (event,) = stack.append("acme")
    wait_until(lambda: stack.starts, 15, "the bot started")
    stack.append("apex", 3)
    wait_until(lambda: stack.states("acme") == {"failed": 1}, 20, "the row is parked")
    wait_until(lambda: stack.all_done("apex", 3), 10, "others run in the same process")
    row = stack.outbox.tenant("acme").effects.get(f"acme|{event}|rule")
    assert (row["attempts"], row["last_error"]) == (2, "overstayed its limit of 1s")
    assert row["run"]["error"] == "overstayed its limit of 1s"
    assert {pid for _, _, pid in stack.starts} == set(pool)
    assert children(worker) == pool


@pytest.mark.promise("E32")
@pytest.mark.scenario(40)
def test_the_hard_limit_kills_what_nothing_interrupts_and_its_slots_come_back_with_one_attempt_spent(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_BOTS", "tests.acceptance.bots,tests.acceptance.stubborn_bots")
    monkeypatch.setenv("OUTBOX_EFFECT_TIME_LIMIT", "1s")
    monkeypatch.setenv("OUTBOX_KILL_GRACE", "3s")
    worker = stack.worker(processes=1)
    stack.beat()
    stack.subscribe("acme", "block-it")
    stack.subscribe("apex", "note-it")
    stack.append("acme")
    wait_until(lambda: stack.starts, 15, "the bot started")
    effect, _, stuck = stack.starts[0]
    stack.append("apex", 3)
    wait_until(lambda: not psutil.pid_exists(stuck), 20, "its process is killed")
    wait_until(lambda: stack.all_done("apex", 3), 15, "another process has taken its place in the pool")
    limits = stack.outbox.settings.limits
    bound = (limits.effect_lease + limits.sweep_tick + limits.slot_hold).total_seconds() + 5
    wait_until(lambda: stack.all_done("acme", 1), bound, "the row is done after its lease")
    assert [attempt for name, attempt, _ in stack.starts if name == effect] == [1, 2]
    row = stack.outbox.tenant("acme").effects.get(effect)
    assert (row["attempts"], row["claims"]) == (1, 2)
    assert worker.poll() is None


@pytest.mark.promise("E23")
@pytest.mark.scenario(15, 26)
def test_rows_of_a_bot_that_only_the_newer_of_two_workers_knows_are_run_by_that_one_alone(
    stack: Stack, rows: Collection[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_UNKNOWN_KIND_ALARM", "1s")
    older = stack.worker(processes=1)
    beat = stack.beat()
    stack.subscribe("acme", "note-it", sub_id="x")
    stack.subscribe("acme", "new-it", sub_id="y")
    stack.append("acme", 20)
    passed_over = {"sub_id": "y", "state": "pending", "last_error": {"$regex": "does not know the bot 'new-it'"}}
    wait_until(lambda: stack.states("acme").get("done:delivered") == 20, 15, "what the older one knows")
    for times in (1, 2, 3):
        seen_again = {**passed_over, "claims": {"$gte": times}}
        wait_until(partial(has, rows, seen_again, 20), 15, "the rest is looked at and left alone")
        make_due(rows, "acme")
    rows.update_many({"sub_id": "y"}, [{"$set": {"created_at": {"$subtract": ["$created_at", 60_000]}}}])
    make_due(rows, "acme")
    wait_until(lambda: "this worker does not know" in text_of(older), 15, "the alarm")
    make_due(rows, "acme")
    monkeypatch.setenv("OUTBOX_BOTS", "tests.acceptance.bots,tests.acceptance.newer_bots")
    newer = stack.worker(processes=1)
    pools = {"older": set(children(older)), "newer": set(children(newer))}
    stack.append("acme", 20)

    def all_done() -> bool:
        make_due(rows, "acme")
        return stack.all_done("acme", 80)

    wait_until(all_done, 60, "all rows of both versions")
    ran_by = {(name.rpartition("|")[2], pid) for name, _, pid in stack.starts}
    assert {pid for sub_id, pid in ran_by if sub_id == "y"} <= pools["newer"]
    assert rows.count_documents({"attempts": {"$ne": 0}}) == 0
    assert set(stack.runs.values()) == {1}
    alarms = [line for line in text_of(older).splitlines() if "this worker does not know the bot 'new-it'" in line]
    assert len(alarms) == 1, alarms
    assert "ERROR" in alarms[0]
    assert "does not know" not in text_of(newer)
    assert beat.poll() is None


def text_of(process: Any) -> str:  # noqa: ANN401 - a Process
    text: str = process.log.read_text("utf-8", "replace")
    return text
