"""Workers are told to stop in turn while there is more to do than they can: nothing is lost, and nothing waits."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from outbox_core.application.new_event import new_event
from tests.acceptance.stack import STOP_GRACE, children
from tests.waiting import wait_until

if TYPE_CHECKING:
    from outbox_core.embedded import Process
    from tests.acceptance.stack import Stack

pytestmark = pytest.mark.slow

TENANTS = ("acme", "apex", "zeta")
EACH = 300


def claimed(stack: Stack) -> list[dict[str, object]]:
    found = []
    for tenant in TENANTS:
        found += [dict(row) for row in stack.outbox.tenant(tenant).effects.list(state="claimed", limit=2_000)]
    return found


def await_work(stack: Stack, pool: list[int]) -> None:
    """Return when one of these processes starts another bot."""
    seen = len(stack.starts)
    wait_until(lambda: any(pid in pool for *_, pid in stack.starts[seen:]), 20, "it works")


def await_end(worker: Process) -> None:
    wait_until(lambda: worker.poll() is not None, STOP_GRACE.total_seconds(), "it ended by itself")


def await_all_done(stack: Stack) -> None:
    wait_until(lambda: all(stack.all_done(tenant, EACH) for tenant in TENANTS), 60, "the rest")


def tell(worker: Process, pool: list[int], whom: str) -> None:
    for pid in pool if whom == "the whole group" else ():
        os.kill(pid, signal.SIGTERM)
    worker.signal(signal.SIGTERM)


@pytest.mark.promise("C05", "E41")
@pytest.mark.scenario(44)
@pytest.mark.parametrize("whom", ["the parent", "the whole group"])
def test_workers_told_to_stop_in_turn_under_load_spend_no_attempt_and_leave_no_row_to_its_lease(
    stack: Stack, whom: str
) -> None:
    workers = [stack.worker(processes=2) for _ in range(3)]
    pools = [children(worker) for worker in workers]
    stack.beat()
    for tenant in TENANTS:
        stack.subscribe(tenant, "note-it", seconds=0.03)
        entropy = stack.outbox.runtime.entropy
        stack.outbox.append_many(tenant, [new_event(entropy, type="order") for _ in range(EACH)])
    for worker, pool in zip(workers, pools, strict=True):
        await_work(stack, pool)
        tell(worker, pool, whom)
        await_end(worker)
        left = [row for row in claimed(stack) if int(str(row["claimed_by"]).split(":")[1]) in pool]
        assert left == []
    assert claimed(stack) == []
    rows = [row for tenant in TENANTS for row in stack.outbox.tenant(tenant).effects.list(limit=2_000)]
    assert {row["attempts"] for row in rows} == {0}
    assert len(stack.starts) == sum(stack.runs.values())
    done = sum(row["state"] == "done" for row in rows)
    assert 0 < done == len(stack.runs) < len(TENANTS) * EACH
    stack.worker(processes=2)
    await_all_done(stack)
    assert set(stack.runs.values()) == {1}
