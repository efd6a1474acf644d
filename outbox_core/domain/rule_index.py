"""Which of many rules an event may match, found by the event's own values instead of by asking rule after rule.

A rule is one bit of a number. Each term holds, for every value that a rule names there, the rules that name it, and
apart from them the rules that name none, which take any. One `and` per term then leaves the rules that take all values
of an event, in their order, in about the time of one comparison, however many they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from outbox_core.domain.event import Attributes
    from outbox_core.domain.subscription import Subscription

_MOST_TOGETHER = 1_024
"""Rules that share a number: a value costs as many bits as there are such rules, so that more take several numbers."""

_FEW = 3
"""So many rules are sooner asked one by one."""

_MOST_KEPT = 16
"""Indexes that are kept for the next batch: to build one costs as much as to ask each of its rules about one event."""


class RuleIndex:
    """Rules by what they name. None is left out that `mismatch` would take; which it takes, that alone says."""

    def __init__(self, rules: Sequence[Subscription]) -> None:
        self._few = rules if len(rules) <= _FEW else ()
        starts = range(0, len(rules), _MOST_TOGETHER)
        self._parts = [_Part(rules[start : start + _MOST_TOGETHER]) for start in starts]

    def candidates(self, attributes: Attributes) -> Iterator[Subscription]:
        """Yield the rules that may match an event, in their order."""
        if self._few or not self._parts:
            yield from self._few
            return
        asked = _asked(attributes)
        for part in self._parts:
            left = part.taking(asked)
            while left:
                lowest = left & -left
                yield part.rules[lowest.bit_length() - 1]
                left ^= lowest


def index_of(rules: Sequence[Subscription]) -> RuleIndex:
    """Return the index of these rules, the known one where the same rules were asked for before.

    The rules are read again for every batch, and compared one by one: only what follows from them is kept.
    """
    return _index_of(_Rules(tuple(rules)))


@dataclass(frozen=True, slots=True)
class _Rules:
    rules: tuple[Subscription, ...]

    def __hash__(self) -> int:
        return hash(tuple(rule.sub_id for rule in self.rules))


@lru_cache(maxsize=_MOST_KEPT)
def _index_of(key: _Rules) -> RuleIndex:
    return RuleIndex(key.rules)


@dataclass(slots=True)
class _Term:
    any_value: int = 0
    by_value: dict[str, int] = field(default_factory=dict)


class _Part:
    def __init__(self, rules: Sequence[Subscription]) -> None:
        self.rules = rules
        self._terms: tuple[_Term, ...] = ()
        demanded = Counter(label for rule in rules for label in _folded(rule.match.labels))
        for place, rule in enumerate(rules):
            bit, named = 1 << place, _named(rule, demanded)
            self._terms = self._terms or tuple(_Term() for _ in named)
            for term, values in zip(self._terms, named, strict=True):
                if not values:
                    term.any_value |= bit
                for value in values:
                    term.by_value[value] = term.by_value.get(value, 0) | bit

    def taking(self, asked: Sequence[Iterable[str]]) -> int:
        """Return the rules that take one of the values that are asked about in every term."""
        left = -1
        for term, values in zip(self._terms, asked, strict=True):
            taking = term.any_value
            for value in values:
                taking |= term.by_value.get(value, 0)
            left &= taking
            if not left:
                break
        return left


def _named(rule: Subscription, demanded: Counter[str]) -> tuple[tuple[str, ...], ...]:
    """Return what the rule names in each term. All its labels must be there: the rarest stands for them."""
    match, labels = rule.match, _folded(rule.match.labels)
    return (
        tuple(match.types),
        _folded((rule.repo,)) if rule.repo else (),
        tuple(match.sources),
        _folded(match.actions),
        _folded(match.repos),
        _folded(match.authors),
        tuple(match.subject_states),
        (min(labels, key=demanded.__getitem__),) if labels else (),
    )


def _asked(attributes: Attributes) -> tuple[tuple[str, ...], ...]:
    """Return an event's values in the order of `_named`."""
    seen = attributes.snapshot
    repo = (seen.repo.casefold(),)
    return (
        (attributes.type,),
        repo,
        (attributes.source,),
        (attributes.action.casefold(),),
        repo,
        (seen.author.casefold(),),
        (seen.state,),
        _folded(seen.labels),
    )


def _folded(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(value.casefold() for value in values)
