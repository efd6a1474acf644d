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
from tests.oracle.judge import judge, judge_progress, judge_watch
from tests.oracle.verdict import Figures, Verdict
from tests.oracle.watch import REBUILDING, Change, Rebuilt, Told, Watch, Watcher

__all__ = [
    "DELIVERED",
    "PROJECTION",
    "REBUILDING",
    "Change",
    "Evidence",
    "Execution",
    "Figures",
    "Promise",
    "Reader",
    "Rebuilt",
    "Rest",
    "Rule",
    "Told",
    "Verdict",
    "Watch",
    "Watcher",
    "database_reader",
    "judge",
    "judge_progress",
    "judge_watch",
]
