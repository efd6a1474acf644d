"""Whether a rule can ever fire is told before it is stored."""

from __future__ import annotations

from typing import Any

import pytest

from outbox_core.domain.event import Attributes, Snapshot
from outbox_core.domain.subscription import Match, Subscription, mismatch
from outbox_core.sources.reach import why_it_never_fires


def rule(**given: Any) -> Subscription:  # noqa: ANN401 - the fields of a rule and of its match
    rest = {name: given.pop(name) for name in ("repo", "mode") if name in given}
    return Subscription(tenant_id="t", sub_id="r", bot_id="b", match=Match(**given), **rest)


@pytest.mark.promise("O06")
@pytest.mark.parametrize(
    ("never", "why"),
    [
        (rule(sources=("github",)), "no source is called 'github'; there are board, forge, app, cloudevents"),
        (
            rule(sources=("bord",)),
            "no source is called 'bord' (did you mean board?); there are board, forge, app, cloudevents",
        ),
        (rule(sources=("board",), types=("isues",)), "no type 'isues' comes from board (did you mean issues?)"),
        (rule(sources=("board",), types=("issue_comment",)), "no type 'issue_comment' comes from board"),
        (rule(sources=("forge",), types=("push",)), "no type 'push' comes from forge"),
        (rule(sources=("board", "forge"), types=("push",)), "no type 'push' comes from board or forge"),
        (rule(sources=("board",), types=("issues",), subject_states=("done",)), "no card has the state 'done'"),
        (rule(labels=(" ",)), "labels holds an empty text"),
        (rule(repo="a/b", repos=("c/d",)), "repo is 'a/b' and repos does not hold it"),
        (rule(mode="bord"), "mode 'bord' is not known here; use direct or board"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rule_that_can_never_fire_is_told_why(never: Subscription, why: str) -> None:
    assert why_it_never_fires(never) == (why,)


@pytest.mark.parametrize(
    ("fires", "on"),
    [
        (rule(), Attributes(source="app", type="anything")),
        (
            rule(types=("invoice",), subject_states=("late",)),
            Attributes(source="app", type="invoice", snapshot=Snapshot(state="late")),
        ),
        (rule(sources=("board", "app"), types=("invoice",)), Attributes(source="app", type="invoice")),
        (rule(repo="A/b", repos=("a/B",)), Attributes(source="app", type="x", snapshot=Snapshot(repo="a/b"))),
        (
            rule(sources=("board",), subject_states=("doing",), mode="board"),
            Attributes(source="board", type="card", snapshot=Snapshot(state="doing")),
        ),
        (rule(sources=("board",), types=("projects_v2_item",)), Attributes(source="board", type="projects_v2_item")),
        (rule(sources=("forge",), types=("issue_comment",)), Attributes(source="forge", type="issue_comment")),
        (
            rule(sources=("board", "cloudevents"), types=("com.example.paid",), subject_states=("late",)),
            Attributes(source="cloudevents", type="com.example.paid", snapshot=Snapshot(state="late")),
        ),
    ],
)
def test_nothing_is_said_against_a_rule_that_some_event_matches(fires: Subscription, on: Attributes) -> None:
    assert mismatch(fires, on) is None
    assert why_it_never_fires(fires) == ()
