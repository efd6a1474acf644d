"""What a worker does at its start and its end, beside running tasks."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Any

from celery import signals

from outbox_core.bots import load_bots, observers, registry
from outbox_core.cli.group import tell
from outbox_core.domain.errors import ConfigurationError, OutboxError
from tasks import clock
from tasks.app import app, hints, outbox, settings, slice_hard_limit_s, stopping

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_logger = logging.getLogger(__name__)
_imported_in = os.getpid()


@signals.worker_init.connect
def _prepare(**_given: object) -> None:
    """Import the bots and ensure the schema, in the pool's parent, before it forks.

    The connection is closed again: a MongoDB client does not survive a fork. What no restart by itself can mend ends
    the worker with one line.
    """
    _or_exit(_load_bots)
    _or_exit(_ensure_schema)


def _load_bots() -> None:
    load_bots(settings.bots)
    for task, known in (
        ("outbox.run_turn", registry),
        ("outbox.run_slice", registry),
        ("outbox.poll_consumer", observers),
    ):
        known.check(settings.limits)
        longest = known.longest_limit(settings.limits)
        app.tasks[task].time_limit = slice_hard_limit_s(longest.total_seconds())
    # A turn drains for up to a slice's time before it runs anything.
    app.tasks["outbox.run_turn"].time_limit += settings.limits.slice_time.total_seconds()


def _ensure_schema() -> None:
    try:
        applied = outbox.ensure_schema()
    except ConfigurationError:
        raise
    except OutboxError as error:
        _logger.warning("the schema could not be ensured (%s); run `outbox schema` where that is allowed", error)
    else:
        for step in applied:
            _logger.info("schema step applied: %s", step)
    finally:
        outbox.close()


def _or_exit(step: Callable[[], None]) -> None:
    try:
        step()
    except ConfigurationError as error:
        # SystemExit passes through Celery's signals, which swallow and log any other exception.
        raise SystemExit(tell(error)) from None


@signals.worker_ready.connect
def _tell_ready(**_given: object) -> None:
    bots = ", ".join(sorted(one.bot_id for one in registry)) or "none; set OUTBOX_BOTS"
    told = ", ".join(sorted(observers.ids())) or "none"
    _logger.info("outbox ready: database %s, bots: %s; observers: %s", settings.mongo_db, bots, told)
    # Not before: an alarm that is raised before Celery has set up its logs reaches none of their handlers.
    clock.look_aside("ready")


@signals.worker_ready.connect
def _prune_at_start(**_given: object) -> None:
    """Beat counts the hours from its own start: where it is restarted every day or so, they would never be over."""
    hints.prune()


@signals.task_revoked.connect
def _note_discarded(expired: bool = False, **_given: object) -> None:  # noqa: FBT001, FBT002 - the signal's
    if expired:
        clock.note_discarded()


@signals.worker_shutting_down.connect
def _tell_children(**_given: object) -> None:
    stopping.set()


@signals.worker_process_init.connect
def _finish_when_told(**_given: object) -> None:
    """Where a whole process group is told to stop, a pool's child too finishes its row and gives the rest back.

    Between tasks a child ends at once, as it is. One that does not end is killed by its parent, with SIGKILL. A pool
    without children has only the parent's own way of stopping.
    """
    if os.getpid() == _imported_in:
        return
    before: list[Any] = []

    def told(_number: int, _frame: FrameType | None) -> None:
        stopping.set_for_this_task()

    # The pool sets its own handler after this signal, so ours comes with each task.
    @signals.task_prerun.connect(weak=False)
    def started(**_given: object) -> None:
        stopping.start_task()
        before.append(signal.signal(signal.SIGTERM, told))

    @signals.task_postrun.connect(weak=False)
    def ended(**_given: object) -> None:
        signal.signal(signal.SIGTERM, before.pop())


@signals.worker_process_shutdown.connect
def _send_what_is_queued(**_given: object) -> None:
    hints.flush()
