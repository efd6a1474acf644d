"""The bots, projectors and observers of this process, which register as `load_bots` imports their modules."""

from __future__ import annotations

import importlib
import inspect
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from outbox_core.domain.bot import Bot
from outbox_core.domain.consumer import Start, require_consumer_id
from outbox_core.domain.errors import ConfigurationError, InvalidInputError
from outbox_core.domain.limits import duration_text
from outbox_core.domain.observer import Observer
from outbox_core.domain.projector import Projector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from outbox_core.domain.limits import Limits
    from outbox_core.domain.observer import Reconciliation

_Function = TypeVar("_Function", bound="Callable[..., Any]")


class BotRegistry:
    """Bots by their id; one process has one, `registry`."""

    def __init__(self) -> None:
        self._bots: dict[str, Bot] = {}

    def __iter__(self) -> Iterator[Bot]:
        return iter(self._bots.values())

    def add(self, added: Bot) -> None:
        """Register a bot; the same function again (its module was imported anew) takes the old one's place.

        Raises ConfigurationError where another function has the id.
        """
        known = self._bots.get(added.bot_id)
        if known is not None and _place(known) != _place(added):
            raise ConfigurationError(f"two bots are called {added.bot_id!r}: {_place(known)} and {_place(added)}")
        self._bots[added.bot_id] = added

    def get(self, bot_id: str) -> Bot | None:
        """Return the bot, None where this process does not know it."""
        return self._bots.get(bot_id)

    def check(self, limits: Limits) -> None:
        """Raise ConfigurationError where a bot's time limit is above what the deployment allows."""
        for one in self:
            _require_allowed(f"bot {one.bot_id!r}", one, limits)

    def longest_limit(self, limits: Limits) -> timedelta:
        """Return the longest time that anything of this process may take; a projector has the deployment's."""
        return max(limits.effect_time_limit, *(one.limit(limits) for one in self), timedelta(0))


class ProjectorRegistry:
    """Projectors by the kind of the bindings that they serve; one process has one, `projectors`."""

    def __init__(self) -> None:
        self._projectors: dict[str, Projector] = {}

    def __iter__(self) -> Iterator[Projector]:
        return iter(self._projectors.values())

    def add(self, added: Projector) -> None:
        """Register a projector; the same function again takes the old one's place.

        Raises ConfigurationError where another function has the kind.
        """
        known = self._projectors.get(added.kind)
        if known is not None and _place(known) != _place(added):
            raise ConfigurationError(f"two projectors are of kind {added.kind!r}: {_place(known)} and {_place(added)}")
        self._projectors[added.kind] = added

    def get(self, kind: str) -> Projector | None:
        """Return the projector, None where this process does not know it."""
        return self._projectors.get(kind)


class ObserverRegistry:
    """Observers by the id of their consumer; one process has one, `observers`."""

    def __init__(self) -> None:
        self._observers: dict[str, Observer] = {}

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._observers.values())

    def add(self, added: Observer) -> None:
        """Register an observer; the same function again takes the old one's place.

        Raises ConfigurationError where another function has the id.
        """
        known = self._observers.get(added.consumer_id)
        if known is not None and _place(known) != _place(added):
            raise ConfigurationError(
                f"two observers are of consumer {added.consumer_id!r}: {_place(known)} and {_place(added)}"
            )
        self._observers[added.consumer_id] = added

    def get(self, consumer_id: str) -> Observer | None:
        """Return the observer, None where this process does not know it."""
        return self._observers.get(consumer_id)

    def ids(self) -> Sequence[str]:
        """Return the ids of all consumers that this process has an observer for."""
        return tuple(self._observers)

    def check(self, limits: Limits) -> None:
        """Raise ConfigurationError where an observer's time limit is above what the deployment allows."""
        for one in self._observers.values():
            _require_allowed(f"observer {one.consumer_id!r}", one, limits)

    def longest_limit(self, limits: Limits) -> timedelta:
        """Return the longest time that anything of these may take; reconciling has the deployment's longest."""
        known = self._observers.values()
        calls = (one.limit(limits) if one.reconcile is None else limits.max_time_limit for one in known)
        return max(calls, default=timedelta(0))


registry = BotRegistry()
projectors = ProjectorRegistry()
observers = ObserverRegistry()


def bot(
    bot_id: str, *, transactional: bool = False, time_limit: timedelta | None = None
) -> Callable[[_Function], _Function]:
    """Register the function as the bot of this id: `def act(run, **vars)`; the function itself is left as it is.

    A transactional bot writes only to the outbox's own database, through `run.transaction`; its launch happens exactly
    once. Any other runs at least once: `run.effect_id` is the same each time. `time_limit` None means the deployment's
    EFFECT_TIME_LIMIT. Raises ConfigurationError where the id is taken or the function cannot be a bot, and
    InvalidInputError where the id is none.
    """

    def register(function: _Function) -> _Function:
        added = Bot(bot_id=bot_id, function=function, transactional=transactional, time_limit=time_limit)
        _require_callable(added)
        if time_limit is not None and time_limit <= timedelta(0):
            raise ConfigurationError(f"bot {bot_id!r}: time_limit must be above 0")
        registry.add(added)
        return function

    return register


def projector(kind: str) -> Callable[[_Function], _Function]:
    """Register a function as the projector of a kind of binding: `function(projection)`, a domain.projector.Projection.

    It runs at least once for each move of a card on a board that is bound to the kind; `projection.effect_id` is the
    same each time. It says by raising what a bot says. Raises ConfigurationError where the kind is taken or the
    function cannot be a projector, and InvalidInputError where the kind is no id.
    """

    def register(function: _Function) -> _Function:
        added = Projector(kind=kind, function=function)
        _require_callable(added)
        projectors.add(added)
        return function

    return register


def observer(
    consumer_id: str,
    *,
    start: str,
    reconcile: Callable[[Reconciliation], Any] | None = None,
    transactional: bool = False,
    idempotent: bool = False,
    time_limit: timedelta | None = None,
) -> Callable[[_Function], _Function]:
    """Register a function as the observer of a consumer: `function(observation)`, a domain.observer.Observation.

    `start` says where a consumer without a cursor begins: "beginning", or "latest", which needs a `reconcile`. That is
    called with a domain.observer.Reconciliation where the stream cannot tell everything. A transactional observer
    writes through `observation.transaction` alone, and sees each event exactly once; any other may be told one twice,
    and one that declares itself `idempotent` a whole batch. Raises ConfigurationError where the id is taken, looks like
    one that a restart would change, or the function cannot be an observer.
    """

    def register(function: _Function) -> _Function:
        if start not in set(Start):
            raise ConfigurationError(f"observer {consumer_id!r}: start must be one of {', '.join(Start)}")
        added = Observer(
            consumer_id=require_consumer_id(consumer_id, host=socket.gethostname(), process_id=os.getpid()),
            function=function,
            start=Start(start),
            reconcile=reconcile,
            transactional=transactional,
            idempotent=idempotent,
            time_limit=time_limit,
        )
        if time_limit is not None and time_limit <= timedelta(0):
            raise ConfigurationError(f"observer {consumer_id!r}: time_limit must be above 0")
        if added.start is Start.LATEST and reconcile is None:
            raise ConfigurationError(f'observer {consumer_id!r}: start="latest" needs reconcile=, to begin with')
        _require_callable(added)
        observers.add(added)
        return function

    return register


def load_bots(modules: Iterable[str]) -> None:
    """Import modules so that their bots register; a module that is imported already costs nothing.

    Raises ConfigurationError naming the module that does not import, and why.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ConfigurationError:
            raise
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise ConfigurationError(f"OUTBOX_BOTS: {module} needs the missing module {error.name}") from error
            raise ConfigurationError(
                f"OUTBOX_BOTS: there is no module {module} on the import path (run from its folder, or set PYTHONPATH)"
            ) from error
        except Exception as error:
            raise ConfigurationError(f"OUTBOX_BOTS: {module} does not import: {_said(error)}") from error


def require_arguments(one: Bot, fixed: Mapping[str, Any], args_var: str = "") -> None:
    """Raise InvalidInputError where the bot could not be called with a rule's vars and args_var beside its run."""
    signature = inspect.signature(one.function)
    try:
        signature.bind(None, **fixed, **({args_var: None} if args_var else {}))
    except TypeError as error:
        # Without their annotations: those read one way or the other by how the bot's module was compiled.
        plain = (one.replace(annotation=one.empty) for one in signature.parameters.values())
        takes = ", ".join(map(str, plain))
        raise InvalidInputError(f"bot {one.bot_id!r} takes ({takes}): with these vars and args_var, {error}") from None


def _require_callable(added: Bot | Projector | Observer) -> None:
    function = added.function
    if isinstance(added, Bot):
        name, given = f"bot {added.bot_id!r}", "the run"
    elif isinstance(added, Projector):
        name, given = f"projector {added.kind!r}", "the move"
    else:
        name, given = f"observer {added.consumer_id!r}", "the observation"
    if not callable(function):
        raise ConfigurationError(f"{name} is no function")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigurationError(f"{name}: {_place(added)} must be neither async nor a generator")
    parameters = inspect.signature(function).parameters.values()
    if not any(one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL} for one in parameters):
        raise ConfigurationError(f"{name}: {_place(added)} must take {given} as its first argument")


def _require_allowed(named: str, one: Bot | Observer, limits: Limits) -> None:
    name, most = (
        ("TRANSACTIONAL_TIME_LIMIT", limits.transactional_time_limit)
        if one.transactional
        else ("MAX_TIME_LIMIT", limits.max_time_limit)
    )
    if one.time_limit is not None and one.time_limit > most:
        said, most_said = duration_text(one.time_limit), duration_text(most)
        raise ConfigurationError(f"{named}: time_limit {said} is above {name} ({most_said})")


def _place(one: Bot | Projector | Observer) -> str:
    function = one.function
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
