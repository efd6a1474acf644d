"""The state machine of a consumer's deliveries: one edge a line, and the schedule of retries.

A consumer stands before the event after its cursor. Stores build the filter and the update of every write of the
cursor's row from an edge, as they do for effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

RETRIES = (
    timedelta(seconds=1),
    timedelta(seconds=5),
    timedelta(seconds=30),
    timedelta(minutes=5),
    timedelta(minutes=15),
)
"""After which time a failed delivery is tried again; the last holds for all later tries.

Source: docs/decisions/0002, retry and poison handling.
"""

MAX_ATTEMPTS = 10
"""Failed tries of one event before it is parked (L10)."""

MAX_FAILURE_CLASS_CHARS = 100

AUDIT_POISONED = "lifecycle-observation:consumer-poisoned"
AUDIT_REPLAYED = "lifecycle-observation:consumer-replayed"
AUDIT_REGISTERED = "lifecycle-observation:consumer-registered"
AUDIT_RETIRED = "lifecycle-observation:consumer-retired"
AUDIT_RECONCILED = "lifecycle-observation:consumer-reconciled"
AUDIT_SUPERSEDED = "lifecycle-observation:event-superseded"
AUDIT_RESOLVED = "lifecycle-observation:letter-resolved"
AUDIT_RECONCILE_ASKED = "lifecycle-observation:reconcile-asked"
AUDIT_SKIPPED = "lifecycle-observation:consumer-skipped"

MAX_WHY_CHARS = 300
"""What is kept of an operator's reason, and of why a consumer stopped."""


class Cursor(StrEnum):
    """What becomes of the cursor."""

    KEEP = "kept"
    EVENT = "the event"
    HEAD = "the head that was read before"


class Fence(StrEnum):
    """How a write relates to the fence: it mints the next one, must hold it, or asks for none."""

    NONE = "-"
    MINT = "+1"
    HOLD = "holds"


class Failing(StrEnum):
    """What becomes of the failed tries of the event that the consumer stands before."""

    KEEP = "kept"
    COUNT = "+1"
    CLEAR = "cleared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One write of a consumer's row.

    Every one but `register` demands that it is not retired; one that moves the cursor to an event demands that it
    stands where it was read (L07). `audit` is the code of the audit row that commits with it. `voids` gives the lease
    back: whatever of it comes late is refused, although the fence stays.
    """

    name: str
    fence: Fence
    cursor: Cursor = Cursor.KEEP
    failing: Failing = Failing.KEEP
    audit: str = ""
    voids: bool = False
    promise: str


# fmt: off
REGISTER = Edge(name="register", fence=Fence.NONE, failing=Failing.CLEAR, audit=AUDIT_REGISTERED, voids=True, promise="L05")  # noqa: E501
LEASE = Edge(name="lease", fence=Fence.MINT, promise="L07")
RENEW = Edge(name="renew", fence=Fence.HOLD, promise="L07")
BEGIN = Edge(name="begin", fence=Fence.HOLD, cursor=Cursor.EVENT, promise="L05")
ACK = Edge(name="ack", fence=Fence.HOLD, cursor=Cursor.EVENT, failing=Failing.CLEAR, promise="L06")
SUPERSEDE = Edge(name="supersede", fence=Fence.HOLD, cursor=Cursor.EVENT, failing=Failing.CLEAR, audit=AUDIT_SUPERSEDED, promise="L18")  # noqa: E501
FAIL = Edge(name="fail", fence=Fence.HOLD, failing=Failing.COUNT, promise="L09")
PARK = Edge(name="park", fence=Fence.HOLD, cursor=Cursor.EVENT, failing=Failing.CLEAR, audit=AUDIT_POISONED, promise="L10")  # noqa: E501
RECONCILE = Edge(name="reconcile", fence=Fence.HOLD, cursor=Cursor.HEAD, failing=Failing.CLEAR, audit=AUDIT_RECONCILED, promise="L12")  # noqa: E501
STOP = Edge(name="stop", fence=Fence.HOLD, promise="L12")
REST = Edge(name="rest", fence=Fence.HOLD, voids=True, promise="L15")
ASK_RECONCILE = Edge(name="ask_reconcile", fence=Fence.MINT, failing=Failing.CLEAR, audit=AUDIT_RECONCILE_ASKED, voids=True, promise="L12")  # noqa: E501
SKIP = Edge(name="skip", fence=Fence.MINT, cursor=Cursor.HEAD, failing=Failing.CLEAR, audit=AUDIT_SKIPPED, voids=True, promise="L12")  # noqa: E501
ASK_REPLAY = Edge(name="ask_replay", fence=Fence.NONE, audit=AUDIT_REPLAYED, promise="L11")
RETIRE = Edge(name="retire", fence=Fence.MINT, failing=Failing.CLEAR, audit=AUDIT_RETIRED, voids=True, promise="L14")
# fmt: on

EDGES = (
    REGISTER,
    LEASE,
    RENEW,
    BEGIN,
    ACK,
    SUPERSEDE,
    FAIL,
    PARK,
    RECONCILE,
    STOP,
    REST,
    ASK_RECONCILE,
    SKIP,
    ASK_REPLAY,
    RETIRE,
)


def retry_delay(attempts: int) -> timedelta:
    """Return after which time an event is tried again that has failed `attempts` times, from 1."""
    return RETRIES[min(attempts, len(RETRIES)) - 1]


def failure_class(error: BaseException) -> str:
    """Return what is kept of an observer's failure: the name of its class, bounded, and never its text (L10)."""
    return type(error).__name__[:MAX_FAILURE_CLASS_CHARS]
