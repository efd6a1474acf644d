"""The alarm for rows that this worker does not know and that have waited too long for one that does (E23)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from outbox_core.domain.effect import Effect, PassedOver
    from outbox_core.ports.runtime import Runtime

_log = logging.getLogger("outbox.unknown")


def raise_unknown_alarm(runtime: Runtime, effect: Effect, outcome: PassedOver, now: datetime) -> None:
    """Log an error where a row that is passed over is older than UNKNOWN_KIND_ALARM.

    One line for each thing that is not known, in each process at most once an hour, however many rows wait for it.
    """
    waited = now - effect.created_at
    if waited <= runtime.limits.unknown_kind_alarm:
        return
    if runtime.said.is_time(outcome.error, runtime.clock.monotonic()):
        _log.error(
            "tenant %s: effect %s has waited for %d s, and %s; start a worker that does, or remove its subscription",
            effect.tenant_id,
            effect.effect_id,
            waited.total_seconds(),
            outcome.error,
        )
