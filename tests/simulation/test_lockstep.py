"""The twin and MongoDB take the same random steps with the log and its rows, and must stay equal."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.effect import Claim, Hold, Settlement
from outbox_core.domain.poison import Poison
from outbox_core.domain.sequence import Mark
from outbox_core.ports.drain_progress import JournalEntry, Kept
from outbox_core.ports.slots import Lane
from tests.harness.examples import SETTLING, by_edge, dead_event, event, new_effect, run_record
from tests.simulation.two_stores import UNIT, TwoStores, run_in_lockstep

if TYPE_CHECKING:
    from tests.harness.base import Harness
    from tests.harness.on_mongo import MongoDatabases

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


class Lockstep(TwoStores):
    """Each rule is one call of a port, made on both stores."""

    def __init__(self, databases: MongoDatabases) -> None:
        super().__init__(databases, COLLECTIONS)
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

    @rule(tenant=st.sampled_from(TENANTS), hold=DURATIONS, further=st.integers(0, 2), keeps=st.booleans())
    def enter_and_leave_the_drain(self, tenant: str, hold: timedelta, further: int, *, keeps: bool) -> None:
        entered, on_mongo = self.both(lambda one: one.store.tenant(tenant).progress.enter(None, hold))
        if entered is None:
            return
        reads = {"memory": entered[0], "mongo": on_mongo[0]}
        slot = Kept(entered[1], UNIT if keeps else timedelta(0))

        def commit(one: Harness) -> bool:
            read = reads[one.name]
            seq, progress = read.seq + further, one.store.tenant(tenant).progress
            return progress.commit(read, seq=seq, marks=(), poison=read.poison, entry=None, slot=slot)

        self.both(commit)

    # --- rows ---

    @rule(
        tenant=st.sampled_from(TENANTS),
        count=st.integers(1, 4),
        late=st.sampled_from([0, 1, 6]),
        lease=st.sampled_from([None, UNIT, 6 * UNIT]),
    )
    def materialize(self, tenant: str, count: int, late: int, lease: timedelta | None) -> None:
        hold = None if lease is None else Hold(claim_id=f"turn{self.rows}", worker="w", lease=lease)
        effects = [replace(new_effect(self.rows + number, tenant=tenant), hold=hold) for number in range(count)]
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


@pytest.mark.promise("E01", "E12", "E13", "E25", "E26", "E28", "E30", "E41", "E45")
def test_the_twin_and_mongodb_answer_and_store_the_same_whatever_is_done(harness_databases: MongoDatabases) -> None:
    class Machine(Lockstep):
        def __init__(self) -> None:
            super().__init__(harness_databases)

    run_in_lockstep(Machine, 16)
