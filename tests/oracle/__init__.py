"""The oracle: it judges what a store holds by what was promised alone, and shares no code with what it judges."""

from tests.oracle.evidence import (
    DELIVERED,
    PROJECTION,
    Evidence,
    Execution,
    Promise,
    Reader,
    Rest,
    Rule,
    database_reader,
)
from tests.oracle.judge import judge, judge_progress
from tests.oracle.verdict import Figures, Verdict

__all__ = [
    "DELIVERED",
    "PROJECTION",
    "Evidence",
    "Execution",
    "Figures",
    "Promise",
    "Reader",
    "Rest",
    "Rule",
    "Verdict",
    "database_reader",
    "judge",
    "judge_progress",
]
