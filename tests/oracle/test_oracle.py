"""The judge is judged: a good history passes, and each check condemns a history that was doctored against it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.oracle import (
    DELIVERED,
    PROJECTION,
    Evidence,
    Execution,
    Promise,
    Rest,
    Rule,
    database_reader,
    judge,
    judge_progress,
)
from tests.oracle.judge import AT_ANY_MOMENT, AT_REST
from tests.oracle.stored import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.harness.on_mongo import MongoHarness
    from tests.oracle import Reader

AT = datetime(2026, 1, 1, tzinfo=UTC)
Stores = dict[str, dict[str, dict[str, Any]]]


def event(seq: int, event_id: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a document
    return {
        "_id": f"acme|{event_id}",
        "tenant_id": "acme",
        "seq": seq,
        "event_id": event_id,
        "source": "app",
        "type": "thing",
        **more,
    }


def row(event_id: str, sub_id: str, seq: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a document
    return {
        "_id": f"acme|{event_id}|{sub_id}",
        "tenant_id": "acme",
        "seq": seq,
        "event_id": event_id,
        "sub_id": sub_id,
        "kind": "launch",
        "state": "done",
        "outcome": "delivered",
        "attempts": 0,
        "claims": 1,
        "claim_id": "k1",
        "done_at": AT,
        **more,
    }


def run(event_id: str, sub_id: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a document
    key = f"acme|{event_id}|{sub_id}"
    return {"_id": key, "tenant_id": "acme", "claims": 1, "claim_id": "k1", "finished_at": AT, "error": None, **more}


def entry(entry_id: str, follows: str, first: int, last: int, rows: int, *skips: int) -> dict[str, Any]:
    return {
        "_id": f"acme|{entry_id}",
        "tenant_id": "acme",
        "entry_id": entry_id,
        "follows": follows,
        "first_seq": first,
        "last_seq": last,
        "rows": rows,
        "skips": [{"seq": seq, "reason": "void"} for seq in skips],
    }


def good() -> Stores:
    """A plain launch, one that is transactional and appends `filed`, one that fails, a move, a hole, a broken event."""
    move = {"source": "board", "type": "move", "snapshot": {"from_state": "todo", "board": "b"}}
    tombstone = {"_id": "acme|#void.3", "tenant_id": "acme", "seq": 3, "event_id": "#void.3", "void": True}
    documents: dict[str, list[dict[str, Any]]] = {
        "event_sequences": [{"_id": "acme", "tenant_id": "acme", "last_seq": 6, "undrained": False}],
        "trigger_cursors": [{"_id": "acme", "tenant_id": "acme", "seq": 6, "rev": 2, "entry_id": "j2"}],
        "drain_journal": [
            entry("j1", "", 1, 3, 3, 3),
            entry("j2", "j1", 4, 6, 2, 5),
            entry("lost the race", "j1", 4, 5, 1),
        ],
        "board_events": [
            event(1, "a"),
            event(2, "m", **move),
            tombstone,
            event(4, "b", type="fails"),
            event(5, "broken", type=17),
            event(6, "filed-a", type="filed"),
        ],
        "trigger_effects": [
            row("a", "plain", 1),
            row("a", "exact", 1),
            {**row("m", PROJECTION, 2, kind="projection"), "sub_id": ""},
            row("b", "fails", 4, state="failed", last_error="no", attempts=5, claims=5, outcome=None, done_at=None),
            {**row("x", "y", 5), "_id": "acme|#event|acme|broken", "kind": "dead_event", "event_id": "", "sub_id": ""},
        ],
        "runs": [run("a", "plain"), run("a", "exact"), run("b", "fails", claims=5, error="no")],
    }
    documents["trigger_effects"][-1] |= {"state": "failed", "last_error": "does not decode", "claims": 0}
    return {name: {one["_id"]: one for one in found} for name, found in documents.items()}


def reader(stores: Stores) -> Reader:
    return lambda collection: list(stores.get(collection, {}).values())


def evidence(stores: Stores) -> Evidence:
    def filed(effect_id: str) -> int:
        name = "filed-" + effect_id.split("|")[1]
        return sum(one["event_id"] == name for one in stores["board_events"].values())

    parks = Rest("failed")
    return Evidence(
        tenant="acme",
        rules=(
            Rule(sub_id="plain", types=frozenset({"thing"})),
            Rule(sub_id="exact", types=frozenset({"thing"}), promise=Promise.EXACTLY_ONCE, count=filed),
            Rule(sub_id="fails", types=frozenset({"fails"}), rests=frozenset({parks})),
            Rule(sub_id=PROJECTION),
        ),
        acknowledged=frozenset({"a", "m", "b", "broken"}),
        unclear=frozenset({"never came"}),
        refused=frozenset({"refused"}),
        bots_append=frozenset({"filed"}),
        broken=frozenset({"acme|broken"}),
        executions=(
            Execution(effect_id="acme|a|plain", ended=False),
            Execution(effect_id="acme|m|#projection"),
            *(Execution(effect_id="acme|b|fails", attempt=n, failed=True) for n in range(1, 6)),
        ),
    )


def ran(*more: Execution, **fields: Any) -> Callable[[Evidence], Evidence]:  # noqa: ANN401 - of the evidence
    base = (Execution(effect_id="acme|a|plain"), Execution(effect_id="acme|m|#projection"))
    return lambda told: replace(told, executions=(*base, *more), **fields)


def test_a_good_history_passes_and_its_figures_are_told() -> None:
    stores = good()
    verdict = judge(reader(stores), ran()(evidence(stores)))
    assert verdict.violations == ()
    assert verdict.holds
    figures = verdict.require("good")
    assert (figures.events, figures.tombstones, figures.executions, figures.repeats) == (4, 1, 2, 0)
    assert figures.effects == {"done:delivered": 3, "failed": 2}
    assert (figures.attempts, figures.claims) == (5, 8)


def doctored(collection: str, key: str, **fields: Any) -> Callable[[Stores], object]:  # noqa: ANN401 - of a document
    return lambda stores: stores[collection][key].update(fields)


def without(collection: str, key: str) -> Callable[[Stores], object]:
    return lambda stores: stores[collection].pop(key)


def added(collection: str, document: dict[str, Any]) -> Callable[[Stores], object]:
    return lambda stores: stores[collection].update({document["_id"]: deepcopy(document)})


def both(*changes: Callable[[Stores], object]) -> Callable[[Stores], object]:
    return lambda stores: [change(stores) for change in changes]


PLAIN, EXACT, MOVE = "acme|a|plain", "acme|a|exact", "acme|m|#projection"
AGAIN = replace(Execution(effect_id=PLAIN), attempt=2)

DOCTORED: dict[str, tuple[Callable[[Stores], object], str]] = {
    "an acknowledged event is lost": (without("board_events", "acme|b"), "event b was acknowledged and is stored 0"),
    "an acknowledged event is stored twice": (
        added("board_events", {**event(7, "b"), "_id": "again"}),
        "event b was acknowledged and is stored 2",
    ),
    "an unclear event is stored twice": (
        both(
            added("board_events", event(7, "never came")), added("board_events", {**event(8, "never came"), "_id": "2"})
        ),
        "event never came, whose append was unclear, is stored 2 times",
    ),
    "a refused event is stored": (added("board_events", event(7, "refused")), "event refused was refused"),
    "an event came from nowhere": (
        added("board_events", event(7, "forged")),
        "forged at 7 is one that nobody appended",
    ),
    "a bot's event is stored twice": (
        added("board_events", {**event(7, "filed-a", type="filed"), "_id": "again"}),
        "event filed-a of a bot is stored 2 times",
    ),
    "a number is given twice": (doctored("board_events", "acme|m", seq=1), "number 1 is given twice, to a, m"),
    "a number was not given out": (
        doctored("board_events", "acme|filed-a", seq=9),
        "stands at 9, a number that was not",
    ),
    "a number is no number": (
        doctored("board_events", "acme|filed-a", seq="6"),
        "stands at '6', a number that was not",
    ),
    "the cursor passed a hole": (without("board_events", "acme|#void.3"), "past number 3, which holds nothing"),
    "the cursor is past the counter": (doctored("trigger_cursors", "acme", seq=7), "past the last number given out, 6"),
    "the cursor passed an event without its row": (
        without("trigger_effects", PLAIN),
        "past event a at 1, and its row for plain is not there",
    ),
    "a broken event is not recorded": (
        without("trigger_effects", "acme|#event|acme|broken"),
        "past acme|broken, which is not recorded as dead",
    ),
    "the flag was cleared over an event": (doctored("event_sequences", "acme", last_seq=7), "between is stranded"),
    "something is not drained": (
        doctored("event_sequences", "acme", last_seq=7, undrained=True),
        "at rest the cursor stands at 6, and 7 numbers",
    ),
    "the flag stays set": (doctored("event_sequences", "acme", undrained=True), "at rest the undrained flag is set"),
    "a journal entry is gone": (without("drain_journal", "acme|j1"), "entry j1 counted, and is not there"),
    "the journal turns in a circle": (doctored("drain_journal", "acme|j1", follows="j2"), "is in a circle"),
    "the journal leaves numbers out": (
        doctored("drain_journal", "acme|j2", first_seq=5),
        "begins at 5, where 4 is next",
    ),
    "the journal ends too early": (doctored("trigger_cursors", "acme", entry_id="j1"), "the journal ends at 3"),
    "the journal tells of too many rows": (doctored("drain_journal", "acme|j2", rows=3), "tells of 3 rows, where 2"),
    "the journal leaves a skip out": (
        doctored("drain_journal", "acme|j1", skips=[]),
        "does not tell that acme|#void.3",
    ),
    "a row is lost": (without("trigger_effects", MOVE), "event m owes #projection a row, and there is none"),
    "a row is there that nothing owes": (
        added("trigger_effects", row("b", "plain", 4)),
        "acme|b|plain is there, and no",
    ),
    "a row is of another kind": (doctored("trigger_effects", MOVE, kind="launch"), f"effect {MOVE} is of ('launch'"),
    "a row is of another number": (
        doctored("trigger_effects", PLAIN, seq=2),
        f"effect {PLAIN} is of ('launch', 'a', 'plain', 2)",
    ),
    "a dead event runs": (
        doctored("trigger_effects", "acme|#event|acme|broken", state="pending"),
        "is a dead_event that is pending",
    ),
    "a row names another tenant": (
        doctored("trigger_effects", PLAIN, tenant_id="other"),
        f"effect {PLAIN} names tenant 'other'",
    ),
    "a row stands under another tenant's key": (
        added("trigger_effects", {**row("a", "plain", 1), "_id": "other|a|plain"}),
        "effect other|a|plain names tenant 'acme'",
    ),
    "a row is still claimed": (doctored("trigger_effects", PLAIN, state="claimed"), "is still claimed at rest"),
    "a row is still pending": (doctored("trigger_effects", MOVE, state="pending"), "is still pending at rest"),
    "a done row does not say why": (doctored("trigger_effects", PLAIN, outcome=None), "is done and does not say why"),
    "a row failed that should not": (
        doctored("trigger_effects", PLAIN, state="failed", last_error="x"),
        "rests as failed:, which plain does not allow",
    ),
    "a row was dropped that should not": (
        doctored("trigger_effects", PLAIN, outcome="subscription_disabled"),
        "rests as done:subscription_disabled, which plain",
    ),
    "a row that should fail is done": (
        doctored("trigger_effects", "acme|b|fails", state="done", outcome="delivered", done_at=AT),
        "rests as done:delivered, which fails does not allow",
    ),
    "a done row has no time": (doctored("trigger_effects", PLAIN, done_at=None), "is done without its time"),
    "a done row has no claim": (doctored("trigger_effects", MOVE, claim_id=None), "or without the claim that did it"),
    "a failed row has no error": (
        doctored("trigger_effects", "acme|b|fails", last_error=""),
        "failed without an error",
    ),
    "a row spent too many attempts": (
        doctored("trigger_effects", "acme|b|fails", attempts=6, claims=6),
        "spent 6 attempts of 5",
    ),
    "a row spent more attempts than claims": (doctored("trigger_effects", PLAIN, attempts=1), "spent 1 attempts in 1"),
    "a bot ran without a claim": (doctored("trigger_effects", MOVE, claims=0), "was executed 1 times in 0 claims"),
    "a transactional effect happened twice": (
        added("board_events", {**event(7, "filed-a", type="filed"), "_id": "again"}),
        f"effect {EXACT} is done, and happened 2 times",
    ),
    "a transactional effect is lost": (
        without("board_events", "acme|filed-a"),
        f"effect {EXACT} is done, and happened 0",
    ),
    "a transactional effect happened and its row failed": (
        doctored("trigger_effects", EXACT, state="failed", last_error="x"),
        f"effect {EXACT} is failed, and happened 1 times",
    ),
    "a delivered launch has no run": (without("runs", PLAIN), f"effect {PLAIN} is delivered, and has no run"),
    "a delivered launch's run tells of an error": (doctored("runs", PLAIN, error="x"), "its run tells of an error"),
    "a run is of another claim": (doctored("runs", PLAIN, claim_id="k2"), "is of claim k2, its row of k1"),
    "a run is of a newer claim": (doctored("runs", PLAIN, claims=2), "is of claim 2, and the row was claimed 1 times"),
    "a run has no row": (added("runs", run("gone", "plain")), "the run acme|gone|plain has no row"),
}


@pytest.mark.parametrize("what", DOCTORED)
def test_a_doctored_history_is_condemned(what: str) -> None:
    change, said = DOCTORED[what]
    stores = good()
    told = ran()(evidence(stores))
    change(stores)
    verdict = judge(reader(stores), told)
    assert any(said in line for line in verdict.violations), verdict.violations
    assert all("\n" not in line for line in verdict.violations)
    with pytest.raises(AssertionError, match="promises are broken"):
        verdict.require(what)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (ran(AGAIN), f"effect {PLAIN} was repeated 1 times, where 0 are allowed"),
        (ran(AGAIN, repeats_in_all=0), "1 executions of effects are repeats, where 0 are allowed in all"),
        (lambda given: given, f"effect {PLAIN} is delivered, and no execution of it came to its end"),
        (ran(Execution(effect_id="acme|nobody|plain", actor="w1")), "was executed by w1, and has no row"),
        (ran(replace(AGAIN, attempt=6, ended=False)), "was executed as attempt 6 of 5"),
        (ran(replace(AGAIN, ended=False)), f"effect {PLAIN} was executed 2 times in 1 claims"),
    ],
)
def test_executions_that_break_their_promise_are_condemned(told: Callable[[Evidence], Evidence], said: str) -> None:
    stores = good()
    violations = judge(reader(stores), told(evidence(stores))).violations
    assert any(said in line for line in violations), violations


def test_a_row_that_was_written_by_hand_must_end_as_failed_and_unrun() -> None:
    stores = good()
    forged = {**row("f", "plain", 1, state="failed", last_error="refused", outcome=None), "_id": "other|f|plain"}
    stores["trigger_effects"]["other|f|plain"] = forged
    told = ran(forged=frozenset({"other|f|plain"}))(evidence(stores))
    assert judge(reader(stores), told).violations == ()
    forged |= {"state": "done", "outcome": "delivered"}
    executed = ran(Execution(effect_id="other|f|plain"), forged=frozenset({"other|f|plain"}))(evidence(stores))
    assert judge(reader(stores), executed).violations == (
        "effect other|f|plain was written by hand and is done, where it must be failed",
        "effect other|f|plain was written by hand, and was executed",
    )


def test_a_row_that_was_parked_late_counts_an_attempt_for_each_worker_that_died_parking_it() -> None:
    stores = good()
    stores["trigger_effects"]["acme|b|fails"] |= {"attempts": 6, "claims": 6}
    assert judge(reader(stores), ran(deaths=1)(evidence(stores))).violations == ()
    assert judge(reader(stores), ran()(evidence(stores))).violations == ("effect acme|b|fails spent 6 attempts of 5",)
    stores["trigger_effects"][PLAIN] |= {"attempts": 6, "claims": 7}
    assert judge(reader(stores), ran(deaths=1)(evidence(stores))).violations == (
        f"effect {PLAIN} spent 6 attempts of 5",
    )


def test_what_runs_nothing_must_not_run() -> None:
    stores = good()
    rules = tuple(
        replace(rule, promise=Promise.RUNS_NOTHING) if rule.sub_id == "plain" else rule
        for rule in evidence(stores).rules
    )
    violations = judge(reader(stores), ran(rules=rules)(evidence(stores))).violations
    assert violations == (f"effect {PLAIN} was executed, and its rule runs nothing",)


def test_what_may_be_repeated_may_be_and_an_earlier_claims_run_may_stand() -> None:
    """A worker wrote the run and died before the row: the next claim settles by the record, and repeats nothing."""
    stores = good()
    stores["trigger_effects"][PLAIN] |= {"claims": 2, "claim_id": "k2", "attempts": 1}
    told = ran(AGAIN, repeats_in_all=1)(evidence(stores))
    rules = tuple(replace(rule, repeats=1) for rule in told.rules)
    assert judge(reader(stores), replace(told, rules=rules)).violations == ()
    assert judge(reader(stores), replace(told, may_repeat=frozenset({PLAIN}))).violations == ()
    assert judge(reader(stores), replace(told, may_repeat=frozenset({MOVE}))).violations != ()


def test_what_owes_nothing_is_owed_nothing() -> None:
    stores = good()
    for key, fields in (("acme|a", {"run_id": "r"}), ("acme|b", {"reason": "watchdog"}), ("acme|m", {})):
        stores["board_events"][key] |= fields
    told = ran(owes_nothing=frozenset({"m"}))(evidence(stores))
    lines = [line for line in judge(reader(stores), told).violations if "no event owes it" in line]
    assert lines == [
        f"effect {key} is there, and no event owes it" for key in sorted((PLAIN, EXACT, MOVE, "acme|b|fails"))
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (DOCTORED["the cursor passed a hole"]),
        (DOCTORED["the cursor passed an event without its row"]),
        (DOCTORED["a broken event is not recorded"]),
        (DOCTORED["the flag was cleared over an event"]),
    ],
)
def test_what_must_never_be_is_condemned_at_any_moment(change: Callable[[Stores], object], said: str) -> None:
    stores = good()
    told = evidence(stores)
    assert judge_progress(reader(stores), told).violations == ()
    change(stores)
    assert any(said in line for line in judge_progress(reader(stores), told).violations)


def test_what_is_on_its_way_is_no_fault_before_it_rests() -> None:
    """Drained to 3 of 6, one row claimed, the rest not there yet."""
    stores = good()
    stores["event_sequences"]["acme"] |= {"undrained": True}
    stores["trigger_cursors"]["acme"] |= {"seq": 3, "entry_id": "j1"}
    stores["trigger_effects"][PLAIN] |= {"state": "claimed"}
    stores["trigger_effects"].pop("acme|b|fails")
    told = ran()(evidence(stores))
    assert judge_progress(reader(stores), told).violations == ()
    assert len(judge(reader(stores), told).violations) >= 3


def test_every_check_condemns_something() -> None:
    """A check that no doctored history breaks would be worthless."""
    condemning = set()
    for change, _ in DOCTORED.values():
        stores = good()
        told = ran(AGAIN)(evidence(stores))
        change(stores)
        condemning |= {check for check in AT_REST if _lines(check, stores, told)}
    assert condemning == set(AT_REST)
    assert set(AT_ANY_MOMENT) < set(AT_REST)


def _lines(check: Callable[..., Iterable[str]], stores: Stores, told: Evidence) -> list[str]:
    return list(check(Stored(reader(stores), told)))


def test_an_exact_promise_without_a_way_to_count_is_refused() -> None:
    with pytest.raises(ValueError, match="way to count"):
        Rule(sub_id="s", promise=Promise.EXACTLY_ONCE)
    with pytest.raises(ValueError, match="way to count"):
        Rule(sub_id="s", count=lambda _: 1)
    assert DELIVERED in Rule(sub_id="s").rests


def test_the_oracle_reads_a_real_database_and_one_tenant_of_it(mongo_harness: MongoHarness) -> None:
    stores = good()
    for collection, documents in stores.items():
        for document in documents.values():
            mongo_harness.put_raw(collection, document)
    foreign = {**row("a", "plain", 1), "_id": "other|a|plain", "tenant_id": "other"}
    mongo_harness.put_raw("trigger_effects", foreign)
    read = database_reader(mongo_harness.database, "acme")
    assert judge(read, ran()(evidence(stores))).violations == ()
    mongo_harness.put_raw("trigger_effects", {**stores["trigger_effects"][PLAIN], "tenant_id": "other"})
    violations = judge(read, ran()(evidence(stores))).violations
    assert f"effect {PLAIN} names tenant 'other', where tenant 'acme' is judged" in violations
