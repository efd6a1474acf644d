"""Whatever is given in at an entrance is refused in one clear line and leaves no trace, or works out to its rows."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.domain.errors import OutboxError
from tests.deliveries import deliveries_of, delivery_files
from tests.fuzz.door import Door, same_on_both
from tests.fuzz.hostile import SECRET, as_json, damaged, garbled, json_values, texts
from tests.fuzz.profile import inputs, tried
from tests.harness.on_mongo import MongoHarness
from tests.harness.twin import TwinHarness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox_core.bootstrap import Outbox
    from tests.harness.on_mongo import MongoDatabases

pytestmark = [
    pytest.mark.promise("O06", "O07"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]

DELIVERIES = [delivery for file in delivery_files() for delivery in deliveries_of(file)][:400]


@st.composite
def github_requests(draw: st.DrawFn, *, signed: bool) -> tuple[dict[str, Any], bytes]:
    """A delivery as GitHub sends it, with one thing or another wrong in it."""
    whole = draw(st.sampled_from(DELIVERIES))
    payload = draw(damaged(whole["payload"]) if draw(st.integers(0, 9)) else json_values)
    body = as_json(payload)
    if not draw(st.integers(0, 9)):
        body = draw(garbled(body))
    headers: dict[str, Any] = {"X-GitHub-Event": whole["event"], "X-GitHub-Delivery": whole["delivery"]}
    if signed:
        headers["X-Hub-Signature-256"] = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    if not draw(st.integers(0, 5)):
        headers = draw(damaged(headers, texts, most=2))
    return headers, body


def github(request: tuple[dict[str, Any], bytes]) -> Callable[[Outbox], object]:
    return lambda outbox: outbox.ingest_github("acme", *request)


CLOUDEVENT = {
    "specversion": "1.0",
    "id": "A234-1234-1234",
    "source": "https://example.com/shop",
    "type": "com.example.order.placed",
    "subject": "order/17",
    "time": "2026-11-30T15:00:00Z",
    "datacontenttype": "application/json",
    "dataschema": "https://example.com/schema",
    "action": "placed",
    "labels": "a, b",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "data": {"total": 12.5, "lines": [{"sku": "p-1", "count": 2}], "note": None},
}


@st.composite
def cloudevent_requests(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """A CloudEvent in any of the modes, with one thing or another wrong in it."""
    mode = draw(st.sampled_from(("structured", "batch", "binary")))
    if mode == "binary":
        fields = {name: str(value) for name, value in CLOUDEVENT.items() if name not in {"data", "datacontenttype"}}
        named = {f"ce-{name}": value for name, value in fields.items()}
        headers = draw(damaged({**named, "Content-Type": "application/json"}, texts))
        return {name: str(value) for name, value in headers.items()}, _body(draw, CLOUDEVENT["data"])
    event: Any = draw(damaged(CLOUDEVENT))
    if mode == "batch":
        whole = {**CLOUDEVENT, "id": "whole"}
        event = draw(st.sampled_from(([event], [whole, event], [event, whole, event], event)))
    kind = {"structured": "application/cloudevents+json", "batch": "application/cloudevents-batch+json"}[mode]
    if not draw(st.integers(0, 9)):
        kind = draw(texts | st.sampled_from((kind.upper(), f"{kind}; charset=utf-16", "application/cloudevents+xml")))
    return {"Content-Type": kind}, _body(draw, event)


def _body(draw: st.DrawFn, value: Any) -> bytes:  # noqa: ANN401 - any JSON
    body = as_json(value)
    return body if draw(st.integers(0, 7)) else draw(garbled(body))


def cloudevent(request: tuple[dict[str, Any], bytes]) -> Callable[[Outbox], object]:
    return lambda outbox: outbox.ingest_cloudevents("acme", *request)


class Stubborn(str):
    """A text of another class, whose `__str__` says something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another"


class Mapped(dict[str, Any]):
    """A dict of another class."""


class Iterated:
    """No list, and nothing but iterated over; unlike a generator twice, once for each store."""

    def __iter__(self) -> Iterator[str]:
        yield "a"


def _endless() -> dict[str, Any]:
    """A dict that holds itself."""
    whole: dict[str, Any] = {}
    whole["self"] = whole
    return whole


ANYTHING = st.one_of(
    json_values,
    st.sampled_from(
        (
            b"bytes",
            bytearray(b"x"),
            {1: 2},
            {None: 1},
            {("a",): 1},
            {"a": {1, 2}},
            (1, 2),
            frozenset({"a"}),
            object(),
            int,
            print,
            Ellipsis,
            1j,
            timedelta(days=1),
            datetime(2026, 1, 1),  # noqa: DTZ001 - without a zone is the point
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            Stubborn("text"),
            range(3),
        )
    ),
    st.builds(Iterated),
    st.builds(Mapped, st.just({"a": 1})),
    st.builds(_endless),
)


EVENT: dict[str, Any] = {
    "type": "order",
    "action": "placed",
    "subject": "17",
    "source": "app",
    "state": "open",
    "from_state": "",
    "labels": ["a", "b"],
    "repo": "acme/pumps",
    "author": "ada",
    "reason": "",
    "run_id": "",
    "data": {"total": 12.5, "lines": [1, {"a": None}]},
    "trace": {"traceparent": "00-1"},
    "event_id": "mine",
    "occurred_at": datetime(2026, 11, 30, tzinfo=UTC),
}


@st.composite
def appends(draw: st.DrawFn) -> Callable[[Outbox], object]:
    tenant: Any = draw(ANYTHING) if not draw(st.integers(0, 19)) else "acme"
    event = draw(damaged(EVENT, ANYTHING))
    if draw(st.integers(0, 4)):
        named = {name: value for name, value in event.items() if name in EVENT}
        named.setdefault("type", "order")
        return lambda outbox: outbox.append(tenant, **named)
    several: Any = draw(st.sampled_from(([event], [EVENT, event], event, "text", None, 7, [None], [[]], [EVENT] * 3)))
    return lambda outbox: outbox.append_many(tenant, several)


RULE: dict[str, Any] = {
    "sub_id": "rule",
    "bot_id": "bot",
    "repo": "acme/pumps",
    "mode": "direct",
    "consume_labels": ["go"],
    "vars": {},
    "args_var": "",
    "created_by": "ada",
    "sources": ["board"],
    "types": ["card"],
    "actions": ["moved"],
    "repos": ["acme/pumps"],
    "authors": ["ada"],
    "subject_states": ["done"],
    "labels": ["go"],
}


@st.composite
def rules(draw: st.DrawFn) -> Callable[[Outbox], object]:
    """A rule with damage, and an event that it must then be asked about."""
    tenant: Any = draw(ANYTHING) if not draw(st.integers(0, 19)) else "acme"
    rule = {name: value for name, value in draw(damaged(RULE, ANYTHING)).items() if name in RULE or name == "later"}
    rule.setdefault("sub_id", "rule")
    rule.setdefault("bot_id", "bot")
    return lambda outbox: outbox.subscribe(tenant, **rule)


CAUSE = {"author": "ada", "reason": "why", "run_id": "", "event_id": "cause"}
BOARD_CALLS: dict[str, dict[str, Any]] = {
    "board": {"board_id": "b"},
    "card": {"card_id": "c"},
    "cards": {"board_id": "b", "after": "", "limit": 10},
    "create_board": {"board_id": "b2", "columns": ["todo", "done"]},
    "bind": {"board_id": "b", "kind": "mirror", "target": "there"},
    "unbind": {"board_id": "b"},
    "rename_column": {"board_id": "b", "column": "todo", "name": "later", "author": "ada", "run_id": ""},
    "remove_column": {"board_id": "b", "column": "todo", "into": "done", "author": "ada", "run_id": ""},
    "create_card": {
        "board_id": "b",
        "title": "t",
        "card_id": "c2",
        "column": "todo",
        "body": "text",
        "labels": ["a"],
        "assignee": "ada",
        "link": "https://example.com/1",
        **CAUSE,
    },
    "move_card": {"card_id": "c", "column": "done", "watchdog": False, **CAUSE},
    "label_card": {"card_id": "c", "add": ["b"], "remove": ["a"], **CAUSE},
    "archive_card": {"card_id": "c", **CAUSE},
    "restore_card": {"card_id": "c", **CAUSE},
    "delete_card": {"card_id": "c", **CAUSE},
}
NEEDED = {"board_id", "card_id", "column", "columns", "name", "title", "kind", "target"}


@st.composite
def board_calls(draw: st.DrawFn) -> Callable[[Outbox], object]:
    call = draw(st.sampled_from(sorted(BOARD_CALLS)))
    valid = BOARD_CALLS[call]
    words = {name: value for name, value in draw(damaged(valid, ANYTHING, most=2)).items() if name in valid}
    for name in NEEDED & valid.keys():
        words.setdefault(name, valid[name])
    return lambda outbox: getattr(outbox.boards("acme"), call)(**words)


ENTRANCES: dict[str, st.SearchStrategy[Any]] = {
    "github": github_requests(signed=False).map(github),
    "cloudevents": cloudevent_requests().map(cloudevent),
    "append": appends(),
    "subscribe": rules(),
    "boards": board_calls(),
}


def opened(door: Door) -> Door:
    """Give it a board with a card that the calls name."""
    boards = door.outbox.boards("acme")
    boards.create_board("b", ["todo", "done"])
    boards.create_card("b", "t", card_id="c", labels=["a"], event_id="first")
    return door


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_what_is_given_in_is_refused_in_one_line_or_works_out(entrance: str) -> None:
    @inputs(60)
    @given(act=ENTRANCES[entrance])
    def judge(act: Callable[[Outbox], object]) -> None:
        door = opened(Door(TwinHarness()))
        door.take(entrance, act)
        door.outbox.append("acme", type="card", source="board", subject="c", labels=["go"], state="done")
        door.work_out()

    judge()
    assert tried[f"{entrance}: refused"], "nothing was refused: the damage does nothing"
    assert tried[f"{entrance}: taken"], "nothing was taken: the damage leaves nothing whole"


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_both_stores_take_the_same_and_store_the_same(entrance: str, harness_databases: MongoDatabases) -> None:
    @inputs(12)
    @given(act=ENTRANCES[entrance])
    def judge(act: Callable[[Outbox], object]) -> None:
        twin, mongo = opened(Door(TwinHarness())), opened(Door(MongoHarness(harness_databases.empty())))
        same_on_both(twin, mongo, f"{entrance}, on both", act)

    judge()


@inputs(60)
@given(request=github_requests(signed=True))
def test_a_signed_delivery_is_taken_by_its_signature_alone_and_no_refusal_says_the_secret(
    request: tuple[dict[str, Any], bytes],
) -> None:
    door = Door(TwinHarness(), secret=SECRET)
    headers, body = request
    good = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    taken = door.take("signed delivery", github(request))
    if str(headers.get("X-Hub-Signature-256")) != f"sha256={good}":
        assert isinstance(taken, OutboxError)
    if not isinstance(taken, OutboxError):
        assert json.loads(body) is not None
