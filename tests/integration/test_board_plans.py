"""What MongoDB examines for a board: its own cards, whatever else the tenant holds, from the server's own profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox_core.boards import Boards
from tests.harness.base import ACME
from tests.integration.test_query_plans import profiled, stages

if TYPE_CHECKING:
    from tests.harness.on_mongo import MongoHarness

COLUMNS = ["todo", "doing", "done"]


def crowded(harness: MongoHarness) -> Boards:
    """A board with three cards in `todo`, among 20,000 of other boards and columns, many of them with an empty link."""
    boards = Boards(harness.acme, harness.runtime())
    for name in ("b", "other"):
        boards.create_board(name, COLUMNS)
    for name in ("c1", "c2", "c3"):
        boards.create_card("b", name, card_id=name)
    (example,) = harness.raw("board_cards", card_id="c1")
    harness.database["board_cards"].insert_many(
        {
            **example,
            "_id": f"{ACME}|x{number}",
            "card_id": f"x{number}",
            "board": "b" if number % 2 else "other",
            "state": "done" if number % 2 else "todo",
        }
        for number in range(20_000)
    )
    return boards


def test_a_change_of_one_card_and_of_a_column_examine_only_their_own_cards(mongo_harness: MongoHarness) -> None:
    boards = crowded(mongo_harness)
    found: list[dict[str, Any]] = []
    with profiled(mongo_harness.database, found):
        boards.move_card("c1", "doing")
        boards.label_card("c2", add=["x"])
        boards.delete_card("c1")
        assert boards.rename_column("b", "todo", "next").cards == 2
    of_cards = [op for op in found if op["ns"].endswith(".board_cards")]
    assert len(of_cards) >= 9
    assert max(op.get("docsExamined", 0) for op in of_cards) <= 2
    assert max(op.get("keysExamined", 0) for op in of_cards) <= 3


def test_a_page_of_a_board_comes_in_order_from_its_index(mongo_harness: MongoHarness) -> None:
    crowded(mongo_harness)
    query = {"tenant_id": ACME, "board": "b", "card_id": {"$gt": "x1"}, "deleted_at": None, "archived_at": None}
    explained = mongo_harness.database["board_cards"].find(query).sort("card_id", 1).limit(100).explain()
    assert not {"SORT", "COLLSCAN"} & set(stages(explained["queryPlanner"]["winningPlan"]))
    assert explained["executionStats"]["totalDocsExamined"] <= 100
