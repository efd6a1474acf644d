"""The two questions that the oracle answers: is all well at rest, and is nothing wrong at this moment."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.oracle import log_checks, row_checks
from tests.oracle.stored import Stored
from tests.oracle.verdict import Figures, Verdict

if TYPE_CHECKING:
    from tests.oracle.evidence import Evidence, Reader

AT_ANY_MOMENT = (
    log_checks.no_hole_behind_the_cursor,
    log_checks.nothing_unmaterialized_behind_the_cursor,
    log_checks.flag_is_set_while_work_is_owed,
)
"""What holds while everything runs: what they read first only ever follows what they read then."""

AT_REST = (
    log_checks.appended_once,
    log_checks.numbered_once,
    *AT_ANY_MOMENT,
    log_checks.drained_to_the_end,
    log_checks.journal_covers_the_log,
    row_checks.each_match_has_its_row,
    row_checks.rows_are_the_tenants_own,
    row_checks.nothing_is_live,
    row_checks.settled_rows_are_whole,
    row_checks.attempts_keep_their_budget,
    row_checks.delivered_as_promised,
    row_checks.runs_are_of_their_rows,
)


def judge(read: Reader, evidence: Evidence) -> Verdict:
    """Judge a tenant at rest: everything is drained, every row settled, every process told to end or idle."""
    stored = Stored(read, evidence)
    return Verdict(tuple(line for check in AT_REST for line in check(stored)), _figures(stored))


def judge_progress(read: Reader, evidence: Evidence) -> Verdict:
    """Judge a tenant at any moment, while others write: only what must never be, not even for an instant."""
    stored = Stored(read, evidence)
    return Verdict(tuple(line for check in AT_ANY_MOMENT for line in check(stored)), _figures(stored))


def _figures(stored: Stored) -> Figures:
    rows = stored.rows.values()
    return Figures(
        events=len(stored.events),
        tombstones=len(stored.tombstones),
        effects=Counter(
            f"{row['state']}:{row.get('outcome')}" if row.get("state") == "done" else str(row.get("state"))
            for row in rows
        ),
        executions=len(stored.evidence.executions),
        repeats=row_checks.repeats(stored),
        attempts=sum(row.get("attempts", 0) for row in rows),
        claims=sum(row.get("claims", 0) for row in rows),
    )
