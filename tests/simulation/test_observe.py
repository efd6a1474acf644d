"""A consumer's polls: every event in order, once where that can be, and what failures, restores and pruning do."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.application.archive_card import archive_card
from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.domain.board_input import Cause
from outbox_core.domain.consumer import LetterState, Poll, Start
from outbox_core.domain.delivery import RETRIES, retry_delay
from outbox_core.domain.errors import LeaseLostError, ObserverActedError, TransientError
from tests.harness.faults import with_calls
from tests.simulation.observing import (
    Cache,
    cursor,
    delete,
    observer,
    poll_to_rest,
    put_cards,
    restore,
    watched,
)

if TYPE_CHECKING:
    from outbox_core.domain.observer import Observation, Reconciliation
    from tests.harness.base import Harness

LONG = timedelta(minutes=16)


@pytest.mark.promise("L05")
def test_each_consumer_sees_every_event_in_order_and_none_affects_another(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    ids = watched(store, runtime, 5)
    first, second = Cache(), Cache("c2")
    store.consumers.register("second", Start.BEGINNING, "test")
    poll_to_rest(harness, store, runtime, observer(first))
    observe_lifecycle(store, runtime, observer(second, "second"))
    assert first.ids == [f"-{one}" for one in ids]
    assert second.ids == ["-c1", "-c2"]
    assert (cursor(store), cursor(store, "second")) == (5, 1)
    assert [one.event.sequence for one in first.told] == [1, 2, 3, 4, 5]


@pytest.mark.promise("L05", "L22")
def test_nobody_is_told_anything_until_a_consumer_is_registered(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    put_cards(store, "c1")
    delete(store, runtime, "c1")
    assert observe_lifecycle(store, runtime, observer(cache)).poll is Poll.UNREGISTERED
    assert not cache.told
    assert not store.consumers.all()


@pytest.mark.promise("L08")
def test_an_observer_is_told_that_it_observes_who_wrote_and_whether_that_was_its_own_process(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 1)
    observe_lifecycle(store, runtime, observer(cache))
    (told,) = cache.told
    assert (told.observed, told.own, told.writer_process_id, told.attempt) == (True, True, runtime.writer, 1)
    assert told.event_id == told.event.event_id
    other = harness.runtime(writer="another process")
    store.consumers.register("elsewhere", Start.BEGINNING, "test")
    elsewhere = Cache()
    observe_lifecycle(store, other, observer(elsewhere, "elsewhere"))
    assert [one.own for one in elsewhere.told] == [False]


@pytest.mark.promise("L08")
@pytest.mark.parametrize("what", ["delete", "restore"])
def test_an_observer_that_deletes_or_restores_raises_and_writes_nothing(harness: Harness, what: str) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    put_cards(store, "other", "gone")
    delete(store, runtime, "gone")
    watched(store, runtime, 1)
    raised: list[BaseException] = []

    def act(_: Observation) -> None:
        try:
            delete(store, runtime, "other") if what == "delete" else restore(store, runtime, "gone")
        except ObserverActedError as error:
            raised.append(error)
            raise

    cache.on_call = act
    head, audited = store.stream.head(), len(harness.raw("run_audit", tenant_id="acme", code="task:deleted"))
    report = observe_lifecycle(store, runtime, observer(cache))
    assert (report.poll, report.failed, len(raised)) == (Poll.RETRYING, 1, 1)
    assert store.stream.head() == head
    assert len(harness.raw("run_audit", tenant_id="acme", code="task:deleted")) == audited


@pytest.mark.promise("L09")
def test_a_failed_event_is_tried_again_after_1_5_30_300_and_then_900_seconds_across_restarts(harness: Harness) -> None:
    store, cache = harness.acme, Cache("c1")
    watched(store, harness.runtime(), 2)
    for tries in range(1, 10):
        # Another process each time: what was counted is stored.
        report = observe_lifecycle(store, harness.runtime(worker=f"worker-{tries}"), observer(cache))
        assert (report.poll, report.wait) == (Poll.RETRYING, retry_delay(tries))
        harness.advance(retry_delay(tries) - timedelta(milliseconds=500))
        assert observe_lifecycle(store, harness.runtime(), observer(cache)).poll is Poll.RETRYING
        assert len(cache.told) == tries
        harness.advance(timedelta(milliseconds=600))
    assert [retry_delay(one) for one in range(1, 7)] == [*RETRIES, RETRIES[-1]]
    assert [one.attempt for one in cache.told] == list(range(1, 10))


@pytest.mark.promise("L10")
def test_the_tenth_failure_parks_audits_and_goes_on_with_later_events(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache("c2")
    watched(store, runtime, 3)
    with caplog.at_level(logging.ERROR, "outbox.lifecycle"):
        poll_to_rest(harness, store, runtime, observer(cache))
    assert len(caplog.records) == 1
    assert cache.ids == ["-c1", *["-c2"] * 10, "-c3"]
    (letter,) = store.consumers.letters()
    assert (letter.consumer_id, letter.sequence, letter.attempts, letter.failure_class) == (
        "cache",
        2,
        10,
        "ValueError",
    )
    assert letter.event is not None
    assert letter.event.task_id == "c2"
    assert letter.state is LetterState.UNRESOLVED
    (row,) = store.audit.rows(code="lifecycle-observation:consumer-poisoned")
    assert dict(row.detail) == {"consumer_id": "cache", "event_id": letter.event_id, "attempts": 10}
    assert "told not to" not in str(harness.raw("lifecycle_dead_letters")) + str(harness.raw("run_audit"))


@pytest.mark.promise("L09")
@pytest.mark.scenario(24)
def test_an_event_that_fails_once_after_another_succeeded_at_its_tenth_try_does_not_park(harness: Harness) -> None:
    """Attempts are per event (seen at: Fusion, its code)."""
    store, runtime, cache = harness.acme, harness.runtime(), Cache("c1")
    watched(store, runtime, 2)
    for tries in range(1, 10):
        observe_lifecycle(store, runtime, observer(cache))
        harness.advance(retry_delay(tries) + timedelta(seconds=1))
    cache.fails = {"c2"}
    report = observe_lifecycle(store, runtime, observer(cache))
    assert (report.observed, report.failed, report.parked, report.wait) == (1, 1, 0, retry_delay(1))
    assert cursor(store) == 1
    cache.fails = set()
    harness.advance(LONG)
    poll_to_rest(harness, store, runtime, observer(cache))
    assert not store.consumers.letters()


@pytest.mark.promise("L11")
def test_a_replayed_letter_is_observed_again_alone_and_a_second_replay_does_nothing(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache("c2")
    watched(store, runtime, 3)
    poll_to_rest(harness, store, runtime, observer(cache))
    (letter,) = store.consumers.letters()
    cache.told.clear()
    cache.fails = set()
    assert store.consumers.ask_replay("cache", letter.event_id, "ann", "mended")
    assert not store.consumers.ask_replay("cache", letter.event_id, "bob", "mended")
    report = observe_lifecycle(store, runtime, observer(cache))
    assert (report.replayed, cache.ids, cache.told[0].replayed) == (1, ["-c2"], True)
    assert store.consumers.letter("cache", letter.event_id).state is LetterState.RESOLVED
    assert not store.consumers.ask_replay("cache", letter.event_id, "ann", "again")
    assert observe_lifecycle(store, runtime, observer(cache)).poll is Poll.IDLE
    assert len(cache.told) == 1
    (row,) = store.audit.rows(code="lifecycle-observation:consumer-replayed")
    assert (row.by, row.why, row.detail["event_id"]) == ("ann", "mended", letter.event_id)


@pytest.mark.promise("L11")
def test_a_replay_that_fails_puts_the_letter_back(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache("c1")
    watched(store, runtime, 1)
    poll_to_rest(harness, store, runtime, observer(cache))
    (letter,) = store.consumers.letters()
    for replays in (1, 2):
        assert store.consumers.ask_replay("cache", letter.event_id, "ann", "")
        assert observe_lifecycle(store, runtime, observer(cache)).replayed == 0
        found = store.consumers.letter("cache", letter.event_id)
        assert (found.state, found.replays) == (LetterState.UNRESOLVED, replays)


@pytest.mark.promise("L18")
def test_a_deletion_whose_card_was_restored_is_passed_and_recorded_and_the_restore_is_observed(
    harness: Harness,
) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 2)
    restore(store, runtime, "c1")
    poll_to_rest(harness, store, runtime, observer(cache))
    assert cache.ids == ["-c2", "+c1"]
    assert cursor(store) == 3
    (row,) = store.audit.rows(code="lifecycle-observation:event-superseded")
    assert row.detail["count"] == 1
    assert "task-deleted:c1:" in str(row.detail["event_ids"])


@pytest.mark.promise("L18", "L03")
def test_of_two_deletions_of_one_card_only_the_one_that_holds_is_given(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 1)
    restore(store, runtime, "c1")
    delete(store, runtime, "c1")
    poll_to_rest(harness, store, runtime, observer(cache))
    assert cache.ids == ["+c1", "-c1"]
    ids = [one["event_id"] for one in harness.raw("lifecycle_outbox", tenant_id="acme")]
    assert len(set(ids)) == 3
    assert cache.told[-1].event.sequence == 3


@pytest.mark.promise("L18", "L11")
def test_a_replayed_deletion_of_a_card_that_was_restored_is_settled_and_not_observed(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache("c1")
    watched(store, runtime, 1)
    poll_to_rest(harness, store, runtime, observer(cache))
    cache.fails, cache.told = set(), []
    restore(store, runtime, "c1")
    (letter,) = store.consumers.letters()
    store.consumers.ask_replay("cache", letter.event_id, "ann", "")
    poll_to_rest(harness, store, runtime, observer(cache))
    assert cache.ids == ["+c1"]
    found = store.consumers.letter("cache", letter.event_id)
    assert (found.state, found.settled_why) == (LetterState.RESOLVED, "superseded")


@pytest.mark.promise("L07")
def test_of_two_processes_under_one_id_one_works_and_the_late_acknowledgement_is_refused(harness: Harness) -> None:
    store = harness.acme
    one, two = harness.runtime(worker="one"), harness.runtime(worker="two")
    watched(store, one, 3)
    stalled, heir = Cache(), Cache()

    def stall(_: Observation) -> None:
        if len(stalled.told) == 1:
            assert observe_lifecycle(store, two, observer(heir)).poll is Poll.BUSY
            harness.advance(timedelta(seconds=16))
            assert observe_lifecycle(store, two, observer(heir)).observed == 3
            harness.advance(timedelta(seconds=-16) if harness.name == "memory" else timedelta(0))

    stalled.on_call = stall
    report = observe_lifecycle(store, one, observer(stalled))
    assert report.poll is Poll.LOST
    assert (len(stalled.told), heir.ids, cursor(store)) == (1, ["-c1", "-c2", "-c3"], 3)


@pytest.mark.promise("L12")
@pytest.mark.parametrize("stored", [-1, "five", 2.5, 10**6, True])
def test_a_cursor_that_cannot_be_reconciles_against_the_live_cards_then_goes_on_from_the_head(
    harness: Harness, stored: object
) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 2)
    put_cards(store, "live")
    harness.change("lifecycle_consumer_cursors", "acme|cache", last_acked_sequence=stored)
    cache.cards = {"c1", "stale"}
    report = observe_lifecycle(store, runtime, observer(cache))
    assert report.reconciled
    assert (cache.cards, cache.told, cursor(store)) == ({"live"}, [], 2)
    delete(store, runtime, "live")
    poll_to_rest(harness, store, runtime, observer(cache))
    assert cache.ids == ["-live"]


@pytest.mark.promise("L12")
def test_an_event_that_commits_while_a_consumer_reconciles_is_delivered_after_it(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    put_cards(store, "c1", "c2")
    store.consumers.register("cache", Start.LATEST, "test")

    def reconcile(given: Reconciliation) -> None:
        cache.reconcile(given)
        # Another process's: an observer itself may not.
        thread = threading.Thread(target=delete, args=(store, runtime, "c2"))
        thread.start()
        thread.join()

    one = observer(cache, start=Start.LATEST, reconcile=reconcile)
    assert observe_lifecycle(store, runtime, one).reconciled
    assert cursor(store) == 0
    poll_to_rest(harness, store, runtime, one)
    assert (cache.cards, cache.ids) == ({"c1"}, ["-c2"])


@pytest.mark.promise("L12", "L05")
def test_a_new_consumer_begins_where_it_said_and_a_lost_row_is_a_new_one(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 2)
    put_cards(store, "live")
    store.consumers.register("late", Start.LATEST, "test")
    late = Cache()
    assert observe_lifecycle(store, runtime, observer(late, "late", Start.LATEST)).reconciled
    assert (late.cards, late.told, cursor(store, "late")) == ({"live"}, [], 2)
    poll_to_rest(harness, store, runtime, observer(cache))
    assert (cache.ids, cache.reconciled) == (["-c1", "-c2"], [])


@pytest.mark.promise("L12")
def test_a_consumer_that_must_reconcile_and_cannot_stops_alarms_once_and_waits_for_an_operator(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 2)
    harness.change("lifecycle_consumer_cursors", "acme|cache", last_acked_sequence=99)
    unable = observer(cache, reconcile=None)
    with caplog.at_level(logging.ERROR, "outbox.lifecycle"):
        for _ in range(3):
            assert observe_lifecycle(store, runtime, unable).poll is Poll.STOPPED
            harness.advance(LONG)
    assert len(caplog.records) == 1
    assert not cache.told
    assert store.consumers.skip("cache", "ann", "rebuilt by hand") == 2
    put_cards(store, "next")
    delete(store, runtime, "next")
    poll_to_rest(harness, store, runtime, unable)
    assert cache.ids == ["-next"]


@pytest.mark.promise("L12")
def test_a_reconciliation_that_fails_is_tried_again_and_never_given_up(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 1)
    store.consumers.require_reconcile("cache", "ann", "")

    def fail(_: object) -> None:
        raise ValueError

    broken = observer(cache, reconcile=fail)
    with caplog.at_level(logging.ERROR, "outbox.lifecycle"):
        for tries in range(1, 13):
            assert observe_lifecycle(store, runtime, broken).wait == retry_delay(tries)
            harness.advance(LONG)
    assert len(caplog.records) == 3
    assert not store.consumers.letters()
    assert observe_lifecycle(store, runtime, observer(cache)).reconciled


@pytest.mark.promise("L14")
def test_a_retired_consumer_acknowledges_nothing_and_reconciles_when_it_is_registered_again(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 2)

    def retire(_: Observation) -> None:
        store.consumers.retire("cache", "ann", "not needed")

    cache.on_call = retire
    assert observe_lifecycle(store, runtime, observer(cache)).poll is Poll.LOST
    cache.on_call = lambda _: None
    assert observe_lifecycle(store, runtime, observer(cache)).poll is Poll.RETIRED
    assert cursor(store) == 0
    assert [row.by for row in store.audit.rows(code="lifecycle-observation:consumer-retired")] == ["ann"]
    store.consumers.register("cache", Start.BEGINNING, "ann")
    assert observe_lifecycle(store, runtime, observer(cache)).reconciled
    assert cursor(store) == 2


@pytest.mark.promise("L02")
def test_a_repeated_delete_an_unknown_one_and_an_archived_cards_delete(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    put_cards(store, "c1")
    archive_card(store, runtime, "c1", Cause())
    assert store.stream.head() == 0
    delete(store, runtime, "c1", "c1", "c1")
    assert store.stream.head() == 1
    assert len(store.audit.rows(code="task:deleted")) == 1
    store.consumers.register("cache", Start.BEGINNING, "test")
    poll_to_rest(harness, store, runtime, observer(cache))
    (told,) = cache.told
    assert (told.event.prior_status, told.event.prior_column) == ("archived", "todo")


@pytest.mark.promise("L06")
def test_a_plain_observer_is_told_again_only_what_was_not_acknowledged(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 3)
    real, times = store.consumers.acknowledge, [0]

    def lost(*args: object, **kwargs: object) -> bool:
        times[0] += 1
        if times[0] == 2:
            raise TransientError("no answer")
        return real(*args, **kwargs)  # type: ignore[arg-type] # as it was called

    with pytest.raises(TransientError):
        observe_lifecycle(with_calls(store, "consumers", acknowledge=lost), runtime, observer(cache))
    poll_to_rest(harness, store, runtime, observer(cache))
    assert cache.ids == ["-c1", "-c2", "-c2", "-c3"]


@pytest.mark.promise("L06")
def test_a_transactional_observer_sees_each_event_exactly_once_in_batches(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 5)

    def append(told: Observation) -> None:
        assert told.transaction is not None
        told.transaction.append(type="seen", event_id=f"seen-{told.event.task_id}")

    cache.on_call = append
    report = observe_lifecycle(store, runtime, observer(cache, transactional=True))
    assert (report.observed, cursor(store)) == (5, 5)
    seen = [event["event_id"] for event in harness.raw("board_events", type="seen") if "void" not in event]
    assert sorted(seen) == [f"seen-c{number}" for number in range(1, 6)]


@pytest.mark.promise("L06", "L10")
def test_a_transactional_batch_with_one_poison_event_commits_what_is_before_it_and_parks_it_alone(
    harness: Harness,
) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache("c3")
    watched(store, runtime, 5)

    def append(told: Observation) -> None:
        assert told.transaction is not None
        told.transaction.append(type="seen", event_id=f"seen-{told.event.task_id}")

    cache.on_call = append
    poll_to_rest(harness, store, runtime, observer(cache, transactional=True))
    seen = [event["event_id"] for event in harness.raw("board_events", type="seen") if "void" not in event]
    assert sorted(seen) == ["seen-c1", "seen-c2", "seen-c4", "seen-c5"]
    assert [letter.sequence for letter in store.consumers.letters()] == [3]


@pytest.mark.promise("L06", "L07")
def test_a_transactional_observer_whose_lease_is_lost_leaves_nothing(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 1)

    def steal(told: Observation) -> None:
        assert told.transaction is not None
        told.transaction.append(type="seen", event_id="seen")

    cache.on_call = steal

    def taken(*_: object, **__: object) -> None:
        raise LeaseLostError("another's")

    lost = with_calls(store, "consumers", acknowledge_in=taken)
    assert observe_lifecycle(lost, runtime, observer(cache, transactional=True)).poll is Poll.LOST
    assert not [event for event in harness.raw("board_events", type="seen") if "void" not in event]
    assert cursor(store) is None or cursor(store) == 0


@pytest.mark.promise("L15")
def test_an_idle_poll_writes_nothing_and_errors_are_not_idle(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache("c1")
    watched(store, runtime, 1)
    observe_lifecycle(store, runtime, observer(cache))
    (row,) = harness.raw("lifecycle_consumer_cursors", _id="acme|cache")
    assert row["idle_polls"] == 0
    cache.fails = set()
    harness.advance(LONG)
    poll_to_rest(harness, store, runtime, observer(cache))
    before = harness.raw("lifecycle_consumer_cursors", _id="acme|cache")
    assert observe_lifecycle(store, runtime, observer(cache)).poll is Poll.IDLE
    assert harness.raw("lifecycle_consumer_cursors", _id="acme|cache") == before


@pytest.mark.promise("L15")
def test_a_paused_consumer_is_not_polled_and_goes_on_in_its_place(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 2)
    assert list(store.consumers.set_paused(None, paused=True)) == ["cache"]
    assert observe_lifecycle(store, runtime, observer(cache)).poll is Poll.PAUSED
    assert store.consumers.lease("cache", "x", timedelta(seconds=15)) is None
    assert list(store.consumers.set_paused(["cache"], paused=False)) == ["cache"]
    poll_to_rest(harness, store, runtime, observer(cache))
    assert cache.ids == ["-c1", "-c2"]


@pytest.mark.promise("L10")
def test_a_stored_event_that_does_not_decode_parks_like_any_other_failure(harness: Harness) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 3)
    second = next(one for one in harness.raw("lifecycle_outbox") if one["sequence"] == 2)
    harness.change("lifecycle_outbox", second["_id"], task_id=17)
    poll_to_rest(harness, store, runtime, observer(cache))
    assert cache.ids == ["-c1", "-c3"]
    (letter,) = store.consumers.letters()
    assert (letter.sequence, letter.event, letter.failure_class) == (2, None, "UnreadableEventError")


@pytest.mark.promise("L19")
def test_an_event_of_a_newer_version_is_waited_for_without_a_failed_try(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    store, runtime, cache = harness.acme, harness.runtime(), Cache()
    watched(store, runtime, 2)
    second = next(one for one in harness.raw("lifecycle_outbox") if one["sequence"] == 2)
    harness.change("lifecycle_outbox", second["_id"], event_type="task:newer")
    with caplog.at_level(logging.ERROR, "outbox.lifecycle"):
        assert observe_lifecycle(store, runtime, observer(cache)).poll is Poll.UNKNOWN
        harness.advance(LONG)
        assert observe_lifecycle(store, runtime, observer(cache)).poll is Poll.UNKNOWN
    assert len(caplog.records) == 1
    assert (cache.ids, cursor(store)) == (["-c1"], 1)
    found = store.consumers.look("cache").consumer
    assert found is not None
    assert found.failing is None
