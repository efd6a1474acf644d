"""What the oracle is told of a history: what was asked for, what was answered, what ran, and what was promised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pymongo.database import Database

Document = Mapping[str, Any]
Reader = Callable[[str], Iterable[Document]]
"""Returns the stored documents of a collection; those of other tenants among them are left aside."""

PROJECTION = "#projection"
"""Stands for a subscription's id where a bound board, and no subscription, owes the row."""


class Promise(Enum):
    """How often a delivered effect happened."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"
    RUNS_NOTHING = "runs nothing"


@dataclass(frozen=True, slots=True)
class Rest:
    """How a row may rest: its state and, of a done one, its outcome."""

    state: str
    outcome: str = ""


DELIVERED = Rest("done", "delivered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule in its simplest form: each event of one of these `types`, or of any where none is named, owes it one row.

    An event with a `run_id`, or of a machine's hand, owes no subscription anything; PROJECTION is owed for the moves of
    cards alone, whoever made them. `count` tells how often an effect is seen in the database: it is asked where exactly
    once is promised. `repeats` is how many complete executions beyond the first each effect of it may have.
    """

    sub_id: str
    types: frozenset[str] = frozenset()
    promise: Promise = Promise.AT_LEAST_ONCE
    rests: frozenset[Rest] = frozenset({DELIVERED})
    repeats: int = 0
    count: Callable[[str], int] | None = None

    def __post_init__(self) -> None:
        if (self.promise is Promise.EXACTLY_ONCE) is not (self.count is not None):
            raise ValueError(f"{self.sub_id}: exactly once needs a way to count its effects, and nothing else does")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One call of a bot or a projector, as it noted it down itself, outside of the store.

    `ended` says that it came to its end; `failed` that this end was an error.
    """

    effect_id: str
    attempt: int = 1
    actor: str = ""
    ended: bool = True
    failed: bool = False

    @property
    def complete(self) -> bool:
        """What the effect is for has happened."""
        return self.ended and not self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The history of one tenant.

    `acknowledged` are the ids of the events whose append was answered, `unclear` those that may be in the log,
    `refused` those that must not be; events of the types `bots_append` are the bots' own. `broken` are the ids of
    stored documents that somebody damaged, `owes_nothing` those of events whose card was gone when they were drained.
    `forged` are the ids of rows that somebody wrote by hand: nothing owes them, and each must end as failed, unrun.
    `may_repeat` are the effects whose bot had ended, or was about to begin, when its worker stopped before its settle:
    one repeat more each. `repeats_in_all` bounds the repeats of all effects together, where it is known (as the count
    of kills). `deaths` is how many workers were killed: each may have been parking a row whose budget was spent, and
    that row then counts one attempt more, unrun.
    """

    tenant: str
    rules: tuple[Rule, ...] = ()
    acknowledged: frozenset[str] = frozenset()
    unclear: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    bots_append: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    owes_nothing: frozenset[str] = frozenset()
    forged: frozenset[str] = frozenset()
    may_repeat: frozenset[str] = frozenset()
    executions: tuple[Execution, ...] = field(default=())
    max_attempts: int = 5
    deaths: int = 0
    repeats_in_all: int | None = None


def database_reader(database: Database[dict[str, Any]], tenant: str) -> Reader:
    """Read one tenant's documents, and those of others that stand under its keys, from a MongoDB database."""
    under = {"$gte": f"{tenant}|", "$lt": f"{tenant}}}"}  # The character after the bar.
    return lambda collection: list(database[collection].find({"$or": [{"tenant_id": tenant}, {"_id": under}]}))
