"""What beat sends, as plain data: which task, how often by default, for how long a tick is worth reading, and where to.

A tick says "look now whether anything is due". Losing one, or sending it from three beats, changes nothing but time.
`limit` names the setting that replaces `interval_seconds`.
"""

from typing import NamedTuple


class Tick(NamedTuple):
    """One tick; `expires_seconds` is far above any two clocks' difference, else a worker would discard them all."""

    name: str
    task: str
    interval_seconds: float
    expires_seconds: float
    queue: str
    limit: str


TICKS = (
    Tick("drain", "outbox.drain_tick", 3.0, 600.0, "maintenance", "drain_tick"),
    Tick("sweep", "outbox.sweep_tick", 5.0, 600.0, "maintenance", "sweep_tick"),
    Tick("repair", "outbox.repair_undrained", 600.0, 600.0, "maintenance", "repair_tick"),
    Tick("consumers", "outbox.consumers_tick", 5.0, 600.0, "maintenance", "consumer_poll"),
    Tick("prune", "outbox.prune", 21_600.0, 600.0, "maintenance", "prune_tick"),
)
