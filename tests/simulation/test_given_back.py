"""Rows that a slice's end gave back are another worker's: who gave them back does not run them as well."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.run_slice import run_slice
from tests.harness.base import ACME
from tests.harness.examples import subscription
from tests.simulation.play import append, drain_whole, rows_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from outbox_core.domain.bot import Run
    from tests.harness.base import Harness


@pytest.mark.promise("E25", "E41")
def test_what_a_slices_end_gave_back_runs_at_the_worker_that_took_it_and_there_alone(harness: Harness) -> None:
    """The fence would hide a second run: the row is settled once, and the customer has been charged twice."""
    going, release = threading.Event(), threading.Event()
    runs: list[str] = []

    def bot(run: Run) -> None:
        runs.append(run.event.event_id)
        if run.event.event_id == "e1":
            going.set()
            assert release.wait(30)

    store, runtime = harness.acme, harness.runtime({"bot": bot})
    add_subscription(store, subscription("s"))
    append(store, harness.runtime(), *(f"e{number}" for number in range(6)))
    drain_whole(store, harness.runtime())
    harness.change("tenant_slots", ACME, slice=[])
    slow = threading.Thread(target=run_slice, args=(store, runtime))
    slow.start()
    try:
        assert going.wait(30)
        harness.advance(timedelta(seconds=2))
        wait_until(lambda: states(harness)["pending"] == 4, timeout=30, what="the heart's release")
        run_slice(harness.store.tenant(ACME), runtime)
        assert sorted(runs) == [f"e{number}" for number in range(6)]
    finally:
        release.set()
        slow.join(30)
    assert Counter(runs) == dict.fromkeys((f"e{number}" for number in range(6)), 1)
    assert states(harness) == {"done": 6}


def states(harness: Harness) -> Counter[str]:
    return Counter(row["state"] for row in rows_of(harness, ACME).values())
