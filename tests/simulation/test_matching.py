"""Which events a rule matches: the table of E20, from an append through a drain to the rows, on both stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application.add_subscription import add_subscription
from tests.harness.examples import subscription
from tests.simulation.play import append, drain_whole, rows_of, run_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.harness.base import Harness


@dataclass(frozen=True, slots=True)
class Case:
    """A rule's terms, what of an event differs from EVENT, and whether the one matches the other."""

    rule: Mapping[str, Any]
    matches: bool
    event: Mapping[str, Any] = field(default_factory=dict)


EVENT: Mapping[str, Any] = {
    "source": "app",
    "type": "order",
    "action": "placed",
    "state": "open",
    "labels": ("Urgent", "gift"),
    "repo": "Acme/Shop",
    "author": "Ann",
}

CASES = {
    # An empty rule, an empty term.
    "nothing-asked": Case({}, matches=True),
    "nothing-asked-of-a-bare-event": Case({}, matches=True, event=dict.fromkeys(("action", "state", "repo"), "")),
    # Any of one dimension.
    "one-of-two-types": Case({"types": ("refund", "order")}, matches=True),
    "none-of-two-types": Case({"types": ("refund", "return")}, matches=False),
    "one-of-two-sources": Case({"sources": ("board", "app")}, matches=True),
    "another-source": Case({"sources": ("board",)}, matches=False),
    "one-of-two-actions": Case({"actions": ("shipped", "placed")}, matches=True),
    "another-action": Case({"actions": ("shipped",)}, matches=False),
    "one-of-two-states": Case({"subject_states": ("closed", "open")}, matches=True),
    "another-state": Case({"subject_states": ("closed",)}, matches=False),
    "one-of-two-authors": Case({"authors": ("Bob", "Ann")}, matches=True),
    "another-author": Case({"authors": ("Bob",)}, matches=False),
    "one-of-two-repos": Case({"repos": ("Acme/Else", "Acme/Shop")}, matches=True),
    "another-repo": Case({"repos": ("Acme/Else",)}, matches=False),
    # All dimensions.
    "every-dimension": Case(
        {
            "sources": ("app",),
            "types": ("order",),
            "actions": ("placed",),
            "repos": ("Acme/Shop",),
            "authors": ("Ann",),
            "subject_states": ("open",),
            "labels": ("gift",),
            "repo": "Acme/Shop",
        },
        matches=True,
    ),
    "every-dimension-but-one": Case({"types": ("order",), "actions": ("placed",), "authors": ("Bob",)}, matches=False),
    # Labels must all be there.
    "all-labels": Case({"labels": ("gift", "Urgent")}, matches=True),
    "one-label-too-many": Case({"labels": ("gift", "fragile")}, matches=False),
    "a-label-of-an-event-without": Case({"labels": ("gift",)}, matches=False, event={"labels": ()}),
    # Case is folded in actions, repos, authors and labels, beyond ASCII too.
    "folded-action": Case({"actions": ("PLACED",)}, matches=True),
    "folded-repos": Case({"repos": ("acme/shop",)}, matches=True),
    "folded-author": Case({"authors": ("ANN",)}, matches=True),
    "folded-labels": Case({"labels": ("urgent", "GIFT")}, matches=True),
    "folded-repo-of-the-rule": Case({"repo": "ACME/SHOP"}, matches=True),
    "folded-beyond-ascii": Case({"labels": ("STRASSE",)}, matches=True, event={"labels": ("Straße",)}),
    # It is not in sources, types and states.
    "a-source-as-it-is": Case({"sources": ("App",)}, matches=False),
    "a-type-as-it-is": Case({"types": ("Order",)}, matches=False),
    "a-state-as-it-is": Case({"subject_states": ("Open",)}, matches=False),
    # A tenant's rule, and a repo's.
    "a-tenants-rule-and-an-event-with-a-repo": Case({"repo": ""}, matches=True),
    "a-tenants-rule-and-an-event-without": Case({"repo": ""}, matches=True, event={"repo": ""}),
    "a-repos-rule-and-an-event-of-another": Case({"repo": "Acme/Else"}, matches=False),
    "a-repos-rule-and-an-event-without": Case({"repo": "Acme/Shop"}, matches=False, event={"repo": ""}),
    # Nothing is a part of a word.
    "a-part-of-a-word": Case({"types": ("ord",)}, matches=False),
    "a-term-that-is-empty": Case({"actions": ("",)}, matches=False),
}


@pytest.mark.promise("E20")
def test_every_rule_of_the_table_matches_just_what_it_should(harness: Harness) -> None:
    """All rules meet all events of the table, so each rule is also asked about the events of the others."""
    for name, case in CASES.items():
        add_subscription(harness.acme, subscription(name, **case.rule))
    for name, case in CASES.items():
        append(harness.acme, harness.runtime(), f"of-{name}", **{**EVENT, **case.event})
    drain_whole(harness.acme, harness.runtime())
    owed = set(rows_of(harness, "acme"))
    decided = {name: f"of-{name}|{name}" in owed for name in CASES}
    assert decided == {name: case.matches for name, case in CASES.items()}
    # The rule that asks for nothing is owed every event, and one that asks for what none has is owed nothing.
    assert {key for key in owed if key.endswith("|nothing-asked")} == {f"of-{name}|nothing-asked" for name in CASES}
    assert not [key for key in owed if key.endswith("|a-part-of-a-word")]


@pytest.mark.promise("E20", "E34")
def test_the_check_at_execution_decides_as_the_drain_did(harness: Harness) -> None:
    """What matched is launched: one `mismatch` serves both, on what the row carries."""
    launched: list[str] = []
    runtime = harness.runtime({"bot": lambda run: launched.append(run.effect_id)})
    for name, case in CASES.items():
        add_subscription(harness.acme, subscription(name, **case.rule))
    append(harness.acme, runtime, "e1", **EVENT)
    drain_whole(harness.acme, runtime)
    run_whole(harness.acme, runtime)
    assert sorted(launched) == sorted(row["_id"] for row in harness.raw("trigger_effects"))
    assert {row["outcome"] for row in harness.raw("trigger_effects")} == {"delivered"}
    assert "acme|e1|every-dimension" in launched
