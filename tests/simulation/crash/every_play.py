"""All plays of the matrix."""

from __future__ import annotations

from tests.simulation.crash.lifecycle_plays import OF_LIFECYCLE
from tests.simulation.crash.plays import OF_EFFECTS

PLAYS = (*OF_EFFECTS, *OF_LIFECYCLE)
