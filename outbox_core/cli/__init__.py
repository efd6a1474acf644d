"""The `outbox` command: a script of its own, and `celery -A tasks outbox`.

Every celery process imports this package as a plug-in: it imports click alone, each command when it is asked for.
"""

from outbox_core.cli.group import main, outbox

__all__ = ["main", "outbox"]
