"""The judge of deletions and consumers is judged: a good history passes, and each check condemns a doctored one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.oracle import REBUILDING, Change, Rebuilt, Told, Watch, Watcher, judge_watch
from tests.oracle.judge import WATCHED_AT_REST, WHEN_NOBODY_WRITES
from tests.oracle.watched import Watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.oracle import Reader

AT = datetime(2026, 1, 1, tzinfo=UTC)
PREFIXES = {"task:deleted": "task-deleted", "task:restored": "task-restored"}
Stores = dict[str, dict[str, dict[str, Any]]]


def instant(second: int) -> datetime:
    return AT + timedelta(seconds=second)


def named(card_id: str, second: int, event_type: str = "task:deleted") -> str:
    return f"{PREFIXES[event_type]}:{card_id}:2026-01-01T00:00:{second:02d}.000Z"


DELETED_1, DELETED_2, RESTORED_2 = named("c1", 1), named("c2", 2), named("c2", 2, "task:restored")
DELETED_3, DELETED_4 = named("c3", 3), named("c4", 4)
HISTORY = (
    (1, "c1", 1, "task:deleted"),
    (2, "c2", 2, "task:deleted"),
    (3, "c2", 2, "task:restored"),
    (4, "c3", 3, "task:deleted"),
    (5, "c4", 4, "task:deleted"),
)


def stream_event(number: int, card_id: str, second: int, event_type: str) -> dict[str, Any]:
    event_id = named(card_id, second, event_type)
    return {
        "_id": f"acme|{event_id}",
        "tenant_id": "acme",
        "sequence": number,
        "event_type": event_type,
        "event_id": event_id,
        "task_id": card_id,
        "deleted_at": instant(second),
        "prior_column": "todo",
        "prior_status": "active",
        "writer_process_id": "w1",
        "occurred_at": instant(number),
        "payload_version": 1,
    }


def audit(key: str, code: str, subject: str, **detail: str | int) -> dict[str, Any]:
    return {"_id": f"acme|{key}", "tenant_id": "acme", "code": code, "subject": subject, "at": AT, "detail": detail}


def of_consumer(key: str, code: str, consumer_id: str, **detail: str | int) -> dict[str, Any]:
    return audit(key, f"lifecycle-observation:{code}", consumer_id, consumer_id=consumer_id, **detail)


def consumer(consumer_id: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a document
    usual = {"last_acked_sequence": 5, "failing": None, "retired_at": None, "stopped_for": ""}
    return {"_id": f"acme|{consumer_id}", "tenant_id": "acme", "consumer_id": consumer_id, **usual, **more}


def card(card_id: str, second: int | None) -> dict[str, Any]:
    return {"_id": f"acme|{card_id}", "tenant_id": "acme", "deleted_at": second and instant(second)}


def letter(consumer_id: str, number: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a document
    event = stream_event(*HISTORY[number - 1])
    return {
        "_id": f"acme|{consumer_id}|{event['event_id']}",
        "tenant_id": "acme",
        "consumer_id": consumer_id,
        "event_id": event["event_id"],
        "sequence": number,
        "event": event,
        "attempts": 10,
        "failure_class": "ValueError",
        "state": "resolved",
        "replays": 1,
        "settled_at": AT,
        "settled_by": consumer_id,
        "settled_why": "observed",
        **more,
    }


def good() -> Stores:
    """Four deletions and a restore; the first event is pruned.

    `plain` gave up the fourth, whose replay succeeded; `exact` is transactional and has it unresolved; `late` has
    reconciled at 4. All passed over the deletion that was undone.
    """
    documents: dict[str, list[dict[str, Any]]] = {
        "lifecycle_sequences": [{"_id": "acme", "tenant_id": "acme", "last_sequence": 5}],
        "lifecycle_outbox": [stream_event(*one) for one in HISTORY[1:]],
        "run_audit": [
            *(
                audit(named(name, second, kind), kind, name, event_id=named(name, second, kind), sequence=number)
                for number, name, second, kind in HISTORY
            ),
            *(
                of_consumer(f"s{name}", "event-superseded", name, event_ids=DELETED_2, count=1)
                for name in ("plain", "exact")
            ),
            *(
                of_consumer(f"p{name}", "consumer-poisoned", name, event_id=DELETED_3, attempts=10)
                for name in ("plain", "exact")
            ),
            of_consumer("r", "consumer-replayed", "plain", event_id=DELETED_3, replays=1),
            of_consumer("l", "consumer-reconciled", "late", head=4),
            *(of_consumer(f"reg{name}", "consumer-registered", name) for name in ("plain", "exact", "late")),
        ],
        "lifecycle_consumer_cursors": [consumer("plain"), consumer("exact"), consumer("late")],
        "lifecycle_dead_letters": [
            letter("plain", 4),
            letter("exact", 4, state="unresolved", replays=0, settled_at=None, settled_by="", settled_why=""),
        ],
        "board_cards": [card("c1", 1), card("c2", None), card("c3", 3), card("c4", 4), card("c5", None)],
        "seen": [{"_id": name, "tenant_id": "acme", "of": name} for name in (DELETED_1, RESTORED_2, DELETED_4)],
    }
    return {name: {one["_id"]: one for one in found} for name, found in documents.items()}


def told(consumer_id: str, number: int, **more: Any) -> Told:  # noqa: ANN401 - of a Told
    _, card_id, second, kind = HISTORY[number - 1]
    event_id = named(card_id, second, kind)
    return Told(consumer_id=consumer_id, event_id=event_id, event_type=kind, card_id=card_id, sequence=number, **more)


JOURNAL = (
    told("plain", 1),
    told("exact", 1),
    told("plain", 3),
    told("plain", 4, failed=True),
    told("exact", 3),
    told("exact", 3),  # Its first transaction was undone.
    Rebuilt(consumer_id="late", cards=frozenset({"c2", "c4", "c5"})),
    told("plain", 4, ended=False),
    told("plain", 5),
    told("exact", 4, failed=True),
    told("exact", 5),
    told("plain", 4, replayed=True),
    told("late", 5),
)
CARDS = frozenset({"c1", "c2", "c3", "c4", "c5"})


def watch(stores: Stores) -> Watch:
    changes = [
        Change(
            event_type=kind, card_id=name, began=2 * number, ended=2 * number + 1, deleted_at=instant(at), fresh=True
        )
        for number, name, at, kind in HISTORY
    ]
    changes[3] = Change(event_type="task:deleted", card_id="c3", began=8, ended=9)  # A forge's: no time was answered.
    changes[4] = replace(changes[4], ended=None, deleted_at=None, fresh=False)
    return Watch(
        tenant="acme",
        watchers=(
            Watcher(consumer_id="plain", parks=frozenset({"c3"}), began_with=CARDS),
            Watcher(
                consumer_id="exact",
                exact=lambda event_id: sum(one["of"] == event_id for one in stores["seen"].values()),
                parks=frozenset({"c3"}),
                began_with=CARDS,
            ),
            Watcher(consumer_id="late", began_with=frozenset(), joined=True),
        ),
        changes=tuple(changes),
        journal=JOURNAL,
        notices=(DELETED_1, RESTORED_2),
        sightings=(("plain", None), ("plain", 1), ("plain", 3)),
        asked={"consumer-registered": (3, 3), "consumer-replayed": (1, 1), "consumer-retired": (0, 1)},
    )


def reader(stores: Stores) -> Reader:
    return lambda collection: list(stores.get(collection, {}).values())


def judged(stores: Stores, given: Watch) -> tuple[str, ...]:
    return judge_watch(reader(stores), given, at_rest=True)


def test_a_good_history_is_passed() -> None:
    stores = good()
    assert judged(stores, watch(stores)) == ()


def stored(collection: str, key: str, **fields: object) -> Callable[[Stores], None]:
    def change(stores: Stores) -> None:
        stores[collection][f"acme|{key}"] |= fields

    return change


def gone(collection: str, key: str) -> Callable[[Stores], object]:
    return lambda stores: stores[collection].pop(f"acme|{key}")


def more(collection: str, document: dict[str, Any], **fields: object) -> Callable[[Stores], None]:
    return lambda stores: stores[collection].update({str(fields.get("_id", document["_id"])): {**document, **fields}})


OUTBOX, CURSORS, LETTERS = "lifecycle_outbox", "lifecycle_consumer_cursors", "lifecycle_dead_letters"
LETTER = f"plain|{DELETED_3}"
AGAIN = stream_event(*HISTORY[4])
STORED: dict[str, tuple[Callable[[Stores], object], str]] = {
    "a number is given twice": (stored(OUTBOX, DELETED_4, sequence=4), "number 4 of the stream holds 2 events"),
    "a number is a hole": (gone(OUTBOX, DELETED_3), "number 4 of the stream holds 0 events"),
    "an event is past the counter": (
        lambda stores: stores["lifecycle_sequences"]["acme"].update(last_sequence=4),
        "number 5 of the stream holds 1 events, the counter stands at 4",
    ),
    "a number was lost by an abort": (
        lambda stores: stores["lifecycle_sequences"]["acme"].update(last_sequence=6),
        "number 6 of the stream holds 0 events",
    ),
    "an event without its audit row": (gone("run_audit", DELETED_4), f"event {DELETED_4} at 5 has no audit row"),
    "an audit row without its event": (gone(OUTBOX, DELETED_4), f"change {DELETED_4} is audited as 5, and the stream"),
    "an audit row of another card": (stored("run_audit", DELETED_4, subject="c1"), f"change {DELETED_4} is ("),
    "a deletion without its event and its row": (stored("board_cards", "c5", deleted_at=AT), "card c5 is task-deleted"),
    "an event and its row without the deletion": (
        stored("board_cards", "c4", deleted_at=None),
        "card c4 is there, and the last",
    ),
    "a deletion of another time": (stored("board_cards", "c4", deleted_at=AT), "card c4 is task-deleted:c4:2026"),
    "an event id that is given twice": (
        more(OUTBOX, AGAIN, _id="again", sequence=6),
        f"event id {DELETED_4} is given 2 times",
    ),
    "an event that is named after another": (
        stored(OUTBOX, DELETED_4, deleted_at=AT),
        f"event {DELETED_4} is not named after",
    ),
    "an event with prose": (stored(OUTBOX, DELETED_4, title="secret"), "holds other keys: ['title']"),
    "a card is deleted twice": (
        stored("run_audit", RESTORED_2, code="task:deleted"),
        f"card c2: {RESTORED_2} follows {DELETED_2}",
    ),
    "a change is audited twice": (
        more("run_audit", audit("again", "task:deleted", "c4", event_id=DELETED_4, sequence=5)),
        "2 audit rows tell of change 5 of 5",
    ),
    "a restore of a card that was there": (
        stored("run_audit", DELETED_2, code="task:restored"),
        f"card c2: {DELETED_2} follows nothing",
    ),
    "a restore of another deletion": (
        lambda stores: stores["run_audit"][f"acme|{RESTORED_2}"]["detail"].update(event_id=named("c2", 9)),
        "undoes another deletion",
    ),
    "time goes back": (stored(OUTBOX, DELETED_4, occurred_at=AT), "event 5 occurred before event 4"),
    "an answered deletion is lost": (gone("run_audit", DELETED_1), f"{DELETED_1} was answered, and is not there"),
    "a forge's deletion is lost": (gone("run_audit", DELETED_3), "task:deleted of c3 was answered, and is not there"),
    "the cursor is past the head": (stored(CURSORS, "plain", last_acked_sequence=6), "stands at 6, past the head 5"),
    "the cursor went back": (stored(CURSORS, "plain", last_acked_sequence=2), "consumer plain went back from 3 to 2"),
    "a transactional effect is lost": (
        lambda stores: stores["seen"].pop(DELETED_4),
        f"{DELETED_4} at 5 happened 0 times",
    ),
    "a transactional effect happened twice": (
        more("seen", {"_id": "again", "tenant_id": "acme", "of": DELETED_4}),
        f"{DELETED_4} at 5 happened 2 times",
    ),
    "a superseded effect happened": (
        more("seen", {"_id": "again", "tenant_id": "acme", "of": DELETED_2}),
        f"{DELETED_2} at 2 happened 1 times",
    ),
    "a letter's effect happened": (
        more("seen", {"_id": "again", "tenant_id": "acme", "of": DELETED_3}),
        f"{DELETED_3} at 4 happened 1 times",
    ),
    "an effect before its acknowledgement": (
        stored(CURSORS, "exact", last_acked_sequence=4),
        f"{DELETED_4} at 5 happened 1 times",
    ),
    "a letter is lost": (gone(LETTERS, LETTER), "there are 1 audit rows and no letter"),
    "a letter is not audited": (gone("run_audit", "pplain"), "there are 0 audit rows and a letter"),
    "a letter is audited twice": (
        more("run_audit", of_consumer("p2", "consumer-poisoned", "plain", event_id=DELETED_3)),
        "there are 2 audit rows and a letter",
    ),
    "a letter of an event ahead": (stored(LETTERS, LETTER, sequence=6), "is of number 6, and plain is at 5"),
    "a letter of another number": (stored(LETTERS, LETTER, sequence=3), "is of number 3, and plain is at 5"),
    "a letter with another event": (
        stored(LETTERS, LETTER, event=stream_event(*HISTORY[4])),
        f"holds another event, {DELETED_4}",
    ),
    "a letter before its tenth failure": (stored(LETTERS, LETTER, attempts=9), "tells of 9 tries"),
    "a letter does not say what failed": (stored(LETTERS, LETTER, failure_class=""), "tells of 10 tries"),
    "a letter is settled and open": (stored(LETTERS, LETTER, state="unresolved"), "is unresolved, and says who"),
    "a letter does not say who settled it": (stored(LETTERS, LETTER, settled_by=""), "and does not say who settled"),
    "a letter's replays are not audited": (stored(LETTERS, LETTER, replays=2), "replayed 2 times, audited 1 times"),
    "a letter still waits": (
        stored(LETTERS, LETTER, state="replaying", settled_at=None),
        "at rest plain has letters to observe again",
    ),
    "a deletion is passed over that holds": (
        more("run_audit", of_consumer("s2", "event-superseded", "plain", event_ids=DELETED_4, count=1)),
        f"{DELETED_4} is recorded as superseded, and nothing undid it",
    ),
    "one is passed over twice": (
        more("run_audit", of_consumer("s2", "event-superseded", "plain", event_ids=DELETED_2, count=1)),
        f"{DELETED_2} is recorded as superseded 2 times",
    ),
    "one is passed over that was observed": (
        more("run_audit", of_consumer("s2", "event-superseded", "plain", event_ids=DELETED_1, count=1)),
        f"{DELETED_1} is recorded as superseded, and was observed",
    ),
    "a reconciliation is said twice": (
        more("run_audit", of_consumer("l2", "consumer-reconciled", "late", head=4)),
        "late is said to have reconciled 2 times, and did 1 times",
    ),
    "a reconciliation is not audited": (gone("run_audit", "l"), "said to have reconciled 0 times, and did 1 times"),
    "a registration is audited twice": (
        more("run_audit", of_consumer("reg2", "consumer-registered", "plain")),
        "consumer-registered: 4 audit rows, where 3 to 3",
    ),
    "too much is pruned": (
        stored(CURSORS, "plain", last_acked_sequence=0),
        "consumer plain stands at 0, and the stream begins at 2",
    ),
    "a consumer is lost": (gone(CURSORS, "plain"), "consumer plain is not registered"),
    "a consumer is retired": (stored(CURSORS, "plain", retired_at=AT), "plain is retired, and was to be at the head"),
    "a consumer stands still": (stored(CURSORS, "plain", stopped_for="x"), "plain is stopped, and was to be at the"),
    "a consumer is behind": (
        stored(CURSORS, "plain", last_acked_sequence=4),
        "at rest consumer plain stands at 4 of 5",
    ),
    "a consumer still fails": (stored(CURSORS, "plain", failing={"attempts": 1}), "at rest consumer plain stands at 5"),
    "a card lives that a cache does not hold": (stored("board_cards", "c4", deleted_at=None), "consumer plain holds"),
}


@pytest.mark.parametrize("what", STORED)
def test_a_doctored_store_is_condemned(what: str) -> None:
    change, said = STORED[what]
    stores = good()
    given = watch(stores)
    change(stores)
    violations = judged(stores, given)
    assert any(said in line for line in violations), violations
    assert all("\n" not in line for line in violations)


def without(*entries: Told | Rebuilt) -> Callable[[Watch], Watch]:
    return lambda given: replace(given, journal=tuple(one for one in given.journal if one not in entries))


def also(*entries: Told | Rebuilt) -> Callable[[Watch], Watch]:
    return lambda given: replace(given, journal=(*given.journal, *entries))


def asked_first(given: Watch) -> Watch:
    """The fifth change was answered before the fourth began."""
    first, second, third, _, fifth = given.changes
    early = replace(fifth, began=6, ended=7, deleted_at=instant(4), fresh=True)
    late = Change(event_type="task:deleted", card_id="c3", began=8, ended=9, deleted_at=instant(3), fresh=True)
    return replace(given, changes=(first, second, third, late, early))


def swapped(given: Watch) -> Watch:
    found = list(given.journal)
    one, two = found.index(told("plain", 3)), found.index(told("plain", 5))
    found[one], found[two] = found[two], found[one]
    return replace(given, journal=tuple(found))


HEARD: dict[str, tuple[Callable[[Watch], Watch], str]] = {
    "an event was never seen": (without(told("plain", 5)), f"past {DELETED_4} at 5, and never saw it"),
    "what is before a reconciliation's head alone needs none": (without(told("late", 5)), "late stands at 5, past"),
    "an event was seen twice": (also(told("plain", 5)), f"plain saw {DELETED_4} 2 times, where 1 may be"),
    "events were seen out of order": (swapped, "consumer plain saw event 3 after event 5"),
    "a letter was seen again too often": (also(told("plain", 4, replayed=True)), "again 2 times, and was asked to 1"),
    "another event was seen again": (also(told("plain", 5, replayed=True)), "again 1 times, and was asked to 0 times"),
    "a letter is settled that nobody saw": (without(told("plain", 4, replayed=True)), "as observed, and nobody saw it"),
    "a reconciliation did not end": (without(JOURNAL[6]), "said to have reconciled 1 times, and did 0 times"),
    "a reconciliation was repeated": (also(JOURNAL[6]), "said to have reconciled 1 times, and did 2 times"),
    "somebody was told what is not there": (
        also(replace(told("late", 5), event_id="forged", failed=True)),
        "was told of forged as 5, which is not there",
    ),
    "somebody was told of what is undone": (
        also(replace(told("late", 2), failed=True, began=20)),
        f"consumer late was told of {DELETED_2} after it was undone",
    ),
    "somebody was told another number": (also(replace(told("late", 5), sequence=4, failed=True)), "as 4, which is not"),
    "a cache holds too much": (
        also(Rebuilt(consumer_id="late", cards=frozenset({"c2", "c5", "c9"}))),
        "consumer late holds ['c2', 'c5', 'c9'], and ['c2', 'c5'] live",
    ),
    "there were two notices": (
        lambda given: replace(given, notices=(DELETED_1, DELETED_1)),
        f"of {DELETED_1} there were 2 notices",
    ),
    "there was a notice of nothing": (
        lambda given: replace(given, notices=("forged",)),
        "of forged there was a notice, and it is not there",
    ),
    "a cursor was seen going back": (
        lambda given: replace(given, sightings=(("plain", 4), ("plain", 3))),
        "consumer plain went back from 4 to 3",
    ),
    "nobody asked for a change": (
        lambda given: replace(given, changes=given.changes[1:]),
        "task:deleted of c1 is there 1 times, and was asked for 0 times",
    ),
    "an order that is not that of the commits": (asked_first, "change 5 was answered before change 4 began"),
    "an action was not audited": (
        lambda given: replace(given, asked={"consumer-retired": (1, 1)}),
        "consumer-retired: 0 audit rows, where 1 to 1",
    ),
    "an event was given up that never fails": (
        lambda given: replace(given, watchers=(replace(given.watchers[0], parks=frozenset()),)),
        "consumer plain gave up ['c3'], which never fails for good",
    ),
}


@pytest.mark.parametrize("what", HEARD)
def test_a_doctored_account_is_condemned(what: str) -> None:
    change, said = HEARD[what]
    stores = good()
    violations = judged(stores, change(watch(stores)))
    assert any(said in line for line in violations), violations


def test_what_may_be_repeated_may_be() -> None:
    stores = good()
    given = also(told("plain", 5), told("plain", 4, replayed=True), JOURNAL[6])(watch(stores))
    # The last reconciliation was given what lives then.
    given = replace(given, watchers=given.watchers[:2])
    allowed = {("plain", DELETED_4), ("plain", DELETED_3), ("late", REBUILDING)}
    assert len(judged(stores, given)) == 3
    assert judged(stores, replace(given, may_repeat=frozenset(allowed))) == ()


def test_a_retired_consumer_keeps_nothing_and_rests_as_such() -> None:
    stores = good()
    stores[CURSORS]["acme|plain"] |= {"retired_at": AT, "last_acked_sequence": 0}
    given = watch(stores)
    retired = Watcher(consumer_id="plain", rests="retired", parks=frozenset({"c3"}))
    stores[LETTERS].pop(f"acme|{LETTER}")
    given = replace(given, watchers=(retired,), sightings=(), forgotten=frozenset({("plain", DELETED_3)}))
    assert judged(stores, given) == ()


def test_every_check_condemns_something() -> None:
    """A check that no doctored history breaks would be worthless."""
    condemning = set()
    for what in (*STORED, *HEARD):
        stores = good()
        given = HEARD[what][0](watch(stores)) if what in HEARD else watch(stores)
        if what in STORED:
            STORED[what][0](stores)
        condemning |= {check for check in WATCHED_AT_REST if list(check(Watched(reader(deepcopy(stores)), given)))}
    assert condemning == set(WATCHED_AT_REST)
    assert set(WHEN_NOBODY_WRITES) < set(WATCHED_AT_REST)
