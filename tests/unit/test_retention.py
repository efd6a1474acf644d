"""How far consumers let a stream go, and why it is kept: the verdict alone, without a store."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from outbox_core.domain.consumer import Consumer, Start
from outbox_core.domain.retention import floor_of

_AT = datetime(2026, 11, 30, tzinfo=UTC)


def consumer(consumer_id: str, cursor: int | None, *, retired: bool = False, paused: bool = False) -> Consumer:
    return Consumer(
        tenant_id="acme",
        consumer_id=consumer_id,
        start=Start.BEGINNING,
        cursor=cursor,
        registered_at=_AT,
        retired_at=_AT if retired else None,
        paused_at=_AT if paused else None,
    )


@pytest.mark.promise("L13")
@pytest.mark.parametrize(
    ("consumers", "acknowledged", "held_by", "why"),
    [
        ([], 9, (), "only its age"),
        ([consumer("a", 9), consumer("b", 9)], 9, (), "only its age"),
        ([consumer("a", 3), consumer("b", 9)], 3, ("a",), "a has acknowledged 3 of 9"),
        ([consumer("b", 3), consumer("a", 3), consumer("c", 4)], 3, ("a", "b"), "a, b has acknowledged 3 of 9"),
        ([consumer("a", 0), consumer("b", 9)], 0, ("a",), "a has acknowledged 0 of 9"),
        ([consumer("a", 3, paused=True), consumer("b", 9)], 3, ("a",), "a has acknowledged 3 of 9"),
        ([consumer("a", 3, retired=True), consumer("b", 7)], 7, ("b",), "b has acknowledged 7 of 9"),
        ([consumer("a", 3, retired=True)], 9, (), "only its age"),
        ([consumer("new", None), consumer("b", 9)], 0, ("new",), "new has no cursor"),
        ([consumer("new", None, retired=True), consumer("b", 9)], 9, (), "only its age"),
        ([consumer("broken", -1), consumer("b", 9)], 0, ("broken",), "broken has no cursor"),
        ([consumer("above", 10), consumer("b", 2)], 0, ("above",), "above has no cursor"),
        ([consumer("new", None), consumer("broken", -1)], 0, ("broken", "new"), "broken, new has no cursor"),
    ],
)
def test_what_every_consumer_has_acknowledged_may_go_and_the_floor_says_who_keeps_the_rest(
    consumers: list[Consumer], acknowledged: int, held_by: tuple[str, ...], why: str
) -> None:
    floor = floor_of(consumers, 9)
    assert (floor.acknowledged, floor.held_by) == (acknowledged, held_by)
    assert why in floor.why


@pytest.mark.promise("L13")
def test_an_empty_stream_keeps_nothing() -> None:
    assert floor_of([], 0).acknowledged == 0
    assert floor_of([consumer("a", 0)], 0).held_by == ()
