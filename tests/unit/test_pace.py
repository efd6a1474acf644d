"""How many rows fit into a slice, from how long rows took here."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from outbox_core.domain.pace import Pace

SECOND = timedelta(seconds=1)


def test_a_tenant_of_which_nothing_ran_here_yet_counts_as_quick() -> None:
    pace = Pace()
    pace.note("other", "bot", 10.0)
    assert pace.rows("acme", 200, SECOND) == 200
    assert pace.fitting(["unknown"] * 300, SECOND) == 300


def test_as_many_rows_are_claimed_as_fit_and_one_at_least() -> None:
    pace = Pace()
    for _ in range(50):
        pace.note("acme", "bot", 0.05)
        pace.note("slow", "slow", 30.0)
        pace.note("quick", "quick", 0.001)
    assert pace.rows("acme", 200, SECOND) in {19, 20}
    assert pace.rows("slow", 200, SECOND) == 1
    assert pace.rows("quick", 200, SECOND) == 200


def test_a_tenant_whose_bots_have_become_quick_is_soon_claimed_for_in_full_batches() -> None:
    pace = Pace()
    pace.note("acme", "bot", 5.0)
    assert pace.rows("acme", 200, SECOND) == 1
    for _ in range(300):
        pace.note("acme", "bot", 0.001)
    assert pace.rows("acme", 200, SECOND) == 200


def test_a_row_that_met_a_busy_moment_makes_no_slow_bot_of_a_quick_one() -> None:
    pace = Pace()
    for _ in range(100):
        pace.note("acme", "bot", 0.001)
    pace.note("acme", "bot", 0.2)
    assert pace.rows("acme", 200, SECOND) == 200
    assert pace.fitting(["bot"] * 200, SECOND) == 200


def test_rows_of_known_bots_fit_by_the_sum_of_what_each_takes() -> None:
    pace = Pace()
    pace.note("acme", "half", 0.5)
    pace.note("acme", "long", 9.0)
    assert pace.fitting(["half", "new", "half", "new", "half"], SECOND) == 4
    assert pace.fitting(["long", "half"], SECOND) == 1
    assert pace.fitting(["half", "long", "half"], SECOND) == 1
    assert pace.fitting([], SECOND) == 0


def test_ten_thousand_tenants_are_remembered_and_the_oldest_forgotten_for_one_more() -> None:
    pace = Pace()
    for number in range(10_001):
        pace.note(f"t{number}", "bot", 5.0)
    assert (pace.rows("t0", 200, SECOND), pace.rows("t1", 200, SECOND)) == (200, 1)


@given(st.lists(st.floats(0, 1e6)), st.integers(1, 200))
def test_whatever_rows_took_a_claim_is_between_one_row_and_its_limit(took: list[float], limit: int) -> None:
    pace = Pace()
    for seconds in took:
        pace.note("acme", "bot", seconds)
    assert 1 <= pace.rows("acme", limit, SECOND) <= limit
