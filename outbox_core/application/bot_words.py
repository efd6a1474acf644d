"""What foreign code said by raising, as an outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.domain.effect import Failed, Postponed, bounded
from outbox_core.domain.errors import BotOverstayedError, DefinitiveError, RetryLater

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.domain.effect import Outcome, RunRecord


def what_it_said(error: Exception | BotOverstayedError, record: Callable[[str], RunRecord] | None = None) -> Outcome:
    """Return what an exception of a bot or a projector means; `record` makes the run's record of its text.

    RetryLater postpones, a DefinitiveError parks at once, anything else is a try that failed, overstaying too.
    """
    said = _words_of(error)
    if isinstance(error, RetryLater):
        return Postponed(error.delay, said)
    text = said if isinstance(error, BotOverstayedError) else f"{type(error).__name__}: {said}"
    failed = Failed(bounded(text), definitive=isinstance(error, DefinitiveError))
    return failed if record is None else replace(failed, run=record(failed.error))


def _words_of(error: Exception | BotOverstayedError) -> str:
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001 - the named edge: an error's own text is the bot's code too
        return f"its text cannot be made, {type(worse).__name__}"
