"""The index over many rules: it never loses one that `mismatch` takes, and asks few that it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.domain import rule_index
from outbox_core.domain.rule_index import RuleIndex, index_of
from outbox_core.domain.subscription import Match, mismatch
from tests.harness.examples import attributes, subscription

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox_core.domain.event import Attributes
    from outbox_core.domain.subscription import Subscription

# Texts that are equal folded, beyond ASCII too, some of which are none of the others lowered; and the empty one.
TEXTS = st.sampled_from(
    ["", "a", "A", "b", "ß", "ss", "SS", "ẞ", "\u017f", "s", "ς", "Σ", "İ", "i̇", "ﬁ", "fi", "K", "k"]
)
FEW = st.one_of(st.just(()), st.lists(TEXTS, max_size=3).map(tuple))
RULES = st.lists(st.tuples(TEXTS, st.fixed_dictionaries(dict.fromkeys(Match.__slots__, FEW))), max_size=9)
EVENTS = st.fixed_dictionaries(
    {
        **dict.fromkeys(("source", "type", "action", "state", "repo", "author"), TEXTS),
        "labels": st.lists(TEXTS, max_size=4).map(tuple),
        "run_id": st.sampled_from(["", "", "r"]),
        "reason": st.sampled_from(["", "", "watchdog"]),
    }
)


def taken_one_by_one(rules: Sequence[Subscription], seen: Attributes) -> list[str]:
    return [rule.sub_id for rule in rules if mismatch(rule, seen) is None]


def taken_by_index(index: RuleIndex, seen: Attributes) -> list[str]:
    return [rule.sub_id for rule in index.candidates(seen) if mismatch(rule, seen) is None]


@pytest.mark.promise("E20")
@pytest.mark.parametrize("together", [2, 1_024])
@given(terms=RULES, given_events=st.lists(EVENTS, min_size=1, max_size=5))
def test_the_index_finds_what_asking_rule_after_rule_finds_in_the_same_order(
    together: int, terms: list[tuple[str, dict[str, Any]]], given_events: list[dict[str, Any]]
) -> None:
    rules = [subscription(f"s{place}", repo=repo, **match) for place, (repo, match) in enumerate(terms)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule_index, "_MOST_TOGETHER", together)
        index = RuleIndex(rules)
    for seen in (attributes(**event) for event in given_events):
        assert taken_by_index(index, seen) == taken_one_by_one(rules, seen)


EVENT: dict[str, Any] = {
    "source": "app",
    "type": "order",
    "action": "Placed",
    "state": "open",
    "labels": ("Gift", "Straße"),
    "repo": "Acme/Shop",
    "author": "Ann",
}
NAMED: dict[str, dict[str, Any]] = {
    "repo": {"repo": "acme/shop"},
    "sources": {"sources": ("board", "app")},
    "types": {"types": ("refund", "order")},
    "actions": {"actions": ("shipped", "PLACED")},
    "repos": {"repos": ("acme/else", "ACME/SHOP")},
    "authors": {"authors": ("bob", "ann")},
    "subject_states": {"subject_states": ("closed", "open")},
    "labels": {"labels": ("STRASSE", "gift")},
}


@pytest.mark.promise("E20")
@pytest.mark.parametrize("term", NAMED)
def test_a_rule_is_found_by_each_term_and_not_by_another_value_of_it(term: str) -> None:
    """Of many rules that name another value in one term alone, whichever it is, none is asked about the event."""
    fits = subscription("fits", **{name: value for one in NAMED.values() for name, value in one.items()})
    others = [
        replace(fits, sub_id=f"o{number}", repo=f"acme/{number}")
        if term == "repo"
        else replace(fits, sub_id=f"o{number}", match=replace(fits.match, **{term: (f"other {number}",)}))
        for number in range(50)
    ]
    seen = attributes(**EVENT)
    index = RuleIndex([*others[:25], subscription("any"), fits, *others[25:]])
    assert [rule.sub_id for rule in index.candidates(seen)] == ["any", "fits"]


@pytest.mark.promise("E20")
def test_rules_that_share_a_label_are_told_apart_by_the_one_that_few_demand() -> None:
    rules = [subscription(f"s{number}", labels=("shared", f"own {number}", "always")) for number in range(100)]
    seen = attributes(labels=("Always", "OWN 42", "Shared"))
    assert [rule.sub_id for rule in RuleIndex(rules).candidates(seen)] == ["s42"]
    assert list(RuleIndex(rules).candidates(attributes(labels=("shared", "always")))) == []


@pytest.mark.promise("E20")
def test_of_thousands_of_rules_an_event_asks_those_that_may_match() -> None:
    """Terms that are each shared by many: no single one would tell the rules apart."""
    rules = [
        subscription(f"s{number}", types=(f"t{number % 61}",), actions=(f"a{number % 59}",)) for number in range(3_000)
    ]
    index = RuleIndex(rules)
    for number in (0, 1_023, 1_024, 2_047, 2_048, 2_999):
        seen = attributes(type=f"t{number % 61}", action=f"A{number % 59}")
        assert [rule.sub_id for rule in index.candidates(seen)] == [f"s{number}"]
    everything = RuleIndex([subscription(f"s{number}") for number in range(3_000)])
    assert [rule.sub_id for rule in everything.candidates(attributes())] == [f"s{number}" for number in range(3_000)]


@pytest.mark.promise("E34")
@pytest.mark.parametrize(
    "changed", [{"bot_id": "other"}, {"match": Match(types=("refund",))}, {"repo": "a/b"}, {"vars": {"n": 1}}]
)
def test_an_index_is_kept_for_equal_rules_alone(changed: dict[str, Any]) -> None:
    rules = [subscription("a", types=("order",)), subscription("b")]
    assert index_of(rules) is index_of([replace(rule) for rule in rules])
    edited = [replace(rules[0], **changed), rules[1]]
    assert index_of(edited) is not index_of(rules)
    seen = attributes(type="order")
    assert taken_by_index(index_of(edited), seen) == taken_one_by_one(edited, seen)
    assert taken_by_index(index_of(rules[1:]), seen) == ["b"]
    assert taken_by_index(index_of([]), seen) == []
