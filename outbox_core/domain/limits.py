"""Every limit by its name, and the relations between them that must hold."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from outbox_core.domain.errors import ConfigurationError

FAILOVER = timedelta(seconds=12)
"""How long a replica set may take to elect a new primary (its election time-out and the catch-up)."""

DONE_TTL = timedelta(days=7)
"""How long a done row stays. A constant of the schema: its TTL index carries it."""

RUN_TTL = timedelta(days=90)
"""How long a run record stays: longer than its row, since it tells a finished launch from one that never ran."""

TICK_SHARE = 0.8
"""A tick is taken again after this share of its interval, so that one which comes a little early is not lost."""

MAX_MARKS = 8
MARKS_PER_GRACE = 6
MAX_ID_CHARS = 64
MAX_ERROR_CHARS = 2_000
MAX_RULE_ATTRIBUTES_BYTES = 8 * 1024
MAX_JSON_DEPTH = 64
MAX_RESULT_BYTES = 64 * 1024
MAX_VARS_BYTES = 64 * 1024
MAX_RULE_BYTES = 1024 * 1024
"""A rule with all its terms; a drain reads every rule of its tenant."""

TRANSACTIONAL_MARGIN = timedelta(seconds=15)
"""What a transactional run's lease reaches beyond its time limit: its commit must land inside it."""

CLAIM_WRITE_TIME = timedelta(seconds=2)
"""How long the server may work on the write of a claim."""

CLAIM_ARRIVAL = timedelta(seconds=3)
"""A claim's write is void when it starts later than this after its candidates were read."""

MAX_CLAIM_BATCH = 200
MAX_COMMAND_ROWS = 1_000
EVENT_BYTES_CEILING = 2 * 1024 * 1024
"""The stored form of the densest JSON is under seven times its text, and a document is at most 16 MB."""

MAX_COLUMN_CARDS = 1_000
"""How many cards a column may hold when it is renamed or removed: they all move along in one transaction."""

FILL_TIME = timedelta(milliseconds=500)
"""How long filling holes may wait behind an open transaction."""


_UNITS = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("m", timedelta(minutes=1)), ("s", timedelta(seconds=1)))


def duration_text(duration: timedelta) -> str:
    """Return a duration in the notation of the settings, in its largest whole unit: 500ms, 30s, 10m, 2h, 1d."""
    for unit, length in _UNITS:
        if duration and not duration % length:
            return f"{duration // length}{unit}"
    return f"{duration / timedelta(milliseconds=1):g}ms" if duration else "0s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one deployment; each is the setting OUTBOX_<NAME>.

    Construction raises ConfigurationError, naming both sides, where a relation does not hold.
    Source: hardening round 1 of the effect outbox decision, and docs/decisions/0001.
    """

    op_timeout: timedelta = timedelta(seconds=10)
    gap_grace: timedelta = timedelta(seconds=30)
    poison_ticks: int = 20
    poison_interval: timedelta = timedelta(seconds=5)
    drain_tick: timedelta = timedelta(seconds=3)
    sweep_tick: timedelta = timedelta(seconds=5)
    repair_tick: timedelta = timedelta(minutes=10)
    tick_expiry: timedelta = timedelta(minutes=10)
    event_batch: int = 200
    batch_rows: int = 5_000
    command_rows: int = 1_000
    claim_batch: int = 200
    slice_time: timedelta = timedelta(seconds=1)
    effect_lease: timedelta = timedelta(seconds=60)
    effect_time_limit: timedelta = timedelta(seconds=60)
    max_time_limit: timedelta = timedelta(hours=1)
    kill_grace: timedelta = timedelta(seconds=30)
    transactional_time_limit: timedelta = timedelta(seconds=45)
    tenant_slots: int = 4
    slot_hold: timedelta = timedelta(seconds=30)
    max_effect_attempts: int = 5
    backoff_base: timedelta = timedelta(seconds=15)
    backoff_cap: timedelta = timedelta(minutes=10)
    retry_later_max: timedelta = timedelta(hours=24)
    max_event_bytes: int = 256 * 1024
    unknown_kind_alarm: timedelta = timedelta(minutes=10)
    consumer_lease: timedelta = timedelta(seconds=15)
    consumer_poll: timedelta = timedelta(seconds=5)
    consumer_idle_step: timedelta = timedelta(seconds=10)
    consumer_idle_cap: timedelta = timedelta(seconds=60)
    observe_batch: int = 100
    lifecycle_retention: timedelta = timedelta(days=30)
    prune_tick: timedelta = timedelta(hours=6)
    prune_batch: int = 5_000
    audit_bound: timedelta = timedelta(seconds=2)

    def __post_init__(self) -> None:
        broken = [text for text, holds in self._relations() if not holds]
        if broken:
            raise ConfigurationError("limits: " + "; ".join(broken))

    def _relations(self) -> list[tuple[str, bool]]:
        zero = timedelta(0)
        durations = {name: v for name in self.__slots__ if isinstance(v := getattr(self, name), timedelta)}
        counts = {name: v for name in self.__slots__ if isinstance(v := getattr(self, name), int)}
        said = {name: duration_text(value) for name, value in durations.items()}
        return [
            *((f"{name.upper()} must be above 0", value > zero) for name, value in durations.items()),
            *((f"{name.upper()} must be at least 1", value >= 1) for name, value in counts.items()),
            (
                f"OP_TIMEOUT ({said['op_timeout']}) must be shorter than GAP_GRACE ({said['gap_grace']})",
                self.op_timeout < self.gap_grace,
            ),
            (
                (
                    f"EFFECT_LEASE ({said['effect_lease']}) must exceed {duration_text(FAILOVER)} "
                    f"plus OP_TIMEOUT ({said['op_timeout']})"
                ),
                self.effect_lease > FAILOVER + self.op_timeout,
            ),
            (
                (
                    f"SLICE_TIME ({said['slice_time']}) must be shorter than a third of "
                    f"EFFECT_LEASE ({said['effect_lease']})"
                ),
                self.slice_time < self.effect_lease / 3,
            ),
            (
                f"SLICE_TIME ({said['slice_time']}) must be shorter than SLOT_HOLD ({said['slot_hold']})",
                self.slice_time < self.slot_hold,
            ),
            (
                f"TICK_EXPIRY ({said['tick_expiry']}) must be longer than DRAIN_TICK and SWEEP_TICK",
                self.tick_expiry > max(self.drain_tick, self.sweep_tick),
            ),
            (
                f"CLAIM_BATCH ({self.claim_batch}) must be at most {MAX_CLAIM_BATCH}",
                self.claim_batch <= MAX_CLAIM_BATCH,
            ),
            (
                f"COMMAND_ROWS ({self.command_rows}) must be at most {MAX_COMMAND_ROWS}",
                self.command_rows <= MAX_COMMAND_ROWS,
            ),
            (
                f"MAX_EVENT_BYTES ({self.max_event_bytes}) must be at most {EVENT_BYTES_CEILING}",
                self.max_event_bytes <= EVENT_BYTES_CEILING,
            ),
            (
                (
                    f"TRANSACTIONAL_TIME_LIMIT ({said['transactional_time_limit']}) must be at most 45s: "
                    "servers end at 60s"
                ),
                self.transactional_time_limit <= timedelta(seconds=45),
            ),
            (
                (
                    f"EFFECT_TIME_LIMIT ({said['effect_time_limit']}) must be at most "
                    f"MAX_TIME_LIMIT ({said['max_time_limit']})"
                ),
                self.effect_time_limit <= self.max_time_limit,
            ),
            (
                f"KILL_GRACE ({said['kill_grace']}) must be longer than OP_TIMEOUT ({said['op_timeout']})",
                self.kill_grace > self.op_timeout,
            ),
            (
                f"BACKOFF_BASE ({said['backoff_base']}) must be at most BACKOFF_CAP ({said['backoff_cap']})",
                self.backoff_base <= self.backoff_cap,
            ),
            (
                f"MAX_TIME_LIMIT ({said['max_time_limit']}) must be at most 1h",
                self.max_time_limit <= timedelta(hours=1),
            ),
            (
                f"CONSUMER_LEASE ({said['consumer_lease']}) must be longer than OP_TIMEOUT ({said['op_timeout']})",
                self.consumer_lease > self.op_timeout,
            ),
            (
                (
                    f"CONSUMER_POLL ({said['consumer_poll']}) must be at most "
                    f"CONSUMER_IDLE_CAP ({said['consumer_idle_cap']})"
                ),
                self.consumer_poll <= self.consumer_idle_cap,
            ),
        ]

    def queue_hold(self, others: int) -> timedelta:
        """How long an offer holds its slot while its message queues behind so many others.

        Until one process has got through them all, and through as much of other queues: a message whose slot is over
        when its turn comes is void, and where the queue is longer than that, those at its end would be void each time.
        """
        return max(self.slot_hold, min(2 * others * self.slice_time, self.tick_expiry))

    @property
    def longest_hold(self) -> timedelta:
        """The longest that any slot is held at once."""
        return max(self.slot_hold, self.tick_expiry)

    def idle_delay(self, idle_polls: int) -> timedelta:
        """How long a consumer waits after so many polls in a row that found nothing, before jitter (L15)."""
        return min(self.consumer_poll + idle_polls * self.consumer_idle_step, self.consumer_idle_cap)

    @property
    def longest_consumer_lease(self) -> timedelta:
        """The longest that a consumer's lease reaches ahead: none is renewed while a transactional observer works."""
        return max(self.consumer_lease, self.transactional_time_limit + TRANSACTIONAL_MARGIN)

    @property
    def mark_interval(self) -> timedelta:
        """How often a drain that waits notes down how far the numbers have come."""
        return self.gap_grace / MARKS_PER_GRACE

    @property
    def renew_interval(self) -> timedelta:
        """How often a lease in hand is renewed."""
        return self.effect_lease / 3
