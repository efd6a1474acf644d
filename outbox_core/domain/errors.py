"""What can go wrong, and whether trying again can help.

Unknown means transient: an error is definitive only where the store, or the caller's own input, has answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta


class OutboxError(Exception):
    """Every error of this package; its text is one line for a person."""


class TransientError(OutboxError):
    """The store could not answer, or not clearly; the same call may succeed later."""


class UnreachableError(TransientError):
    """No server of the store answered at its address."""


class ContentionError(TransientError):
    """A transaction met another one and was undone; its body may run again at once."""


class UnclearCommitError(TransientError):
    """A commit was sent and its answer was lost: it may have happened, and may not."""


class ClaimLostError(OutboxError):
    """A transaction was undone because its claim no longer holds its row."""


class DefinitiveError(OutboxError):
    """The answer is known and will not change by itself. A bot that raises it parks its row at once."""


class ConfigurationError(DefinitiveError):
    """A setting, or a relation between settings, is wrong."""


class InvalidInputError(DefinitiveError):
    """Something given from outside does not have the form it must have; nothing was written."""


class EventTooLargeError(InvalidInputError):
    """An event is larger than a limit; nothing was written."""


class CardNotFoundError(DefinitiveError):
    """The card does not exist, or is deleted."""


class BoardNotFoundError(DefinitiveError):
    """The tenant has no such board, or the board no such column."""


class SubscriptionNotFoundError(DefinitiveError):
    """The tenant has no such subscription."""


class EffectNotFoundError(DefinitiveError):
    """The tenant has no such effect."""


class ConsumerNotFoundError(DefinitiveError):
    """The tenant has no such consumer: it is not registered."""


class ConsumerRetiredError(DefinitiveError):
    """The consumer was retired; only registering it again brings it back, and it then reconciles first."""


class LetterNotFoundError(DefinitiveError):
    """The consumer has no such dead letter."""


class ObserverActedError(DefinitiveError):
    """An observer tried to do what only the writer of a change does: delete, restore, audit or notify."""


class UnreadableEventError(OutboxError):
    """A stored event cannot be given to an observer: that is a failed try, and parks like any other (L10)."""


class LeaseLostError(OutboxError):
    """A transaction was undone because the consumer's lease, or its cursor, is another's now."""


class UnstorableRowError(DefinitiveError):
    """A row cannot be written in the store's format."""


class RowsRefusedError(DefinitiveError):
    """The store refused some rows for good.

    `reasons` maps the refused effect ids to the store's reason; `inserted` are those that are stored, and new.
    """

    def __init__(self, reasons: dict[str, str], inserted: frozenset[str] = frozenset()) -> None:
        super().__init__(f"{len(reasons)} rows were refused: {next(iter(reasons.values()), '')}")
        self.reasons = reasons
        self.inserted = inserted


class EventConflictError(OutboxError):
    """An insert met another one under the same number or the same event id.

    `duplicates` holds the event ids that the log already has, `taken` the sequence numbers that somebody else fills.
    In a transaction, the transaction is undone.
    """

    def __init__(self, *, duplicates: Iterable[str] = (), taken: Iterable[int] = ()) -> None:
        self.duplicates = frozenset(duplicates)
        self.taken = frozenset(taken)
        super().__init__(f"{len(self.duplicates)} event ids exist, {len(self.taken)} numbers are taken")


class InvariantError(OutboxError):
    """The program broke one of its own rules."""


class BotOverstayedError(BaseException):
    """Raised inside a bot that runs for longer than its limit; the try is spent.

    It is no Exception, so that a bot's own `except Exception` lets it pass; a bot must not catch it.
    """

    def __init__(self, limit: timedelta) -> None:
        super().__init__(f"overstayed its limit of {limit.total_seconds():g}s")
        self.limit = limit


class RetryLater(Exception):  # noqa: N818 - what a bot says, not what went wrong
    """Raised by a bot: run me again after `delay`, this costs no attempt.

    It holds for at most RETRY_LATER_MAX (24 h) after the bot first asked; then the row fails.
    """

    def __init__(self, delay: timedelta, reason: str = "") -> None:
        if delay.total_seconds() < 0:
            msg = "RetryLater: delay must not be negative"
            raise ValueError(msg)
        super().__init__(reason or f"asked to be retried in {delay.total_seconds():g}s")
        self.delay = delay
