"""A forge's delivery that deletes a card: its event, its audit row and the lifecycle event commit together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application.ingest_delivery import ingest_delivery
from outbox_core.domain.consumer import Start
from outbox_core.domain.errors import InvalidInputError, TransientError
from outbox_core.domain.forge_delivery import Delivery
from outbox_core.sources.github import read_delivery
from tests.deliveries import issue_payload
from tests.harness.base import ACME
from tests.harness.faults import Death, Fault, FaultyStore, When
from tests.simulation.observing import Cache, observer, poll_to_rest

if TYPE_CHECKING:
    from tests.harness.base import Harness

CARD = "gh.issue.7001"


def read(action: str, delivery_id: str) -> Delivery:
    headers = {"X-GitHub-Event": "issues", "X-GitHub-Delivery": delivery_id}
    found = read_delivery(headers, json.dumps(issue_payload(action)).encode(), secret=None)
    assert isinstance(found, Delivery)
    return found


def opened(harness: Harness) -> None:
    ingest_delivery(harness.acme, harness.runtime(), read("opened", "d-1"))
    harness.acme.consumers.register("cache", Start.BEGINNING, "test")


def left(harness: Harness) -> dict[str, Any]:
    """Return what a deletion leaves."""
    return {
        "events": [one["event_id"] for one in harness.raw("board_events", tenant_id=ACME) if not one.get("void")],
        "audited": [row["code"] for row in harness.raw("run_audit", tenant_id=ACME) if row["subject"] == CARD],
        "told": [(row["sequence"], row["task_id"]) for row in harness.raw("lifecycle_outbox", tenant_id=ACME)],
        "head": harness.acme.stream.head(),
        "gone": harness.acme.cards.get(CARD).gone,
    }


NOTHING = {"events": ["d-1"], "audited": [], "told": [], "head": 0, "gone": False}
ALL = {"events": ["d-1", "d-2"], "audited": ["task:deleted"], "told": [(1, CARD)], "head": 1, "gone": True}


def calls_of_one(harness: Harness) -> list[str]:
    """Return the store's calls of such a delivery, of another card, up to its commit."""
    recording = FaultyStore(harness.store)
    store, runtime = recording.tenant("other"), harness.runtime()
    ingest_delivery(store, runtime, read("opened", "d-1"))
    before = len(recording.calls)
    ingest_delivery(store, runtime, read("deleted", "d-2"))
    return recording.calls[before:]


@pytest.mark.promise("L01")
@pytest.mark.parametrize("error", [InvalidInputError, Death], ids=["refused", "dead"])
def test_a_fault_at_any_step_of_an_ingested_deletion_leaves_nothing_and_its_number_is_used_again(
    harness: Harness, error: type[BaseException]
) -> None:
    opened(harness)
    calls = calls_of_one(harness)
    assert {"cards.put", "stream.append", "audit.record", "transaction.commit"} <= set(calls)
    runtime = harness.runtime()
    for number in range(1, calls.index("transaction.commit") + 2):
        faulty = FaultyStore(harness.store, Fault(number, When.BEFORE, error))
        with pytest.raises(error):
            ingest_delivery(faulty.tenant(ACME), runtime, read("deleted", "d-2"))
        assert left(harness) == NOTHING, f"struck before {calls[number - 1]}"
    ingest_delivery(harness.acme, runtime, read("deleted", "d-2"))
    assert left(harness) == ALL


@pytest.mark.promise("L01", "L02")
def test_an_ingested_deletion_whose_commit_is_unclear_and_one_that_is_sent_again_happen_once(harness: Harness) -> None:
    opened(harness)
    runtime = harness.runtime()
    faulty = FaultyStore(harness.store, Fault("transaction.commit", When.AFTER, TransientError))
    ingest_delivery(faulty.tenant(ACME), runtime, read("deleted", "d-2"))
    assert left(harness) == ALL
    assert not ingest_delivery(harness.acme, runtime, read("deleted", "d-2")).fresh
    ingest_delivery(harness.acme, runtime, read("deleted", "d-3"))
    assert left(harness) == ALL | {"events": ["d-1", "d-2", "d-3"]}
    cache = Cache()
    poll_to_rest(harness, harness.acme, runtime, observer(cache))
    (told,) = cache.told
    assert (told.event.task_id, told.deleted_at) == (CARD, harness.acme.cards.get(CARD).deleted_at)
