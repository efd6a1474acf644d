"""Every order of store calls that a cast of processes may make, within a budget; beyond it, as many seeds as asked for.

OUTBOX_INTERLEAVINGS plays so many seeds of each cast, and explores each cast's whole budget instead of its beginning.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.interleave.cast import CASTS
from tests.simulation.interleave.explore import Given, Seeded, explore, explore_seeds, play

ASKED = int(os.environ.get("OUTBOX_INTERLEAVINGS", "0"))

pytestmark = [pytest.mark.timeout(300 + ASKED)]


@pytest.mark.promise(
    "E03",
    "E04",
    "E07",
    "E12",
    "E13",
    "E15",
    "E16",
    "E25",
    "E26",
    "E27",
    "E28",
    "E31",
    "E32",
    "E36",
    "E37",
    "E41",
    "E42",
    "L02",
    "L04",
    "L05",
    "L06",
    "L07",
    "L11",
    "L12",
    "L13",
    "L14",
    "L18",
)
@pytest.mark.scenario(1, 7, 8, 25, 30, 46, 48, 53, 59, 60, 62)
@pytest.mark.parametrize("cast", CASTS)
def test_whatever_the_order_of_their_calls_nothing_that_is_promised_breaks(cast: str) -> None:
    """Stalled writers (watermill #311), clocks apart (occurrent #659), stale recoveries (dbos-transact-py #742).

    Rescuers that come late (river #1302), renewals slower than the lease (pgqueuer #430), and what was measured here.
    """
    chosen = CASTS[cast]
    report = explore(cast, most=None if ASKED else chosen.most)
    assert report.states > 100
    assert report.whole or report.turns or chosen.most < 400


@pytest.mark.promise("E13", "E14", "E26", "E28", "E36", "E37", "E43", "E46")
@pytest.mark.parametrize("cast", CASTS)
def test_by_chance_with_a_death_a_fault_and_time_that_passes_nothing_breaks_either(cast: str) -> None:
    seeds = ASKED or CASTS[cast].seeds
    assert explore_seeds(cast, range(seeds)).schedules == seeds


@pytest.mark.parametrize("cast", CASTS)
def test_a_seed_and_its_choices_give_the_same_calls_again(cast: str) -> None:
    first = play(cast, Seeded(7), budget=CASTS[cast].wide)
    again = play(cast, Seeded(7), budget=CASTS[cast].wide)
    written_down = play(cast, Given(first.choices), budget=CASTS[cast].wide)
    assert len(first.trace) > 4
    assert first.trace == again.trace == written_down.trace
