"""A session that a caller brings: whether an event may be appended in its transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pymongo.client_session import ClientSession, TransactionOptions  # type: ignore[attr-defined] # exported, unseen by mypy
from pymongo.read_preferences import Primary

from outbox_core.adapters.mongo.errors import translated
from outbox_core.domain.errors import ConfigurationError, InvalidInputError, TransientError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymongo import MongoClient
    from pymongo.database import Database

    from outbox_core.ports.runtime import Clock

_MAJORITY = "write_concern=WriteConcern('majority')"
_DEFAULT_KEPT = timedelta(minutes=1)
"""How long the server's default write concern is taken for what it was; an operator may change it at any time."""


class CallersSessions:
    """Judges sessions; what it asks of the servers it remembers, per client and for all of them."""

    def __init__(self, database: Database[dict[str, Any]], clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: WeakSet[MongoClient[Any]] = WeakSet()
        self._default: tuple[float, Mapping[str, Any]] | None = None

    def require_fit(self, session: object) -> ClientSession:
        """Return the session; raise InvalidInputError, in one line, where an append in it could be lost or misplaced.

        Nothing of the caller's transaction is touched. Raises TransientError where a server does not answer.
        """
        if not isinstance(session, ClientSession):
            raise InvalidInputError(f"session: takes a pymongo ClientSession, not a {type(session).__name__}")
        if not session.in_transaction:
            raise InvalidInputError(
                "session: no transaction is open in it; append within session.start_transaction(), or without a session"
            )
        options = transaction_options(session)
        if options.read_preference is not None and options.read_preference != Primary():
            raise InvalidInputError(
                "session: its transaction does not read from the primary; start it with read_preference=Primary()"
            )
        self._require_majority(options)
        self._require_same_servers(session.client)
        return session

    def _require_majority(self, options: TransactionOptions) -> None:
        given = options.write_concern
        said = given.document if given is not None else {}
        whose = "" if said else ", the server's default"
        said = said or self._servers_default()
        if said.get("w") != "majority" or said.get("j") is False:
            shown = ", ".join(f"{name}:{said[name]}" for name in ("w", "j") if name in said) or "w:1"
            raise InvalidInputError(
                f"session: its transaction would commit with {shown}{whose}, which a failover may undo; "
                f"start it with {_MAJORITY}"
            )

    def _servers_default(self) -> Mapping[str, Any]:
        now = self._clock.monotonic()
        if self._default is None or now - self._default[0] > _DEFAULT_KEPT.total_seconds():
            try:
                with translated():
                    found = self._database.client.admin.command("getDefaultRWConcern")
            except TransientError as error:
                raise TransientError(
                    "session: the server's default write concern cannot be read; start the transaction with "
                    f"{_MAJORITY} ({error})"
                ) from error
            # Where a set has arbiters it may have none, which is w:1.
            self._default = now, found.get("defaultWriteConcern") or {"w": 1}
        return self._default[1]

    def _require_same_servers(self, client: MongoClient[Any]) -> None:
        """Numbers come by our own connection: in another replica set the event would stand under a foreign one."""
        if client is self._database.client or client in self._known:
            return
        with translated():
            theirs, ours = _members(client), _members(self._database.client)
        if theirs[0] != ours[0] or (ours[1] and theirs[1].isdisjoint(ours[1])):
            raise InvalidInputError(
                f"session: its client is connected to {_shown(theirs)}, the outbox to {_shown(ours)}; "
                "a transaction cannot span the two"
            )
        self._known.add(client)


def transaction_options(session: ClientSession) -> TransactionOptions:
    """Return the options with which a session's transaction was started, defaults of its client included.

    The driver has no public way to ask: this is the one place that reaches into it.
    """
    transaction = getattr(session, "_transaction", None)
    options = getattr(transaction, "opts", None)
    if not isinstance(options, TransactionOptions):
        raise ConfigurationError(
            "session: this version of pymongo does not tell a transaction's write concern; append with "
            "run_in_transaction instead"
        )
    return options


def _members(client: MongoClient[Any]) -> tuple[str, frozenset[str]]:
    """Return the set's name and its members as its own configuration names them; a router tells neither."""
    hello = client.admin.command("hello")
    return str(hello.get("setName", "")), frozenset(hello.get("hosts", ()))


def _shown(members: tuple[str, frozenset[str]]) -> str:
    return f"{members[0] or 'a router'} ({', '.join(sorted(members[1]))})"
