"""Run a transaction that may be run again, and ask a store that does not answer again for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from outbox_core.application.patience import patiently
from outbox_core.application.run_in_transaction import run_in_transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

_T = TypeVar("_T")


def run_patiently(store: TenantStore, runtime: Runtime, body: Callable[[OutboxTransaction], _T]) -> _T:
    """Run `body` as `run_in_transaction` does, also again where its commit may have happened: it must find out.

    Raises TransientError where the store did not answer for GAP_GRACE.
    """
    give_up = runtime.clock.monotonic() + runtime.limits.gap_grace.total_seconds()
    return patiently(runtime.clock, give_up, lambda: run_in_transaction(store, runtime, body))
