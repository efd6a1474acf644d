"""Whether a rule can ever fire: its terms held against what the sources can yield."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from outbox_core.application.change_card import CARD_TYPE
from outbox_core.domain.event import APP, BOARD, CLOUDEVENTS, FORGE
from outbox_core.domain.subscription import BOARD_MODE, DIRECT
from outbox_core.sources.github_kinds import CARD_KINDS, COMMENT_KINDS, ISSUE_SIDE_KIND, ITEM_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from outbox_core.domain.subscription import Match, Subscription

SOURCES = (BOARD, FORGE, APP, CLOUDEVENTS)
_FREE = {APP, CLOUDEVENTS}
"""Their events may have any type and state."""

CARD_STATES = ("open", "closed", "merged")
"""The states of an issue and of a pull request."""

_IN_COLUMNS = (CARD_TYPE, *ITEM_KINDS)
"""Types of events whose cards have their column for a state, which may be any."""

_MODES = (DIRECT, BOARD_MODE)
_TYPES_OF = {BOARD: (*CARD_KINDS, *_IN_COLUMNS), FORGE: (*COMMENT_KINDS, ISSUE_SIDE_KIND)}


def why_it_never_fires(subscription: Subscription) -> tuple[str, ...]:
    """Return what in a rule no event can ever satisfy, one clause each; () where it may fire.

    Events from an application (source `app`) and CloudEvents may have any type and state, so only rules that exclude
    both are held against GitHub's.
    """
    return tuple(_clauses(subscription))


def _clauses(subscription: Subscription) -> Iterator[str]:
    match = subscription.match
    if subscription.mode not in _MODES:
        yield f"mode {subscription.mode!r} is not known here; use {' or '.join(_MODES)}"
    for name in match.__slots__:
        if any(not value.strip() for value in getattr(match, name)):
            yield f"{name} holds an empty text"
    unknown = [source for source in match.sources if source not in SOURCES]
    for source in unknown:
        yield f"no source is called {source!r}{_hint(source, SOURCES)}; there are {', '.join(SOURCES)}"
    if not unknown:
        yield from _outside_of_sources(match)
    if subscription.repo and match.repos and subscription.repo.casefold() not in map(str.casefold, match.repos):
        yield f"repo is {subscription.repo!r} and repos does not hold it"


def _outside_of_sources(match: Match) -> Iterator[str]:
    """Only where the sources that may say anything are excluded."""
    if not match.sources or _FREE & set(match.sources):
        return
    yielded = [one for source in match.sources for one in _TYPES_OF[source]]
    for one in match.types:
        if one not in yielded:
            yield f"no type {one!r} comes from {' or '.join(match.sources)}{_hint(one, yielded)}"
    if BOARD in match.sources and (not match.types or set(match.types) & set(_IN_COLUMNS)):
        return
    for state in match.subject_states:
        if state not in CARD_STATES:
            yield f"no card has the state {state!r}{_hint(state, CARD_STATES)}"


def _hint(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
