"""How many bad inputs each property is tried on: few in every run, as many as one likes in a campaign.

`OUTBOX_TEST_FUZZ_EXAMPLES=<n>` makes every property try n inputs of a fresh seed; without it each tries its own few,
the same ones each time. `tried` counts them, and a campaign prints the counts.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, settings

if TYPE_CHECKING:
    from collections.abc import Callable

CAMPAIGN = int(os.environ.get("OUTBOX_TEST_FUZZ_EXAMPLES", "0"))

tried: Counter[str] = Counter()
"""Inputs by what became of them; a test that finds one kind missing was fed nothing of it."""


def inputs(few: int) -> Callable[[Any], Any]:
    """Decorate a property: `few` inputs in every run."""
    return settings(
        max_examples=CAMPAIGN or few,
        derandomize=not CAMPAIGN,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
