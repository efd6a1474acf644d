"""Which of the due rows a claim takes, in a crowd and alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.domain.claim_order import looked_at, taken


@given(st.integers(0, 900), st.integers(1, 200), st.text(max_size=8), st.booleans())
def test_a_claim_takes_no_row_twice_keeps_the_due_order_and_begins_with_the_oldest(
    due: int,
    limit: int,
    claim_id: str,
    crowded: bool,  # noqa: FBT001 - drawn
) -> None:
    line = range(due)
    chosen = list(taken(line, limit, claim_id, crowded=crowded))
    assert len(chosen) == min(due, limit)
    assert chosen == sorted(set(chosen))
    assert chosen[: (limit + 7) // 8] == list(line[: (limit + 7) // 8])
    if not crowded:
        assert chosen == list(line[:limit])


@pytest.mark.promise("E30")
def test_two_claims_of_a_crowd_share_their_head_and_about_a_quarter_of_the_rest() -> None:
    one, other = (set(taken(range(800), 200, name, crowded=True)) for name in ("one", "other"))
    assert set(range(25)) <= one & other
    assert 25 < len(one & other) < 100


@pytest.mark.parametrize(("limit", "crowded", "rows"), [(200, True, 800), (200, False, 201), (1, True, 2)])
def test_a_claim_reads_one_row_more_than_it_takes_and_four_times_as_many_in_a_crowd(
    limit: int,
    crowded: bool,  # noqa: FBT001 - a case
    rows: int,
) -> None:
    assert looked_at(limit, crowded=crowded) == rows
