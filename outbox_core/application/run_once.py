"""Run a transaction under an event id: a repeat finds the event in the log and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from outbox_core.application.run_patiently import run_patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outbox_core.application.append_events import Appended
    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction

_Seen = TypeVar("_Seen")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Once(Generic[_Seen, _Made]):
    """What a transaction read first, and either the number that its event had already, or what it made."""

    seen: _Seen
    known: int | None
    made: _Made | None
    published: Mapping[str, Appended]


def run_once(
    store: TenantStore,
    runtime: Runtime,
    event_id: str,
    read: Callable[[Transaction], _Seen],
    write: Callable[[OutboxTransaction, _Seen], _Made],
) -> Once[_Seen, _Made]:
    """Run `read`, then `write`, in one transaction; where the log has the event, only `read`.

    The log is asked in the transaction: by a read of its own it might not have an event yet whose change `read` sees.
    `write` must write what `read` has read: whoever commits the same event meanwhile then collides with it. Both may
    run more than once. Asks a store that does not answer again for GAP_GRACE; raises TransientError after that, and the
    same call may then be made again.
    """

    def body(transaction: OutboxTransaction) -> tuple[_Seen, int | None, _Made | None, OutboxTransaction]:
        seen = read(transaction.transaction)
        known = store.log.find([event_id], transaction.transaction).get(event_id)
        return seen, known, None if known is not None else write(transaction, seen), transaction

    seen, known, made, transaction = run_patiently(store, runtime, body)
    return Once(seen, known, made, transaction.published)
