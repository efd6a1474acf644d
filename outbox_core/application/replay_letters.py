"""Observe again the dead letters that an operator asked for, each alone, before the consumer goes on."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from outbox_core.application.consumer_turn import CONTENDED
from outbox_core.domain.consumer import LetterState, Poll
from outbox_core.domain.delivery import failure_class
from outbox_core.domain.errors import (
    BotOverstayedError,
    EventConflictError,
    LeaseLostError,
    TransientError,
    UnclearCommitError,
    UnreadableEventError,
)
from outbox_core.domain.lifecycle_event import superseded

if TYPE_CHECKING:
    from outbox_core.application.consumer_turn import ConsumerTurn
    from outbox_core.domain.consumer import DeadLetter
    from outbox_core.domain.lifecycle_event import LifecycleEvent

_log = logging.getLogger("outbox.lifecycle")


def replay_letters(turn: ConsumerTurn) -> bool:
    """Give each letter that waits for it to the observer, and settle it, or put it back (L11); False ends the poll."""
    letters = turn.store.consumers.letters(
        consumer_id=turn.observer.consumer_id,
        state=LetterState.REPLAYING,
        limit=turn.runtime.limits.observe_batch,
    )
    for letter in letters:
        if not turn.goes_on():
            return False
        poll = _replay(turn, letter)
        if poll is not Poll.OBSERVED:
            turn.ended(poll, wait=CONTENDED if poll is Poll.RETRYING else None)
            return False
    return True


def _replay(turn: ConsumerTurn, letter: DeadLetter) -> Poll:
    consumers, event, event_id = turn.store.consumers, letter.event, letter.event_id
    if event is None:
        return _failed(turn, event_id, UnreadableEventError("it holds no event that can be read"))
    if superseded(event, turn.store.cards.deletions([event.task_id]).get(event.task_id)):
        return _held(consumers.replayed(turn.lease, event_id, why="superseded"))
    try:
        _observe(turn, event)
    except (LeaseLostError, UnclearCommitError):
        return Poll.LOST
    except (Exception, BotOverstayedError) as error:  # noqa: BLE001 - the named edge: an observer's call
        # Where its transaction met another one, the letter still waits for its replay.
        met = turn.observer.transactional and isinstance(error, TransientError | EventConflictError)
        return Poll.RETRYING if met else _failed(turn, event_id, error)
    turn.report = replace(turn.report, replayed=turn.report.replayed + 1)
    return _held(turn.observer.transactional or consumers.replayed(turn.lease, event_id, why="observed"))


def _observe(turn: ConsumerTurn, event: LifecycleEvent) -> None:
    """Call the observer; a transactional one settles the letter in its own transaction. Raises LeaseLostError."""
    if not turn.observer.transactional:
        if not turn.holds:
            raise LeaseLostError(f"{turn.named}: the lease ran out before the letter {event.event_id} was observed")
        turn.call(event, replayed=True)
        return
    consumers, lease = turn.store.consumers, turn.lease
    with turn.transaction() as inside:
        turn.call(event, inside, replayed=True)
        inside.commit(lambda open_: consumers.replayed_in(open_, lease, event.event_id, why="observed"))


def _failed(turn: ConsumerTurn, event_id: str, error: BaseException) -> Poll:
    kind = failure_class(error)
    turn.report = replace(turn.report, failed=turn.report.failed + 1)
    _log.warning("%s: its letter %s failed again: %s", turn.named, event_id, kind)
    return _held(turn.store.consumers.replay_failed(turn.lease, event_id, failure_class=kind))


def _held(matched: bool) -> Poll:  # noqa: FBT001 - what a port's write said
    return Poll.OBSERVED if matched else Poll.LOST
