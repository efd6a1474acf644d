"""Hostile values, and damage: any place of a valid document replaced, removed, doubled or retyped."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

from bson import Int64
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import strategies as st

DEEP = "@@deep@@"
HUGE = "@@huge@@"
"""What `as_json` writes as 3,000 nested arrays, and as a number of 5,000 digits: Python makes neither by itself."""

SECRET = "s3cr3t-of-the-fuzz"  # noqa: S105 - it is looked for in what is said
LONG = "x" * 70_000
_DEEPEST = 12

TEXTS = (
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "\ud800\udc00",
    "a\nb\r\nc",
    "\x1b[31mred",
    "\u202egnp.exe",
    "\u200b",
    "\ufeffbom",
    "caf\u00e9",
    "cafe\u0301",
    "\u0130\u0131\u00df\ufb01",
    "\uffff",
    "\U0010ffff",
    "$where",
    "$$NOW",
    "$state",
    "a.b",
    ".",
    "..",
    "../../etc/passwd",
    "acme|other",
    "#void.1",
    "^.*$",
    "{{7*7}}",
    "%s%n{0}",
    "' OR 1=1 --",
    "2026-13-45T99:99:99Z",
    "0000-00-00T00:00:00Z",
    "NaN",
    "1e999",
    "-1",
    "null",
    "true",
    "acme",
    "other",
    "board",
    "deleted",
    "x" * 65,
    "x" * 300,
    LONG,
)
NUMBERS = (0, -1, 1, 2, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.0, 0.5, 1e308, 5e-324)
BEYOND_BSON = (2**63, -(2**63) - 1, 10**400)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))

texts = st.sampled_from(TEXTS) | st.text(max_size=12)
json_scalars = (
    st.none()
    | st.booleans()
    | texts
    | st.sampled_from((*NUMBERS, *BEYOND_BSON, *NOT_FINITE))
    | st.sampled_from((DEEP, HUGE))
)


def nested(depth: int) -> Any:  # noqa: ANN401 - any JSON
    """Return that many lists in each other."""
    value: Any = "core"
    for _ in range(depth):
        value = [value]
    return value


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(texts.filter(lambda text: len(text) < 400), inner, max_size=3)


json_values = st.recursive(
    json_scalars | st.builds(nested, st.sampled_from((30, 63, 64, 65, 99, 101, 180))), _containers, max_leaves=6
)

_BSON = (
    *NUMBERS,
    *NOT_FINITE,
    b"\xff\xfe",
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(2020, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
)
_SERVERS_OWN = (
    DatetimeMS(2**60),
    DatetimeMS(-(2**60)),
    Decimal128("2"),
    Decimal128("NaN"),
    Decimal128("1E+6144"),
    ObjectId(b"twelve bytes"),
    Binary(b"\x00" * 3, 3),
    Regex("a("),
    Code("while(true){}"),
    MinKey(),
    MaxKey(),
    Timestamp(1, 1),
    Int64(2),
)

storable_texts = texts.filter(lambda text: "\ud800" not in text)
bson_values = st.recursive(
    st.none() | st.booleans() | storable_texts | st.sampled_from(_BSON),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(storable_texts.filter(lambda text: "\0" not in text and len(text) < 400), inner, max_size=3)
    ),
    max_leaves=5,
)
"""What both stores can hold."""

servers_values = bson_values | st.sampled_from(_SERVERS_OWN)
"""What a person can put into MongoDB with a shell."""


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401 - any JSON
    """Return the path of every node below the root, as far down as one would look."""
    match document:
        case _ if len(at) > _DEEPEST:
            items: list[tuple[Any, Any]] = []
        case dict():
            items = list(document.items())
        case list():
            items = list(enumerate(document))
        case _:
            items = []
    return [path for key, value in items for path in ((*at, key), *places(value, (*at, key)))]


def _retyped(value: Any, to: str) -> Any:  # noqa: ANN401 - any JSON
    """Return the value in another type: as a careless sender, or another version, would have it."""
    match to:
        case "text":
            return repr(value)
        case "list":
            return [value]
        case "document":
            return {"value": value}
        case "number":
            return len(str(value))
        case _:
            return bool(value)


@st.composite
def damaged(
    draw: st.DrawFn,
    valid: Any,  # noqa: ANN401 - any document
    values: st.SearchStrategy[Any] = json_values,
    *,
    most: int = 3,
    keep: tuple[str, ...] = (),
) -> Any:  # noqa: ANN401 - any document
    """Return a copy of a valid document with one to `most` of its places damaged; fields in `keep` stay."""
    document = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, most))):
        found = [path for path in places(document) if path[0] not in keep]
        if not found:
            return document
        path = draw(st.sampled_from(found))
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        _damage(draw, parent, path[-1], values)
    return document


def _damage(draw: st.DrawFn, parent: Any, key: Any, values: st.SearchStrategy[Any]) -> None:  # noqa: ANN401 - any node
    how = draw(st.sampled_from(("replace", "replace", "replace", "remove", "double", "retype", "beside", "fill")))
    value = parent[key]
    match how:
        case "remove":
            del parent[key]
        case "double" if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(value))
        case "retype":
            parent[key] = _retyped(value, draw(st.sampled_from(("text", "list", "document", "number", "flag"))))
        case "beside" if isinstance(parent, dict):
            parent[draw(st.sampled_from(("later", "$ref", "a.b", "$set", "__proto__")))] = _own(draw(values))
        case "fill" if isinstance(value, list):
            parent[key] = [*value, _own(draw(values))]
        case _:
            parent[key] = _own(draw(values))


def _own(value: Any) -> Any:  # noqa: ANN401 - any node
    """Return a copy of what the next damage may change; the original may be drawn again."""
    return copy.deepcopy(value) if isinstance(value, dict | list) else value


def as_json(value: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return the bytes that a hostile sender would send for a value; surrogates escaped, NaN as it stands."""
    text = json.dumps(value).replace(f'"{DEEP}"', "[" * 3_000 + "]" * 3_000).replace(f'"{HUGE}"', "9" * 5_000)
    return text.encode()


@st.composite
def garbled(draw: st.DrawFn, whole: bytes) -> bytes:  # noqa: PLR0911 - one way of harm each
    """Return bytes that were cut, changed or doubled on their way."""
    place = draw(st.integers(0, max(0, len(whole) - 1)))
    match draw(st.sampled_from(("cut", "flip", "insert", "twice", "bom", "utf-16", "empty"))):
        case "cut":
            return whole[:place]
        case "flip":
            return whole[:place] + bytes([draw(st.integers(0, 255))]) + whole[place + 1 :]
        case "insert":
            return whole[:place] + draw(st.binary(max_size=4)) + whole[place:]
        case "twice":
            return whole + whole
        case "bom":
            return b"\xef\xbb\xbf" + whole
        case "utf-16":
            return whole.decode(errors="replace").encode("utf-16")
        case _:
            return b""


def require_one_clear_line(error: BaseException, *secrets: str, most: int = 2_000) -> None:
    """Fail where an error is not one line of bounded length, or says a secret."""
    said = str(error)
    assert said.strip(), "it says nothing"
    assert len(said) <= most, f"{len(said)} characters: {said[:200]}"
    assert said.isprintable(), repr(said)
    assert "Traceback" not in said, said
    for secret in (SECRET, *secrets):
        assert secret not in said, "it says the secret"
