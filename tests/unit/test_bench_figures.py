"""What the benchmark makes of recorded figures: medians, ratios, fairness, targets and the page."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.contestant import Ledger
from benchmarks.figures import Spread, jain, number, percentile, ratios
from benchmarks.report import blocks, merged, with_block
from benchmarks.rounds import Tally
from benchmarks.targets import TARGETS, judged

RATES = st.lists(st.floats(min_value=0.1, max_value=1e6), min_size=1, max_size=50)


def spread(*values: float) -> dict[str, Any]:
    return Spread.of(values).document()


def cases(ours: float = 3_000.0) -> dict[str, Any]:
    """Return a part of a recorded run."""
    at_two = {
        "outbox": {"rate": spread(ours, ours)},
        "celery-redis-always": {"rate": spread(200, 300), "ratio": spread(ours / 200, ours / 300)},
        "celery-redis-everysec": {"rate": spread(500, 500), "ratio": spread(ours / 500, ours / 500)},
        "raw": {"rate": spread(4_000, 4_000), "ratio": spread(ours / 4_000, ours / 4_000)},
        "failed": {"agenda": "no Node here"},
    }
    table = {"title": "At two", "columns": ["who", "jobs/s"], "rows": [["a|b", "1"], ["c", "failed: two\nlines"]]}
    return {
        "throughput": {"title": "Throughput", "figures": {"2": at_two}, "tables": [{**table, "note": "A note."}]},
        "commands": {"title": "Commands", "figures": {"lone": {"total": 12}, "full": {"total": 0.06}}, "tables": []},
        "ticks": {"title": "Ticks", "failed": "RuntimeError: nobody answers", "figures": {}, "tables": []},
    }


def results(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - any part of the results
    found = cases()
    contestants = {"outbox": {"version": "1", "durability": "majority", "batching": "200", "notes": ""}}
    known: dict[str, Any] = {"machine": {"processor": "one"}, "quick": False, "rounds": 2, "began": "today"}
    known |= {"cases": found, "contestants": contestants, "failures": {"agenda": "no Node here"}}
    return {**known, "targets": judged(found), **more}


def test_a_spread_tells_the_median_and_how_far_the_rounds_lie_apart() -> None:
    found = Spread.of([3.0, 1.0, 2.0, 10.0])
    assert (found.median, found.least, found.most) == (2.5, 1.0, 10.0)
    assert found.text() == "2.50 (1.00 to 10.0)"
    assert Spread(**{**found.document(), "values": tuple(found.document()["values"])}) == found


def test_a_ratio_is_of_each_round_by_itself() -> None:
    assert ratios([10.0, 40.0, 90.0], [10.0, 20.0, 30.0]).values == (1.0, 2.0, 3.0)
    assert ratios([10.0, 40.0], [10.0]).values == (1.0,)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)])
def test_a_percentile_is_the_value_that_so_many_do_not_exceed(share: float, value: int) -> None:
    assert percentile([float(one) for one in reversed(range(1, 101))], share) == value


def test_jain_tells_equal_shares_from_one_that_has_all() -> None:
    assert jain([5.0] * 100) == pytest.approx(1)
    assert jain([0.0] * 99 + [7.0]) == pytest.approx(0.01)
    assert jain([1.0, 0.0] * 50) == pytest.approx(0.5)
    assert jain([1.0] * 99 + [0.09]) == pytest.approx(0.991, abs=0.001)


@given(RATES, st.floats(min_value=0.01, max_value=100))
def test_jain_lies_between_one_and_one_nth_and_knows_no_unit(shares: list[float], unit: float) -> None:
    found = jain(shares)
    assert 1 / len(shares) - 1e-9 <= found <= 1 + 1e-9
    assert jain([share * unit for share in shares]) == pytest.approx(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0512, "0.0512"), (12, "12.0"), (1234.5, "1,234"), (99.96, "100.0"), (3_000_000, "3,000,000")],
)
def test_a_number_keeps_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


def test_each_target_is_met_not_met_or_not_measured() -> None:
    found = {one["what"]: (one["value"], one["met"]) for one in judged(cases())}
    assert len(found) == len(TARGETS)
    # Against the faster of the two variants.
    assert found["throughput against Celery + Redis, acks_late"] == (6.0, False)
    assert found["throughput against the raw limit"] == (0.75, True)
    assert found["commands per effect, lone"] == (12.0, True)
    assert found["commands per effect, full batches"] == (0.06, False)
    assert found["throughput against Agenda"] == (None, None)


def test_the_later_part_of_a_run_replaces_the_cases_that_it_has() -> None:
    again = cases(ours=6_000.0)
    whole = merged([results(), results(cases={"throughput": again["throughput"]}, contestants={}, failures={})])
    assert whole["cases"].keys() == cases().keys()
    assert whole["contestants"].keys() == {"outbox"}
    assert {one["what"]: one["value"] for one in whole["targets"]}["throughput against the raw limit"] == 1.5


def test_the_page_shows_what_was_measured_what_failed_and_leaves_the_prose() -> None:
    page = "# Title\n\nProse.\n\n<!-- begin cases -->\nold\n<!-- end cases -->\n\nMore prose.\n"
    made = blocks(results(), ["throughput"])
    rendered = with_block(page, "cases", made["cases"])
    assert rendered.startswith("# Title\n\nProse.\n\n<!-- begin cases -->\n\n### Throughput")
    assert rendered.endswith("<!-- end cases -->\n\nMore prose.\n")
    assert "old" not in rendered
    assert "| a\\|b | 1 |\n| c | failed: two lines |" in rendered
    assert "![Throughput](benchmarks/throughput.svg)" in rendered
    assert "scaling.svg" not in rendered
    assert "RuntimeError: nobody answers" in rendered
    assert "agenda dropped out: no Node here" in made["contestants"]
    assert "| commands per effect, lone | at most 12 | 12.0 | met |" in made["targets"]
    assert with_block(rendered, "cases", made["cases"]) == rendered


def test_a_page_without_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match="no block 'cases'"):
        with_block("# Title\n<!-- begin cases -->\n", "cases", "text")


def test_the_ledger_is_counted_while_a_line_is_written(tmp_path: Any) -> None:  # noqa: ANN401 - a path
    tally, ledger = Tally(tmp_path), tmp_path / "1"
    assert tally.look() == 0
    ledger.write_text("1 10.5\n2 10.6\n3 1")
    (tmp_path / "2").write_text("2 11.0\n")
    assert tally.look() == 3
    with ledger.open("a") as more:
        more.write("0.7\n")
    assert tally.look() == 4
    found = Ledger(tmp_path).read()
    assert found.counts == {1: 1, 2: 2, 3: 1}
    assert found.starts[3] == 10.7
