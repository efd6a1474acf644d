"""Transient or definitive: the only module that names the driver's exceptions.

An error is judged by its class, its labels and its code, never by its text. What is not known is transient.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from bson.errors import BSONError
from pymongo.errors import (
    ConfigurationError as DriverConfigurationError,
)
from pymongo.errors import (
    DocumentTooLarge,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from outbox_core.domain.errors import (
    ConfigurationError,
    ContentionError,
    OutboxError,
    TransientError,
    UnreachableError,
    UnstorableRowError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

DUPLICATE_KEY = 11000
_REFUSED_FOR_GOOD = frozenset(
    {
        121,  # DocumentValidationFailure
        10334,  # BSONObjectTooLarge
        17419,  # the document that an update would make is too large
    }
)
_TRANSACTION_LABEL = "TransientTransactionError"

DRIVER_ERRORS = (PyMongoError, BSONError, OverflowError)
"""What a call of the driver may raise; OverflowError is an integer over 64 bits."""


class RunAgainError(ContentionError, PyMongoError):
    """A ContentionError of a caller's own transaction, which the driver's `with_transaction` answers by another run."""

    def __init__(self, text: str) -> None:
        PyMongoError.__init__(self, text, [_TRANSACTION_LABEL])


def is_contention(error: BaseException) -> bool:
    """Say whether a transaction was undone by another one, or by a passing fault: its body may run again."""
    return isinstance(error, PyMongoError) and error.has_error_label(_TRANSACTION_LABEL)


def is_refused_for_good(code: int | None) -> bool:
    """Say whether the store's answer to one document will be the same next time."""
    return code in _REFUSED_FOR_GOOD


def as_outbox_error(error: BaseException) -> OutboxError:
    """Return the error of this package that stands for one of the driver's."""
    text = f"{type(error).__name__}: {_brief(error)}"
    if is_contention(error):
        return ContentionError(text)
    if isinstance(error, BSONError | OverflowError | DocumentTooLarge):
        return UnstorableRowError(f"MongoDB cannot store this: {_brief(error)}")
    if isinstance(error, InvalidURI | DriverConfigurationError):
        return ConfigurationError(f"MongoDB: {_brief(error)}")
    if isinstance(error, ServerSelectionTimeoutError):
        # The driver's text goes on with its time-outs and what it knows of each server.
        said = _brief(error).split(" (configured timeouts", 1)[0].split(", Timeout:", 1)[0]
        return UnreachableError(f"MongoDB cannot be reached: {said}")
    if isinstance(error, OperationFailure) and is_refused_for_good(error.code):
        return UnstorableRowError(f"MongoDB refused this: {_brief(error)}")
    return TransientError(text)


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@contextmanager
def translated() -> Iterator[None]:
    """Turn what the driver raises inside the block into this package's errors."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise as_outbox_error(error) from error
