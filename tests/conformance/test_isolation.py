"""A handle of one tenant never returns or changes another's row: every call of every port, enumerated (L21)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.domain import effect_lifecycle as lifecycle
from outbox_core.domain.board import Binding, Board, Card
from outbox_core.domain.consumer import Look
from outbox_core.domain.errors import (
    BoardNotFoundError,
    CardNotFoundError,
    ClaimLostError,
    ConsumerNotFoundError,
    EffectNotFoundError,
    InvalidInputError,
    InvariantError,
    LeaseLostError,
    LetterNotFoundError,
    SubscriptionNotFoundError,
)
from outbox_core.domain.sequence import Horizon
from outbox_core.ports.drain_progress import JournalEntry
from outbox_core.ports.effect_outbox import Settled
from outbox_core.ports.lifecycle_stream import Page
from outbox_core.ports.slots import Lane
from tests.harness.examples import (
    append,
    by_edge,
    claim,
    done,
    event,
    materialize,
    new_effect,
    run_record,
    subscription,
)
from tests.harness.faults import PORTS, port_methods
from tests.harness.lifecycle import begun, deletion, register, tell, tell_many

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.domain.effect import Claim
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness

HOLD = timedelta(seconds=30)
LEASE = timedelta(seconds=60)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLLECTIONS = (
    "event_sequences",
    "board_events",
    "trigger_cursors",
    "trigger_subscriptions",
    "trigger_effects",
    "runs",
    "drain_journal",
    "tenant_slots",
    "board_cards",
    "boards",
    "lifecycle_sequences",
    "lifecycle_outbox",
    "lifecycle_consumer_cursors",
    "lifecycle_dead_letters",
    "run_audit",
)


class Victim:
    """All that the tenant `other` has, and what somebody could know of it."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        store = harness.other
        append(store, "e1", "e2")
        read = store.progress.load()
        entry = JournalEntry(entry_id="j", follows="", first_seq=1, last_seq=2, rows=1, skips=())
        assert store.progress.commit(read, seq=2, marks=(), poison=read.poison, entry=entry)
        store.subscriptions.add(subscription(tenant="other"))
        with store.transactions.begin() as transaction:
            self.card = store.cards.put(
                Card(tenant_id="other", card_id="c1", link="l", board="b", state="todo"), transaction
            )
            gone = Card(tenant_id="other", card_id="gone", deleted_at=harness.now())
            store.cards.put(gone, transaction)
            board = Board(tenant_id="other", board_id="b", columns=("todo",), binding=Binding(kind="k", target="t"))
            self.board = store.boards.put(board, transaction)
            transaction.commit()
        materialize(store, 3, now=harness.now())
        finished = claim(store, 1, LEASE)
        store.effects.settle(finished, {"other|e1|sub": done(run_record(harness.now()))})
        self.claim = claim(store, 1, LEASE)
        self.token = str(store.slots.take(Lane.DRAIN, HOLD))
        self.event, self.parked = tell_many(store, 2)
        with store.transactions.begin() as transaction:
            store.audit.record(self.event, "ann", "why", transaction)
            transaction.commit()
        self.lease = begun(store, "theirs")
        assert store.consumers.acknowledge(self.lease, read=0, sequence=1)
        assert store.consumers.park(self.lease, self.parked, read=1, attempts=10, failure_class="KeyError")
        assert store.consumers.ask_replay("theirs", self.parked.event_id, "ann", "")

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        return {name: self.harness.raw(name, tenant_id="other") for name in COLLECTIONS}


def _in_transaction(store: TenantStore, call: Callable[[Any], object]) -> object:
    with store.transactions.begin() as transaction:
        answer = call(transaction)
        transaction.commit()
    return answer


def _adopt(store: TenantStore, session: object) -> None:
    with store.transactions.adopt(session):
        pass


def _raises(error: type[Exception], call: Callable[[], object]) -> bool:
    with pytest.raises(error):
        call()
    return True


def _others_event(victim: Victim) -> Any:  # noqa: ANN401 - an Event
    return event(3, "new", tenant="other", now=victim.harness.now())


def _commit_others(acme: TenantStore, victim: Victim) -> bool:
    acme.progress.load()
    theirs = victim.harness.other.progress.load()
    return acme.progress.commit(theirs, seq=9, marks=(), poison=theirs.poison, entry=None)


Attack = tuple["Callable[[TenantStore, Victim], object]", object]

_HELD = "other|e2|sub"

ATTACKS: dict[str, Attack] = {
    # What a handle of `acme` may answer when it is asked for what is `other`'s.
    "log.allocate": (lambda acme, _: acme.log.allocate(1).first_seq, 1),
    "log.insert": (lambda acme, v: _raises(InvariantError, lambda: acme.log.insert([_others_event(v)])), True),
    "log.fill": (lambda acme, _: acme.log.fill([1, 2, 3]), 3),
    "log.find": (lambda acme, _: dict(acme.log.find(["e1", "e2"])), {}),
    "log.get": (lambda acme, _: dict(acme.log.get(["e1", "e2"])), {}),
    "log.read_after": (lambda acme, _: list(acme.log.read_after(0, 10)), []),
    "log.head": (lambda acme, _: acme.log.head().last_seq, 0),
    "log.horizon": (lambda acme, _: acme.log.horizon(0), Horizon(0)),
    "log.clear_undrained": (lambda acme, _: acme.log.clear_undrained(2), True),
    "log.flag_undrained": (lambda acme, _: acme.log.flag_undrained(), False),
    "progress.load": (lambda acme, _: acme.progress.load().seq, 0),
    "progress.enter": (lambda acme, v: acme.progress.enter(v.token, HOLD), None),
    "progress.commit": (_commit_others, False),
    "effects.check": (
        lambda acme, _: _raises(InvariantError, lambda: acme.effects.check(new_effect(tenant="other"))),
        True,
    ),
    "effects.materialize": (
        lambda acme, v: _raises(
            InvariantError, lambda: acme.effects.materialize([new_effect(9, tenant="other")], v.harness.now())
        ),
        True,
    ),
    "effects.claim_due": (lambda acme, _: claim(acme, 10, LEASE).effects, ()),
    "effects.renew": (lambda acme, v: acme.effects.renew(v.claim, [_HELD], LEASE), 0),
    "effects.release": (lambda acme, v: acme.effects.release(v.claim, [_HELD]), 0),
    "effects.finished_runs": (lambda acme, _: acme.effects.finished_runs(["other|e1|sub"]), frozenset()),
    "effects.settle": (
        lambda acme, v: acme.effects.settle(v.claim, {_HELD: by_edge(lifecycle.DROP)}),
        Settled(frozenset(), frozenset({_HELD})),
    ),
    "effects.settle_in": (
        lambda acme, v: _raises(
            ClaimLostError, lambda: _in_transaction(acme, lambda t: acme.effects.settle_in(t, v.claim, _HELD, done()))
        ),
        True,
    ),
    "effects.is_due": (lambda acme, _: acme.effects.is_due(), False),
    "effects.next_due": (lambda acme, _: acme.effects.next_due(), None),
    "effects.get": (lambda acme, _: _raises(EffectNotFoundError, lambda: acme.effects.get(_HELD)), True),
    "effects.list": (lambda acme, _: [*acme.effects.list(), *acme.effects.list(after="other|")], []),
    "effects.newest": (
        lambda acme, _: [
            *acme.effects.newest(),
            _raises(EffectNotFoundError, lambda: acme.effects.newest(after=_HELD)),
        ],
        [True],
    ),
    "effects.counts": (lambda acme, _: dict(acme.effects.counts()), {}),
    "subscriptions.add": (
        lambda acme, _: _raises(InvariantError, lambda: acme.subscriptions.add(subscription("new", tenant="other"))),
        True,
    ),
    "subscriptions.enabled": (lambda acme, _: list(acme.subscriptions.enabled()), []),
    "subscriptions.all": (lambda acme, _: list(acme.subscriptions.all()), []),
    "subscriptions.get": (lambda acme, _: dict(acme.subscriptions.get(["sub", "other|sub"])), {}),
    "subscriptions.set_enabled": (
        lambda acme, _: _raises(
            SubscriptionNotFoundError, lambda: acme.subscriptions.set_enabled("sub", enabled=False)
        ),
        True,
    ),
    "subscriptions.remove": (lambda acme, _: acme.subscriptions.remove("sub"), False),
    "cards.standing": (lambda acme, _: acme.cards.standing(["c1"]), frozenset()),
    "cards.get": (lambda acme, _: _raises(CardNotFoundError, lambda: acme.cards.get("c1")), True),
    "cards.linked": (lambda acme, _: acme.cards.linked("l"), None),
    "cards.in_column": (
        lambda acme, _: _in_transaction(acme, lambda t: list(acme.cards.in_column("b", "todo", t, 10))),
        [],
    ),
    "cards.listed": (lambda acme, _: list(acme.cards.listed("b")), []),
    "boards.get": (lambda acme, _: _raises(BoardNotFoundError, lambda: acme.boards.get("b")), True),
    "boards.all": (lambda acme, _: list(acme.boards.all()), []),
    "boards.bindings": (lambda acme, _: dict(acme.boards.bindings(["b"])), {}),
    "boards.put": (
        lambda acme, v: _raises(InvariantError, lambda: _in_transaction(acme, lambda t: acme.boards.put(v.board, t))),
        True,
    ),
    "effects.mark_consumed": (
        lambda acme, v: _raises(
            ClaimLostError, lambda: _in_transaction(acme, lambda t: acme.effects.mark_consumed(t, v.claim, _HELD))
        ),
        True,
    ),
    "cards.put": (
        lambda acme, v: _raises(InvariantError, lambda: _in_transaction(acme, lambda t: acme.cards.put(v.card, t))),
        True,
    ),
    "slots.take": (lambda acme, _: acme.slots.take(Lane.DRAIN, HOLD) is not None, True),
    "slots.rotate": (lambda acme, v: acme.slots.rotate(Lane.DRAIN, v.token, HOLD), None),
    "slots.extend": (lambda acme, v: acme.slots.extend(Lane.DRAIN, v.token, HOLD), False),
    "slots.give_back": (lambda acme, v: acme.slots.give_back(Lane.DRAIN, v.token), False),
    "cards.deletions": (lambda acme, _: dict(acme.cards.deletions(["gone"])), {}),
    "cards.live": (lambda acme, _: list(acme.cards.live()), []),
    "stream.append": (lambda acme, _: tell(acme, deletion(1))[0].sequence, 1),
    "stream.head": (lambda acme, _: acme.stream.head(), 0),
    "stream.read_after": (lambda acme, _: acme.stream.read_after(0, 10), Page(0, ())),
    "stream.floor": (lambda acme, _: acme.stream.floor(), 1),
    "stream.prune": (lambda acme, _: acme.stream.prune(9, timedelta(seconds=-9), 9), 0),
    "audit.record": (
        lambda acme, v: _raises(
            InvariantError, lambda: _in_transaction(acme, lambda t: acme.audit.record(v.event, "", "", t))
        ),
        True,
    ),
    "audit.rows": (lambda acme, _: list(acme.audit.rows()), []),
    "consumers.register": (lambda acme, _: register(acme, "theirs").cursor, None),
    "consumers.look": (
        lambda acme, _: replace(acme.consumers.look("theirs"), now=EPOCH),
        Look(consumer=None, head=0, now=EPOCH),
    ),
    "consumers.all": (lambda acme, _: list(acme.consumers.all()), []),
    "consumers.lease": (lambda acme, _: acme.consumers.lease("theirs", "worker-1", LEASE), None),
    "consumers.renew": (lambda acme, v: acme.consumers.renew(v.lease, LEASE), False),
    "consumers.acknowledge": (lambda acme, v: acme.consumers.acknowledge(v.lease, read=2, sequence=3), False),
    "consumers.acknowledge_in": (
        lambda acme, v: _raises(
            LeaseLostError,
            lambda: _in_transaction(acme, lambda t: acme.consumers.acknowledge_in(t, v.lease, read=2, sequence=3)),
        ),
        True,
    ),
    "consumers.fail": (
        lambda acme, v: acme.consumers.fail(v.lease, event_id="e", attempts=1, delay=HOLD, failure_class="KeyError"),
        False,
    ),
    "consumers.park": (
        lambda acme, v: acme.consumers.park(v.lease, v.parked, read=2, attempts=10, failure_class="KeyError"),
        False,
    ),
    "consumers.reconciled": (lambda acme, v: acme.consumers.reconciled(v.lease, head=9, why=""), False),
    "consumers.begin": (lambda acme, v: acme.consumers.begin(v.lease), False),
    "consumers.stop": (lambda acme, v: acme.consumers.stop(v.lease, "why"), False),
    "consumers.rest": (lambda acme, v: acme.consumers.rest(v.lease, idle=True, delay=HOLD), False),
    "consumers.wake": (lambda acme, _: list(acme.consumers.wake(["theirs"])), []),
    "consumers.require_reconcile": (
        lambda acme, _: _raises(ConsumerNotFoundError, lambda: acme.consumers.require_reconcile("theirs", "", "")),
        True,
    ),
    "consumers.skip": (
        lambda acme, _: _raises(ConsumerNotFoundError, lambda: acme.consumers.skip("theirs", "", "")),
        True,
    ),
    "consumers.retire": (
        lambda acme, _: _raises(ConsumerNotFoundError, lambda: acme.consumers.retire("theirs", "", "")),
        True,
    ),
    "consumers.set_paused": (
        lambda acme, _: [
            *acme.consumers.set_paused(None, paused=True),
            *acme.consumers.set_paused(["theirs"], paused=True),
        ],
        [],
    ),
    "consumers.letters": (
        lambda acme, _: [
            *acme.consumers.letters(),
            *acme.consumers.letters(consumer_id="theirs"),
            *acme.consumers.letters(after="other|"),
        ],
        [],
    ),
    "consumers.letter": (
        lambda acme, v: _raises(LetterNotFoundError, lambda: acme.consumers.letter("theirs", v.parked.event_id)),
        True,
    ),
    "consumers.ask_replay": (
        lambda acme, v: _raises(
            LetterNotFoundError, lambda: acme.consumers.ask_replay("theirs", v.parked.event_id, "", "")
        ),
        True,
    ),
    "consumers.replayed": (lambda acme, v: acme.consumers.replayed(v.lease, v.parked.event_id, why=""), False),
    "consumers.replayed_in": (
        lambda acme, v: _raises(
            LeaseLostError,
            lambda: _in_transaction(acme, lambda t: acme.consumers.replayed_in(t, v.lease, v.parked.event_id, why="")),
        ),
        True,
    ),
    "consumers.replay_failed": (
        lambda acme, v: acme.consumers.replay_failed(v.lease, v.parked.event_id, failure_class="KeyError"),
        False,
    ),
    "consumers.resolve": (
        lambda acme, v: _raises(
            LetterNotFoundError, lambda: acme.consumers.resolve("theirs", v.parked.event_id, "", "")
        ),
        True,
    ),
    "consumers.prune_letters": (lambda acme, _: acme.consumers.prune_letters(timedelta(seconds=-9), 9), 0),
    "consumers.lags": (lambda acme, _: dict(acme.consumers.lags()), {}),
    "consumers.oldest_unacknowledged": (lambda acme, _: dict(acme.consumers.oldest_unacknowledged()), {}),
    "transactions.begin": (lambda acme, _: _in_transaction(acme, lambda _: acme.cards.standing(["c1"])), frozenset()),
    "transactions.adopt": (lambda acme, _: _raises(InvalidInputError, lambda: _adopt(acme, object())), True),
}


def test_every_call_of_every_port_is_tried() -> None:
    calls = {f"{port}.{method}" for port, protocol in PORTS.items() for method in port_methods(protocol)}
    assert set(ATTACKS) == calls


@pytest.mark.promise("L21")
@pytest.mark.parametrize("call", sorted(ATTACKS))
def test_a_handle_neither_returns_nor_changes_what_is_another_tenants(harness: Harness, call: str) -> None:
    victim = Victim(harness)
    before = victim.everything()
    attack, answer = ATTACKS[call]
    assert attack(harness.acme, victim) == answer
    assert victim.everything() == before


@pytest.mark.promise("L21")
def test_a_claim_of_one_tenants_rows_settles_no_run_of_another(harness: Harness) -> None:
    victim = Victim(harness)
    before = victim.everything()
    forged: Claim = replace(victim.claim, effects=tuple(replace(e, claims=99) for e in victim.claim.effects))
    late = done(run_record(harness.now(), result="forged"))
    assert harness.acme.effects.settle(forged, {_HELD: late}).owned == frozenset()
    assert victim.everything() == before


@pytest.mark.promise("L21")
def test_a_row_of_another_tenant_under_ones_own_key_is_neither_listed_nor_counted(harness: Harness) -> None:
    materialize(harness.acme, 1, now=harness.now())
    harness.put_raw("trigger_effects", {**harness.row("acme|e1|sub"), "_id": "acme|e2|sub", "tenant_id": "other"})
    assert [row["_id"] for row in harness.acme.effects.list()] == ["acme|e1|sub"]
    assert harness.acme.effects.counts() == {"pending": 1}
    assert len(claim(harness.acme, 10, LEASE).effects) == 1
    with pytest.raises(EffectNotFoundError):
        harness.acme.effects.get("acme|e2|sub")


@pytest.mark.promise("L21")
@pytest.mark.parametrize("tenant", ["", "a|b", "#projection", "x" * 65, "ä", "a b", None, 7])
def test_what_is_no_tenant_has_no_handle(harness: Harness, tenant: Any) -> None:  # noqa: ANN401 - the question is what it is
    with pytest.raises(InvalidInputError):
        harness.store.tenant(tenant)
