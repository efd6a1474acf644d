"""What a run came to: the oracle's verdict on each tenant, and what only this load can tell."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.calls import Call, Struck, paired, unprovoked
from tests.chaos.journal import COUNTED
from tests.chaos.load import BOARD, LIFE, ORDERS, SHOPS, SHOTS, TENANTS, Told
from tests.chaos.observed import judge_lifecycle
from tests.oracle import DELIVERED, PROJECTION, Evidence, Execution, Promise, Rest, Rule, database_reader, judge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pymongo.database import Database

    from tests.chaos.world import Killed, Line

_FAILED = Rest("failed")
_SPENT = Rest("done", "label_spent_by_another")
_PROMOTED = Rest("done", "promoted")


@dataclass(slots=True)
class Found:
    """The figures of a run, and each broken promise in one line."""

    violations: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)
    longest_leases: float = 0.0
    longest_effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the driver knows of a run, beside what is stored."""

    told: Mapping[str, Told]
    prepared: frozenset[str]
    lines: Sequence[Line]
    observed: Sequence[Line]
    killed: Sequence[Killed]
    struck: Sequence[Struck]
    max_attempts: int
    lease_s: float


def find(database: Database[dict[str, Any]], history: History) -> Found:
    """Judge every tenant at rest."""
    found = Found()
    calls = paired(history.lines)
    counted = Counter(document["effect_id"] for document in database[COUNTED].find({}, {"effect_id": 1}))
    for tenant in TENANTS:
        told = history.told.get(tenant, Told())
        mine = [call for call in calls if call.what.startswith(f"{tenant}|")]
        evidence = Evidence(
            tenant=tenant,
            rules=_rules(tenant, counted, history.max_attempts),
            acknowledged=frozenset(told.answered) | _prepared(database, tenant, history),
            unclear=frozenset(told.asked) - told.answered - told.nothing,
            refused=frozenset(told.nothing),
            bots_append=frozenset({"report"}),
            owes_nothing=history.prepared,
            executions=tuple(
                Execution(
                    effect_id=call.what,
                    attempt=call.attempt,
                    actor=str(call.pid),
                    ended=call.end is not None,
                    failed=call.failed,
                )
                for call in mine
            ),
            max_attempts=history.max_attempts,
        )
        verdict = judge(database_reader(database, tenant), evidence)
        found.violations += [f"{tenant}: {line}" for line in verdict.violations]
        figures = verdict.figures
        found.effects.update(figures.effects)
        found.figures.update(
            {
                "events": figures.events,
                "holes filled": figures.tombstones,
                "executions": figures.executions,
                "executions repeated": figures.repeats,
                "attempts spent": figures.attempts,
                "claims": figures.claims,
            }
        )
    found.violations += _orders(database, history.told)
    found.violations += _one_shots(database)
    found.violations += _reports(database)
    found.violations += _runs_end_before_their_rows(database)
    found.violations += _repeats(calls, history.struck)
    lifecycle = judge_lifecycle(database, paired(history.observed), history.struck)
    found.violations += [f"{LIFE}: {line}" for line in lifecycle.violations]
    found.figures.update(lifecycle.figures)
    found.longest_leases, found.longest_effect = _longest(database, calls, history)
    return found


def _prepared(database: Database[dict[str, Any]], tenant: str, history: History) -> frozenset[str]:
    stored = database["board_events"].find({"tenant_id": tenant, "event_id": {"$in": sorted(history.prepared)}})
    return frozenset(event["event_id"] for event in stored)


def _rules(tenant: str, counted: Counter[str], repeats: int) -> tuple[Rule, ...]:
    match tenant:
        case _ if tenant in SHOPS:
            order = frozenset({"order"})
            often = Rule(sub_id="counted", types=order, promise=Promise.EXACTLY_ONCE, count=counted.__getitem__)
            shaky = Rule(
                sub_id="shaky", types=frozenset({"shaky"}), repeats=repeats, rests=frozenset({DELIVERED, _FAILED})
            )
            others = (Rule(sub_id=name, types=frozenset({name}), repeats=repeats) for name in ("later", "slow"))
            return (Rule(sub_id="plain", types=order, repeats=repeats), often, shaky, *others)
        case _ if tenant == BOARD:
            stamp = Rule(
                sub_id="promote",
                types=frozenset({"card"}),
                promise=Promise.RUNS_NOTHING,
                rests=frozenset({_PROMOTED}),
            )
            return (stamp, Rule(sub_id=PROJECTION, repeats=repeats))
        case _ if tenant == SHOTS:
            return (
                Rule(
                    sub_id="shot",
                    types=frozenset({"card"}),
                    repeats=repeats,
                    rests=frozenset({DELIVERED, _SPENT}),
                ),
            )
        case _ if tenant == LIFE:
            return ()
        case _:
            return (Rule(sub_id="any", repeats=repeats),)


def _orders(database: Database[dict[str, Any]], told: Mapping[str, Told]) -> Iterator[str]:
    """Check what an application wrote beside an event is there exactly where the event is."""
    orders = {order["_id"] for order in database[ORDERS].find({}, {"_id": 1})}
    for shop in SHOPS:
        events = {event["event_id"] for event in database["board_events"].find({"tenant_id": shop}, {"event_id": 1})}
        beside = {event_id for event_id, how in told[shop].asked.items() if how in {"transaction", "session"}}
        for event_id in sorted(beside):
            if (event_id in events) != (event_id in orders):
                there, not_there = ("event", "order") if event_id in events else ("order", "event")
                yield f"{shop}: {event_id}: its {there} is there, its {not_there} is not"


def _one_shots(database: Database[dict[str, Any]]) -> Iterator[str]:
    """Check each time that the label was put on launched once, but where it is still on the card."""
    armed = Counter(
        event["subject"]
        for event in database["board_events"].find({"tenant_id": SHOTS, "action": "labeled"}, {"subject": 1})
    )
    launched: Counter[str] = Counter()
    events = {event["event_id"]: event for event in database["board_events"].find({"tenant_id": SHOTS})}
    for row in database["trigger_effects"].find({"tenant_id": SHOTS, "outcome": "delivered"}):
        launched[events[row["event_id"]]["subject"]] += 1
    for card in database["board_cards"].find({"tenant_id": SHOTS}):
        subject = card.get("card_id", card["_id"])
        left = len(card.get("labels") or [])
        if armed[subject] != launched[subject] + left:
            yield f"shots: {subject} was armed {armed[subject]} times, launched {launched[subject]}, {left} are left"


def _reports(database: Database[dict[str, Any]]) -> Iterator[str]:
    """Check an event that a transactional bot appended is there once for each launch that appends one."""
    for shop in SHOPS:
        log = list(
            database["board_events"].find({"tenant_id": shop}, {"event_id": 1, "type": 1, "seq": 1, "subject": 1})
        )
        told = Counter(event["subject"] for event in log if event.get("type") == "report")
        owed = {event["event_id"] for event in log if event.get("type") == "order" and event["seq"] % 10 == 0}
        for event_id in sorted(owed | told.keys()):
            if told[event_id] != int(event_id in owed):
                yield f"{shop}: {event_id} was reported on {told[event_id]} times, {int(event_id in owed)} are owed"


def _runs_end_before_their_rows(database: Database[dict[str, Any]]) -> Iterator[str]:
    """Check no row was settled while the run that its claim was for went on: somebody else's write did that."""
    rows = {
        row["_id"]: row
        for row in database["trigger_effects"].find(
            {"state": "done", "outcome": "delivered"}, {"claim_id": 1, "done_at": 1}
        )
    }
    for run in database["runs"].find({"finished_at": {"$type": "date"}}):
        row = rows.get(run["_id"])
        if row is not None and run["claim_id"] == row["claim_id"] and run["finished_at"] > row["done_at"]:
            late = (run["finished_at"] - row["done_at"]).total_seconds()
            yield f"{run['_id']} was done {late:.3f} s before the run of its own claim ended: a stale write settled it"


def _repeats(calls: Sequence[Call], struck: Sequence[Struck]) -> Iterator[str]:
    """Check each repeat of a call that came to its end has a cause: its process or the database was struck.

    A transactional one comes to its end before its commit, which others may undo: there the database tells.
    """
    by_effect: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if not call.what.endswith("|counted"):
            by_effect[call.what].append(call)
    for mine in by_effect.values():
        yield from unprovoked(mine, struck)


def _longest(database: Database[dict[str, Any]], calls: Sequence[Call], history: History) -> tuple[float, str]:
    """Return the longest time from a kill to the completion of what it struck, in leases, and of which effect."""
    longest, which = 0.0, ""
    for killed in history.killed:
        struck = {call.what for call in calls if call.pid in killed.pids and call.was_running(killed.at)}
        for row in database["trigger_effects"].find({"_id": {"$in": sorted(struck)}}):
            over = (row.get("done_at") or row["updated_at"]).timestamp()
            if (leases := (over - killed.at) / history.lease_s) > longest:
                longest, which = leases, row["_id"]
    return longest, which
