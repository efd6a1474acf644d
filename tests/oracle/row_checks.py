"""Checks of the rows, the runs and the executions, at rest; each yields a line for each violation."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tests.oracle.evidence import DELIVERED, PROJECTION, Promise, Rest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.oracle.evidence import Document, Execution
    from tests.oracle.stored import Stored

_LIVE = {"pending", "claimed"}
_KINDS = {PROJECTION: "projection"}


def each_match_has_its_row(stored: Stored) -> Iterator[str]:
    """Check no row is missing, none is there that nothing owes, and each is what its key says."""
    owed, dead = stored.owed(), stored.owed_dead()
    for key, (event, rule) in owed.items():
        row = stored.rows.get(key)
        if row is None:
            yield f"event {event['event_id']} owes {rule.sub_id} a row, and there is none"
            continue
        sub_id = "" if rule.sub_id == PROJECTION else rule.sub_id
        wanted = (_KINDS.get(rule.sub_id, "launch"), event["event_id"], sub_id, event["seq"])
        found = (row.get("kind"), row.get("event_id"), row.get("sub_id"), row.get("seq"))
        if found != wanted:
            yield f"effect {key} is of {found}, where its event and its rule make {wanted}"
    for key, document in dead.items():
        row = stored.rows.get(key)
        if row is None:
            yield f"{document['_id']} does not decode, and no dead event tells of it"
        elif (row.get("kind"), row.get("state")) != ("dead_event", "failed"):
            yield f"effect {key} is a {row.get('kind')} that is {row.get('state')}, where a dead event is owed"
    for key in sorted(stored.evidence.forged):
        row = stored.rows.get(key, {})
        if row.get("state") != "failed":
            yield f"effect {key} was written by hand and is {row.get('state', 'gone')}, where it must be failed"
    for key in sorted(stored.rows.keys() - owed.keys() - dead.keys() - stored.evidence.forged):
        yield f"effect {key} is there, and no event owes it"


def rows_are_the_tenants_own(stored: Stored) -> Iterator[str]:
    """Check no row under this tenant's keys names another, and none of this tenant stands under another's key."""
    tenant = stored.evidence.tenant
    for key, row in stored.rows.items():
        if key in stored.evidence.forged:
            continue
        if row.get("tenant_id") != tenant or not str(key).startswith(f"{tenant}|"):
            yield f"effect {key} names tenant {row.get('tenant_id')!r}, where tenant {tenant!r} is judged"


def nothing_is_live(stored: Stored) -> Iterator[str]:
    """Check, at rest, no row is pending or claimed, unless its rule lets it rest there; and each rests as it may."""
    for key, (_, rule) in stored.owed().items():
        row = stored.rows.get(key)
        if row is None:
            continue
        rest = Rest(str(row.get("state")), str(row.get("outcome") or "") if row.get("state") == "done" else "")
        if rest in rule.rests:
            continue
        if rest.state in _LIVE:
            yield f"effect {key} is still {rest.state} at rest: {row.get('last_error')}"
        elif rest == Rest("done"):
            yield f"effect {key} is done and does not say why"
        else:
            yield f"effect {key} rests as {rest.state}:{rest.outcome}, which {rule.sub_id} does not allow"


def settled_rows_are_whole(stored: Stored) -> Iterator[str]:
    """Check a done row has its time and its claim, and a failed one its error."""
    for key, row in stored.rows.items():
        match row.get("state"):
            case "done" if row.get("done_at") is None or not row.get("claim_id"):
                yield f"effect {key} is done without its time or without the claim that did it"
            case "failed" if not row.get("last_error"):
                yield f"effect {key} failed without an error"
            case _:
                pass


def attempts_keep_their_budget(stored: Stored) -> Iterator[str]:
    """Check no row spent more than its budget, and no more than it was claimed; no bot ran without a claim."""
    budget = stored.evidence.max_attempts
    starts = Counter(execution.effect_id for execution in stored.evidence.executions)
    for key, row in stored.rows.items():
        attempts, claims = row.get("attempts", 0), row.get("claims", 0)
        parked_late = stored.evidence.deaths if row.get("state") == "failed" else 0
        if attempts > budget + parked_late:
            yield f"effect {key} spent {attempts} attempts of {budget}"
        # The claim that delivers spends none.
        if attempts > claims - (row.get("state") == "done"):
            yield f"effect {key} spent {attempts} attempts in {claims} claims, and is {row.get('state')}"
        if starts[key] > claims:
            yield f"effect {key} was executed {starts[key]} times in {claims} claims"
    for execution in stored.evidence.executions:
        if execution.effect_id not in stored.rows:
            yield f"effect {execution.effect_id} was executed by {execution.actor or 'somebody'}, and has no row"
        if execution.attempt > budget:
            yield f"effect {execution.effect_id} was executed as attempt {execution.attempt} of {budget}"


def delivered_as_promised(stored: Stored) -> Iterator[str]:
    """Check how often each effect happened, by the database where exactly once is promised, else by the journal."""
    executions: dict[str, list[Execution]] = defaultdict(list)
    for execution in stored.evidence.executions:
        executions[execution.effect_id].append(execution)
    for key, (_, rule) in stored.owed().items():
        row = stored.rows.get(key, {})
        delivered = Rest(str(row.get("state")), str(row.get("outcome") or "")) == DELIVERED
        complete = sum(execution.complete for execution in executions[key])
        match rule.promise:
            case Promise.EXACTLY_ONCE if rule.count is not None:
                seen = rule.count(key)
                if seen != int(delivered):
                    yield f"effect {key} is {row.get('state')}, and happened {seen} times where once is promised"
            case Promise.AT_LEAST_ONCE:
                if delivered and not complete:
                    yield f"effect {key} is delivered, and no execution of it came to its end"
                allowed = rule.repeats + (key in stored.evidence.may_repeat)
                if complete - 1 > allowed:
                    yield f"effect {key} was repeated {complete - 1} times, where {allowed} are allowed"
            case _:
                if executions[key]:
                    yield f"effect {key} was executed, and its rule runs nothing"
    for execution in stored.evidence.executions:
        if execution.effect_id in stored.evidence.forged:
            yield f"effect {execution.effect_id} was written by hand, and was executed"
    in_all = stored.evidence.repeats_in_all
    if in_all is not None and (found := repeats(stored)) > in_all:
        yield f"{found} executions of effects are repeats, where {in_all} are allowed in all"


def runs_are_of_their_rows(stored: Stored) -> Iterator[str]:
    """Check each delivered launch has its run record, and each record is of its row's claim, or of an earlier one."""
    for key, (_, rule) in stored.owed().items():
        row = stored.rows.get(key)
        if row is None or rule.sub_id == PROJECTION or rule.promise is Promise.RUNS_NOTHING:
            continue
        run = stored.runs.get(key)
        if (row.get("state"), row.get("outcome")) == ("done", "delivered") and (run is None or run.get("error")):
            yield f"effect {key} is delivered, and {'has no run' if run is None else 'its run tells of an error'}"
        if run is not None:
            yield from _of_its_row(key, row, run)
    for key in sorted(stored.runs.keys() - stored.rows.keys()):
        yield f"the run {key} has no row"


def _of_its_row(key: str, row: Document, run: Document) -> Iterator[str]:
    theirs, ours = run.get("claims", 0), row.get("claims", 0)
    if theirs > ours:
        yield f"the run of effect {key} is of claim {theirs}, and the row was claimed {ours} times"
    elif theirs == ours and run.get("claim_id") != row.get("claim_id"):
        yield f"the run of effect {key} is of claim {run.get('claim_id')}, its row of {row.get('claim_id')}"


def repeats(stored: Stored) -> int:
    """Count the complete executions beyond the first of each effect of which at least once is promised."""
    promised = {key for key, (_, rule) in stored.owed().items() if rule.promise is Promise.AT_LEAST_ONCE}
    complete = Counter(one.effect_id for one in stored.evidence.executions if one.complete)
    return sum(count - 1 for key, count in complete.items() if key in promised)
