"""Ids, and the keys that are made of them."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.domain.errors import InvalidInputError, InvariantError
from outbox_core.domain.event import tombstone_id
from outbox_core.domain.identity import (
    dead_event_key,
    fitting_id,
    is_id,
    join_key,
    launch_key,
    require_id,
    require_own,
    split_key,
)

IDS = st.from_regex(r"\A[A-Za-z0-9._-]{1,64}\Z")


@pytest.mark.parametrize("text", ["a", "A-Z_0.9", "x" * 64])
def test_these_are_ids(text: str) -> None:
    assert is_id(text)
    assert require_id(text, "tenant") == text
    assert fitting_id(text) == text


@pytest.mark.promise("O06")
@pytest.mark.parametrize("text", ["", "x" * 65, "a b", "a|b", "#void.1", "ä", "a\n", "٣", None, 7, b"a"])
def test_these_are_none_and_the_refusal_is_one_line_that_says_what_to_do(text: object) -> None:
    assert not is_id(text)
    with pytest.raises(InvalidInputError) as refusal:
        require_id(text, "tenant")
    assert str(refusal.value).startswith("tenant: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("outside", ["https://x/1", "", "ä" * 100, "a|b", "\ud800"])
def test_an_outside_id_that_does_not_fit_becomes_its_digest(outside: str) -> None:
    fitted = fitting_id(outside)
    assert fitted == hashlib.sha256(outside.encode("utf-8", "surrogatepass")).hexdigest()
    assert is_id(fitted)


@given(st.lists(IDS, min_size=1, max_size=4))
def test_a_key_comes_apart_into_the_ids_it_was_made_of(ids: list[str]) -> None:
    assert split_key(join_key(*ids)) == tuple(ids)


@pytest.mark.promise("E12")
@given(IDS, IDS, IDS, IDS, IDS, IDS)
def test_two_launches_have_one_key_only_if_all_three_ids_are_the_same(
    a: str, b: str, c: str, d: str, e: str, f: str
) -> None:
    assert (launch_key(a, b, c) == launch_key(d, e, f)) is ((a, b, c) == (d, e, f))


@given(IDS, IDS, IDS, st.text())
def test_no_launch_has_the_key_of_a_dead_event_or_the_id_of_a_tombstone(
    tenant: str, event_id: str, sub_id: str, document_id: str
) -> None:
    assert launch_key(tenant, event_id, sub_id) != dead_event_key(tenant, document_id)
    assert not is_id(tombstone_id(1))


@pytest.mark.promise("L21")
def test_what_names_another_tenant_is_refused() -> None:
    require_own("acme", "acme", "a row")
    with pytest.raises(InvariantError, match="a row of other"):
        require_own("acme", "other", "a row")
