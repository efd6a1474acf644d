"""The composition root: the only place where ports meet their adapters."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import threading
import weakref
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from outbox_core.adapters.mongo.client import connect
from outbox_core.adapters.mongo.interrupt import may_interrupt
from outbox_core.adapters.mongo.store import MongoStore
from outbox_core.adapters.outlets import ProcessOutlets
from outbox_core.adapters.system import SignalInterrupt, SystemClock, SystemEntropy, writer_id
from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.append_events import append_events
from outbox_core.application.append_in_session import append_in_session
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.ingest_delivery import ingest_delivery
from outbox_core.application.new_event import new_event
from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.application.offer_drains import offer_drains
from outbox_core.application.offer_polls import offer_polls, wake_consumers
from outbox_core.application.offer_slices import offer_slices
from outbox_core.application.prune_lifecycle import prune_lifecycle
from outbox_core.application.repair_undrained import repair_undrained
from outbox_core.application.run_in_transaction import run_in_transaction
from outbox_core.application.run_slice import run_slice
from outbox_core.application.run_turn import run_turn
from outbox_core.boards import Boards
from outbox_core.bots import observers, projectors, registry, require_arguments
from outbox_core.consumers import Consumers
from outbox_core.domain.errors import InvalidInputError, OutboxError
from outbox_core.domain.event import NewEvent
from outbox_core.domain.forge_delivery import Ignored
from outbox_core.domain.identity import require_id
from outbox_core.domain.subscription import DIRECT, Match, Subscription
from outbox_core.ports.hints import NoHints
from outbox_core.ports.runtime import Runtime
from outbox_core.settings import Settings, load_settings
from outbox_core.sources.cloudevents import read_bodies, read_body
from outbox_core.sources.github import read_delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from outbox_core.application.append_events import Appended
    from outbox_core.application.drain_tenant import DrainReport
    from outbox_core.application.ingest_delivery import Ingested
    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.application.run_turn import TurnReport
    from outbox_core.application.work_claim import SliceReport
    from outbox_core.domain.consumer import PollReport
    from outbox_core.domain.lifecycle_event import LifecycleEvent
    from outbox_core.domain.limits import Limits
    from outbox_core.local import BotsGiven, LocalOutbox, ProjectorsGiven
    from outbox_core.ports.hints import Hints
    from outbox_core.ports.store import Store, TenantStore

_logger = logging.getLogger("outbox.bootstrap")
_T = TypeVar("_T")
_WORDS_OF_AN_EVENT = tuple(inspect.signature(new_event).parameters)[1:]


@dataclass(frozen=True, slots=True)
class Opened:
    """What belongs to one process: a connection does not survive a fork, nor does a worker's name."""

    store: Store
    runtime: Runtime
    close: Callable[[], None]


class Outbox:
    """A whole outbox on one database, for applications and for tasks.

    Safe for threads, and across forks: the connection is made on first use, in each process anew. Every method that
    asks the store may raise TransientError; the same call may then be made again.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        hints: Hints,
        offers: Hints,
        stopping: Callable[[], bool],
        outlets: ProcessOutlets | None = None,
    ) -> None:
        """Wire it; nothing is sent yet. `from_settings` is the usual way."""
        self._settings = settings
        self._outlets = outlets or ProcessOutlets(settings.limits.audit_bound)
        self._hints = hints
        self._offers = offers
        self._stopping = stopping
        self._inherited: list[Opened] = []
        self._opened: Opened | None = None
        self._lock = threading.Lock()
        _start_over_in_children(self)

    @classmethod
    def from_settings(
        cls,
        settings: Settings | None = None,
        *,
        hints: Hints | None = None,
        offers: Hints | None = None,
        stopping: Callable[[], bool] | None = None,
        notice: Callable[[LifecycleEvent], object] | None = None,
        sink: Callable[[PollReport], object] | None = None,
    ) -> Self:
        """Return an outbox over these settings, else over the environment's (ConfigurationError if they are wrong).

        `hints` tell a worker at once of what was written or left over; without them ticks find it. `offers` carry what
        a tick found; they are `hints` unless given. `stopping` says that this process shuts down. `notice` is told of
        each deletion and restore that this process commits, at most once, and `sink` of what each poll of a consumer
        came to: both are best effort, and waited for no longer than AUDIT_BOUND (L16).
        """
        sent, given = hints or NoHints(), settings or load_settings()
        outlets = ProcessOutlets(given.limits.audit_bound, notice=notice, sink=sink)
        halt = stopping or (lambda: False)
        return cls(given, hints=sent, offers=offers or sent, stopping=halt, outlets=outlets)

    @staticmethod
    def local(
        *,
        bots: BotsGiven | None = None,
        projectors: ProjectorsGiven | None = None,
        limits: Limits | None = None,
    ) -> LocalOutbox:
        """Return an outbox in this process alone, without services, which runs what an append calls for at once.

        `bots` maps ids to functions, or lists functions that `@bot` registered; `projectors` likewise by kinds.
        None means what is registered. See `outbox_core.local.LocalOutbox`.
        """
        from outbox_core.local import LocalOutbox  # noqa: PLC0415 - it is made of this class

        return LocalOutbox(bots=bots, projectors=projectors, limits=limits)

    @property
    def settings(self) -> Settings:
        """What it was made from."""
        return self._settings

    @property
    def store(self) -> Store:
        """The store, for reading rows, rules and counts; its handles are bound to one tenant each."""
        return self._process.store

    @property
    def runtime(self) -> Runtime:
        """What use cases are given in this process."""
        return self._process.runtime

    def tenant(self, tenant: str) -> TenantStore:
        """Return one tenant's handle; InvalidInputError where that is no id."""
        return self._process.store.tenant(tenant)

    def close(self) -> None:
        """Close this process's connection; the next call makes another."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    # What an application does.

    def append(self, tenant: str, *, session: object = None, **event: Any) -> Appended:  # noqa: ANN401 - as new_event
        """Append one event, described by the keywords of `application.new_event`.

        The same event_id again is the same event, under its first number (E46); without one, each call is another
        event, its own repeats after a lost answer excepted. Raises InvalidInputError or EventTooLargeError: nothing is
        written then. With `session`, see `append_many`.
        """
        return self.append_many(tenant, [new_event(self.runtime.entropy, **event)], session=session)[0]

    def append_many(
        self, tenant: str, events: Iterable[NewEvent | Mapping[str, Any]], *, session: object = None
    ) -> Sequence[Appended]:
        """Append several events, each the keywords of `append` as a mapping, in this order, in one block of numbers.

        With `session`, a pymongo ClientSession of any client of the same replica set, they are written in its open
        transaction and become visible exactly if that commits (E02). It must commit to a majority (InvalidInputError).
        ContentionError means that the transaction is undone and must run again; `with_transaction` does so by itself.
        Append last: the tenant's drain waits for the transaction's end. After the commit, `hint` saves a tick.
        """
        if not isinstance(events, Iterable):
            raise InvalidInputError(f"events: takes several events in a list, not {events!r:.80}")
        made = [one if isinstance(one, NewEvent) else self._new_event(one) for one in events]
        if session is None:
            return append_events(self.tenant(tenant), self.runtime, made)
        return append_in_session(self.tenant(tenant), self.runtime, made, session)

    def _new_event(self, given: object) -> NewEvent:
        if not isinstance(given, Mapping):
            raise InvalidInputError(f"events: takes dicts of what append takes, not {given!r:.80}")
        if unknown := [name for name in given if name not in _WORDS_OF_AN_EVENT]:
            raise InvalidInputError(
                f"events: {unknown[0]!r:.40} is no word of an event; use {', '.join(_WORDS_OF_AN_EVENT)}"
            )
        if "type" not in given:
            raise InvalidInputError("events: an event needs a type")
        return new_event(self.runtime.entropy, **given)

    def hint(self, tenant: str) -> None:
        """Tell a worker to look now: after the commit of a session of your own, of which nobody else tells.

        It may be lost, and then a tick finds what there is.
        """
        self.runtime.hints.turn(self.tenant(tenant).tenant_id)

    def run_in_transaction(self, tenant: str, body: Callable[[OutboxTransaction], _T]) -> _T:
        """Run `body` in one transaction: what it writes and what it appends commits together, or not at all (E02).

        The body writes through `transaction.database`, passing `session=transaction.session`, and appends with
        `transaction.append(type=…)`. It may be run again after a conflict, so it must do nothing else.
        """
        return run_in_transaction(self.tenant(tenant), self.runtime, body)

    def subscribe(  # noqa: PLR0913 - the fields of a rule
        self,
        tenant: str,
        sub_id: str,
        bot_id: str,
        *,
        repo: str = "",
        mode: str = DIRECT,
        consume_labels: Sequence[str] = (),
        vars: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the rule
        args_var: str = "",
        created_by: str = "",
        **match: Sequence[str],
    ) -> Subscription:
        """Make a rule that launches a bot for what is appended from now on (E07); history does not fire.

        `match` takes sources, types, actions, repos, authors, subject_states and labels: any of each, all of the
        labels, an empty one is any. `vars` are fixed arguments of the bot, `args_var` names the one that receives the
        event. Mode `board` stamps the bot on the card and launches nothing; `consume_labels` are taken off the card
        first, once per arming (E36). A repeat returns the rule that is there, so a deployment may say its rules each
        time. Raises InvalidInputError where the id is that of a rule that does something else, a term is none, or the
        bot, where this process knows it, does not take these arguments.
        """
        terms: dict[str, Any] = {name: _listed(values) for name, values in match.items()}
        try:
            rule = Subscription(
                tenant_id=tenant,
                sub_id=sub_id,
                bot_id=bot_id,
                match=Match(**terms),
                repo=repo,
                mode=mode,
                consume_labels=_listed(consume_labels),
                vars={} if vars is None else vars,
                args_var=args_var,
                origin="app",
                created_by=created_by,
            )
        except TypeError:
            raise InvalidInputError(f"match: no such term among {', '.join(terms)}; see Outbox.subscribe") from None
        if (known := registry.get(bot_id)) is not None:
            require_arguments(known, rule.vars, rule.args_var)
        return add_subscription(self.tenant(tenant), rule).rule

    def boards(self, tenant: str) -> Boards:
        """Return what changes a tenant's boards and cards; InvalidInputError where that is no id."""
        return Boards(self.tenant(tenant), self.runtime)

    def consumers(self, tenant: str) -> Consumers:
        """Return what registers, shows and changes a tenant's consumers; InvalidInputError where that is no id."""
        return Consumers(self.tenant(tenant))

    def listen(self, listener: Callable[[LifecycleEvent], object]) -> Callable[[], None]:
        """Have a function called with each deletion and restore that this process commits; return what ends that.

        It is called at once, in the thread that made the change, after the commit; what it raises is logged. Changes of
        other processes come through a consumer.
        """
        return self._outlets.listen(listener)

    def ingest_github(self, tenant: str, headers: Mapping[str, str], raw: bytes) -> Ingested | Ignored:
        """Take in one webhook delivery of GitHub: its headers, and its body byte for byte.

        Its signature is verified where OUTBOX_GITHUB_SECRET is set. A redelivery is the same event. Raises
        InvalidInputError: nothing is written then.
        """
        store, secret = self.tenant(tenant), self._settings.github_secret
        delivery = read_delivery(headers, raw, secret=secret.get_secret_value() if secret else None)
        return delivery if isinstance(delivery, Ignored) else ingest_delivery(store, self.runtime, delivery)

    def ingest_cloudevent(self, tenant: str, headers: Mapping[str, str], body: bytes) -> Appended:
        """Take in an HTTP request that carries one CloudEvent 1.0, in structured or binary content mode.

        The same source and id again is the same event. Who may post is the caller's to decide: CloudEvents are not
        signed. Raises InvalidInputError: nothing is written then.
        """
        store = self.tenant(tenant)
        return append_events(store, self.runtime, [read_body(headers, body, self._settings.limits)])[0]

    def ingest_cloudevents(self, tenant: str, headers: Mapping[str, str], body: bytes) -> Sequence[Appended]:
        """Take in an HTTP request in any of CloudEvents' JSON modes, a batch included; one wrong event refuses all."""
        store = self.tenant(tenant)
        return append_events(store, self.runtime, read_bodies(headers, body, self._settings.limits))

    def ensure_schema(self) -> Sequence[str]:
        """Bring the database up to date; return the steps applied now. A repeat does nothing.

        Raises ConfigurationError where the database is not fit for this.
        """
        return self.store.maintenance.ensure_schema()

    # What a message starts. Its arguments may be anything: a lie is refused with one log line.

    def drain_tick(self) -> None:
        """Offer a drain of every tenant that has undrained events."""
        with _told("the drain tick"):
            offer_drains(self.store, self._offering)

    def sweep_tick(self) -> None:
        """Offer slices to every tenant that has due rows."""
        with _told("the sweep tick"):
            offer_slices(self.store, self._offering)

    def repair_undrained(self) -> None:
        """Set undrained flags right that are wrong (E16)."""
        with _told("the repair of undrained flags"):
            repair_undrained(self.store, self._offering)

    def drain_tenant(self, tenant: object, token: object = None) -> DrainReport | None:
        """Drain one tenant for about a second; None where the message lied, or its slot is not held."""
        return self._worked("drain_tenant", "a drain", drain_tenant, tenant, token)

    def run_turn(self, tenant: object, token: object = None) -> TurnReport | None:
        """Drain one tenant until there are new rows, and run them; None as with `drain_tenant`."""
        return self._worked("run_turn", "a turn", run_turn, tenant, token)

    def run_slice(self, tenant: object, token: object = None) -> SliceReport | None:
        """Claim, run and settle one tenant's due rows for about a second; None where the message lied."""
        return self._worked("run_slice", "a slice", run_slice, tenant, token)

    def consumers_tick(self) -> None:
        """Offer a poll to every consumer that is due and has something to do."""
        with _told("the consumers' tick"):
            offer_polls(self.store, self._offering)

    def prune(self) -> None:
        """Remove what every consumer has acknowledged and is old enough (L13)."""
        with _told("the pruning of lifecycle streams"):
            prune_lifecycle(self.store, self._offering)

    def wake_consumers(self, tenant: object) -> None:
        """Offer a poll to the tenant's consumers that wait in idleness."""
        message = self._checked("wake_consumers", tenant, None)
        if message is not None:
            with _told(f"waking the consumers of tenant {message[0].tenant_id}"):
                wake_consumers(message[0], self._offering)

    def poll_consumer(self, tenant: object, consumer: object) -> PollReport | None:
        """Let one consumer observe for about a second, and offer it another poll where more is left.

        None where the message lied, or this process has no observer for it.
        """
        message = self._checked("poll_consumer", tenant, consumer)
        known = observers.get(message[1]) if message and message[1] else None
        if message is None or known is None:
            return None
        store = message[0]
        with _told(f"a poll of consumer {known.consumer_id} of tenant {store.tenant_id}"):
            report = observe_lifecycle(store, self.runtime, known)
        if report.more:
            self._offers.poll(store.tenant_id, known.consumer_id)
        return report

    def _worked(
        self,
        task: str,
        said: str,
        work: Callable[[TenantStore, Runtime, str | None], _T | None],
        tenant: object,
        token: object,
    ) -> _T | None:
        message = self._checked(task, tenant, token)
        if message is None:
            return None
        store, slot = message
        with _told(f"{said} of tenant {store.tenant_id}"):
            return work(store, self.runtime, slot)

    def _checked(self, task: str, tenant: object, token: object) -> tuple[TenantStore, str | None] | None:
        try:
            return self.tenant(require_id(tenant, "tenant")), None if token is None else require_id(token, "token")
        except InvalidInputError as error:
            _logger.warning("a message for %s was refused: %s", task, error)
            return None

    @property
    def _offering(self) -> Runtime:
        return replace(self.runtime, hints=self._offers)

    @property
    def _process(self) -> Opened:
        opened = self._opened
        if opened is None:
            with self._lock:
                opened = self._opened = self._opened or self._open()
        return opened

    def _open(self) -> Opened:
        settings, clock, entropy = self._settings, SystemClock(), SystemEntropy()
        database = connect(settings.mongo_url.get_secret_value(), settings.mongo_db, settings.limits)
        runtime = Runtime(
            clock=clock,
            entropy=entropy,
            hints=self._hints,
            bots=registry,
            projectors=projectors,
            observers=observers,
            outlets=self._outlets,
            interrupt=SignalInterrupt(may_interrupt),
            limits=settings.limits,
            worker=f"{socket.gethostname()}:{os.getpid()}:{entropy.token()[:8]}",
            writer=writer_id(),
            stopping=self._stopping,
        )
        return Opened(MongoStore(database, settings.limits, clock, entropy), runtime, database.client.close)

    def _start_over(self) -> None:
        """In a forked child: another thread may have held the lock, and the parent's connection is the parent's."""
        self._lock = threading.Lock()
        if self._opened is not None:
            # Kept, not closed: closing would speak over the parent's sockets.
            self._inherited.append(self._opened)
            self._opened = None


def _listed(values: Any) -> Any:  # noqa: ANN401 - a rule's terms, checked by the rule itself
    """Return any iterable but a text as a tuple, and leave what is none for the rule to refuse by its name."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str | Mapping) else values


def _start_over_in_children(outbox: Outbox) -> None:
    reference = weakref.ref(outbox)

    def start_over() -> None:
        if (alive := reference()) is not None:
            alive._start_over()  # noqa: SLF001 - this module's own class

    os.register_at_fork(after_in_child=start_over)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Log what did not succeed, in one line; the error goes on to whoever watches tasks. A later tick tries again."""
    try:
        yield
    except OutboxError as error:
        _logger.warning("%s ended early, a later tick goes on: %s", what, error)
        raise
