"""The writer's audit: one row for each deletion and each restore, in its transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from outbox_core.domain.lifecycle_event import LifecycleEvent
    from outbox_core.ports.transactions import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """What was done, to what, by whom and why. `subject` is a card, or a consumer; `detail` holds ids and counts."""

    tenant_id: str
    audit_id: str
    code: str
    subject: str
    at: datetime
    by: str = ""
    why: str = ""
    detail: Mapping[str, str | int]


class AuditLog(Protocol):
    """run_audit: rows are written once and never changed. Every call may raise TransientError."""

    def record(self, event: LifecycleEvent, by: str, why: str, transaction: Transaction) -> None:
        """Write the audit row of a change, whose code is the event's type; undone with the transaction.

        A second row of one event is refused with ContentionError: the change is another's.
        """
        ...

    def rows(self, *, code: str | None = None, subject: str | None = None, limit: int = 100) -> Sequence[AuditRow]:
        """Return rows, the newest first."""
        ...
