"""Who plays against whom: each cast prepares a stage and returns how it is judged at rest."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.append_events import append_events
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.enable_subscription import enable_subscription
from outbox_core.application.label_card import label_card
from outbox_core.application.repair_undrained import repair_undrained
from outbox_core.application.run_in_transaction import run_in_transaction
from outbox_core.application.run_slice import run_slice
from outbox_core.application.run_turn import run_turn
from outbox_core.domain.board import Card
from outbox_core.domain.board_input import Cause
from outbox_core.domain.bot import Bot
from tests.harness.base import ACME
from tests.harness.examples import new_event, subscription
from tests.harness.faults import with_calls
from tests.oracle import DELIVERED, Evidence, Promise, Rest, Rule, judge_progress
from tests.simulation.interleave.cast import AN_HOUR, BEAT, GRACE, LEASE, cast
from tests.simulation.interleave.scheduler import Budget
from tests.simulation.play import append, drain_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.bot import Run
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from tests.simulation.interleave.cast import Judge, Play
    from tests.simulation.interleave.stage import Stage


def unslotted(store: TenantStore) -> TenantStore:
    """Return the handle with slots that are always free: nothing may hang on them, and races then meet more often."""
    entered = with_calls(store, "progress", enter=lambda *_: (store.progress.load(), "slot"))
    return with_calls(
        entered,
        "slots",
        take=lambda *_: "slot",
        rotate=lambda *_: "slot",
        extend=lambda *_: True,
        give_back=lambda *_: False,
    )


def appends(stage: Stage, *event_ids: str, **more: Any) -> Play:  # noqa: ANN401 - as new_event's
    """Return a writer that appends until it has its answer."""

    def played(store: TenantStore, runtime: Runtime) -> None:
        stage.unclear.update(event_ids)
        append_events(store, runtime, [new_event(event_id, **more) for event_id in event_ids])
        stage.acknowledged.update(event_ids)

    return played


def appended(stage: Stage, *event_ids: str, **more: Any) -> None:  # noqa: ANN401 - as new_event's
    """Have events in the log before anybody plays."""
    stage.acknowledged.update(event_ids)
    stage.at_first(lambda first: append(first.store, first.runtime(), *event_ids, **more))


def carded(stage: Stage, *labels: str) -> None:
    """Have a card with labels before anybody plays."""

    def put(first: Stage) -> None:
        with first.store.transactions.begin() as transaction:
            first.store.cards.put(Card(tenant_id=ACME, card_id="c1", labels=labels), transaction)
            transaction.commit()

    stage.at_first(put)


def materialized(stage: Stage, *event_ids: str, **more: Any) -> None:  # noqa: ANN401 - as new_event's
    """Bring events to their rows before anybody plays."""
    appended(stage, *event_ids, **more)
    stage.at_first(lambda first: drain_whole(first.store, first.runtime()))
    stage.at_first(lambda first: first.harness.change("tenant_slots", ACME, slice=[]))


def rule(stage: Stage, sub_id: str = "s", *, promised: Rule | None = None, **more: Any) -> None:  # noqa: ANN401
    """Make a subscription, and tell the oracle what it owes."""
    stage.at_first(lambda first: add_subscription(first.store, subscription(sub_id, **more)))
    stage.rules += (promised or Rule(sub_id=sub_id),)


def at_rest(stage: Stage, **evidence: Any) -> Judge:  # noqa: ANN401 - the oracle's evidence
    def judge() -> None:
        stage.come_to_rest()
        stage.judge(**evidence)

    return judge


@cast(Budget(waits=1, times=(GRACE, GRACE)))
def two_drains_and_a_late_writer(stage: Stage) -> Judge:
    """A hole, its filling, and the writer that lands before, in, or after it (E03, E04, E13, E46)."""
    rule(stage)
    appended(stage, "early")
    stage.actor("writer", appends(stage, "late"), skew=AN_HOUR)
    stage.actor("drain-1", drain_tenant, change=unslotted)
    stage.actor("drain-2", drain_tenant, skew=-AN_HOUR, change=unslotted)
    return at_rest(stage)


@cast(Budget(waits=0))
def two_drains_and_a_worker(stage: Stage) -> Judge:
    """A drain that comes late to a row that is claimed or done leaves it as it is (E12, E13)."""
    rule(stage)
    appended(stage, "a", "b")
    for number in (1, 2):
        stage.actor(f"drain-{number}", drain_tenant, change=unslotted)
    stage.actor("worker", run_slice, change=unslotted)
    return at_rest(stage)


@cast(Budget(waits=0))
def two_turns_and_a_worker(stage: Stage) -> Judge:
    """Of two turns that materialize the same events each runs what it made itself, and no other (E12, E13, E25)."""
    rule(stage)
    appended(stage, "a", "b")
    for number in (1, 2):
        stage.actor(f"turn-{number}", run_turn, change=unslotted)
    stage.actor("worker", run_slice, change=unslotted)
    return at_rest(stage)


@cast(Budget(waits=0, times=(LEASE,)), transient=True)
def a_turn_that_stalls_and_a_reclaimer(stage: Stage) -> Judge:
    """What a turn let be born is another's once its lease is over, and the turn writes nothing then (E26, E28)."""
    rule(stage)
    appended(stage, "a")
    stage.actor("turn", run_turn, skew=AN_HOUR, change=unslotted)
    stage.actor("reclaimer", run_slice, skew=-AN_HOUR, change=unslotted)
    return at_rest(stage)


@cast(Budget(waits=0))
def a_turn_and_a_drain_and_a_late_append(stage: Stage) -> Judge:
    """A turn that loses its cursor to a drain still runs the rows that it made (E13, E16)."""
    rule(stage)
    appended(stage, "a")
    stage.actor("turn", run_turn, change=unslotted)
    stage.actor("drain", drain_tenant, change=unslotted)
    stage.actor("writer", appends(stage, "b"))
    return at_rest(stage)


@cast(Budget(waits=1))
def appends_race_the_clearing_of_the_flag(stage: Stage) -> Judge:
    """Whatever is appended is drained by hints alone: no tick comes, and no time passes (E16)."""
    rule(stage)
    appended(stage, "early")
    stage.actor("writer-1", appends(stage, "a"))
    stage.actor("writer-2", appends(stage, "b"))
    stage.actor("drain", drain_tenant)
    stage.listener("listener")
    return woken(stage)


@cast(Budget(waits=1, times=(GRACE,)))
def repair_races_an_append_and_a_drain(stage: Stage) -> Judge:
    """The slow tick sets flags while a drain clears them (E16)."""
    rule(stage)
    appended(stage, "early")
    stage.at_first(lambda first: first.harness.change("event_sequences", ACME, undrained=False))
    stage.actor("writer", appends(stage, "a"))
    stage.actor("repair", lambda _, runtime: repair_undrained(stage.stores["repair"], runtime))
    stage.actor("drain", drain_tenant, change=unslotted)
    stage.flag_was_wrong = True

    def judge() -> None:
        if stage.scheduler.undisturbed:
            judge_progress(stage.read, Evidence(tenant=ACME, rules=stage.rules)).require("after the repair")
        stage.come_to_rest()
        stage.judge()

    return judge


@cast(Budget(waits=0, times=(timedelta(seconds=5),) * 2), poison_ticks=2)
def two_drains_before_an_event_that_fails(stage: Stage) -> Judge:
    """Poison is counted once an interval, whoever counts, and parks once (E15)."""
    # The oracle knows no event that is passed for failing: it is asked for the good one alone.
    rule(stage, promised=Rule(sub_id="s", types=frozenset({"thing"})))
    appended(stage, "good")
    appended(stage, "bad", type="bad")

    def failing(store: TenantStore) -> TenantStore:
        def check(effect: Any) -> None:  # noqa: ANN401 - a NewEffect
            if effect.event_id == "bad" and effect.kind == "launch":
                raise RuntimeError("fails every time")

        return with_calls(unslotted(store), "effects", check=check)

    for number in (1, 2):
        stage.actor(f"drain-{number}", drain_tenant, change=failing)

    def judge() -> None:
        counts = [count for row in stage.harness.raw("trigger_cursors") for count in row.get("poison", {}).values()]
        passed = stage.harness.server_clock.monotonic() // 5
        assert sum(counts) <= passed + 1, f"{counts} counted in {passed} intervals"
        parked = [row for row in stage.harness.raw("trigger_effects") if row["kind"] == "dead_event"]
        assert len(parked) <= 1
        assert not parked or passed >= 1

    return judge


@cast(Budget(waits=0), claim_batch=2)
def three_claimers_of_three_rows(stage: Stage) -> Judge:
    """While leases live, each row runs once (E25)."""
    rule(stage)
    materialized(stage, "a", "b", "c")
    for number, skew in ((1, AN_HOUR), (2, 0.0), (3, -AN_HOUR)):
        stage.actor(f"worker-{number}", run_slice, skew=skew, change=unslotted)
    return at_rest(stage)


@cast(Budget(waits=0, times=(LEASE,)))
def a_stale_claimer_settles_late(stage: Stage) -> Judge:
    """One stalls beyond its lease, another reclaims; the late one is fenced out (E26, E27, E28)."""
    rule(stage)
    materialized(stage, "a", "b")
    stage.actor("worker-1", run_slice, skew=AN_HOUR, rate=1.001, change=unslotted)
    stage.actor("worker-2", run_slice, skew=-AN_HOUR, rate=0.999, change=unslotted)
    return at_rest(stage)


@cast(Budget(waits=1, times=(LEASE,)), transient=True)
def a_stale_claimer_of_a_transactional_launch(stage: Stage) -> Judge:
    """It happens exactly once, whoever stalls where (E37)."""
    _transactional(stage)
    materialized(stage, "a")
    stage.actor("worker-1", run_slice, skew=AN_HOUR, change=unslotted)
    stage.actor("worker-2", run_slice, skew=-AN_HOUR, change=unslotted)
    return at_rest(stage, bots_append=frozenset({"filed"}))


@cast(Budget(waits=1, times=(GRACE,)), transient=True)
def a_transactional_launch_and_two_drains(stage: Stage) -> Judge:
    """The launch's own number is a hole until it commits; the drains wait, or fill it (E02, E04, E37)."""
    _transactional(stage)
    materialized(stage, "a")
    stage.actor("worker", run_slice, change=unslotted)
    stage.actor("drain-1", drain_tenant, change=unslotted)
    stage.actor("drain-2", drain_tenant, change=unslotted)
    return at_rest(stage, bots_append=frozenset({"filed"}))


@cast(Budget(waits=0, times=(BEAT, BEAT, BEAT)))
def a_long_bot_its_heart_and_a_reclaimer(stage: Stage) -> Judge:
    """The heart renews while the bot runs; stalled beyond the lease, the row is another's (E31, E32)."""
    rule(stage)
    materialized(stage, "a")
    stage.actor("worker-1", run_slice, skew=AN_HOUR, change=unslotted)
    stage.actor("worker-2", run_slice, skew=-AN_HOUR, change=unslotted)
    return at_rest(stage)


@cast(Budget(waits=0, times=(LEASE,)), transient=True)
def a_one_shot_whose_label_comes_back(stage: Stage) -> Judge:
    """A worker stalls before its consume, the label returns for another effect, then it wakes (E36)."""
    terms: dict[str, Any] = {"sources": ("board",), "labels": ("go",), "consume_labels": ("go",)}
    spent = Rest("done", "label_spent_by_another")
    rests = frozenset({DELIVERED, spent})
    rule(stage, promised=Rule(sub_id="s", types=frozenset({"thing", "card"}), rests=rests), **terms)
    carded(stage, "go", "keep")
    materialized(stage, "a", source="board", subject="c1", labels=("go",), action="labeled")

    def label(store: TenantStore, runtime: Runtime) -> None:
        stage.unclear.add("again")
        label_card(store, runtime, "c1", Cause(event_id="again"), add=["go"])
        drain_tenant(unslotted(store), runtime)

    stage.actor("worker-1", run_slice, skew=AN_HOUR, change=unslotted)
    stage.actor("worker-2", run_slice, skew=-AN_HOUR, change=unslotted)
    stage.actor("person", label)

    def judge() -> None:
        stage.come_to_rest()
        stage.judge()
        # The label was added, and told of, in one transaction, or it was on the card still.
        arms = 1 + len(stage.store.log.find(["again"]))
        outcomes = [row["outcome"] for row in stage.harness.raw("trigger_effects")]
        assert outcomes.count("delivered") == arms, f"armed {arms} times, launched {outcomes}"
        assert stage.store.cards.get("c1").labels == ("keep",)

    return judge


@cast(Budget(waits=0, times=(LEASE,)), transient=True)
def two_one_shots_of_one_label(stage: Stage) -> Judge:
    """Two effects want one label: one launches, the other is dropped, whatever they repeat (E36)."""
    terms: dict[str, Any] = {"sources": ("board",), "labels": ("go",), "consume_labels": ("go",)}
    rests = frozenset({DELIVERED, Rest("done", "label_spent_by_another")})
    for sub_id in ("s", "t"):
        rule(stage, sub_id, promised=Rule(sub_id=sub_id, rests=rests), **terms)
    carded(stage, "go")
    materialized(stage, "a", source="board", subject="c1", labels=("go",), action="labeled")
    for number in (1, 2):
        stage.actor(f"worker-{number}", run_slice, change=unslotted)

    def judge() -> None:
        stage.come_to_rest()
        stage.judge()
        outcomes = sorted(row["outcome"] for row in stage.harness.raw("trigger_effects"))
        assert outcomes == ["delivered", "label_spent_by_another"]

    return judge


def _a_rule_that_begins(stage: Stage, begin: Callable[[TenantStore, str], object]) -> Judge:
    rule(stage, "old")
    appended(stage, "early", type="early")
    kinds = ("first", "second")

    def writes(kind: str) -> Play:
        def write(store: TenantStore, runtime: Runtime) -> None:
            appends(stage, kind, type=kind)(store, runtime)
            stage.tell(f"has {kind}")

        return write

    def start(store: TenantStore, _: Runtime) -> None:
        stage.tell("asked")
        begin(store, "new")
        stage.tell("answered")

    stage.tells_of_events = True
    for kind in kinds:
        stage.actor(f"writer of the {kind}", writes(kind))
    stage.actor("person", start)
    stage.actor("drain", drain_tenant, change=unslotted)

    def judge() -> None:
        stage.come_to_rest()
        # One that was numbered before, and arrives after, was missing: it is owed as well.
        owed = {one for one in kinds if _before(stage.told, "answered", f"stored {one}")}
        history = {"early", *(one for one in kinds if _before(stage.told, f"has {one}", "asked"))}
        have = {row["event_id"] for row in stage.harness.raw("trigger_effects") if row["sub_id"] == "new"}
        assert owed <= have, f"{owed - have} were passed unmatched: {stage.told}"
        assert not history & have, f"{history & have} are history: {stage.told}"
        if have:
            stage.rules += (Rule(sub_id="new", types=frozenset(have)),)
        stage.judge()

    return judge


def _before(told: list[str], first: str, second: str) -> bool:
    return first in told and second in told and told.index(first) < told.index(second)


@cast(Budget(waits=0))
def a_rule_is_made_while_appends_and_a_drain_go_on(stage: Stage) -> Judge:
    """An event that is appended after the answer is never passed unmatched, history does not fire (E07)."""
    return _a_rule_that_begins(stage, lambda store, sub_id: add_subscription(store, subscription(sub_id)))


@cast(Budget(waits=0))
def a_rule_is_enabled_while_appends_and_a_drain_go_on(stage: Stage) -> Judge:
    """As one that is made (E07)."""
    stage.at_first(lambda first: add_subscription(first.store, subscription("new", enabled=False)))
    return _a_rule_that_begins(stage, enable_subscription)


@cast(Budget(waits=0), tenant_slots=1)
def offers_and_slices_race_for_one_slot(stage: Stage) -> Judge:
    """The cap holds, and what comes as the last slot falls free is seen without a tick (E42)."""
    rule(stage)
    materialized(stage, "a")
    appended(stage, "b")
    stage.at_first(lambda first: first.offer())
    entered = []

    def work(store: TenantStore, runtime: Runtime) -> None:
        if run_slice(store, runtime, stage.tokens[0]) is not None:
            entered.append(runtime.worker)

    stage.actor("drain", drain_tenant)
    stage.actor("worker-1", work)
    stage.actor("worker-2", work)
    rest = woken(stage)

    def judge() -> None:
        assert not stage.scheduler.undisturbed or len(entered) == 1, "a message is good once"
        rest()

    return judge


@cast(Budget(waits=0), tenant_slots=2, claim_batch=1)
def slices_of_two_slots_and_a_drain(stage: Stage) -> Judge:
    """As with one slot, where both slices may end at once (E42)."""
    rule(stage)
    materialized(stage, "a")
    appended(stage, "b")
    for _ in range(2):
        stage.at_first(lambda first: first.offer())
    stage.actor("drain", drain_tenant)
    stage.actor("worker-1", lambda store, runtime: run_slice(store, runtime, stage.tokens[0]))
    stage.actor("worker-2", lambda store, runtime: run_slice(store, runtime, stage.tokens[1]))
    return woken(stage)


def woken(stage: Stage) -> Judge:
    """Judge that hints alone bring everything to rest, where nothing died or failed: no tick, and no time passing."""

    def judge() -> None:
        began = stage.harness.now()
        if stage.scheduler.undisturbed:
            stage.deliver()
            live = [row["_id"] for row in stage.harness.raw("trigger_effects") if row["state"] != "done"]
            assert not live, f"{live} wait for a tick"
            counter = stage.harness.raw("event_sequences")[0]
            cursor = stage.harness.raw("trigger_cursors")[0]
            assert (counter["undrained"], counter["last_seq"]) == (False, cursor["seq"]), "events wait for a tick"
            assert stage.harness.now() - began < timedelta(seconds=3)
        stage.come_to_rest()
        stage.judge()

    return judge


@cast(Budget(waits=0), claim_batch=3)
def a_stop_gives_back_while_another_claims(stage: Stage) -> Judge:
    """What was not started is given back, unspent, and runs once (E41)."""
    rule(stage)
    materialized(stage, "a", "b", "c")
    stage.actor("worker-1", run_slice, change=unslotted)
    stage.actor("worker-2", run_slice, change=unslotted)

    def stop(_: TenantStore, runtime: Runtime) -> None:
        del runtime
        stage.scheduler.pause("stop")
        stage.stopping.add("worker-1")

    stage.actor("supervisor", stop)

    def judge() -> None:
        stage.come_to_rest()
        stage.judge()
        if stage.scheduler.undisturbed:
            assert {row["attempts"] for row in stage.harness.raw("trigger_effects")} == {0}

    return judge


@cast(Budget(waits=1, faults=1))
def one_event_is_appended_twice_and_drained(stage: Stage) -> Judge:
    """Two writers of one event id, one unclear answer: one event, one row (E46, E12)."""
    rule(stage)
    stage.actor("writer-1", appends(stage, "a", "b"))
    stage.actor("writer-2", appends(stage, "b", "a"))
    stage.actor("drain", drain_tenant, change=unslotted)
    return at_rest(stage)


@cast(Budget(waits=1, times=(GRACE, GRACE)), transient=True)
def a_transaction_that_stalls_and_two_drains(stage: Stage) -> Judge:
    """A transaction's number is a hole until it commits; filled, its body runs again (E02, E04)."""
    rule(stage)

    def write(store: TenantStore, runtime: Runtime) -> None:
        stage.unclear.add("inside")

        def body(transaction: OutboxTransaction) -> None:
            transaction.append_event(new_event("inside"))

        run_in_transaction(store, runtime, body)
        stage.acknowledged.add("inside")

    stage.actor("writer", write, skew=AN_HOUR)
    stage.actor("drain-1", drain_tenant, change=unslotted)
    stage.actor("drain-2", drain_tenant, change=unslotted)
    return at_rest(stage)


@cast(Budget(waits=0, times=(LEASE,), faults=1))
def two_workers_and_an_unclear_answer(stage: Stage) -> Judge:
    """One call of a worker fails before or after it happened, and a lease may end (E26, E33)."""
    rule(stage)
    materialized(stage, "a", "b")
    for number in (1, 2):
        stage.actor(f"worker-{number}", run_slice, change=unslotted)
    return at_rest(stage)


@cast(Budget(waits=0, times=(LEASE,), deaths=1), transient=True)
def a_worker_dies_while_another_goes_on(stage: Stage) -> Judge:
    """Any of the two, before any call, with its heart (E28, E37)."""
    _transactional(stage)
    materialized(stage, "a", "b")
    stage.actor("worker-1", run_slice, change=unslotted)
    stage.actor("worker-2", run_slice, change=unslotted)
    return at_rest(stage, bots_append=frozenset({"filed"}))


@cast(Budget(times=(LEASE,)))
def a_bot_that_fails_and_a_reclaimer(stage: Stage) -> Judge:
    """A failed try goes back with its attempt spent; a stale one spends nothing of another's (E26, E33)."""
    rule(stage)
    materialized(stage, "a", "b")

    def then(run: Run) -> None:
        if run.attempt == 1 and run.event.event_id == "a":
            raise ValueError("the first try")

    stage.bots["bot"] = stage.bot(then)
    stage.actor("worker-1", run_slice, skew=AN_HOUR, change=unslotted)
    stage.actor("worker-2", run_slice, skew=-AN_HOUR, change=unslotted)
    return at_rest(stage)


@cast(Budget(times=(LEASE,)), transient=True)
def a_promotion_and_a_reclaimer(stage: Stage) -> Judge:
    """A rule of mode board stamps its card once, whoever comes late (E38)."""
    rests = frozenset({Rest("done", "promoted")})
    promised = Rule(sub_id="s", promise=Promise.RUNS_NOTHING, rests=rests)
    rule(stage, promised=promised, mode="board", sources=("board",))
    carded(stage)
    materialized(stage, "a", "b", source="board", subject="c1", action="labeled")
    stage.actor("worker-1", run_slice, change=unslotted)
    stage.actor("worker-2", run_slice, change=unslotted)

    def judge() -> None:
        stage.come_to_rest()
        stage.judge()
        card = stage.store.cards.get("c1")
        assert (card.bot, card.version) == ("bot", 2)

    return judge


@cast(Budget())
def a_rule_is_disabled_while_its_rows_run(stage: Stage) -> Judge:
    """Its rows are delivered or dropped with their reason; enabled again, it is owed what comes then (E07, E34)."""
    rests = frozenset({DELIVERED, Rest("done", "subscription_disabled")})
    rule(stage, promised=Rule(sub_id="s", types=frozenset({"thing"}), rests=rests))
    materialized(stage, "a")

    def switch(store: TenantStore, runtime: Runtime) -> None:
        store.subscriptions.set_enabled("s", enabled=False)
        enable_subscription(store, "s")
        stage.unclear.add("after")
        append_events(store, runtime, [new_event("after")])

    stage.actor("worker", run_slice, change=unslotted)
    stage.actor("person", switch)
    stage.actor("drain", drain_tenant, change=unslotted)

    def judge() -> None:
        if not stage.scheduler.undisturbed:
            # Left disabled, it owes nothing to what it was to be enabled for.
            enable_subscription(stage.store, "s")
        stage.come_to_rest()
        after = stage.store.log.find(["after"])
        rows = {row["event_id"] for row in stage.harness.raw("trigger_effects")}
        assert stage.scheduler.faults or stage.scheduler.dead or rows == {"a", *after}
        if rows == {"a", *after}:
            stage.judge()

    return judge


def _transactional(stage: Stage) -> None:
    """Let the rule `s` launch a bot that appends one event each time it happens."""

    def file(run: Run) -> None:
        assert run.transaction is not None
        run.transaction.append(type="filed", data={"of": run.effect_id})

    def count(effect_id: str) -> int:
        return sum(event.get("data") == {"of": effect_id} for event in stage.read("board_events"))

    stage.bots["bot"] = Bot(bot_id="bot", function=stage.bot(file), transactional=True)
    once = Rule(sub_id="s", types=frozenset({"thing"}), promise=Promise.EXACTLY_ONCE, count=count)
    rule(stage, promised=once, types=("thing",))
