"""The calls of bots and observers, paired from the lines that they left, and what excuses a repeat."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.chaos.world import Line

_SLACK_S = 1.0


@dataclass(frozen=True, slots=True)
class Struck:
    """A stretch of time in which an execution may be lost after its end: of these processes, of all where None."""

    since: float
    until: float
    pids: frozenset[int] | None = None


@dataclass(slots=True)
class Call:
    """One call of foreign code; `what` is the effect, or the consumer and its event."""

    what: str
    attempt: int
    pid: int
    start: float
    end: float | None = None
    failed: bool = False
    over_by: float | None = None
    """When its process began another one: it was interrupted before that, without a word."""

    @property
    def complete(self) -> bool:
        """It came to its end, and that was no error."""
        return self.end is not None and not self.failed

    def was_running(self, at: float) -> bool:
        over = self.over_by if self.end is None else self.end
        return self.start <= at and (over is None or over > at)


def paired(lines: Sequence[Line]) -> list[Call]:
    """Pair each start with the end that its process wrote next, if it wrote one of the same thing."""
    calls: list[Call] = []
    running: dict[int, Call] = {}
    for phase, what, attempt, pid, at in lines:
        if phase == "start":
            if (before := running.get(pid)) is not None:
                before.over_by = at
            running[pid] = Call(what, attempt, pid, at)
            calls.append(running[pid])
        elif (call := running.pop(pid, None)) is not None and call.what == what:
            call.end, call.failed = at, phase == "failed"
    return calls


def unprovoked(calls: Sequence[Call], struck: Sequence[Struck]) -> Iterator[str]:
    """Tell each repeat of one thing's call that had come to its end, where nothing had struck."""
    for one, again in pairwise(calls):
        if one.complete and not any(_excuses(stretch, one, again) for stretch in struck):
            yield f"{one.what} ran to its end in {one.pid} and again in {again.pid}, and nothing had struck either"


def _excuses(stretch: Struck, one: Call, again: Call) -> bool:
    return (
        (stretch.pids is None or one.pid in stretch.pids)
        and stretch.since - _SLACK_S <= again.start
        and stretch.until + _SLACK_S >= one.start
    )
