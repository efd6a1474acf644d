"""What the oracle is told of deletions and consumers: what was asked and answered, and what each observer was told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

DELETED, RESTORED = "task:deleted", "task:restored"
REBUILDING = "#reconcile"
"""Stands for an event's id in `may_repeat` where it is a reconciliation that may be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A deletion or a restore that somebody asked for; `began` and `ended` are places in the order of all things.

    `ended` is None where no answer came. `deleted_at` is the deletion's, as it was answered, None where it was not
    said; `fresh` that this very call made the change.
    """

    event_type: str
    card_id: str
    began: int
    ended: int | None = None
    deleted_at: datetime | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One call of an observer, as it noted it down itself, outside of the store.

    `began` is its place in the order of all things, beside those of changes; None where nobody knows it, as where a
    restore may have come between the poll's look at the card and the call.
    """

    consumer_id: str
    event_id: str
    event_type: str
    card_id: str
    sequence: int
    replayed: bool = False
    ended: bool = True
    failed: bool = False
    began: int | None = None

    @property
    def complete(self) -> bool:
        """The event was observed."""
        return self.ended and not self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """One reconciliation of an observer, and the live cards that it was given."""

    consumer_id: str
    cards: frozenset[str]
    ended: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """A consumer and what was promised of it.

    `exact` counts what a transactional observer's writes for an event came to. `parks` names the cards whose events it
    gives up. `rests` says how it comes to rest: `at the head`, `retired` or `stopped`. `began_with` are the cards that
    it held before its first event; None leaves out what it holds in the end. A consumer that `joined` later need not
    have kept anything before.
    """

    consumer_id: str
    exact: Callable[[str], int] | None = None
    parks: frozenset[str] = frozenset()
    rests: str = "at the head"
    began_with: frozenset[str] | None = None
    joined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The history of one tenant's cards, and of those who watch them.

    `journal` is in the order of the calls, `notices` are the ids of the events of which somebody was notified.
    `may_repeat` are the (consumer, event) whose observer had returned, or was about to be called, when its process
    stopped before the acknowledgement: one repeat more each. `sightings` are cursors in the order in which they were
    seen. `asked` bounds how many audit rows there are of an operator's code; `forgotten` are letters that may be
    pruned.
    """

    tenant: str
    watchers: tuple[Watcher, ...] = ()
    changes: tuple[Change, ...] = ()
    journal: tuple[Told | Rebuilt, ...] = ()
    notices: tuple[str, ...] = ()
    may_repeat: frozenset[tuple[str, str]] = frozenset()
    sightings: tuple[tuple[str, object], ...] = ()
    asked: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    forgotten: frozenset[tuple[str, str]] = frozenset()
    max_attempts: int = 10
