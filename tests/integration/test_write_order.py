"""What stands in the database when only the first of two writes has happened, on the real store."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.errors import TransientError
from outbox_core.domain.poison import Poison
from outbox_core.ports.drain_progress import JOURNAL_ITEMS, JournalEntry
from tests.harness.examples import by_edge, claim, done, materialize, run_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.on_mongo import MongoHarness

LEASE = timedelta(seconds=60)


@pytest.fixture
def no_insert_happens(mongo_harness: MongoHarness) -> Iterator[None]:
    """Every insert command is refused for the moment."""
    admin = mongo_harness.database.client.admin
    data = {"failCommands": ["insert"], "errorCode": 50}
    admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
    yield
    admin.command("configureFailPoint", "failCommand", mode="off")


@pytest.mark.promise("E37")
@pytest.mark.parametrize("tried_before", [False, True], ids=["the first try", "a retry"])
def test_a_run_is_recorded_before_its_row_is_done(mongo_harness: MongoHarness, tried_before: bool) -> None:  # noqa: FBT001 - a case
    """A death between the two leaves a run that the next claim recognises, never a done row without its record."""
    (effect_id,) = materialize(mongo_harness.acme, 1, now=mongo_harness.now())
    held = claim(mongo_harness.acme, 1, LEASE)
    if tried_before:
        failed = replace(by_edge(lifecycle.RETRY), run=run_record(mongo_harness.now(), error="boom"))
        mongo_harness.acme.effects.settle(held, {effect_id: failed})
        held = claim(mongo_harness.acme, 1, LEASE)
    admin = mongo_harness.database.client.admin
    # The record of a first try is an insert; that of a later one an update, which happens, the next one does not.
    data = {"failCommands": ["update"], "errorCode": 50}
    admin.command("configureFailPoint", "failCommand", mode={"skip": 1} if tried_before else "alwaysOn", data=data)
    try:
        with pytest.raises(TransientError):
            mongo_harness.acme.effects.settle(held, {effect_id: done(run_record(mongo_harness.now()))})
    finally:
        admin.command("configureFailPoint", "failCommand", mode="off")
    assert mongo_harness.row(effect_id)["state"] == "claimed"
    assert mongo_harness.acme.effects.finished_runs([effect_id]) == {effect_id}


@pytest.mark.promise("E37", "E12")
@pytest.mark.parametrize("command", ["insert", "update"])
def test_a_run_that_reached_no_majority_settles_no_row(mongo_harness: MongoHarness, command: str) -> None:
    """A newer claim's record refuses the one, the other was written: only the write-concern error tells."""
    ids = materialize(mongo_harness.acme, 2, now=mongo_harness.now())
    held = claim(mongo_harness.acme, 2, LEASE)
    mongo_harness.put_raw("runs", {"_id": ids[0], "tenant_id": "acme", "claims": 9, "claim_id": "newer"})
    admin = mongo_harness.database.client.admin
    data = {"failCommands": [command], "writeConcernError": {"code": 64, "errmsg": "placed by a test"}}
    admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
    settlements = dict.fromkeys(ids, done(run_record(mongo_harness.now())))
    try:
        with pytest.raises(TransientError):
            mongo_harness.acme.effects.settle(held, settlements)
    finally:
        admin.command("configureFailPoint", "failCommand", mode="off")
    assert {row["state"] for row in mongo_harness.raw("trigger_effects")} == {"claimed"}
    assert mongo_harness.acme.effects.settle(held, settlements).owned == set(ids)
    assert [run["claims"] for run in mongo_harness.raw("runs")] == [9, 1]


@pytest.mark.promise("E12")
def test_entries_leave_a_cursor_only_once_they_are_in_the_journal(
    mongo_harness: MongoHarness, request: pytest.FixtureRequest
) -> None:
    progress = mongo_harness.acme.progress
    many = tuple((seq, "void") for seq in range(1, JOURNAL_ITEMS + 1))
    full = JournalEntry(entry_id="full", follows="", first_seq=1, last_seq=JOURNAL_ITEMS, rows=0, skips=many)
    assert progress.commit(progress.load(), seq=JOURNAL_ITEMS, marks=(), poison=Poison(), entry=full)
    entry = JournalEntry(entry_id="next", follows="full", first_seq=65, last_seq=66, rows=0, skips=())
    request.getfixturevalue("no_insert_happens")
    with pytest.raises(TransientError):
        progress.commit(progress.load(), seq=66, marks=(), poison=Poison(), entry=entry)
    assert progress.load().seq == JOURNAL_ITEMS
    assert [one["entry_id"] for one in mongo_harness.journal()] == ["full"]
