"""What can go wrong with a server or another program that we start ourselves."""

from outbox_core.domain.errors import OutboxError


class EmbeddedServerError(OutboxError):
    """A program is missing, does not start, or ended on its own; the message says what to do."""
