"""Holes of a log, how old they are, and how failing events are counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.domain.limits import MAX_MARKS, Limits
from outbox_core.domain.poison import Poison
from outbox_core.domain.sequence import Horizon, Mark, contiguous_length, missing_between, over_age, with_mark

START = datetime(2030, 1, 1, tzinfo=UTC)
LIMITS = Limits()
GRACE, INTERVAL = LIMITS.gap_grace, LIMITS.mark_interval


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("after", "seqs", "length"),
    [(0, [], 0), (0, [1, 2, 3], 3), (0, [2, 3], 0), (0, [1, 3, 4], 1), (4, [5, 6, 8, 9], 2), (4, [6], 0)],
)
def test_the_contiguous_prefix_ends_before_the_first_hole(after: int, seqs: list[int], length: int) -> None:
    assert contiguous_length(after, seqs) == length


@pytest.mark.parametrize(
    ("after", "seqs", "upto", "holes"),
    [
        (0, [], 0, []),
        (0, [], 3, [(1, 3)]),
        (0, [1, 2], 2, []),
        (0, [2, 5], 6, [(1, 1), (3, 4), (6, 6)]),
        (4, [6, 9], 7, [(5, 5), (7, 7)]),
        (4, [5, 9], 4, []),
    ],
)
def test_what_is_missing_is_told_in_ranges(
    after: int, seqs: list[int], upto: int, holes: list[tuple[int, int]]
) -> None:
    assert missing_between(after, seqs, upto) == holes


@given(st.sets(st.integers(1, 40)), st.integers(0, 40), st.integers(0, 45))
def test_a_number_is_either_there_or_in_exactly_one_hole(there: set[int], after: int, upto: int) -> None:
    seqs = sorted(seq for seq in there if seq > after)
    holes = missing_between(after, seqs, upto)
    missing = [seq for first, last in holes for seq in range(first, last + 1)]
    assert sorted(missing) == [seq for seq in range(after + 1, upto + 1) if seq not in there]


@pytest.mark.promise("E07")
@given(st.sets(st.integers(1, 30)), st.integers(0, 10))
def test_a_horizon_covers_exactly_what_was_in_the_log(there: set[int], after: int) -> None:
    seqs = sorted(seq for seq in there if seq > after)
    highest = max(seqs, default=after)
    horizon = Horizon(highest, tuple(missing_between(after, seqs, highest)))
    assert {seq for seq in range(after + 1, 40) if horizon.covers(seq)} == set(seqs)


# --- the age of a hole ---


class Drain:
    """A drain that looks once a second at a log whose numbers below `last_seq` may be missing."""

    def __init__(self) -> None:
        self.marks: tuple[Mark, ...] = ()
        self.cursor = 0

    def look(self, seconds: float, last_seq: int) -> int:
        """Return up to which missing number is over age."""
        self.marks = with_mark(self.marks, Mark(last_seq, at(seconds)), self.cursor, INTERVAL, GRACE)
        return over_age(self.marks, at(seconds), GRACE)


@pytest.mark.promise("E03", "E05")
@pytest.mark.parametrize("born", [0, 0.5, 3, 4.9])
def test_a_hole_is_let_go_of_between_thirty_and_thirty_six_seconds_after_a_drain_could_see_it(born: float) -> None:
    drain = Drain()
    drain.look(0, 4)
    let_go = next(
        second for second in range(1, 60) if drain.look(second, 5 if second >= born else 4) >= 5 and second >= born
    )
    assert 30 <= let_go - born <= 36


@pytest.mark.promise("E03")
def test_two_holes_each_get_their_own_grace() -> None:
    drain = Drain()
    reached = {second: drain.look(second, 3 if second < 20 else 9) for second in range(80)}
    first = next(second for second, seq in reached.items() if seq >= 3)
    second = next(second for second, seq in reached.items() if seq >= 9)
    assert first == 30
    assert 50 <= second <= 56


@pytest.mark.promise("E03", "E05")
@pytest.mark.scenario(49, 5)
def test_a_dead_block_of_any_size_costs_one_grace() -> None:
    """Scenarios 49 and 5: numbers that died with their process; a tail that holds only such."""
    drain = Drain()
    reached = {second: drain.look(second, 1_000_000) for second in range(40)}
    assert next(second for second, seq in reached.items() if seq) == 30
    assert reached[30] == 1_000_000


@pytest.mark.promise("E03")
def test_a_hole_ages_under_a_steady_stream_of_new_numbers() -> None:
    drain = Drain()
    let_go = next(second for second in range(120) if drain.look(second, 10 + 20 * second) >= 5)
    assert let_go == 30
    assert len(drain.marks) <= MAX_MARKS


@pytest.mark.promise("E03")
@given(st.lists(st.tuples(st.floats(0.01, 20), st.integers(0, 5)), min_size=1, max_size=60))
def test_marks_are_few_and_never_make_a_hole_older_than_it_is(looks: list[tuple[float, int]]) -> None:
    drain, seconds, last_seq = Drain(), 0.0, 0
    given_out: dict[int, float] = {}
    for wait, fresh in looks:
        seconds += wait
        for seq in range(last_seq + 1, last_seq + fresh + 1):
            given_out[seq] = seconds
        last_seq += fresh
        reached = drain.look(seconds, last_seq)
        assert len(drain.marks) <= MAX_MARKS
        assert all(seconds - given_out[seq] >= 29.999 for seq in range(1, reached + 1))


@pytest.mark.promise("E03")
def test_a_clock_that_steps_back_lets_go_of_nothing_early_and_of_all_in_the_end() -> None:
    drain = Drain()
    for second in range(20):
        drain.look(1_000 + second, 5)
    back = [second for second in range(60) if drain.look(second, 5) >= 5]
    assert back[0] == 30


def test_a_mark_that_the_cursor_has_passed_says_nothing() -> None:
    drain = Drain()
    drain.look(0, 5)
    drain.cursor = 5
    drain.look(1, 5)
    assert not drain.marks
    drain.look(2, 6)
    assert drain.marks == (Mark(6, at(2)),)


# --- poison ---


@pytest.mark.promise("E15")
@pytest.mark.scenario(54)
def test_of_drains_within_five_seconds_one_is_counted() -> None:
    """Scenario 54: poison is counted by four drains within a second."""
    poison = Poison()
    for tenths in range(10):
        poison = poison.counted([7], at(tenths / 10), LIMITS.poison_interval)
    assert poison == Poison({7: 1}, at(0))
    assert poison.counted([7], at(4.999), LIMITS.poison_interval) is poison
    assert poison.counted([7], at(5), LIMITS.poison_interval) == Poison({7: 2}, at(5))


@pytest.mark.promise("E15")
def test_adjacent_failing_events_are_counted_together_each_for_itself() -> None:
    poison = Poison().counted([7, 8], at(0), LIMITS.poison_interval)
    poison = poison.counted([7, 8, 9], at(5), LIMITS.poison_interval)
    assert dict(poison.counts) == {7: 2, 8: 2, 9: 1}


@pytest.mark.promise("E15")
def test_an_event_that_stopped_failing_starts_anew() -> None:
    poison = Poison({7: 19, 8: 3}, at(0)).counted([8], at(5), LIMITS.poison_interval)
    assert dict(poison.counts) == {8: 4}


def test_nothing_failing_counts_nothing() -> None:
    poison = Poison({7: 3}, at(0))
    assert poison.counted([], at(60), LIMITS.poison_interval) is poison


def test_a_count_from_ahead_of_the_clock_does_not_hold_up_the_next() -> None:
    poison = Poison({7: 3}, at(1_000)).counted([7], at(0), LIMITS.poison_interval)
    assert poison == Poison({7: 4}, at(0))


def test_what_the_cursor_has_passed_is_no_longer_counted() -> None:
    poison = Poison({7: 3, 8: 1}, at(0))
    assert poison.above(7) == Poison({8: 1}, at(0))
    assert poison.above(6) is poison
