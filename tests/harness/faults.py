"""A store whose calls die or fail where a test says so; the calls are enumerated from the ports' Protocols."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from outbox_core.domain.errors import TransientError
from outbox_core.ports.audit import AuditLog
from outbox_core.ports.boards import Boards
from outbox_core.ports.cards import Cards
from outbox_core.ports.consumers import Consumers
from outbox_core.ports.drain_progress import DrainProgress
from outbox_core.ports.effect_outbox import EffectOutbox
from outbox_core.ports.event_log import EventLog
from outbox_core.ports.lifecycle_stream import LifecycleStream
from outbox_core.ports.maintenance import Maintenance
from outbox_core.ports.slots import Slots
from outbox_core.ports.store import TenantStore
from outbox_core.ports.subscriptions import Subscriptions
from outbox_core.ports.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outbox_core.ports.store import Store
    from outbox_core.ports.transactions import Transaction

PORTS: dict[str, type] = {
    "log": EventLog,
    "progress": DrainProgress,
    "effects": EffectOutbox,
    "subscriptions": Subscriptions,
    "boards": Boards,
    "cards": Cards,
    "slots": Slots,
    "stream": LifecycleStream,
    "consumers": Consumers,
    "audit": AuditLog,
    "transactions": Transactions,
}
"""The Protocol of each port of a TenantStore."""

if set(PORTS) != {field.name for field in fields(TenantStore)} - {"tenant_id"}:
    raise AssertionError("PORTS does not name the ports of TenantStore")


def port_methods(protocol: type) -> tuple[str, ...]:
    """Return the names of a port's calls."""
    return tuple(name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_"))


class Death(BaseException):
    """The process is gone: nothing of it may catch this, and it makes no further call."""


class When(Enum):
    """On which side of the call the fault strikes: before it was sent, or after it happened, its answer lost."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Fault:
    """What strikes at the n-th call (from 1), or at each call of a name: a Death, or a TransientError.

    `then` happens first, while the caller stands still: with an `error` of None the caller goes on afterwards, as a
    process that was only stalled.
    """

    at: int | str
    when: When
    error: type[BaseException] | None = Death
    times: int = 1
    then: Callable[[], object] | None = None


class FaultyStore:
    """Implements ports.store.Store over another one: it counts the calls and strikes where it was told to.

    `calls` holds the names of the calls so far, as `log.allocate`, `landed` of those that happened, and `answered` of
    those whose caller has its answer. After a Death every call dies. `open` holds the transactions that are open.
    """

    def __init__(self, store: Store, *faults: Fault) -> None:
        self.calls: list[str] = []
        self.landed: list[str] = []
        self.answered: list[str] = []
        self.open: list[Transaction] = []
        self.dead = False
        self._store = store
        self._left = {fault: fault.times for fault in faults}

    @property
    def struck(self) -> bool:
        """Whether every fault has struck as often as it should."""
        return not any(self._left.values())

    @property
    def maintenance(self) -> Maintenance:
        proxy: Maintenance = self._proxy("maintenance", Maintenance, self._store.maintenance)
        return proxy

    def tenant(self, tenant_id: str) -> TenantStore:
        store = self._store.tenant(tenant_id)
        proxies = {name: self._proxy(name, protocol, getattr(store, name)) for name, protocol in PORTS.items()}
        return replace(store, **proxies)

    def foreign(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that is none of the store's, counted and struck as they are: a bot's, a caller's commit."""
        return self._call(name, function)

    def _proxy(self, name: str, protocol: type, port: object) -> Any:  # noqa: ANN401 - it stands for any port
        def made(method: str) -> Callable[..., Any]:
            if method not in vars(protocol):
                raise AttributeError(f"{protocol.__name__} has no {method}")
            return self._call(f"{name}.{method}", getattr(port, method))

        proxy = _Proxy(made)
        if protocol is Transactions:
            proxy.begin = self._begin(port)  # type: ignore[attr-defined] # a proxy has what its port has
        return proxy

    def _call(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object, **kwargs: object) -> object:
            number = self._count(name)
            self._strike(name, number, When.BEFORE)
            try:
                answer = method(*map(_own, args), **{key: _own(value) for key, value in kwargs.items()})
            except Exception:
                # That is an answer as well, and it may be lost.
                self._strike(name, number, When.AFTER)
                raise
            self.landed.append(name)
            self._strike(name, number, When.AFTER)
            self.answered.append(name)
            return answer

        return call

    def _begin(self, port: Any) -> Callable[..., Any]:  # noqa: ANN401 - a Transactions
        @contextmanager
        def begin() -> Iterator[Transaction]:
            number = self._count("transactions.begin")
            self._strike("transactions.begin", number, When.BEFORE)
            with port.begin() as transaction:
                self.open.append(transaction)
                try:
                    self._strike("transactions.begin", number, When.AFTER)
                    yield _FaultyTransaction(transaction, self._call("transaction.commit", transaction.commit))
                finally:
                    self.open.remove(transaction)

        return begin

    def _count(self, name: str) -> int:
        if self.dead:
            raise Death
        self.calls.append(name)
        return len(self.calls)

    def _strike(self, name: str, number: int, when: When) -> None:
        for fault, left in self._left.items():
            if left and fault.when is when and fault.at in {name, number}:
                self._left[fault] = left - 1
                if fault.then is not None:
                    fault.then()
                if fault.error is None:
                    continue
                self.dead = self.dead or issubclass(fault.error, Death)
                raise fault.error(f"{when.value} call {number}, {name}")


class _Proxy:
    """Holds a port's calls as attributes, each made when it is first wanted: most actors make few."""

    def __init__(self, made: Callable[[str], Callable[..., Any]]) -> None:
        self._made = made

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = self._made(name)
        setattr(self, name, call)
        return call


class _FaultyTransaction:
    """A transaction whose commit is a counted call."""

    def __init__(self, transaction: Transaction, commit: Callable[[], None]) -> None:
        self.wrapped = transaction
        self.commit = commit

    @property
    def session(self) -> Any:  # noqa: ANN401 - as the port
        return self.wrapped.session

    @property
    def database(self) -> Any:  # noqa: ANN401 - as the port
        return self.wrapped.database


def _own(argument: object) -> object:
    """Return the store's own transaction for a faulty one."""
    return argument.wrapped if isinstance(argument, _FaultyTransaction) else argument


def transient_at(name: str, when: When = When.BEFORE, times: int = 1) -> Fault:
    """Return a fault that makes calls of a name fail for the moment."""
    return Fault(name, when, TransientError, times)


def with_calls(store: TenantStore, port: str, **calls: Callable[..., object]) -> TenantStore:
    """Return the handle with some calls of one port replaced, for races that must meet at one call."""
    replaced: dict[str, Any] = {port: _Replaced(getattr(store, port), calls)}
    return replace(store, **replaced)


class _Replaced:
    """A port, some of whose calls are a test's."""

    def __init__(self, port: object, calls: dict[str, Callable[..., object]]) -> None:
        self._port = port
        self._calls = calls

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any call of the port
        return self._calls.get(name) or getattr(self._port, name)
