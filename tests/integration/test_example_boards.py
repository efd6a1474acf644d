"""The example projectors and the labelling bot on a real database: read models that converge, labels set once."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

import examples.bots
import examples.projectors
from examples.demo_target import Target
from outbox_core import Run
from outbox_core.application.add_subscription import add_subscription
from outbox_core.bootstrap import Outbox
from outbox_core.domain.event import Attributes, Event, Snapshot
from outbox_core.domain.projector import Projection
from outbox_core.domain.subscription import Match, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.collection import Collection

    from outbox_core.embedded import EmbeddedMongo

T = "t"


@pytest.fixture
def outbox(mongo_server: EmbeddedMongo, database_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outbox]:
    """An outbox of the environment, whose board `b` has a card `c`."""
    monkeypatch.setenv("OUTBOX_MONGO_URL", mongo_server.url)
    monkeypatch.setenv("OUTBOX_MONGO_DB", database_name)
    opened = Outbox.from_settings()
    opened.ensure_schema()
    opened.boards(T).create_board("b", ["todo", "doing", "done"])
    opened.boards(T).create_card("b", "The pump runs dry", card_id="c", labels=["bug"])
    yield opened
    opened.close()
    examples.bots.outbox().close()
    examples.bots.outbox.cache_clear()
    examples.projectors._client(os.getpid()).close()
    examples.projectors._client.cache_clear()


@pytest.fixture
def model(mongo_server: EmbeddedMongo, database_name: str) -> Iterator[Collection[dict[str, Any]]]:
    """The read model: a collection of another database."""
    with MongoClient[dict[str, Any]](mongo_server.url) as client:
        yield client[f"{database_name}_team"]["cards"]
        client.drop_database(f"{database_name}_team")


def work(outbox: Outbox) -> None:
    """Drain and run until nothing is due, as a worker would."""
    outbox.drain_tenant(T)
    while (report := outbox.run_slice(T)) is not None and report.more:
        pass


def rows(outbox: Outbox) -> list[tuple[str, str | None, str | None]]:
    found = outbox.tenant(T).effects.list(after="", limit=100)
    return [(row["kind"], row["state"], row.get("outcome")) for row in found]


@pytest.mark.promise("E22")
def test_the_mirror_holds_each_card_where_it_stands_machine_moves_included(
    outbox: Outbox, model: Collection[dict[str, Any]]
) -> None:
    boards = outbox.boards(T)
    boards.bind("b", "mirror", f"{model.database.name}.cards")
    boards.create_card("b", "Other", card_id="d")
    boards.move_card("c", "doing")
    boards.move_card("d", "done", watchdog=True)
    boards.rename_column("b", "doing", "in progress")
    work(outbox)
    found = {one["card"]: one for one in model.find({})}
    assert {card: one["column"] for card, one in found.items()} == {"c": "in progress", "d": "done"}
    assert (found["c"]["title"], found["c"]["labels"], found["c"]["board"]) == ("The pump runs dry", ["bug"], "b")
    assert set(rows(outbox)) == {("projection", "done", "delivered")}
    assert len(rows(outbox)) == 3


def moved(outbox: Outbox, model: Collection[dict[str, Any]], seq: int, column: str) -> Projection:
    event = Event(
        tenant_id=T,
        seq=seq,
        event_id=f"e{seq}",
        attributes=Attributes(
            source="board", type="card", subject="c", snapshot=Snapshot(state=column, from_state="x", board="b")
        ),
        data={"title": "T"},
        trace={},
        occurred_at=None,
        recorded_at=outbox.tenant(T).log.head().now,
    )
    target = f"{model.database.name}.cards"
    return Projection(effect_id=f"t|e{seq}|#projection", tenant=T, event=event, board="b", target=target, attempt=1)


def test_moves_that_arrive_twice_and_in_any_order_leave_the_card_where_the_last_one_put_it(
    outbox: Outbox, model: Collection[dict[str, Any]]
) -> None:
    moves = [moved(outbox, model, seq, f"column {seq}") for seq in range(1, 8)] * 2
    for seed in range(5):
        model.delete_many({})
        random.Random(seed).shuffle(moves)  # noqa: S311 - an order, no secret
        highest = 0
        for move in moves:
            examples.projectors.mirror(move)
            highest = max(highest, move.event.seq)
            (found,) = model.find({})
            assert (found["seq"], found["column"]) == (highest, f"column {highest}")


def test_a_board_that_is_bound_to_no_collection_parks_its_moves_and_says_how_to_bind_it(outbox: Outbox) -> None:
    outbox.boards(T).bind("b", "mirror", "nonsense")
    outbox.boards(T).move_card("c", "doing")
    work(outbox)
    (row,) = outbox.tenant(T).effects.list(after="", limit=10)
    assert (row["state"], row["last_error"]) == (
        "failed",
        "DefinitiveError: the board is bound to 'nonsense'; bind it to DATABASE.COLLECTION",
    )


@pytest.mark.parametrize(
    ("path", "state", "posts"), [("/ok", "done", 1), ("/flaky", "pending", 1), ("/gone", "failed", 1)]
)
def test_a_move_is_posted_under_its_effects_id(outbox: Outbox, path: str, state: str, posts: int) -> None:
    with Target() as target:
        outbox.boards(T).bind("b", "post-move", target.url(path))
        outbox.boards(T).move_card("c", "doing", event_id="m")
        work(outbox)
        assert target.posts == {(path, "t|m|#projection"): posts}
    assert [row[1] for row in rows(outbox)] == [state]


@pytest.mark.promise("E19", "E46")
def test_a_card_is_labelled_by_its_title_once_and_that_launches_nothing(outbox: Outbox) -> None:
    rule = Subscription(
        tenant_id=T,
        sub_id="label",
        bot_id="label-by-title",
        match=Match(sources=("board",)),
        vars={"words": {"pump": "hardware", "ÖL": "oil", "nothing": "never", "run": "never"}},
    )
    add_subscription(outbox.tenant(T), rule)
    boards = outbox.boards(T)
    boards.create_card("b", "Pump: no öl", card_id="d", event_id="made")
    work(outbox)
    assert boards.card("d").labels == ("hardware", "oil")
    work(outbox)
    assert rows(outbox) == [("launch", "done", "delivered")]
    boards.label_card("d", remove=["oil"], run_id="somebody")
    event = outbox.tenant(T).log.get(["made"])["made"]
    assert isinstance(event, Event)
    again = Run(effect_id="t|made|label", tenant=T, event=event, attempt=2)
    assert examples.bots.label_by_title(again, words=dict(rule.vars["words"])) == {"labels": ["hardware", "oil"]}
    assert boards.card("d").labels == ("hardware",), "a run that is repeated does not bring a label back"


def test_a_card_without_such_words_or_that_is_gone_is_left(outbox: Outbox) -> None:
    (event,) = [one for one in outbox.tenant(T).log.read_after(0, 10) if isinstance(one, Event)]
    run = Run(effect_id="t|x|y", tenant=T, event=event, attempt=1)
    assert examples.bots.label_by_title(run, words={"dryer": "x"}) == {"labels": []}
    outbox.boards(T).delete_card("c")
    assert examples.bots.label_by_title(run, words={"dry": "x"}) == {"labels": [], "gone": True}
