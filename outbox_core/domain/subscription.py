"""A subscription: which events it matches, and which bot it launches how.

One `mismatch` serves the drain and the check at execution. It is pure and total.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import BOARD
from outbox_core.domain.identity import require_id
from outbox_core.domain.sequence import Horizon

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from outbox_core.domain.event import Attributes

DIRECT = "direct"
BOARD_MODE = "board"


class Term(StrEnum):
    """A dimension of a rule; `mismatch` names the first that failed."""

    REPO = "repo"
    SOURCE = "sources"
    TYPE = "types"
    ACTION = "actions"
    REPOS = "repos"
    AUTHOR = "authors"
    STATE = "subject_states"
    LABELS = "labels"
    OBSERVATIONAL = "observational"
    MACHINE = "machine_caused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """OR within a dimension, AND across, empty means any; `labels` must all be present (E20).

    Actions, repos, authors and labels are compared with their case folded; sources, types and states as they are.
    """

    sources: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    repos: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    subject_states: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.__slots__:
            terms = getattr(self, name)
            _require_texts(terms, f"match: {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A rule of one tenant. `repo` "" means every repo and none; `horizon` keeps history from firing (E07).

    `vars` are fixed arguments of the bot, `args_var` names the argument that receives the event. `origin` and
    `created_by` say who made the rule. Mode `direct` launches the bot, mode `board` stamps it on the card. A launch
    with `consume_labels` takes those labels off the card first, once per arming (E36).
    """

    tenant_id: str
    sub_id: str
    bot_id: str
    match: Match = field(default_factory=Match)
    repo: str = ""
    mode: str = DIRECT
    consume_labels: tuple[str, ...] = ()
    vars: Mapping[str, Any] = field(default_factory=dict)
    args_var: str = ""
    enabled: bool = True
    origin: str = ""
    created_by: str = ""
    horizon: Horizon = field(default_factory=lambda: Horizon(0))
    created_at: datetime | None = None

    def __post_init__(self) -> None:
        require_id(self.tenant_id, "tenant")
        require_id(self.sub_id, "subscription id")
        require_id(self.bot_id, "bot id")
        _require_forms(self)
        for name in (*self.vars, *([self.args_var] if self.args_var else ())):
            if not name.isidentifier():
                msg = f"vars: {name!r} cannot be the name of an argument"
                raise InvalidInputError(msg)
        if self.consume_labels:
            _require_consumable(self)
        if self.args_var and self.args_var in self.vars:
            msg = f"args_var {self.args_var!r} is also one of vars"
            raise InvalidInputError(msg)


def _require_texts(given: object, what: str) -> None:
    """One text would be taken for its letters, and a rule that cannot be read again would match nothing."""
    if not isinstance(given, tuple | list) or not all(isinstance(one, str) for one in given):
        raise InvalidInputError(f"{what} takes a list of texts, not {given!r:.80}")


def _require_forms(rule: Subscription) -> None:
    """What has another form is only noticed where the rule is read again, and would then match nothing."""
    forms: dict[str, tuple[type, str]] = {
        **dict.fromkeys(("repo", "mode", "args_var", "origin", "created_by"), (str, "text")),
        "match": (Match, "a Match"),
        "vars": (Mapping, "a mapping"),
        "enabled": (bool, "true or false"),
    }
    for field_name, (form, said) in forms.items():
        if not isinstance(value := getattr(rule, field_name), form):
            raise InvalidInputError(f"{field_name} must be {said}, not a {type(value).__name__}")
    _require_texts(rule.consume_labels, "consume_labels")
    names: Iterable[object] = rule.vars
    for name in names:
        if not isinstance(name, str):
            raise InvalidInputError(f"vars: {name!r:.80} cannot be the name of an argument")


def differences(known: Subscription, given: Subscription) -> list[str]:
    """Return what two rules do differently, each in a few words; empty where they are one rule.

    Whether a rule is enabled, and who made it, is not what it does. Of `vars` the names alone are told.
    """
    told = [
        f"{name} is {there!r}, not {here!r}"
        for name in ("bot_id", "repo", "mode", "args_var")
        if (there := getattr(known, name)) != (here := getattr(given, name))
    ]
    terms = {name: [getattr(rule.match, name) for rule in (known, given)] for name in Match.__slots__}
    terms["consume_labels"] = [known.consume_labels, given.consume_labels]
    for name, both in terms.items():
        there, here = (sorted(set(values)) for values in both)
        if there != here:
            told.append(f"{name} are {there}, not {here}")
    absent = object()
    names = sorted({*known.vars, *given.vars})
    other = [n for n in names if _listed(known.vars.get(n, absent)) != _listed(given.vars.get(n, absent))]
    return [*told, *(f"vars differ in {name}" for name in other)]


def _listed(value: Any) -> Any:  # noqa: ANN401 - a value of a JSON object
    """Return the value as it is read back: what was given as a tuple is a list then, and 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {name: _listed(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(inner) for inner in value]
    return (type(value), value)


def _require_consumable(rule: Subscription) -> None:
    """One-shots are labels that the rule demands, of a card, for a launch."""
    for label in rule.consume_labels:
        if label.casefold() not in _folded(rule.match.labels):
            raise InvalidInputError(f"consume_labels: {label!r} is not among the labels that the rule matches; add it")
    if rule.mode != DIRECT:
        raise InvalidInputError(
            f"consume_labels needs mode {DIRECT}: a stamp launches nothing that could spend a label"
        )
    if rule.match.sources != (BOARD,):
        raise InvalidInputError(f"consume_labels needs sources [{BOARD}]: elsewhere there is no card to take them off")


def mismatch(  # noqa: PLR0911 - a term after the other
    subscription: Subscription, attributes: Attributes
) -> Term | None:
    """Return the first term on which the rule does not match the event, None where it matches.

    A tenant-wide rule (repo "") matches an event with and without a repo. An observational or a machine-caused event
    launches nothing, whatever the rule says. The horizon is not asked here: it is the drain's question alone.
    """
    match, seen = subscription.match, attributes.snapshot
    if attributes.observational:
        return Term.OBSERVATIONAL
    if attributes.machine_caused:
        return Term.MACHINE
    if subscription.repo and subscription.repo.casefold() != seen.repo.casefold():
        return Term.REPO
    if match.sources and attributes.source not in match.sources:
        return Term.SOURCE
    if match.types and attributes.type not in match.types:
        return Term.TYPE
    if match.actions and attributes.action.casefold() not in _folded(match.actions):
        return Term.ACTION
    if match.repos and seen.repo.casefold() not in _folded(match.repos):
        return Term.REPOS
    if match.authors and seen.author.casefold() not in _folded(match.authors):
        return Term.AUTHOR
    if match.subject_states and seen.state not in match.subject_states:
        return Term.STATE
    if match.labels and not _folded(match.labels) <= _folded(seen.labels):
        return Term.LABELS
    return None


def _folded(values: Iterable[str]) -> frozenset[str]:
    return frozenset(value.casefold() for value in values)
