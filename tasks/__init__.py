"""The Celery layer: `celery -A tasks worker|beat|flower`, and `from tasks import outbox` with hints wired."""

from __future__ import annotations

import click

from outbox_core.cli.group import tell
from outbox_core.domain.errors import ConfigurationError

try:
    from tasks import worker as _worker  # noqa: F401 - connects its signals
    from tasks.app import app, outbox
except ConfigurationError as error:
    if click.get_current_context(silent=True) is None:
        raise
    # A command line loads us: one line and an exit code say it better than a traceback.
    raise SystemExit(tell(error)) from None

__all__ = ["app", "outbox"]
