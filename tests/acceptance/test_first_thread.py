"""From an append to a settled row, through a real worker and a real beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.acceptance.stack import Stack

pytestmark = pytest.mark.slow


@pytest.mark.promise("C01")
def test_an_appended_event_becomes_one_run_of_its_bot_with_no_hint_from_the_application(stack: Stack) -> None:
    stack.worker(processes=1)
    stack.beat()
    stack.subscribe("acme", "note-it")
    stack.append("acme", 3)
    wait_until(lambda: stack.all_done("acme", 3), 15, "all rows done")
    assert sorted(stack.runs.values()) == [1, 1, 1]
