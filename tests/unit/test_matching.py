"""Which events a rule matches, term by term."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.domain.event import MACHINE_REASONS
from outbox_core.domain.subscription import Term, mismatch
from tests.harness.examples import attributes, subscription

EVENT: dict[str, Any] = {
    "source": "board",
    "type": "issues",
    "action": "Labeled",
    "subject": "c1",
    "state": "open",
    "labels": ("Bug", "Straße", "ÑANDÚ"),
    "repo": "Octo/Repo",
    "author": "Ann",
}

TABLE: list[tuple[str, dict[str, Any], Term | None]] = [
    ("an empty rule matches anything", {}, None),
    ("one of several sources", {"sources": ("app", "board")}, None),
    ("no source of several", {"sources": ("app", "forge")}, Term.SOURCE),
    ("a source is compared as it is", {"sources": ("Board",)}, Term.SOURCE),
    ("one of several types", {"types": ("push", "issues")}, None),
    ("a type is compared as it is", {"types": ("Issues",)}, Term.TYPE),
    ("an action is folded", {"actions": ("LABELED",)}, None),
    ("another action", {"actions": ("opened", "closed")}, Term.ACTION),
    ("a repo of the match is folded", {"repos": ("octo/repo",)}, None),
    ("another repo of the match", {"repos": ("octo/other",)}, Term.REPOS),
    ("an author is folded", {"authors": ("bob", "ANN")}, None),
    ("another author", {"authors": ("bob",)}, Term.AUTHOR),
    ("one of several states", {"subject_states": ("closed", "open")}, None),
    ("a state is compared as it is", {"subject_states": ("Open",)}, Term.STATE),
    ("one label, folded", {"labels": ("bug",)}, None),
    ("all labels, folded beyond ASCII", {"labels": ("STRASSE", "ñandú", "BUG")}, None),
    ("one label of two missing", {"labels": ("bug", "wip")}, Term.LABELS),
    ("a part of a label is none", {"labels": ("bu",)}, Term.LABELS),
    ("the rule's repo, folded", {"repo": "octo/REPO"}, None),
    ("another repo of the rule", {"repo": "octo/other"}, Term.REPO),
    ("all dimensions at once", {"sources": ("board",), "actions": ("labeled",), "labels": ("bug",)}, None),
    (
        "one dimension of several failing",
        {"sources": ("board",), "actions": ("opened",), "labels": ("bug",)},
        Term.ACTION,
    ),
]


@pytest.mark.promise("E20")
@pytest.mark.parametrize(("rule", "term"), [(rule, term) for _, rule, term in TABLE], ids=[name for name, *_ in TABLE])
def test_or_within_a_dimension_and_across_empty_means_any(rule: dict[str, Any], term: Term | None) -> None:
    assert mismatch(subscription(**rule), attributes(**EVENT)) == term


@pytest.mark.promise("E20")
@pytest.mark.parametrize("repo", ["", "octo/repo"])
def test_a_tenant_wide_rule_matches_an_event_with_and_without_a_repo(repo: str) -> None:
    assert mismatch(subscription(), attributes(repo=repo)) is None
    assert mismatch(subscription(repo="octo/repo"), attributes(repo=repo)) == (None if repo else Term.REPO)


@pytest.mark.promise("E19")
def test_an_event_that_carries_a_run_matches_nothing() -> None:
    assert mismatch(subscription(), attributes(run_id="r1")) is Term.OBSERVATIONAL


@pytest.mark.promise("E18")
@pytest.mark.parametrize("reason", [*sorted(MACHINE_REASONS), "unblocked", "run_finished", "run_failed", ""])
def test_a_machines_reason_matches_nothing_and_other_reasons_do(reason: str) -> None:
    expected = Term.MACHINE if reason in MACHINE_REASONS else None
    assert mismatch(subscription(), attributes(reason=reason)) is expected


@pytest.mark.promise("E20")
@given(st.text(), st.text(string.printable), st.lists(st.text()))
def test_matching_is_total_and_folds_what_it_folds(action: str, author: str, labels: list[str]) -> None:
    seen = attributes(action=action, author=author, labels=tuple(labels))
    rule = subscription(actions=(action.casefold(),), authors=(author.casefold(),), labels=tuple(labels))
    assert mismatch(rule, seen) is None
    assert mismatch(subscription(labels=(*labels, "not there at all")), seen) is (
        None if "not there at all" in {label.casefold() for label in labels} else Term.LABELS
    )
