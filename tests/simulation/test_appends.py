"""Appends on both stores whose answers are lost, and the numbers that they leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outbox_core.application.drain_tenant import Step
from outbox_core.application.run_in_transaction import run_in_transaction
from outbox_core.domain.errors import UnclearCommitError
from tests.harness.base import ACME
from tests.harness.examples import new_event
from tests.harness.faults import Fault, FaultyStore, When, transient_at
from tests.simulation.play import append, drain, drain_whole

if TYPE_CHECKING:
    from outbox_core.application.run_in_transaction import OutboxTransaction
    from tests.harness.base import Harness


@pytest.mark.promise("E46")
@pytest.mark.parametrize("when", When)
def test_an_insert_whose_answer_was_lost_is_sent_again_under_its_own_number(harness: Harness, when: When) -> None:
    """A fresh number would leave a hole for a grace, and the caller's own event would be told as a duplicate."""
    store, runtime = FaultyStore(harness.store, transient_at("log.insert", when)), harness.runtime()
    (appended,) = append(store.tenant(ACME), runtime, "a")
    assert store.struck
    assert (appended.seq, appended.duplicate) == (1, False)
    assert drain(harness.acme, runtime).step is Step.CAUGHT_UP


@pytest.mark.promise("E46")
def test_a_number_that_a_duplicate_did_not_need_is_filled_at_once(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    append(store, runtime, "a")
    again, fresh = append(store, runtime, "a", "b")
    assert (again.seq, again.duplicate) == (1, True)
    assert (fresh.seq, fresh.duplicate) == (3, False)
    assert drain(store, runtime).step is Step.CAUGHT_UP
    assert [entry["skips"] for entry in harness.journal()] == [[{"seq": 2, "reason": "void"}]]


@pytest.mark.promise("E02")
@pytest.mark.parametrize("when", When)
def test_a_transaction_whose_commit_is_unclear_says_so_and_its_body_runs_once(harness: Harness, when: When) -> None:
    """Run again it would repeat the caller's other writes, where the commit has happened."""
    bodies = []

    def body(transaction: OutboxTransaction) -> None:
        bodies.append(1)
        transaction.append_event(new_event("a"))

    store, runtime = (
        FaultyStore(harness.store, Fault("transaction.commit", when, UnclearCommitError)),
        harness.runtime(),
    )
    with pytest.raises(UnclearCommitError):
        run_in_transaction(store.tenant(ACME), runtime, body)
    assert len(bodies) == 1
    assert drain(harness.acme, runtime).step is Step.CAUGHT_UP
    events = [event["event_id"] for event in harness.raw("board_events") if "void" not in event]
    assert events == (["a"] if when is When.AFTER else [])


def test_a_transaction_hints_once_it_is_committed_and_only_where_it_turned_the_tenant_undrained(
    harness: Harness,
) -> None:
    store, runtime = harness.acme, harness.runtime()

    def appending(event_id: str) -> None:
        def body(transaction: OutboxTransaction) -> None:
            transaction.append_event(new_event(event_id))
            sent.append(len(harness.hints.sent))

        run_in_transaction(store, runtime, body)
        sent.append(len(harness.hints.sent))

    sent: list[int] = []
    appending("a")
    appending("b")
    drain_whole(store, runtime)
    appending("c")
    assert sent == [0, 1, 1, 1, 1, 2]
