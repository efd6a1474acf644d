"""A death before and after every store call, then a restart, ends as if nobody had died (E14).

The points are not listed: a first play without a death counts the calls that the use case makes of the ports.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.append_events import append_events
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.run_in_transaction import run_in_transaction
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.board import Card
from outbox_core.domain.bot import Bot
from outbox_core.domain.identity import join_key
from tests.harness.examples import new_event, subscription
from tests.harness.faults import Death, Fault, FaultyStore, When
from tests.simulation.play import append, cursor_of, drain_whole, rows_of, until_all_settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.bot import Run
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import Store, TenantStore
    from tests.harness.base import Harness

HOLD = timedelta(seconds=31)


def deaths(harness: Harness, play: Callable[[Store, str], object], prepare: Callable[[TenantStore], object]) -> Any:  # noqa: ANN401
    """Yield (tenant, the name of the call, when) after each death; the first tenant is the one without a death."""
    prepare(harness.store.tenant("alive"))
    counting = FaultyStore(harness.store)
    play(counting, "alive")
    assert counting.calls
    yield "alive", "", None
    for number, name in enumerate(counting.calls, start=1):
        for when in When:
            tenant = f"dead-{number}-{when.value}"
            prepare(harness.store.tenant(tenant))
            with suppress(Death):
                play(FaultyStore(harness.store, Fault(number, when)), tenant)
            yield tenant, name, when


def test_every_write_of_the_log_and_the_rows_is_among_the_calls_that_die(harness: Harness) -> None:
    """The matrix is worth something only while the use cases go through the ports."""
    prepare, drain_once = _prepared_log(harness), _drain_once(harness)
    names = {name for _, name, _ in deaths(harness, drain_once, prepare)}
    assert {
        "progress.load",
        "log.read_after",
        "subscriptions.enabled",
        "cards.standing",
        "effects.materialize",
        "progress.commit",
        "log.clear_undrained",
        "log.head",
        "slots.take",
        "slots.give_back",
    } <= names


def _prepared_log(harness: Harness) -> Callable[[TenantStore], None]:
    def prepare(store: TenantStore) -> None:
        runtime = harness.runtime()
        add_subscription(store, subscription("one", tenant=store.tenant_id))
        add_subscription(store, subscription("two", tenant=store.tenant_id, types=("thing",)))
        with store.transactions.begin() as transaction:
            store.cards.put(Card(tenant_id=store.tenant_id, card_id="here"), transaction)
            transaction.commit()
        append(store, runtime, "free", "broken")
        append(store, runtime, "here", source="board", subject="here")
        append(store, runtime, "gone", source="board", subject="gone")
        store.log.fill(store.log.allocate(1).seqs)
        append(store, runtime, "last")
        harness.change("board_events", join_key(store.tenant_id, "broken"), type=17)

    return prepare


def _drain_once(harness: Harness) -> Callable[[Store, str], object]:
    # A small batch: the drain goes through several.
    return lambda store, tenant: drain_tenant(store.tenant(tenant), harness.runtime(event_batch=3))


@pytest.mark.promise("E14", "E12")
def test_a_drain_that_dies_anywhere_ends_in_the_same_rows(harness: Harness) -> None:
    points: Counter[str] = Counter()
    expected = {"free|one", "free|two", "here|one", "here|two", "last|one", "last|two"}
    for tenant, name, _ in deaths(harness, _drain_once(harness), _prepared_log(harness)):
        harness.advance(HOLD)
        store, runtime = harness.store.tenant(tenant), harness.runtime()
        drain_whole(store, runtime)
        rows = rows_of(harness, tenant)
        assert set(rows) == expected | {f"#event|{tenant}|broken"}, (tenant, name)
        assert {row["state"] for key, row in rows.items() if key in expected} == {"pending"}
        assert cursor_of(harness, tenant) == 6
        points[name] += 1
    assert sum(points.values()) > 40


@pytest.mark.promise("E14", "E13")
def test_a_drain_that_dies_anywhere_while_another_one_takes_over_at_once(harness: Harness) -> None:
    """The other one does not wait for the dead one's slot: it drains beside it."""
    for tenant, name, _ in deaths(harness, _drain_once(harness), _prepared_log(harness)):
        for slots in harness.raw("tenant_slots", _id=tenant):
            harness.change("tenant_slots", slots["_id"], drain=[])
        drain_whole(harness.store.tenant(tenant), harness.runtime())
        assert len(rows_of(harness, tenant)) == 7, (tenant, name)


@pytest.mark.promise("E46", "E01")
def test_an_append_that_dies_anywhere_and_is_sent_again_gives_one_event(harness: Harness) -> None:
    def play(store: Store, tenant: str) -> object:
        return append_events(store.tenant(tenant), harness.runtime(), [new_event("a"), new_event("b")])

    for tenant, name, _ in deaths(harness, play, lambda store: add_subscription(store, _rule(store))):
        store, runtime = harness.store.tenant(tenant), harness.runtime()
        append_events(store, runtime, [new_event("a"), new_event("b")])
        drain_tenant(store, runtime)
        harness.advance(timedelta(seconds=36))
        drain_whole(store, runtime)
        stored = harness.raw("board_events", tenant_id=tenant)
        assert sorted(event["event_id"] for event in stored if "void" not in event) == ["a", "b"], (tenant, name)
        assert sorted(rows_of(harness, tenant)) == ["a|s", "b|s"]


@pytest.mark.promise("E02")
def test_a_transaction_that_dies_anywhere_is_whole_or_nothing(harness: Harness) -> None:
    def body(transaction: OutboxTransaction) -> None:
        transaction.append_event(new_event("a"))
        store = harness.store.tenant(tenants[-1])
        store.cards.put(Card(tenant_id=tenants[-1], card_id="c"), _unwrapped(transaction))

    tenants: list[str] = []

    def play(store: Store, tenant: str) -> object:
        tenants.append(tenant)
        return run_in_transaction(store.tenant(tenant), harness.runtime(), body)

    outcomes = set()
    for tenant, name, when in deaths(harness, play, lambda store: add_subscription(store, _rule(store))):
        cards = harness.raw("board_cards", tenant_id=tenant)
        events = [event for event in harness.raw("board_events", tenant_id=tenant) if "void" not in event]
        assert len(cards) == len(events), (tenant, name)
        committed = name == "" or (name == "transaction.commit" and when is When.AFTER)
        assert len(events) == int(committed), (tenant, name, when)
        outcomes.add(len(events))
        store, runtime = harness.store.tenant(tenant), harness.runtime()
        drain_tenant(store, runtime)
        harness.advance(timedelta(seconds=36))
        drain_whole(store, runtime)
        assert sorted(rows_of(harness, tenant)) == (["a|s"] if events else [])
    assert outcomes == {0, 1}


@pytest.mark.promise("E26", "E28", "E37", "E41")
def test_a_slice_that_dies_anywhere_loses_no_row_and_repeats_at_most_once_what_may_be_repeated(
    harness: Harness,
) -> None:
    """A plain bot is at-least-once: the one death may cost it one more run. Nobody is parked by it."""
    runs: Counter[str] = Counter()

    def bot(run: Run) -> str:
        runs[run.effect_id] += 1
        return run.effect_id

    runtime = harness.runtime({"bot": bot})
    _play_slices(harness, runtime, lambda tenant, name: _judge_plain(harness, runs, tenant, name))


@pytest.mark.promise("E37")
def test_a_transactional_launch_that_dies_anywhere_happens_exactly_once(harness: Harness) -> None:
    def bot(run: Run) -> None:
        # An id of its own each time: under a fixed one the log itself would hide that it happened twice.
        assert run.transaction is not None
        run.transaction.append(type="filed", subject=run.event.event_id)

    runtime = harness.runtime({"bot": Bot(bot_id="bot", function=bot, transactional=True)})

    def judge(tenant: str, name: str) -> None:
        filed = [event for event in harness.raw("board_events", tenant_id=tenant, type="filed") if "void" not in event]
        assert sorted(event["subject"] for event in filed) == ["a", "b", "c"], (tenant, name)
        records = harness.raw("runs", tenant_id=tenant)
        assert [record["error"] for record in records] == [None] * 3
        assert all(harness.row(record["_id"])["claim_id"] == record["claim_id"] for record in records)

    _play_slices(harness, runtime, judge)


def _play_slices(harness: Harness, runtime: Runtime, judge: Callable[[str, str], None]) -> None:
    def prepare(store: TenantStore) -> None:
        add_subscription(store, subscription("s", tenant=store.tenant_id, types=("thing",)))
        append(store, harness.runtime(), "a", "b", "c")
        drain_whole(store, harness.runtime())
        harness.change("tenant_slots", store.tenant_id, slice=[])

    def play(store: Store, tenant: str) -> object:
        return run_slice(store.tenant(tenant), runtime)

    for tenant, name, _ in deaths(harness, play, prepare):
        harness.advance(timedelta(seconds=61))
        until_all_settled(harness, harness.store.tenant(tenant), runtime)
        rows = rows_of(harness, tenant)
        assert sorted(rows) == ["a|s", "b|s", "c|s"]
        assert {row["state"] for row in rows.values()} == {"done"}, (tenant, name)
        assert {row["outcome"] for row in rows.values()} == {"delivered"}
        assert all(row["attempts"] <= 1 for row in rows.values())
        judge(tenant, name)


def _judge_plain(harness: Harness, runs: Counter[str], tenant: str, name: str) -> None:
    for event_id in ("a", "b", "c"):
        effect_id = join_key(tenant, event_id, "s")
        assert runs[effect_id] in ({1, 2} if name == "effects.settle" else {1}), (tenant, name)
        (record,) = harness.raw("runs", _id=effect_id)
        assert record["result"] == effect_id


def _rule(store: TenantStore) -> Any:  # noqa: ANN401 - a Subscription
    return subscription("s", tenant=store.tenant_id)


def _unwrapped(transaction: OutboxTransaction) -> Any:  # noqa: ANN401 - the store's own transaction
    return getattr(transaction.transaction, "wrapped", transaction.transaction)
