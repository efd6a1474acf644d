"""The twin and MongoDB take the same random steps, and are compared, answer and document, after each.

Times are compared as they lie to the server's now, in steps of ten seconds: every duration here is a multiple of that,
and real time passes on MongoDB alone. OUTBOX_LOCKSTEP_EXAMPLES sets how many sequences are tried, at random; without it
a few fixed ones are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.effect import Claim, Settlement
from outbox_core.domain.errors import EventConflictError, OutboxError
from outbox_core.domain.poison import Poison
from outbox_core.domain.sequence import Mark
from outbox_core.ports.drain_progress import JournalEntry
from outbox_core.ports.event_log import Allocation, Head
from outbox_core.ports.slots import Lane
from tests.harness.examples import SETTLING, by_edge, dead_event, event, new_effect, run_record
from tests.harness.on_mongo import MongoHarness
from tests.harness.twin import TwinHarness

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.base import Harness
    from tests.harness.on_mongo import MongoDatabases

UNIT = timedelta(seconds=10)
COLLECTIONS = (
    "event_sequences",
    "board_events",
    "trigger_cursors",
    "drain_journal",
    "trigger_effects",
    "runs",
    "tenant_slots",
    "ticks",
)
FORGED: tuple[dict[str, Any], ...] = (
    {"not_before": None},
    {"not_before": "soon"},
    {"attempts": "three"},
    {"attributes": None},
    {"event_id": "another"},
    {"claim_id": "stolen"},
    {"runs_alone": True},
    {"due_at": None},
    {"claims": "many"},
    {"claims": -3},
    {"attempts": None},
    {"kind": None},
    {"kind": "of_a_later_version"},
    {"trace": None},
    {"seq": 1.5},
    {"state": "claimed"},
    {"created_at": "yesterday"},
    {"of_a_later_version": {"x": 1}},
)
TENANTS = ("acme", "other")
DURATIONS = st.sampled_from([UNIT * count for count in (1, 3, 6, 12, 60)])


class StepEntropy:
    """Tokens that tell their step, so that both stores draw the same ones."""

    def __init__(self) -> None:
        self.step = 0
        self._drawn = 0

    def begin(self, step: int) -> None:
        self.step, self._drawn = step, 0

    def token(self) -> str:
        self._drawn += 1
        return f"step{self.step}.{self._drawn}"

    def jitter(self) -> float:
        return 1.0


class Lockstep(RuleBasedStateMachine):
    """Each rule is one call of a port, made on both stores."""

    def __init__(self, databases: MongoDatabases) -> None:
        super().__init__()
        self.twin = TwinHarness(entropy=StepEntropy())
        self.mongo = MongoHarness(databases.empty(), entropy=StepEntropy())
        self.steps = 0
        self.claims: list[tuple[str, Claim, Claim]] = []
        self.given: list[tuple[str, int]] = []
        self.rows = 0
        self.tokens: list[tuple[str, Lane, str]] = []

    # --- the log ---

    @rule(tenant=st.sampled_from(TENANTS), count=st.integers(1, 3))
    def allocate(self, tenant: str, count: int) -> None:
        numbers, _ = self.both(lambda one: one.store.tenant(tenant).log.allocate(count))
        self.given += [(tenant, seq) for seq in numbers.seqs]

    @precondition(lambda self: self.given)
    @rule(data=st.data(), name=st.sampled_from(["", "twice"]))
    def insert(self, data: st.DataObject, name: str) -> None:
        tenant, seq = data.draw(st.sampled_from(self.given))
        self.both(lambda one: one.store.tenant(tenant).log.insert([event(seq, name, tenant=tenant, now=one.now())]))

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        tenant, seq = data.draw(st.sampled_from(self.given))
        self.both(lambda one: one.store.tenant(tenant).log.fill([seq, seq + 1]))

    @rule(tenant=st.sampled_from(TENANTS), seq=st.integers(0, 5))
    def look_into_the_log(self, tenant: str, seq: int) -> None:
        self.both(lambda one: list(one.store.tenant(tenant).log.read_after(seq, 3)))
        self.both(lambda one: one.store.tenant(tenant).log.horizon(seq))
        self.both(lambda one: dict(one.store.tenant(tenant).log.find([f"e{seq}", "twice"])))
        self.both(lambda one: one.store.tenant(tenant).log.head())

    @rule(tenant=st.sampled_from(TENANTS), seq=st.integers(0, 9))
    def clear_the_flag(self, tenant: str, seq: int) -> None:
        self.both(lambda one: one.store.tenant(tenant).log.clear_undrained(seq))

    @rule(tenant=st.sampled_from(TENANTS))
    def set_the_flag(self, tenant: str) -> None:
        self.both(lambda one: one.store.tenant(tenant).log.flag_undrained())

    # --- the cursor ---

    @rule(tenant=st.sampled_from(TENANTS), further=st.integers(0, 3), stale=st.booleans(), journal=st.booleans())
    def move_the_cursor(self, tenant: str, further: int, *, stale: bool, journal: bool) -> None:
        def commit(one: Harness) -> bool:
            progress = one.store.tenant(tenant).progress
            read = progress.load()
            poison = Poison({read.seq + 1: 2}, read.now)
            entry = JournalEntry(
                entry_id=f"j{self.steps}", follows=read.entry_id, first_seq=1, last_seq=2, rows=0, skips=((1, "gone"),)
            )
            if stale:
                progress.commit(read, seq=read.seq, marks=(), poison=poison, entry=None)
            return progress.commit(
                read,
                seq=read.seq + further,
                marks=(Mark(read.seq + 9, read.now),),
                poison=poison,
                entry=entry if journal else None,
            )

        self.both(commit)

    # --- rows ---

    @rule(tenant=st.sampled_from(TENANTS), count=st.integers(1, 4), late=st.sampled_from([0, 1, 6]))
    def materialize(self, tenant: str, count: int, late: int) -> None:
        effects = [new_effect(self.rows + number, tenant=tenant) for number in range(count)]
        # The next step writes the last one again.
        self.rows += count - 1
        self.both(lambda one: one.store.tenant(tenant).effects.materialize(effects, one.now() - UNIT * late))

    @rule(tenant=st.sampled_from(TENANTS))
    def park_an_event(self, tenant: str) -> None:
        self.both(lambda one: one.store.tenant(tenant).effects.materialize([dead_event(tenant=tenant)], one.now()))

    @rule(tenant=st.sampled_from(TENANTS), limit=st.integers(1, 5), lease=DURATIONS)
    def claim(self, tenant: str, limit: int, lease: timedelta) -> None:
        on_twin, on_mongo = self.both(
            lambda one: one.store.tenant(tenant).effects.claim_due(limit, worker="w", lease=lease)
        )
        if on_twin.effects:
            self.claims.append((tenant, on_twin, on_mongo))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), edge=st.sampled_from(SETTLING), delay=DURATIONS, run=st.sampled_from([None, "fine", "error"]))
    def settle(self, data: st.DataObject, edge: lifecycle.Edge, delay: timedelta, run: str | None) -> None:
        tenant, claims, ids = self.drawn(data)

        def settle(one: Harness) -> object:
            settlement = self.settlement(one, edge, delay, run)
            return one.store.tenant(tenant).effects.settle(claims[one.name], dict.fromkeys(ids, settlement))

        self.both(settle)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), commits=st.booleans())
    def settle_in_a_transaction(self, data: st.DataObject, *, commits: bool) -> None:
        tenant, claims, ids = self.drawn(data)

        def settle(one: Harness) -> None:
            store = one.store.tenant(tenant)
            with store.transactions.begin() as transaction:
                done = self.settlement(one, lifecycle.DONE, UNIT, "fine")
                store.effects.settle_in(transaction, claims[one.name], ids[0], done)
                if commits:
                    transaction.commit()

        self.both(settle)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), lease=DURATIONS)
    def renew(self, data: st.DataObject, lease: timedelta) -> None:
        tenant, claims, ids = self.drawn(data)
        self.both(lambda one: one.store.tenant(tenant).effects.renew(claims[one.name], ids, lease))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        tenant, claims, ids = self.drawn(data)
        self.both(lambda one: one.store.tenant(tenant).effects.release(claims[one.name], ids))

    @rule(data=st.data(), forged=st.sampled_from(FORGED))
    def forge(self, data: st.DataObject, forged: dict[str, Any]) -> None:
        rows = self.twin.raw("trigger_effects")
        if rows:
            identity = data.draw(st.sampled_from([row["_id"] for row in rows]))
            self.both(lambda one: one.change("trigger_effects", identity, **forged))

    @rule(number=st.integers(0, 3))
    def forge_a_row_of_another_tenant(self, number: int) -> None:
        rows = [
            row for row in self.twin.raw("trigger_effects", tenant_id="acme", state="pending") if row["seq"] == number
        ]
        if rows:
            identity = f"other|{rows[0]['event_id']}|forged"
            changes = {"_id": identity, "sub_id": "forged"}
            self.both(lambda one: one.put_raw("trigger_effects", {**one.row(rows[0]["_id"]), **changes}))

    @rule(tenant=st.sampled_from(TENANTS))
    def look_at_rows(self, tenant: str) -> None:
        self.both(lambda one: one.store.tenant(tenant).effects.next_due())
        self.both(lambda one: dict(one.store.tenant(tenant).effects.counts()))
        self.both(lambda one: [row["_id"] for row in one.store.tenant(tenant).effects.list(limit=3)])
        self.both(lambda one: list(one.store.maintenance.due_tenants()))
        self.both(lambda one: list(one.store.maintenance.undrained_tenants("", 5)))
        self.both(lambda one: one.store.maintenance.lagging_tenants("", 5))

    # --- pace and time ---

    @rule(tenant=st.sampled_from(TENANTS), lane=st.sampled_from(Lane), hold=DURATIONS)
    def take_a_slot(self, tenant: str, lane: Lane, hold: timedelta) -> None:
        token, _ = self.both(lambda one: one.store.tenant(tenant).slots.take(lane, hold))
        if token is not None:
            self.tokens.append((tenant, lane, token))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), hold=DURATIONS, what=st.sampled_from(["rotate", "extend", "give_back"]))
    def use_a_slot(self, data: st.DataObject, hold: timedelta, what: str) -> None:
        tenant, lane, token = data.draw(st.sampled_from(self.tokens))
        arguments = (lane, token) if what == "give_back" else (lane, token, hold)
        answer, _ = self.both(lambda one: getattr(one.store.tenant(tenant).slots, what)(*arguments))
        if isinstance(answer, str):
            self.tokens.append((tenant, lane, answer))

    @rule(interval=DURATIONS)
    def tick(self, interval: timedelta) -> None:
        self.both(lambda one: one.store.maintenance.tick_due("sweep", interval))

    @rule(delta=DURATIONS)
    def advance(self, delta: timedelta) -> None:
        self.both(lambda one: one.advance(delta))

    # --- both at once ---

    def both(self, step: Callable[[Harness], Any]) -> tuple[Any, Any]:
        """Take a step on both stores; fail where an answer or a document differs."""
        self.steps += 1
        # What is stamped in different steps has different times, as on a real server.
        self.twin.advance(timedelta(milliseconds=1))
        answers = []
        for one in (self.twin, self.mongo):
            entropy = one.entropy
            assert isinstance(entropy, StepEntropy)
            entropy.begin(self.steps)
            try:
                answers.append(step(one))
            except OutboxError as error:
                answers.append(error)
        twin_now, mongo_now = self.twin.now(), self.mongo.now()
        assert comparable(answers[0], twin_now) == comparable(answers[1], mongo_now)
        for name in COLLECTIONS:
            on_twin, on_mongo = self.twin.raw(name), self.mongo.raw(name)
            assert comparable(on_twin, twin_now) == comparable(on_mongo, mongo_now), name
        return answers[0], answers[1]

    def drawn(self, data: st.DataObject) -> tuple[str, dict[str, Claim], list[str]]:
        """Draw one of the claims so far, stale ones included, and some of its rows."""
        tenant, on_twin, on_mongo = data.draw(st.sampled_from(self.claims))
        every = [effect.effect_id for effect in on_twin.effects]
        ids = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
        return tenant, {self.twin.name: on_twin, self.mongo.name: on_mongo}, ids

    def settlement(self, one: Harness, edge: lifecycle.Edge, delay: timedelta, run: str | None) -> Settlement:
        settled = by_edge(edge, delay)
        record = None if run is None else run_record(one.now(), result=run, error=run if run == "error" else None)
        return Settlement(
            edge=settled.edge, outcome=settled.outcome, error=settled.error, delay=settled.delay, run=record
        )


def comparable(value: Any, now: datetime) -> Any:  # noqa: ANN401, PLR0911 - any answer; one line a type
    """Return what must be equal of an answer or a document."""
    match value:
        case datetime():
            return ("in units", round((value - now) / UNIT))
        case EventConflictError():
            return (type(value), value.duplicates, value.taken)
        case OutboxError():
            return type(value)
        case str() if value.startswith("malformed: "):
            return "malformed"
        case Claim():
            return comparable((value.claim_id, value.worker, value.effects, value.more, value.parked), now)
        case Allocation() | Head():
            return comparable({field.name: getattr(value, field.name) for field in fields(value)}, now)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: comparable(getattr(value, field.name), now) for field in fields(value)}
        case Mapping():
            return {key: comparable(item, now) for key, item in value.items()}
        case list() | tuple():
            return [comparable(item, now) for item in value]
        case _:
            return value


@pytest.mark.promise("E01", "E12", "E13", "E25", "E26", "E28", "E30", "E41", "E45")
def test_the_twin_and_mongodb_answer_and_store_the_same_whatever_is_done(harness_databases: MongoDatabases) -> None:
    class Machine(Lockstep):
        def __init__(self) -> None:
            super().__init__(harness_databases)

    wanted = int(os.environ.get("OUTBOX_LOCKSTEP_EXAMPLES", "0"))
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=wanted or 16,
            stateful_step_count=30,
            derandomize=not wanted,
            database=None,
            deadline=None,
            # Shrinking a failure would outlast the test's time; it prints the steps that led there.
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )
