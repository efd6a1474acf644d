"""Run a caller's writes and its appends as one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from outbox_core.application.append_events import Appended, check_event, fill_own_numbers, number_events
from outbox_core.application.new_event import new_event
from outbox_core.domain.errors import ContentionError, EventConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outbox_core.domain.event import NewEvent
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from outbox_core.ports.transactions import Transaction

_T = TypeVar("_T")

_CONTENTION_PAUSE = 0.02
_CONTENTION_PAUSE_MAX = 0.5


class OutboxTransaction:
    """What the body of a transaction holds: the store's session for its own writes, and `append_event`.

    Appends are buffered; they are numbered and inserted as the transaction's last step, outside of which a number
    would make every other writer of the tenant wait. `published` tells their numbers after the commit.
    """

    def __init__(self, store: TenantStore, runtime: Runtime, transaction: Transaction, unused: list[int]) -> None:
        """`unused` receives the numbers that an undone commit had taken: fill them once the transaction is left."""
        self._store = store
        self._runtime = runtime
        self._transaction = transaction
        self._unused = unused
        self._buffered: dict[str, NewEvent] = {}
        self._new: set[str] = set()
        self._last_writes: list[Callable[[Transaction], None]] = []
        self._published: dict[str, Appended] = {}

    @property
    def transaction(self) -> Transaction:
        """The port's transaction, for calls of other ports."""
        return self._transaction

    @property
    def session(self) -> Any:  # noqa: ANN401 - the one named leak
        """The store's own session (pymongo's ClientSession), to be passed to each of the body's writes."""
        return self._transaction.session

    @property
    def database(self) -> Any:  # noqa: ANN401 - the one named leak
        """The store's own database handle."""
        return self._transaction.database

    @property
    def published(self) -> Mapping[str, Appended]:
        """After the commit: each appended event by its id."""
        return self._published

    def append_event(self, event: NewEvent, *, new: bool = False) -> None:
        """Append when the transaction commits; an event id that the log has is left out. InvalidInputError at once.

        `new` says that the event must not be left out: the commit then raises EventConflictError.
        """
        check_event(event, self._runtime.limits)
        if new:
            self._new.add(event.event_id)
        self._buffered.setdefault(event.event_id, event)

    def append(self, **event: Any) -> str:  # noqa: ANN401 - the keywords of new_event
        """As `append_event`, from the keywords of `new_event`; return the event id."""
        built = new_event(self._runtime.entropy, **event)
        self.append_event(built)
        return built.event_id

    def at_last(self, write: Callable[[Transaction], None]) -> None:
        """Have a write done right before the commit: one that others wait for must not stand open for long."""
        self._last_writes.append(write)

    def commit(self, last_write: Callable[[Transaction], None] | None = None) -> None:
        """Number and insert what was appended, do the last writes, and commit.

        Raises EventConflictError, ContentionError, or what `last_write` raises, all undone; UnclearCommitError where it
        may have happened.
        """
        log = self._store.log
        present = log.find(self._buffered) if self._buffered else {}
        if self._new & present.keys():
            raise EventConflictError(duplicates=self._new & present.keys())
        fresh = [event for event_id, event in self._buffered.items() if event_id not in present]
        allocation = log.allocate(len(fresh)) if fresh else None
        if allocation is not None:
            self._unused.extend(allocation.seqs)
            log.insert(number_events(self._store.tenant_id, fresh, allocation), self._transaction)
        for write in (*self._last_writes, *([last_write] if last_write else ())):
            write(self._transaction)
        self._transaction.commit()
        self._unused.clear()
        self._published = {event_id: Appended(event_id, seq, duplicate=True) for event_id, seq in present.items()}
        if allocation is not None:
            self._published |= {
                event.event_id: Appended(event.event_id, seq) for seq, event in zip(allocation.seqs, fresh, strict=True)
            }
            if not allocation.was_undrained:
                self._runtime.hints.turn(self._store.tenant_id)


def run_in_transaction(store: TenantStore, runtime: Runtime, body: Callable[[OutboxTransaction], _T]) -> _T:
    """Run `body` in a transaction, commit it with its appends, and return what it returned (E02).

    The body may run more than once (contention, an event id that raced): it must write through the transaction alone.
    Raises, everything undone, what the body raises (the driver's own errors too), TransientError where the store did
    not answer, and after GAP_GRACE of them ContentionError or EventConflictError. Raises UnclearCommitError where the
    commit may have happened: running again with the same event ids then appends nothing twice, but repeats the body's
    other writes.
    """
    give_up = runtime.clock.monotonic() + runtime.limits.gap_grace.total_seconds()
    pause = _CONTENTION_PAUSE
    while True:
        unused: list[int] = []
        try:
            with store.transactions.begin() as transaction:
                outbox_transaction = OutboxTransaction(store, runtime, transaction, unused)
                result = body(outbox_transaction)
                outbox_transaction.commit()
                return result
        except (ContentionError, EventConflictError) as error:
            if runtime.clock.monotonic() >= give_up:
                raise ContentionError(f"met others for longer than the grace: {error}") from error
        finally:
            # A number whose commit is unclear may hold its event: the unique index then refuses the tombstone.
            fill_own_numbers(store, unused)
        runtime.clock.sleep(pause * runtime.entropy.jitter())
        pause = min(2 * pause, _CONTENTION_PAUSE_MAX)
