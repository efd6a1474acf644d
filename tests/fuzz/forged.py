"""Messages that lie: a valid one of each task, with one thing or another wrong in it, down to its envelope."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, NamedTuple

from hypothesis import strategies as st

from beat_schedule import TICKS
from tests.fuzz.hostile import as_json, damaged, garbled, json_values, texts

TASKS = (
    "outbox.run_turn",
    "outbox.run_slice",
    "outbox.drain_tenant",
    "outbox.poll_consumer",
    "outbox.wake_consumers",
    *(tick.task for tick in TICKS),
)
INNER = {"task": "outbox.sweep_tick", "args": [], "kwargs": {}, "options": {"queue": "maintenance"}}
EMBED: dict[str, Any] = {
    "callbacks": [INNER],
    "errbacks": [INNER],
    "chain": [INNER],
    "chord": {**INNER, "options": {"task_id": "c", "group_id": "g"}, "chord_size": 1},
}
HEADERS: dict[str, Any] = {
    "lang": "py",
    "task": "outbox.run_slice",
    "id": "0f8fad5b-d9cb-469f-a165-70867728950e",
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "root_id": "0f8fad5b-d9cb-469f-a165-70867728950e",
    "parent_id": None,
    "argsrepr": "()",
    "kwargsrepr": "{'tenant': 'acme'}",
    "origin": "gen1@there",
    "ignore_result": True,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}
_NONSENSE: dict[str, tuple[Any, ...]] = {
    "eta": ("9999-12-31T23:59:59", "2999-01-01T00:00:00+00:00", "soon", 7, [], "0001-01-01T00:00:00-23:59"),
    "expires": ("2020-01-01T00:00:00", "9999-12-31T23:59:59.999999-14:00", "soon", 7, -1, 1e308, True),
    "timelimit": ([1, 1], [0.001, None], [None, 0.001], [-1, -1], "x", [10**9, 10**9], ["a", "b"], [1], {"a": 1}),
    "retries": (10**9, -1, "many", None, [1]),
    "task": (
        "os.system",
        "celery.map",
        "celery.chord_unlock",
        "celery.backend_cleanup",
        "outbox.",
        "",
        "outbox.run_slice\n",
    ),
    "id": ("", "x" * 5_000, "a\nb", None, 7, {}, "\ud800", "../x"),
    "shadow": ("outbox.other\nfaked line", 7, ["x"], "x" * 9_000),
    "compression": ("gzip", "application/x-gzip", "bzip2", "zlib", "xz", "zstd", "rot13", 7, ["gzip"]),
    "stamped_headers": (["a"], "text", 7),
    "stamps": ({"a": [1]}, [1], "text"),
    "chord": (EMBED["chord"],),
    "group": ("g", 7, ["g"]),
    "hostname": ("elsewhere",),
    "args": ([1],),
    "kwargs": ({"tenant": "other"},),
    "callbacks": ([INNER],),
    "errbacks": ([INNER],),
    "chain": ([INNER],),
    "delivery_info": (7, {"routing_key": "x"}),
    "reply_to": ("somewhere",),
    "is_eager": (True,),
    "called_directly": (True,),
    "loglevel": ("x",),
}
ARGUMENTS: tuple[Any, ...] = (
    {"tenant": "acme"},
    {"tenant": "other"},
    {"tenant": "acme", "token": "token-000001"},
    {"tenant": "acme", "token": "forged"},
    {"tenant": "nobody", "token": "forged"},
    {"tenant": "other", "token": "token-000002"},
    {"tenant": "acme|other"},
    {"tenant": {"$ne": ""}},
    {"tenant": {"$regex": ".*"}},
    {"tenant": "^acme$"},
    {"tenant": "../acme"},
    {"tenant": "acme\0"},
    {"tenant": ["acme"]},
    {},
)


class Forged(NamedTuple):
    """A message's parts; nothing in them need be of the form that the protocol demands."""

    body: Any
    headers: Any
    content_type: Any = "application/json"
    content_encoding: Any = "utf-8"
    properties: Any = None
    queue: str = "effects"

    def envelope(self) -> str:
        """Return it as a line of a queue, as kombu's Redis transport writes one."""
        raw = self.body if isinstance(self.body, bytes) else str(self.body).encode(errors="replace")
        properties = {
            "delivery_tag": "forged",
            "delivery_info": {"exchange": "", "routing_key": self.queue},
            "body_encoding": "base64",
            **(self.properties if isinstance(self.properties, dict) else {}),
        }
        whole = {"body": base64.b64encode(raw).decode(), "headers": self.headers, "properties": properties}
        return json.dumps({**whole, "content-type": self.content_type, "content-encoding": self.content_encoding})


def honest(task: str, **named: object) -> Forged:
    """Return a message as ours are."""
    return Forged(json.dumps([[], named, {}]).encode(), {**HEADERS, "task": task, "id": "honest"})


def _properties(draw: st.DrawFn) -> dict[str, Any]:
    whole = {"correlation_id": "c", "reply_to": "r", "priority": 0, "delivery_mode": 2}
    properties: dict[str, Any] = draw(damaged(whole, json_values))
    return properties


@st.composite
def forgeries(draw: st.DrawFn) -> Forged:
    """A message of a registered task, or of none, with damage in its headers, arguments, embed, body or content."""
    task = draw(st.sampled_from(TASKS))
    headers: Any = {**HEADERS, "task": task}
    for name in draw(st.lists(st.sampled_from(sorted(_NONSENSE)), max_size=3)):
        headers[name] = draw(st.sampled_from(_NONSENSE[name]))
    if not draw(st.integers(0, 4)):
        headers = draw(damaged(headers) if draw(st.integers(0, 3)) else json_values)
    arguments = draw(st.sampled_from(ARGUMENTS))
    if not draw(st.integers(0, 2)):
        arguments = draw(damaged(arguments or {"tenant": "x"}))
    embed: Any = {name: EMBED[name] for name in draw(st.lists(st.sampled_from(sorted(EMBED)), max_size=4))}
    positional: Any = (
        [] if draw(st.integers(0, 5)) else draw(st.sampled_from((["acme"], [1, 2], "acme", {"a": 1}, None)))
    )
    whole: Any = [positional, arguments, embed]
    if not draw(st.integers(0, 9)):
        whole = draw(damaged(whole) if draw(st.booleans()) else json_values)
    body = as_json(whole)
    match draw(st.integers(0, 15)):
        case 0:
            body = draw(garbled(body))
        case 1:
            # The first protocol: all of it in the body.
            body, headers = as_json({**HEADERS, "task": task, "args": [], "kwargs": arguments, **embed}), {}
        case 2:
            body = zlib.compress(body)
        case _:
            pass
    kinds = st.sampled_from(
        ("application/json", "application/x-python-serialize", "application/data", "text/plain", "x")
    )
    content_type: Any = (
        "application/json" if draw(st.integers(0, 7)) else draw(kinds | texts | st.sampled_from((None, 7)))
    )
    encodings = st.sampled_from(("binary", "utf-16", "rot13", "base64", "idna", "no-such", None, 7))
    encoding: Any = "utf-8" if draw(st.integers(0, 7)) else draw(encodings)
    queue = draw(st.sampled_from(("effects", "drain", "maintenance")))
    return Forged(
        body, headers, content_type, encoding, _properties(draw) if not draw(st.integers(0, 3)) else None, queue
    )
