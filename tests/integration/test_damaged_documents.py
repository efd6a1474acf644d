"""Documents that somebody has damaged by hand: each costs itself alone, whatever BSON can hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.repair_undrained import repair_undrained
from outbox_core.application.run_slice import run_slice
from outbox_core.boards import Boards
from outbox_core.domain.errors import InvariantError, TransientError
from outbox_core.ports.slots import Lane
from tests.harness.base import ACME, OTHER
from tests.harness.examples import claim, materialize, subscription
from tests.simulation.play import append, cursor_of, drain_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox_core.domain.bot import Run
    from tests.harness.on_mongo import MongoHarness

LEASE = timedelta(seconds=60)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def stored_event(harness: MongoHarness, seq: object) -> dict[str, Any]:
    return {
        "_id": f"{ACME}|damaged",
        "tenant_id": ACME,
        "seq": seq,
        "event_id": "damaged",
        "source": "app",
        "type": "thing",
        "recorded_at": harness.now(),
    }


@pytest.mark.promise("E08")
@pytest.mark.parametrize("seq", [2.0, Decimal128("2"), 1.5, float("inf"), Decimal128("Infinity"), Decimal128("1.5")])
def test_a_number_of_whatever_type_blocks_no_drain_and_no_new_rule(mongo_harness: MongoHarness, seq: object) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime()
    append(store, runtime, "first")
    if seq in (2.0, Decimal128("2")):
        # It stands under a number that was given out, so it is an event that cannot be read.
        store.log.allocate(1)
    mongo_harness.put_raw("board_events", stored_event(mongo_harness, seq))
    add_subscription(store, subscription("s"))
    append(store, runtime, "last")
    drain_whole(store, runtime)
    assert cursor_of(mongo_harness, ACME) == store.log.head().last_seq
    assert [row["event_id"] for row in mongo_harness.raw("trigger_effects", state="pending")] == ["last"]


@pytest.mark.promise("E45")
@pytest.mark.parametrize("identity", [{"a": 1}, 5, float("nan")])
def test_a_row_under_an_id_that_is_no_text_parks_and_its_batch_goes_on(
    mongo_harness: MongoHarness, identity: object
) -> None:
    store = mongo_harness.acme
    (effect_id,) = materialize(store, 1, now=mongo_harness.now())
    mongo_harness.database["trigger_effects"].insert_one({**mongo_harness.row(effect_id), "_id": identity})
    taken = claim(store, 10, LEASE)
    assert [effect.effect_id for effect in taken.effects] == [effect_id]
    assert taken.parked == 1
    assert "_id" in mongo_harness.raw("trigger_effects", state="failed")[0]["last_error"]


@pytest.mark.promise("E16")
@pytest.mark.parametrize("damage", [{}, {"next_at": "soon"}, {"next_at": None}, {"next_at": DatetimeMS(2**60)}])
def test_a_damaged_tick_is_due_and_mended(mongo_harness: MongoHarness, damage: Mapping[str, object]) -> None:
    """All tenants wait for it."""
    mongo_harness.put_raw("ticks", {"_id": "drain", **damage})
    tick = mongo_harness.store.maintenance
    assert [tick.tick_due("drain", timedelta(seconds=3)) for _ in range(2)] == [True, False]


@pytest.mark.promise("E16")
@pytest.mark.parametrize(
    ("collection", "damage"),
    [
        ("event_sequences", {}),
        ("event_sequences", {"last_seq": "many"}),
        ("event_sequences", {"_id": "no tenant", "last_seq": 5}),
        ("trigger_cursors", {}),
        ("trigger_cursors", {"seq": "far"}),
        ("trigger_cursors", {"seq": None}),
    ],
)
def test_a_damaged_counter_or_cursor_does_not_end_the_search_for_wrong_flags(
    mongo_harness: MongoHarness, collection: str, damage: Mapping[str, object]
) -> None:
    if collection == "trigger_cursors":
        mongo_harness.put_raw("event_sequences", {"_id": ACME, "tenant_id": ACME, "last_seq": 0})
    mongo_harness.put_raw(collection, {"_id": ACME, "tenant_id": ACME, **damage})
    append(mongo_harness.other, mongo_harness.runtime(), "e")
    mongo_harness.change("event_sequences", OTHER, undrained=False)
    assert repair_undrained(mongo_harness.store, mongo_harness.runtime()) == 1
    assert mongo_harness.raw("event_sequences", _id=OTHER)[0]["undrained"] is True


@pytest.mark.promise("E22", "E45")
@pytest.mark.parametrize(
    ("damage", "mirrored"),
    [
        ({"columns": "x"}, {"whole", "damaged"}),
        ({"version": "x"}, {"whole", "damaged"}),
        ({"binding": {"kind": "mirror"}}, {"whole"}),
        ({"binding": {"kind": "mirror", "target": DatetimeMS(2**60)}}, {"whole"}),
        ({"binding": "mirror"}, {"whole"}),
    ],
)
@pytest.mark.parametrize("drained", [False, True])
def test_a_damaged_board_stops_no_drain_and_no_other_boards_projections(
    mongo_harness: MongoHarness, damage: Mapping[str, object], mirrored: set[str], *, drained: bool
) -> None:
    store, boards = mongo_harness.acme, Boards(mongo_harness.acme, mongo_harness.runtime())
    for board in ("damaged", "whole"):
        boards.create_board(board, ["todo", "done"])
        boards.bind(board, "mirror", "there")
        boards.create_card(board, "t", card_id=board)
        boards.move_card(board, "done")
    if drained:
        drain_whole(store, mongo_harness.runtime())
    mongo_harness.change("boards", f"{ACME}|damaged", **damage)
    seen: set[str] = set()
    drain_whole(store, mongo_harness.runtime())
    run_slice(store, mongo_harness.runtime(projectors={"mirror": lambda one: seen.add(one.board)}))
    assert seen == mirrored
    errors = [row["last_error"] for row in mongo_harness.raw("trigger_effects", state="pending")]
    assert all("binding of board 'damaged' cannot be read" in error for error in errors)
    assert len(errors) == 2 - len(mirrored)


@pytest.mark.promise("O08")
def test_a_board_and_a_card_whose_version_is_a_double_change_as_ever(mongo_harness: MongoHarness) -> None:
    boards = Boards(mongo_harness.acme, mongo_harness.runtime())
    boards.create_board("b", ["todo", "done"])
    boards.create_card("b", "t", card_id="c")
    mongo_harness.change("boards", f"{ACME}|b", version=2.0)
    mongo_harness.change("board_cards", f"{ACME}|c", version=1.0)
    assert boards.move_card("c", "done").card.state == "done"


@pytest.mark.promise("O08")
@pytest.mark.parametrize(
    ("collection", "stored"),
    [
        ("trigger_cursors", {}),
        ("trigger_cursors", {"seq": 0.0, "rev": 0.0, "poison": {"1": 2.0}}),
        ("trigger_cursors", {"seq": 0, "rev": 3, "marks": [{"last_seq": 1.0, "at": LONG_AGO}]}),
        ("event_sequences", {"last_seq": 1.0}),
        ("event_sequences", {"last_seq": 1, "undrained": "yes"}),
        ("board_cards", {"_id": f"{ACME}|c"}),
    ],
)
def test_a_missing_field_has_its_default_and_a_count_may_be_a_double(
    mongo_harness: MongoHarness, collection: str, stored: Mapping[str, object]
) -> None:
    """As a person leaves them who mends a document in a shell."""
    store, runtime = mongo_harness.acme, mongo_harness.runtime()
    add_subscription(store, subscription("s"))
    append(store, runtime, "a", source="board", subject="c")
    mongo_harness.put_raw("board_cards", {"_id": f"{ACME}|c", "tenant_id": ACME, "card_id": "c"})
    mongo_harness.put_raw(collection, {"_id": ACME, "tenant_id": ACME, **stored})
    append(store, runtime, "b")
    drain_whole(store, runtime)
    assert {row["event_id"] for row in mongo_harness.raw("trigger_effects", state="pending")} == {"a", "b"}


NO_TEXT = "\ud800no text"
"""Written as bytes that are no text."""


def put_no_text(harness: MongoHarness, collection: str, document: dict[str, Any]) -> None:
    placed = {name: "@@@@" if value == NO_TEXT else value for name, value in document.items()}
    options = CodecOptions(document_class=RawBSONDocument, unicode_decode_error_handler="replace")
    raw = RawBSONDocument(bson.encode(placed).replace(b"@@@@", b"\xff\xff\xff\xff"), options)
    harness.database[collection].insert_one(raw)


@pytest.mark.promise("E16", "L21")
@pytest.mark.parametrize("tenant", [NO_TEXT, "no tenant", "acme|other", "../x"])
def test_documents_of_no_tenant_end_no_tick_of_the_others(mongo_harness: MongoHarness, tenant: str) -> None:
    now = mongo_harness.now()
    append(mongo_harness.other, mongo_harness.runtime(), "e")
    materialize(mongo_harness.other, 1, now=now)
    put_no_text(
        mongo_harness, "event_sequences", {"_id": tenant, "tenant_id": tenant, "last_seq": 9, "undrained": True}
    )
    row = {"_id": "forged", "tenant_id": tenant, "state": "pending", "not_before": LONG_AGO}
    put_no_text(mongo_harness, "trigger_effects", row)
    maintenance = mongo_harness.store.maintenance
    assert maintenance.undrained_tenants("", 10) == [OTHER]
    assert maintenance.due_tenants() == [OTHER]
    assert maintenance.lagging_tenants("", 10) == ([], "")


@pytest.mark.promise("E16")
def test_a_tick_of_bytes_that_are_no_text_is_due_and_mended(mongo_harness: MongoHarness) -> None:
    put_no_text(mongo_harness, "ticks", {"_id": "drain", "next_at": NO_TEXT})
    tick = mongo_harness.store.maintenance
    assert [tick.tick_due("drain", timedelta(seconds=3)) for _ in range(2)] == [True, False]


@pytest.mark.promise("E42")
@pytest.mark.parametrize("damage", [{}, {"token": None}, {"token": ["t"]}])
def test_a_slot_without_its_token_is_held_by_nobody_and_the_others_are_free(
    mongo_harness: MongoHarness, damage: Mapping[str, object]
) -> None:
    slot = {"until": mongo_harness.now() + timedelta(seconds=20), **damage}
    mongo_harness.put_raw("tenant_slots", {"_id": ACME, "tenant_id": ACME, "slice": [slot]})
    slots = mongo_harness.acme.slots
    token = slots.take(Lane.SLICE, timedelta(seconds=20))
    assert token is not None
    assert not slots.extend(Lane.SLICE, "another", timedelta(seconds=20))
    assert slots.extend(Lane.SLICE, token, timedelta(seconds=20))


@pytest.mark.promise("E04")
def test_a_counter_that_somebody_set_far_ahead_fills_no_memory(mongo_harness: MongoHarness) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime()
    append(store, runtime, "e")
    mongo_harness.change("event_sequences", ACME, last_seq=2**53)
    drain_tenant(store, runtime)
    mongo_harness.advance(timedelta(minutes=1))
    report = drain_tenant(store, runtime)
    assert report is not None
    assert report.reached_seq >= 1


@pytest.mark.promise("E12")
def test_a_damaged_cursor_is_named_in_one_line(mongo_harness: MongoHarness) -> None:
    mongo_harness.put_raw("trigger_cursors", {"_id": ACME, "tenant_id": ACME, "seq": "far"})
    with pytest.raises(InvariantError, match="the cursor of tenant acme is damaged: seq"):
        mongo_harness.acme.progress.load()


@pytest.mark.promise("E46")
def test_an_append_whose_id_stands_over_another_event_ends_and_takes_one_number(mongo_harness: MongoHarness) -> None:
    store, runtime = mongo_harness.acme, mongo_harness.runtime()
    mongo_harness.put_raw("board_events", {**stored_event(mongo_harness, 1), "_id": f"{ACME}|mine"})
    with pytest.raises(TransientError, match="has event 'mine', and cannot find it"):
        append(store, runtime, "mine")
    assert store.log.head().last_seq == 1


@pytest.mark.promise("E09")
@pytest.mark.parametrize(
    "data", [{"$ref": "a", "$id": 1}, {"x": [{"$ref": "a", "$id": {"$ref": "b", "$id": 2}, "y": 3}]}]
)
def test_what_the_driver_takes_for_a_link_reaches_the_bot_as_it_was_appended(
    mongo_harness: MongoHarness, data: Mapping[str, object]
) -> None:
    store = mongo_harness.acme
    seen: list[tuple[object, object]] = []

    def bot(run: Run, given: object) -> None:
        seen.append((run.event.data, given))

    add_subscription(store, subscription("s", vars={"given": data}))
    append(store, mongo_harness.runtime(), "e", data=data)
    drain_whole(store, mongo_harness.runtime())
    mongo_harness.change("tenant_slots", ACME, slice=[])
    run_slice(store, mongo_harness.runtime({"bot": bot}))
    assert seen == [(data, data)]
