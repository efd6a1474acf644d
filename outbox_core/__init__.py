"""A durable effect outbox for Celery on MongoDB."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox_core.bootstrap import Outbox as Outbox
    from outbox_core.bots import bot as bot
    from outbox_core.bots import observer as observer
    from outbox_core.bots import projector as projector
    from outbox_core.domain.bot import Run as Run
    from outbox_core.domain.errors import DefinitiveError as DefinitiveError
    from outbox_core.domain.errors import InvalidInputError as InvalidInputError
    from outbox_core.domain.errors import RetryLater as RetryLater
    from outbox_core.domain.errors import TransientError as TransientError
    from outbox_core.domain.errors import UnclearCommitError as UnclearCommitError
    from outbox_core.domain.observer import Observation as Observation
    from outbox_core.domain.observer import Observer as Observer
    from outbox_core.domain.observer import Reconciliation as Reconciliation
    from outbox_core.domain.projector import Projection as Projection
    from outbox_core.domain.subscription import Match as Match
    from outbox_core.lifecycle import LifecycleConsumer as LifecycleConsumer

_HOMES = {
    "DefinitiveError": "outbox_core.domain.errors",
    "InvalidInputError": "outbox_core.domain.errors",
    "LifecycleConsumer": "outbox_core.lifecycle",
    "Match": "outbox_core.domain.subscription",
    "Observation": "outbox_core.domain.observer",
    "Observer": "outbox_core.domain.observer",
    "Outbox": "outbox_core.bootstrap",
    "Projection": "outbox_core.domain.projector",
    "Reconciliation": "outbox_core.domain.observer",
    "RetryLater": "outbox_core.domain.errors",
    "Run": "outbox_core.domain.bot",
    "TransientError": "outbox_core.domain.errors",
    "UnclearCommitError": "outbox_core.domain.errors",
    "bot": "outbox_core.bots",
    "observer": "outbox_core.bots",
    "projector": "outbox_core.bots",
}

__all__ = [
    "DefinitiveError",
    "InvalidInputError",
    "LifecycleConsumer",
    "Match",
    "Observation",
    "Observer",
    "Outbox",
    "Projection",
    "Reconciliation",
    "RetryLater",
    "Run",
    "TransientError",
    "UnclearCommitError",
    "bot",
    "observer",
    "projector",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - each name has its own type, above
    """Import a public name when it is first asked for: the domain must not load a database driver."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
