"""What ports.consumers promises of registrations, leases and cursors, on both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.consumer import Failing, LetterState, Start
from outbox_core.domain.errors import ConsumerNotFoundError, ConsumerRetiredError, LeaseLostError
from outbox_core.domain.retention import floor_of
from tests.harness.lifecycle import CURSORS, LEASE, begun, codes, lease, register, row, tell_many

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.domain.consumer import Lease
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
KEY = "acme|cache"


def acknowledge_in(store: TenantStore, taken: Lease, read: int | None, sequence: int) -> None:
    with store.transactions.begin() as transaction:
        store.consumers.acknowledge_in(transaction, taken, read=read, sequence=sequence)
        transaction.commit()


# Registration.


@pytest.mark.promise("L05", "L22")
def test_a_registration_is_stored_once_and_audited(harness: Harness) -> None:
    first = register(harness.acme)
    again = harness.acme.consumers.register("cache", Start.LATEST, "bob")
    assert again == first == row(harness.acme)
    assert (first.start, first.cursor, first.must_reconcile, first.fence) == (Start.BEGINNING, None, False, 0)
    assert [(one.subject, one.by) for one in harness.acme.audit.rows()] == [("cache", "ann")]
    assert codes(harness.acme) == ["consumer-registered"]


@pytest.mark.promise("L05")
def test_of_processes_that_register_one_consumer_at_once_one_does(harness: Harness) -> None:
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda _: register(harness.other_process().tenant("acme")), range(8)))
    assert set(rows) == {row(harness.acme)}
    assert codes(harness.acme) == ["consumer-registered"]


@pytest.mark.promise("L14")
def test_a_retired_consumer_that_is_registered_again_has_no_cursor_and_must_reconcile(harness: Harness) -> None:
    store = harness.acme
    tell_many(store, 2)
    taken = begun(store)
    assert store.consumers.acknowledge(taken, read=0, sequence=1)
    assert store.consumers.retire("cache", "ann", "moved away")
    back = store.consumers.register("cache", Start.LATEST, "bob")
    assert (back.cursor, back.must_reconcile, back.retired_at, back.start) == (None, True, None, Start.LATEST)
    assert store.consumers.acknowledge(taken, read=None, sequence=2) is False
    assert lease(store).fence > taken.fence
    assert codes(store) == ["consumer-registered", "consumer-retired", "consumer-registered"]


@pytest.mark.promise("L12")
def test_a_look_tells_the_row_the_head_and_the_servers_time(harness: Harness) -> None:
    tell_many(harness.acme, 3)
    nobody = harness.acme.consumers.look("cache")
    assert (nobody.consumer, nobody.head, nobody.replays) == (None, 3, False)
    assert abs(nobody.now - harness.now()) < timedelta(minutes=1)
    registered = register(harness.acme)
    assert harness.acme.consumers.look("cache").consumer == registered
    assert harness.other.consumers.look("cache").head == 0


# The lease.


@pytest.mark.promise("L07")
def test_of_two_processes_one_has_the_lease_until_it_ends(harness: Harness) -> None:
    register(harness.acme)
    consumers = harness.acme.consumers
    first = lease(harness.acme, owner="one")
    assert abs(first.taken_at - harness.now()) < timedelta(minutes=1)
    assert (first.consumer.lease_owner, first.consumer.cursor) == ("one", None)
    assert first.consumer.lease_until == first.taken_at + LEASE
    assert consumers.lease("cache", "two", LEASE) is None
    harness.advance(LEASE + SECOND)
    second = lease(harness.acme, owner="two")
    assert second.fence == first.fence + 1
    assert consumers.lease("cache", "one", LEASE) is None


@pytest.mark.promise("L07")
def test_of_many_processes_at_once_one_gets_the_lease(harness: Harness) -> None:
    register(harness.acme)
    with ThreadPoolExecutor(4) as pool:
        stores = [(harness.other_process().tenant("acme"), f"worker-{number}") for number in range(8)]
        taken = list(pool.map(lambda one: one[0].consumers.lease("cache", one[1], LEASE), stores))
    assert sum(one is not None for one in taken) == 1


@pytest.mark.promise("L07")
def test_a_lease_of_the_same_owner_is_taken_anew_and_the_older_one_is_void(harness: Harness) -> None:
    first = begun(harness.acme)
    second = lease(harness.acme)
    assert second.fence == first.fence + 1
    assert harness.acme.consumers.acknowledge(first, read=0, sequence=1) is False
    assert harness.acme.consumers.acknowledge(second, read=0, sequence=1) is True


def test_a_lease_that_lies_further_ahead_than_any_can_counts_as_over(harness: Harness) -> None:
    register(harness.acme)
    lease(harness.acme, owner="one")
    harness.step_server_clock_back(timedelta(seconds=5))
    assert harness.acme.consumers.lease("cache", "two", LEASE) is None
    harness.step_server_clock_back(timedelta(hours=1))
    assert harness.acme.consumers.lease("cache", "two", LEASE) is not None


def test_what_is_unknown_retired_or_paused_has_no_lease(harness: Harness) -> None:
    consumers = harness.acme.consumers
    assert consumers.lease("cache", "one", LEASE) is None
    register(harness.acme)
    assert list(consumers.set_paused(["cache"], paused=True)) == ["cache"]
    assert consumers.lease("cache", "one", LEASE) is None
    assert list(consumers.set_paused(None, paused=False)) == ["cache"]
    assert consumers.lease("cache", "one", LEASE) is not None
    consumers.retire("cache", "ann", "")
    assert consumers.lease("cache", "one", LEASE) is None


@pytest.mark.promise("L07")
def test_a_renewal_lengthens_the_lease_and_never_shortens_it(harness: Harness) -> None:
    register(harness.acme)
    taken, consumers = lease(harness.acme), harness.acme.consumers
    assert consumers.renew(taken, 4 * LEASE)
    longest = row(harness.acme).lease_until
    assert longest is not None
    assert longest >= taken.taken_at + 4 * LEASE
    assert consumers.renew(taken, LEASE)
    assert row(harness.acme).lease_until == longest
    harness.advance(2 * LEASE)
    assert consumers.lease("cache", "two", LEASE) is None


LATE_WRITES: dict[str, Callable[[TenantStore, Lease], object]] = {
    "renew": lambda store, late: store.consumers.renew(late, LEASE),
    "acknowledge": lambda store, late: store.consumers.acknowledge(late, read=0, sequence=2),
    "supersede": lambda store, late: store.consumers.acknowledge(late, read=0, sequence=2, superseded=["e1"]),
    "fail": lambda store, late: store.consumers.fail(
        late, event_id="e", attempts=1, delay=SECOND, failure_class="ValueError"
    ),
    "park": lambda store, late: store.consumers.park(
        late, store.stream.read_after(0, 1).entries[0], read=0, attempts=10, failure_class="ValueError"
    ),
    "reconciled": lambda store, late: store.consumers.reconciled(late, head=2, why="late"),
    "begin": lambda store, late: store.consumers.begin(late),
    "stop": lambda store, late: store.consumers.stop(late, "late"),
    "rest": lambda store, late: store.consumers.rest(late, idle=True, delay=DAY),
    "replayed": lambda store, late: store.consumers.replayed(late, "e", why="late"),
    "replay_failed": lambda store, late: store.consumers.replay_failed(late, "e", failure_class="ValueError"),
}


def _taken_by_another(store: TenantStore, harness: Harness, taken: Lease) -> None:
    del taken
    harness.advance(LEASE + SECOND)
    lease(store, owner="another")


def _retired(store: TenantStore, harness: Harness, taken: Lease) -> None:
    del harness, taken
    store.consumers.retire("cache", "ann", "")


def _marked_retired(store: TenantStore, harness: Harness, taken: Lease) -> None:
    """By what leaves the lease as it is."""
    del store, taken
    harness.change(CURSORS, KEY, retired_at=harness.now())


def _given_back(store: TenantStore, harness: Harness, taken: Lease) -> None:
    del harness
    assert store.consumers.rest(taken, idle=False, delay=DAY)


def _skipped(store: TenantStore, harness: Harness, taken: Lease) -> None:
    del harness, taken
    store.consumers.skip("cache", "ann", "")


ENDINGS = {
    one.__name__.strip("_"): one for one in (_taken_by_another, _retired, _marked_retired, _given_back, _skipped)
}


@pytest.mark.promise("L07", "L14")
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_comes_late_of_a_lease_changes_nothing(harness: Harness, ending: str) -> None:
    store = harness.acme
    tell_many(store, 3)
    late = begun(store)
    ENDINGS[ending](store, harness, late)
    before = harness.raw(CURSORS), harness.raw("lifecycle_dead_letters"), codes(store)
    answers = {name: write(store, late) for name, write in LATE_WRITES.items()}
    # A second rest of a lease that was given back finds its own work done.
    assert {name for name, answer in answers.items() if answer} == ({"rest"} if ending == "given_back" else set())
    assert (harness.raw(CURSORS), harness.raw("lifecycle_dead_letters"), codes(store)) == before


@pytest.mark.promise("L07")
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_observers_transaction_is_undone_where_the_lease_is_lost(harness: Harness, ending: str) -> None:
    store = harness.acme
    tell_many(store, 2)
    late = begun(store)
    ENDINGS[ending](store, harness, late)
    before = harness.raw(CURSORS)
    with pytest.raises(LeaseLostError):
        acknowledge_in(store, late, 0, 1)
    assert harness.raw(CURSORS) == before


# The cursor.


@pytest.mark.promise("L06", "L07")
def test_the_cursor_moves_from_where_it_was_read_and_from_nowhere_else(harness: Harness) -> None:
    tell_many(harness.acme, 5)
    taken, consumers = begun(harness.acme), harness.acme.consumers
    assert consumers.acknowledge(taken, read=0, sequence=2) is True
    for read in (None, 0, 1, 3):
        assert consumers.acknowledge(taken, read=read, sequence=5) is False
        with pytest.raises(LeaseLostError):
            acknowledge_in(harness.acme, taken, read, 5)
    assert row(harness.acme).cursor == 2
    acknowledge_in(harness.acme, taken, 2, 5)
    assert row(harness.acme).cursor == 5


@pytest.mark.promise("L06")
@pytest.mark.parametrize("superseded", [(), ("e1",)])
def test_an_acknowledgement_that_is_repeated_finds_its_own_work_done(
    harness: Harness, superseded: tuple[str, ...]
) -> None:
    tell_many(harness.acme, 2)
    taken, consumers = begun(harness.acme), harness.acme.consumers
    for _ in range(2):
        assert consumers.acknowledge(taken, read=0, sequence=2, superseded=superseded) is True
    assert codes(harness.acme).count("event-superseded") == len(superseded)


@pytest.mark.promise("L05")
def test_a_consumer_begins_before_the_first_event_once(harness: Harness) -> None:
    register(harness.acme)
    taken, consumers = lease(harness.acme), harness.acme.consumers
    assert [consumers.begin(taken), consumers.begin(taken)] == [True, True]
    assert row(harness.acme).cursor == 0
    assert consumers.acknowledge(taken, read=0, sequence=1)
    assert consumers.begin(taken) is False
    assert row(harness.acme).cursor == 1


@pytest.mark.promise("L06", "L09")
def test_an_acknowledgement_forgets_the_failed_tries(harness: Harness) -> None:
    taken, consumers = begun(harness.acme), harness.acme.consumers
    assert consumers.fail(taken, event_id="e1", attempts=3, delay=timedelta(minutes=5), failure_class="KeyError")
    failing = row(harness.acme).failing
    assert failing is not None
    assert (failing.event_id, failing.attempts, failing.failure_class) == ("e1", 3, "KeyError")
    assert timedelta(minutes=4) < failing.next_attempt_at - harness.now() <= timedelta(minutes=5)
    assert consumers.acknowledge(taken, read=0, sequence=1)
    assert row(harness.acme).failing is None


@pytest.mark.promise("L18")
def test_superseded_events_are_audited_in_one_row_with_the_acknowledgement(harness: Harness) -> None:
    taken = begun(harness.acme)
    assert harness.acme.consumers.acknowledge(taken, read=0, sequence=4, superseded=["e1", "e3"])
    newest = harness.acme.audit.rows()[0]
    assert (newest.code.rpartition(":")[2], newest.subject) == ("event-superseded", "cache")
    assert dict(newest.detail) == {"consumer_id": "cache", "event_ids": "e1,e3", "count": 2}


@pytest.mark.promise("L06", "L18")
def test_an_acknowledgement_inside_the_observers_transaction_is_undone_with_it(harness: Harness) -> None:
    taken, store = begun(harness.acme), harness.acme
    with store.transactions.begin() as transaction:
        store.consumers.acknowledge_in(transaction, taken, read=0, sequence=2, superseded=["e1"])
    assert (row(store).cursor, codes(store)) == (0, ["consumer-registered"])
    with store.transactions.begin() as transaction:
        store.consumers.acknowledge_in(transaction, taken, read=0, sequence=2, superseded=["e1"])
        transaction.commit()
    assert (row(store).cursor, codes(store)) == (2, ["consumer-registered", "event-superseded"])


@pytest.mark.promise("L12")
@pytest.mark.parametrize("stored", [None, 7, 999, -3, "three", 2.5, {"at": 1}, True])
def test_reconciling_sets_whatever_cursor_there_is_to_the_head(harness: Harness, stored: object) -> None:
    store = harness.acme
    register(store)
    harness.change(CURSORS, KEY, last_acked_sequence=stored, must_reconcile=True, stopped_for="no function")
    taken = lease(store)
    assert store.consumers.fail(taken, event_id="#reconcile", attempts=2, delay=SECOND, failure_class="OSError")
    for _ in range(2):
        assert store.consumers.reconciled(taken, head=9, why="its cursor was gone") is True
    found = row(store)
    assert (found.cursor, found.must_reconcile, found.stopped_for, found.failing) == (9, False, "", None)
    newest = store.audit.rows()[0]
    assert (newest.code.rpartition(":")[2], newest.why) == ("consumer-reconciled", "its cursor was gone")
    assert newest.detail["head"] == 9


@pytest.mark.promise("L12")
@pytest.mark.parametrize(
    ("stored", "cursor"), [(None, None), (0, 0), (7, 7), (-3, -1), ("three", -1), (2.5, -1), ([], -1), (True, -1)]
)
def test_a_cursor_that_is_no_number_from_zero_on_is_read_as_such(
    harness: Harness, stored: object, cursor: int | None
) -> None:
    register(harness.acme)
    harness.change(CURSORS, KEY, last_acked_sequence=stored)
    assert row(harness.acme).cursor == cursor
    assert harness.acme.consumers.all()[0].cursor == cursor
    assert lease(harness.acme).consumer.cursor == cursor


@pytest.mark.promise("L12")
def test_no_event_moves_a_cursor_that_is_no_number(harness: Harness) -> None:
    register(harness.acme)
    harness.change(CURSORS, KEY, last_acked_sequence=-1)
    taken = lease(harness.acme)
    assert harness.acme.consumers.acknowledge(taken, read=-1, sequence=1) is False


# Resting, waking, stopping.


@pytest.mark.promise("L15")
def test_resting_gives_the_lease_back_and_counts_idle_polls(harness: Harness) -> None:
    register(harness.acme)
    consumers = harness.acme.consumers
    for polls in (1, 2):
        assert consumers.rest(lease(harness.acme, owner=f"w{polls}"), idle=True, delay=timedelta(minutes=1))
        found = row(harness.acme)
        assert (found.lease_owner, found.lease_until, found.idle_polls) == ("", None, polls)
        assert found.next_poll_at is not None
        assert timedelta(seconds=30) < found.next_poll_at - harness.now() <= timedelta(minutes=1)
    assert consumers.rest(lease(harness.acme), idle=False, delay=SECOND)
    assert row(harness.acme).idle_polls == 0


@pytest.mark.promise("L17")
def test_waking_lets_those_be_due_that_lag_and_wait_in_idleness(harness: Harness) -> None:
    store, consumers = harness.acme, harness.acme.consumers
    tell_many(store, 2)
    names = ("behind", "failed", "leased", "level", "new", "paused", "retired")
    for name in names:
        taken = begun(store, name)
        if name == "level":
            assert consumers.acknowledge(taken, read=0, sequence=2)
        if name == "failed":
            assert consumers.fail(taken, event_id="e", attempts=1, delay=DAY, failure_class="KeyError")
        if name != "leased":
            assert consumers.rest(taken, idle=True, delay=DAY)
    harness.change(CURSORS, "acme|new", last_acked_sequence=None)
    consumers.set_paused(["paused"], paused=True)
    consumers.retire("retired", "ann", "")
    assert list(consumers.wake([*names, "nobody"])) == ["behind", "new"]
    woken = row(store, "behind")
    assert woken.next_poll_at is not None
    assert woken.next_poll_at <= harness.now()
    assert list(consumers.wake(["level"])) == []
    assert list(consumers.wake([])) == []


@pytest.mark.promise("L12")
def test_a_consumer_that_stopped_goes_on_once_an_operator_says_so(harness: Harness) -> None:
    tell_many(harness.acme, 4)
    consumers = harness.acme.consumers
    assert consumers.stop(begun(harness.acme), "it has no reconcile function")
    assert row(harness.acme).stopped_for == "it has no reconcile function"
    consumers.require_reconcile("cache", "ann", "it has one now")
    assert (row(harness.acme).stopped_for, row(harness.acme).must_reconcile) == ("", True)
    assert consumers.stop(lease(harness.acme), "still none")
    assert consumers.skip("cache", "ann", "nothing was missed") == 4
    found = row(harness.acme)
    assert (found.stopped_for, found.must_reconcile, found.cursor, found.lease_owner) == ("", False, 4, "")
    assert codes(harness.acme) == ["consumer-registered", "reconcile-asked", "consumer-skipped"]
    newest = harness.acme.audit.rows()[0]
    assert (newest.by, newest.why, newest.detail["head"]) == ("ann", "nothing was missed", 4)


@pytest.mark.promise("L12", "L14")
def test_what_is_unknown_or_retired_is_neither_reconciled_nor_skipped(harness: Harness) -> None:
    consumers = harness.acme.consumers
    for call in (consumers.require_reconcile, consumers.skip, consumers.retire):
        with pytest.raises(ConsumerNotFoundError):
            call("cache", "ann", "")
    register(harness.acme)
    assert [consumers.retire("cache", "ann", ""), consumers.retire("cache", "ann", "")] == [True, False]
    for call in (consumers.require_reconcile, consumers.skip):
        with pytest.raises(ConsumerRetiredError):
            call("cache", "ann", "")
    assert codes(harness.acme) == ["consumer-registered", "consumer-retired"]


def test_pausing_and_resuming_tell_whom_they_changed(harness: Harness) -> None:
    consumers = harness.acme.consumers
    for name in ("a", "b", "c"):
        register(harness.acme, name)
    consumers.retire("c", "ann", "")
    assert list(consumers.set_paused(["b", "c", "nobody"], paused=True)) == ["b"]
    assert list(consumers.set_paused(None, paused=True)) == ["a"]
    assert [one.paused_at is None for one in consumers.all()] == [False, False, True]
    assert list(consumers.set_paused(None, paused=False)) == ["a", "b"]
    assert list(consumers.set_paused(None, paused=False)) == []


# What is told of all.


@pytest.mark.promise("L13")
def test_lags_and_ages_are_told_of_each_consumer_that_is_not_retired(harness: Harness) -> None:
    store, consumers = harness.acme, harness.acme.consumers
    told = tell_many(store, 2)
    harness.advance(timedelta(hours=1))
    told += tell_many(store, 2, first=3)
    for name, sequence in (("far", 4), ("near", 2), ("retired", 1)):
        assert consumers.acknowledge(begun(store, name), read=0, sequence=sequence)
    register(store, "new")
    consumers.retire("retired", "ann", "")
    assert consumers.lags() == {"far": 0, "near": 2, "new": 4}
    ages = {name: harness.now() - at for name, at in consumers.oldest_unacknowledged().items()}
    assert set(ages) == {"near", "new"}
    assert ages["near"] < timedelta(minutes=1)
    assert ages["new"] >= timedelta(hours=1)
    assert harness.other.consumers.lags() == {}


@pytest.mark.promise("L13")
def test_the_age_of_what_was_pruned_is_that_of_the_first_event_that_is_left(harness: Harness) -> None:
    tell_many(harness.acme, 3)
    harness.advance(DAY)
    assert harness.acme.stream.prune(2, SECOND, 10) == 2
    register(harness.acme)
    (left,) = harness.acme.stream.read_after(0, 10).entries
    assert harness.acme.consumers.oldest_unacknowledged() == {"cache": getattr(left, "occurred_at", None)}


@pytest.mark.promise("L13")
@pytest.mark.parametrize("field", ["registered_at", "start", "fence", "failing"])
def test_a_row_that_does_not_decode_stops_itself_and_pruning_and_nobody_else(harness: Harness, field: str) -> None:
    store, consumers = harness.acme, harness.acme.consumers
    tell_many(store, 3)
    for name in ("cache", "whole"):
        assert consumers.acknowledge(begun(store, name), read=0, sequence=3)
    harness.change(CURSORS, KEY, **{field: "broken"})
    damaged, whole = consumers.all()
    assert (damaged.consumer_id, damaged.cursor, whole.cursor) == ("cache", -1, 3)
    assert damaged.stopped_for
    assert row(harness.acme).stopped_for == damaged.stopped_for
    assert floor_of(consumers.all(), 3).acknowledged == 0
    # A fence that is no number starts anew with the next lease, so that row is whole again.
    assert (consumers.lease("cache", "worker-1", LEASE) is None) is (field != "fence")
    assert consumers.retire("cache", "ann", "it is beyond repair")
    assert floor_of(consumers.all(), 3).acknowledged == 3


@pytest.mark.promise("O08")
def test_what_a_row_lacks_has_its_default_and_what_is_not_known_of_it_survives(harness: Harness) -> None:
    store, consumers = harness.acme, harness.acme.consumers
    tell_many(store, 3)
    harness.put_raw(
        CURSORS,
        {
            "_id": KEY,
            "tenant_id": "acme",
            "consumer_id": "cache",
            "start": "beginning",
            "registered_at": harness.now(),
            "shade": "blue",
        },
    )
    found = row(store)
    assert (found.cursor, found.fence, found.idle_polls, found.failing, found.lease_owner) == (None, 0, 0, None, "")
    taken = lease(store)
    assert consumers.begin(taken)
    assert consumers.fail(taken, event_id="e", attempts=1, delay=SECOND, failure_class="KeyError")
    assert row(store).failing == Failing(
        event_id="e",
        attempts=1,
        next_attempt_at=row(store).failing.next_attempt_at,  # type: ignore[union-attr] # it was stored
        failure_class="KeyError",
    )
    assert consumers.acknowledge(taken, read=0, sequence=1)
    assert consumers.park(
        taken, store.stream.read_after(1, 1).entries[0], read=1, attempts=10, failure_class="KeyError"
    )
    assert consumers.renew(taken, LEASE)
    assert consumers.rest(taken, idle=True, delay=SECOND)
    consumers.set_paused(None, paused=True)
    consumers.set_paused(None, paused=False)
    consumers.skip("cache", "ann", "")
    consumers.retire("cache", "ann", "")
    register(store)
    (stored,) = harness.raw(CURSORS)
    assert stored["shade"] == "blue"
    assert consumers.letters()[0].state is LetterState.RESOLVED
