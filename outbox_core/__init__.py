"""A durable effect outbox for Celery on MongoDB."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox_core.bootstrap import Outbox as Outbox
    from outbox_core.bots import bot as bot
    from outbox_core.bots import projector as projector
    from outbox_core.domain.bot import Run as Run
    from outbox_core.domain.errors import DefinitiveError as DefinitiveError
    from outbox_core.domain.errors import InvalidInputError as InvalidInputError
    from outbox_core.domain.errors import RetryLater as RetryLater
    from outbox_core.domain.errors import TransientError as TransientError
    from outbox_core.domain.errors import UnclearCommitError as UnclearCommitError
    from outbox_core.domain.projector import Projection as Projection
    from outbox_core.domain.subscription import Match as Match

_HOMES = {
    "DefinitiveError": "outbox_core.domain.errors",
    "InvalidInputError": "outbox_core.domain.errors",
    "Match": "outbox_core.domain.subscription",
    "Outbox": "outbox_core.bootstrap",
    "Projection": "outbox_core.domain.projector",
    "RetryLater": "outbox_core.domain.errors",
    "Run": "outbox_core.domain.bot",
    "TransientError": "outbox_core.domain.errors",
    "UnclearCommitError": "outbox_core.domain.errors",
    "bot": "outbox_core.bots",
    "projector": "outbox_core.bots",
}

__all__ = [
    "DefinitiveError",
    "InvalidInputError",
    "Match",
    "Outbox",
    "Projection",
    "RetryLater",
    "Run",
    "TransientError",
    "UnclearCommitError",
    "bot",
    "projector",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - each name has its own type, above
    """Import a public name when it is first asked for: the domain must not load a database driver."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
