"""The state machine of an effect: one edge a line, and nothing else decides.

Stores build the filter and the update of every write from an edge, so no query restates a rule. The diagram in the
README is rendered from `EDGES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """`not_before` is when a live row is due: a pending row's retry time, a claimed row's lease end."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"


LIVE = (State.PENDING, State.CLAIMED)


class Guard(StrEnum):
    """What must hold besides the source state."""

    NONE = "-"
    DUE = "due"
    LEASE_OVER = "lease over"
    MALFORMED = "malformed"


class Fence(StrEnum):
    """How a write relates to `claim_id`: it mints a fresh one, must hold it, or there is none to hold."""

    NONE = "-"
    MINT = "mints"
    HOLD = "holds"


class Attempts(StrEnum):
    """What becomes of the count of spent tries."""

    KEEP = "kept"
    SPEND = "+1"
    RESET = "0"


class NotBefore(StrEnum):
    """What becomes of the due time."""

    KEEP = "kept"
    NOW = "now"
    LEASE = "now + lease"
    DELAY = "now + delay"
    GIVEN_BACK = "due_at"


class Flag(StrEnum):
    """What becomes of runs_alone, consume_marked, done_at or waiting_since."""

    KEEP = "kept"
    SET = "set"
    CLEAR = "cleared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One way from a state to the next.

    `due_at` set takes the old not_before; `waiting` is waiting_since, where set keeps the first time it was set.
    """

    name: str
    sources: tuple[State, ...]
    guard: Guard = Guard.NONE
    target: State
    fence: Fence = Fence.HOLD
    attempts: Attempts = Attempts.KEEP
    not_before: NotBefore = NotBefore.KEEP
    due_at: Flag = Flag.KEEP
    runs_alone: Flag = Flag.KEEP
    consumed: Flag = Flag.KEEP
    done_at: Flag = Flag.KEEP
    waiting: Flag = Flag.KEEP
    promise: str


_P, _C, _D, _F = (State.PENDING,), (State.CLAIMED,), (State.DONE,), (State.FAILED,)

# fmt: off
MATERIALIZE = Edge(name="materialize", sources=(), target=State.PENDING, fence=Fence.NONE, attempts=Attempts.RESET, not_before=NotBefore.NOW, promise="E12")  # noqa: E501
BORN_CLAIMED = Edge(name="born_claimed", sources=(), target=State.CLAIMED, fence=Fence.MINT, attempts=Attempts.RESET, not_before=NotBefore.LEASE, promise="E25")  # noqa: E501
BORN_DEAD = Edge(name="born_dead", sources=(), target=State.FAILED, fence=Fence.NONE, attempts=Attempts.RESET, not_before=NotBefore.NOW, promise="E08")  # noqa: E501
CLAIM = Edge(name="claim", sources=_P, guard=Guard.DUE, target=State.CLAIMED, fence=Fence.MINT, not_before=NotBefore.LEASE, due_at=Flag.SET, promise="E25")  # noqa: E501
RECLAIM = Edge(name="reclaim", sources=_C, guard=Guard.LEASE_OVER, target=State.CLAIMED, fence=Fence.MINT, attempts=Attempts.SPEND, not_before=NotBefore.LEASE, runs_alone=Flag.SET, promise="E28")  # noqa: E501
RENEW = Edge(name="renew", sources=_C, target=State.CLAIMED, not_before=NotBefore.LEASE, promise="E32")
MARK_CONSUMED = Edge(name="mark_consumed", sources=_C, target=State.CLAIMED, consumed=Flag.SET, promise="E36")
PARK_HUNG = Edge(name="park_hung", sources=_C, target=State.FAILED, promise="E29")
DONE = Edge(name="done", sources=_C, target=State.DONE, done_at=Flag.SET, promise="E35")
DROP = Edge(name="drop", sources=_C, target=State.DONE, done_at=Flag.SET, promise="E34")
REFUSE = Edge(name="refuse", sources=_C, target=State.FAILED, promise="E24")
RETRY = Edge(name="retry", sources=_C, target=State.PENDING, attempts=Attempts.SPEND, not_before=NotBefore.DELAY, runs_alone=Flag.CLEAR, promise="E33")  # noqa: E501
RETRY_LATER = Edge(name="retry_later", sources=_C, target=State.PENDING, not_before=NotBefore.DELAY, runs_alone=Flag.CLEAR, waiting=Flag.SET, promise="E33")  # noqa: E501
PASS_OVER = Edge(name="pass_over", sources=_C, target=State.PENDING, not_before=NotBefore.DELAY, promise="E23")
RELEASE = Edge(name="release", sources=_C, target=State.PENDING, not_before=NotBefore.GIVEN_BACK, promise="E41")
FAIL = Edge(name="fail", sources=_C, target=State.FAILED, attempts=Attempts.SPEND, promise="E33")
PARK_MALFORMED = Edge(name="park_malformed", sources=_P + _C, guard=Guard.MALFORMED, target=State.FAILED, fence=Fence.NONE, promise="E45")  # noqa: E501
# fmt: on

EDGES = (
    MATERIALIZE,
    BORN_CLAIMED,
    BORN_DEAD,
    CLAIM,
    RECLAIM,
    RENEW,
    MARK_CONSUMED,
    PARK_HUNG,
    DONE,
    DROP,
    REFUSE,
    RETRY,
    RETRY_LATER,
    PASS_OVER,
    RELEASE,
    FAIL,
    PARK_MALFORMED,
)


def diagram() -> str:
    """Return the state machine as a Mermaid state diagram; the README holds this text."""
    lines = ["stateDiagram-v2"]
    for edge in EDGES:
        for source in edge.sources or ("[*]",):
            notes = [edge.name]
            if edge.guard is not Guard.NONE:
                notes.append(f"[{edge.guard}]")
            if edge.attempts is Attempts.SPEND:
                notes.append("attempts +1")
            lines.append(f"    {source} --> {edge.target}: {' '.join(notes)}")
    return "\n".join(lines)
