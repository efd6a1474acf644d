"""What the judge of the observing would say of a history in which one thing is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

from tests.chaos.calls import Struck, paired
from tests.chaos.journal import CONSUMERS, COUNTING, SEEN_ONCE, SHAKY, WATCHING
from tests.chaos.load import LIFE
from tests.chaos.observed import judge_lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo.database import Database

    from outbox_core.embedded import EmbeddedMongo
    from tests.chaos.world import Line

ONE, TWO = (datetime(2026, 11, 30, 15, minute, tzinfo=UTC) for minute in (1, 2))
AT = {one: f"{one:%Y-%m-%dT%H:%M:%S}.000Z" for one in (ONE, TWO)}
GONE, BACK, AGAIN = f"task-deleted:a:{AT[ONE]}", f"task-restored:a:{AT[ONE]}", f"task-deleted:a:{AT[TWO]}"
CHANGES = ((GONE, "task:deleted", ONE), (BACK, "task:restored", ONE), (AGAIN, "task:deleted", TWO))
SUPERSEDED = "lifecycle-observation:event-superseded"


class History:
    """Card a was deleted, restored and deleted again; each consumer passed the first event, and observed the others."""

    def __init__(self, database: Database[dict[str, Any]]) -> None:
        self.database = database
        self.lines: list[Line] = []
        self.struck: list[Struck] = []
        for number, (event_id, kind, deleted_at) in enumerate(CHANGES, 1):
            event = {"event_id": event_id, "sequence": number, "event_type": kind, "deleted_at": deleted_at}
            self.put("lifecycle_outbox", **event, task_id="a")
            self.put("board_events", subject="a", action=kind.partition(":")[2])
            self.put("run_audit", code=kind, subject="a", detail={"event_id": event_id, "sequence": number})
        self.put("lifecycle_sequences", _id=LIFE, last_sequence=3)
        self.put("board_cards", card_id="a", deleted_at=TWO)
        for consumer_id in CONSUMERS:
            self.put("lifecycle_consumer_cursors", consumer_id=consumer_id, last_acked_sequence=3)
            self.put("run_audit", code=SUPERSEDED, subject=consumer_id, detail={"event_ids": GONE, "count": 1})
            for event_id in (BACK, AGAIN):
                self.call(consumer_id, event_id)
        for event_id in (BACK, AGAIN):
            self.put(SEEN_ONCE, event_id=event_id)

    def put(self, collection: str, **document: Any) -> None:  # noqa: ANN401 - a document's
        self.database[collection].insert_one({"tenant_id": LIFE, **document})

    def set(self, collection: str, query: dict[str, Any], **fields: Any) -> None:  # noqa: ANN401 - a document's
        assert self.database[collection].update_one(query, {"$set": fields}).modified_count == 1

    def drop(self, collection: str, **query: Any) -> None:  # noqa: ANN401 - a document's
        assert self.database[collection].delete_one(query).deleted_count == 1

    def call(self, consumer_id: str, event_id: str, *, ends: str = "end", attempt: int = 1, pid: int = 7) -> None:
        at = float(len(self.lines))
        for phase in ("start", ends):
            self.lines.append((phase, f"{consumer_id}|{event_id}", attempt, pid, at))

    def forget(self, consumer_id: str, event_id: str) -> None:
        self.lines = [line for line in self.lines if line[1] != f"{consumer_id}|{event_id}"]

    def judged(self) -> list[str]:
        return judge_lifecycle(self.database, paired(self.lines), self.struck).violations


@pytest.fixture(scope="module")
def database(mongo_server: EmbeddedMongo) -> Iterator[Database[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongo_server.url, tz_aware=True) as client:
        yield client["test_observed"]
        client.drop_database("test_observed")


@pytest.fixture
def history(database: Database[dict[str, Any]]) -> History:
    for name in database.list_collection_names():
        database[name].delete_many({})
    return History(database)


def _told_late(history: History) -> None:
    history.forget(WATCHING, BACK)
    history.call(WATCHING, BACK)


def _repeated_after_a_strike(history: History) -> None:
    history.call(SHAKY, AGAIN)
    history.struck.append(Struck(0.0, 99.0, frozenset({7})))


def _tried_again(history: History) -> None:
    history.forget(SHAKY, AGAIN)
    history.call(SHAKY, AGAIN, ends="failed")
    history.call(SHAKY, AGAIN, attempt=2)


def _parked(history: History) -> None:
    history.forget(WATCHING, AGAIN)
    history.put("lifecycle_dead_letters", consumer_id=WATCHING, event_id=AGAIN)
    history.put("run_audit", code="lifecycle-observation:consumer-poisoned", subject=WATCHING, detail={})


@pytest.mark.parametrize("also", [lambda _: None, _repeated_after_a_strike, _tried_again, _parked])
def test_a_history_in_which_all_is_well_is_not_held_against_anybody(
    history: History, also: Callable[[History], None]
) -> None:
    also(history)
    assert history.judged() == []


WRONG: tuple[tuple[Callable[[History], object], str], ...] = (
    (lambda h: h.drop("lifecycle_outbox", sequence=2), "the stream is numbered [1, 3], and its counter says 3"),
    (lambda h: h.drop("lifecycle_outbox", sequence=3), "a was deleted 2 times, the stream tells 1 times"),
    (lambda h: h.drop("run_audit", code="task:restored"), "under 2, and 0 times in the audit"),
    (
        lambda h: h.put("run_audit", code="task:restored", subject="a", detail={"event_id": BACK, "sequence": 2}),
        "under 2, and 2 times in the audit",
    ),
    (lambda h: h.set("board_cards", {"card_id": "a"}, deleted_at=None), "its last event says"),
    (lambda h: h.set("lifecycle_outbox", {"sequence": 3}, event_type="task:restored"), "follows on one of its kind"),
    (lambda h: h.set("lifecycle_outbox", {"sequence": 2}, deleted_at=TWO), "undoes another deletion"),
    (lambda h: h.set("lifecycle_outbox", {"sequence": 3}, deleted_at=ONE), "is not later than the deletion before it"),
    (
        lambda h: h.set("lifecycle_consumer_cursors", {"consumer_id": SHAKY}, last_acked_sequence=2),
        f"{SHAKY}: its cursor is 2, the head 3",
    ),
    (lambda h: h.drop("lifecycle_consumer_cursors", consumer_id=WATCHING), f"{WATCHING}: its cursor is None"),
    (
        lambda h: h.put("run_audit", code="lifecycle-observation:consumer-reconciled", subject=SHAKY, detail={}),
        f"{SHAKY}: it reconciled 1 times",
    ),
    (lambda h: h.forget(SHAKY, AGAIN), f"{SHAKY}: {AGAIN} was never observed"),
    (lambda h: h.drop("run_audit", subject=WATCHING), f"{WATCHING}: {GONE} was never observed"),
    (
        lambda h: h.put("run_audit", code=SUPERSEDED, subject=SHAKY, detail={"event_ids": AGAIN, "count": 1}),
        f"{SHAKY}: {AGAIN} is recorded as superseded 1 times, and restored False",
    ),
    (
        lambda h: h.put("run_audit", code=SUPERSEDED, subject=SHAKY, detail={"event_ids": GONE, "count": 1}),
        f"{SHAKY}: {GONE} is recorded as superseded 2 times",
    ),
    (lambda h: h.put("lifecycle_dead_letters", consumer_id=SHAKY, event_id=BACK), "1 of them not in the audit"),
    (lambda h: h.call(SHAKY, "task-deleted:z"), f"{SHAKY}: task-deleted:z was observed, and is not in the stream"),
    (_told_late, f"{WATCHING}: {BACK}, number 2, was begun after number 3"),
    (lambda h: h.call(SHAKY, AGAIN), "nothing had struck either"),
    (lambda h: h.call(SHAKY, AGAIN, attempt=2, ends="failed"), "was told as try 2 after 0 failed ones"),
    (lambda h: h.drop(SEEN_ONCE, event_id=AGAIN), f"{COUNTING}: {AGAIN} was never observed"),
    (lambda h: h.put(SEEN_ONCE, event_id=AGAIN), f"{COUNTING}: {AGAIN} happened 2 times"),
    (lambda h: h.put(SEEN_ONCE, event_id=GONE), f"{COUNTING}: {GONE} happened 1 times, and is recorded instead 1"),
)


@pytest.mark.parametrize(("wrong", "said"), WRONG)
def test_each_thing_that_is_wrong_is_told(history: History, wrong: Callable[[History], object], said: str) -> None:
    wrong(history)
    assert any(said in line for line in history.judged()), history.judged()
