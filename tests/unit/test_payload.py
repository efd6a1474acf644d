"""What may travel in an event, and what is refused because a store could not hold it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.domain.errors import EventTooLargeError, InvalidInputError
from outbox_core.domain.limits import MAX_JSON_DEPTH
from outbox_core.domain.payload import json_bytes, require_json

LONE = "no text: \ud800"


def nested(levels: int, inner: object) -> object:
    """Put a value into that many lists."""
    for _ in range(levels):
        inner = [inner]
    return inner


@pytest.mark.promise("E09")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (LONE, "not valid Unicode"),
        ({"a": [1, {"b": LONE}]}, "not valid Unicode"),
        ({"a": {LONE: 1}}, "not valid Unicode"),
        ([{"a\0b": 1}], "keys are text without NUL"),
        ({"a": {5: 1}}, "keys are text without NUL"),
        ([2**63], "does not fit 64 bits"),
        ({"a": float("nan")}, "JSON does not have"),
        ({"a": [float("-inf")]}, "JSON does not have"),
        ({"a": {1, 2}}, "holds a set"),
        ([b"bytes"], "holds a bytes"),
        (nested(MAX_JSON_DEPTH + 1, "text"), "nested deeper"),
        (nested(MAX_JSON_DEPTH + 1, 1), "nested deeper"),
    ],
)
def test_what_a_store_could_not_hold_is_refused_by_name(value: object, said: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^the data .*{said}"):
        json_bytes(value, "the data")


TEXTS = st.text(st.characters(codec="utf-8"))
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXTS.filter(lambda key: "\0" not in key), inner, max_size=3)
    ),
    max_leaves=8,
).filter(lambda value: "Infinity" not in json.dumps(value))


@pytest.mark.promise("E09")
@given(JSON)
def test_json_is_taken_and_measured_as_it_is_written(value: Any) -> None:  # noqa: ANN401 - any JSON
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    assert json_bytes(value, "the data") == size
    require_json(value, "the data", size)
    with pytest.raises(EventTooLargeError):
        require_json(value, "the data", size - 1)


@pytest.mark.promise("E09")
@pytest.mark.parametrize("inner", ["text", 1, None])
def test_the_deepest_json_is_taken(inner: object) -> None:
    assert json_bytes(nested(MAX_JSON_DEPTH, inner), "the data") > 2 * MAX_JSON_DEPTH
