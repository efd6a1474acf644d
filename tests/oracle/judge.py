"""The two questions that the oracle answers: is all well at rest, and is nothing wrong at this moment."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.oracle import change_checks, consumer_checks, log_checks, row_checks
from tests.oracle.stored import Stored
from tests.oracle.verdict import Figures, Verdict
from tests.oracle.watched import Watched

if TYPE_CHECKING:
    from tests.oracle.evidence import Evidence, Reader
    from tests.oracle.watch import Watch

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

OF_CHANGES = (
    change_checks.numbered_without_holes,
    change_checks.changes_are_audited_and_told,
    change_checks.events_are_of_their_ids,
    change_checks.cards_stand_as_told,
    change_checks.answered_changes_are_there,
    change_checks.numbered_in_the_order_of_commits,
    change_checks.noticed_at_most_once,
)
OF_CONSUMERS = (
    consumer_checks.cursors_only_advance,
    consumer_checks.passed_only_what_was_observed,
    consumer_checks.observed_in_order,
    consumer_checks.replayed_as_asked,
    consumer_checks.transactional_exactly_once,
    consumer_checks.letters_are_whole,
    consumer_checks.superseded_rightly,
    consumer_checks.reconciled_before_it_says_so,
    consumer_checks.operators_are_audited_once,
    consumer_checks.pruned_only_what_all_have_passed,
    consumer_checks.told_only_what_still_holds,
    consumer_checks.told_only_what_is_there,
)
WHEN_NOBODY_WRITES = (*OF_CHANGES, *OF_CONSUMERS)
"""What holds of deletions and consumers whenever no call is on its way to the store."""

WATCHED_AT_REST = (
    *WHEN_NOBODY_WRITES,
    consumer_checks.consumers_have_come_to_rest,
    consumer_checks.caches_hold_what_lives,
)


def judge(read: Reader, evidence: Evidence) -> Verdict:
    """Judge a tenant at rest: everything is drained, every row settled, every process told to end or idle."""
    stored = Stored(read, evidence)
    return Verdict(tuple(line for check in AT_REST for line in check(stored)), _figures(stored))


def judge_progress(read: Reader, evidence: Evidence) -> Verdict:
    """Judge a tenant at any moment, while others write: only what must never be, not even for an instant."""
    stored = Stored(read, evidence)
    return Verdict(tuple(line for check in AT_ANY_MOMENT for line in check(stored)), _figures(stored))


def judge_watch(read: Reader, watch: Watch, *, at_rest: bool) -> tuple[str, ...]:
    """Judge a tenant's deletions and their consumers, at rest or while all stand still; return what is broken."""
    watched = Watched(read, watch)
    return tuple(line for check in (WATCHED_AT_REST if at_rest else WHEN_NOBODY_WRITES) for line in check(watched))


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
