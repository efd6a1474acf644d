"""A Celery consumer that no message can end, and that takes from a message no more than our tasks need.

Celery builds a request from a message's headers and body before any of its guards: a body that is not a list of three,
a task that is no text, a compressed body that is none, raises in the worker's main process. That ends the worker, the
message goes back to its queue, and the next worker ends on it. Here such a message is refused.

A message may also tell a worker what to do beside its task: to publish others (callbacks, chains, chords), to kill a
process after another time (`timelimit`), to hold it in memory until a year (`eta`), to name it otherwise in the log.
Ours carry none of that, so of one for our tasks nothing is left but the task, its id, its expiry and its arguments.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.worker.consumer import Consumer as UpstreamConsumer

from outbox_core.domain.identity import is_id

if TYPE_CHECKING:
    from collections.abc import Callable, Container

OURS = "outbox."
BUILT_IN = "celery."
"""Tasks that every Celery application has; some publish, or run, whatever their arguments name."""

# What wrong content raises. The broker's own errors are none of these, and must pass: they make the worker reconnect.
_WRONG_CONTENT = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError)
_SHOWN_CHARS = 200

_logger = logging.getLogger(__name__)


class RefusedMessageError(Exception):
    """A message is not of the form that ours have; its text is one line for the log."""


class Consumer(UpstreamConsumer):
    """Celery's consumer, with every message's content taken for hostile."""

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], object]:  # noqa: ANN401 - Celery's own
        """Return Celery's handler of one message; what its content raises refuses the message."""
        handle = super().create_task_handler(*args, **options)

        def guarded(message: Any) -> object:  # noqa: ANN401 - kombu's message
            try:
                reduce_to_essentials(message, self.app.tasks)
                return handle(message)
            except RefusedMessageError as error:
                _logger.warning("a message was refused: %s", error)
                message.reject_log_error(_logger, self.connection_errors)
                signals.task_rejected.send(sender=self, message=message, exc=error)
                return None
            except _WRONG_CONTENT as error:
                return self.on_invalid_task(None, message, error)

        return guarded


def reduce_to_essentials(message: Any, tasks: Container[str]) -> None:  # noqa: ANN401 - kombu's message
    """Take from a message for one of our tasks all but its task, id, expiry and named arguments.

    Raises RefusedMessageError where it has not got these, or is for no task. One for a task that an application has
    added to ours is left as it is.
    """
    headers = message.headers
    name = headers.get("task") if isinstance(headers, dict) else None
    if not isinstance(name, str):
        raise RefusedMessageError("its headers name no task")
    if name not in tasks or name.startswith(BUILT_IN):
        raise RefusedMessageError(f"there is no task {name!r:.80}")
    if not name.startswith(OURS):
        return
    if not is_id(headers.get("id")):
        raise RefusedMessageError(f"for {name}: its id {headers.get('id')!r:.80} is none")
    named = _named_arguments(message, name)
    expires = headers.get("expires")
    if not isinstance(expires, str | None):
        raise RefusedMessageError(f"for {name}: its expiry {expires!r:.80} is no time")
    shown = {"argsrepr": "()", "kwargsrepr": f"{named!r:.{_SHOWN_CHARS}}"}
    message.headers = {"lang": "py", "task": name, "id": headers["id"], "expires": expires, **shown}
    message.properties = {key: value for key, value in message.properties.items() if key in _OF_THE_TRANSPORT}
    message.body = json.dumps([[], named, {}]).encode()
    message.content_type, message.content_encoding = "application/json", "utf-8"
    message._decoded_cache = None  # noqa: SLF001 - it holds what the body was


_OF_THE_TRANSPORT = ("delivery_tag", "delivery_info", "delivery_mode", "body_encoding")
"""Properties that the transport reads when it acknowledges; no reply is ever owed."""


def _named_arguments(message: Any, name: str) -> dict[str, object]:  # noqa: ANN401 - kombu's message
    try:
        body = message.payload
    except Exception as error:  # noqa: BLE001 - decoding speaks to nobody, so whatever it raises is the content's
        raise RefusedMessageError(f"for {name}: {type(error).__name__}: {str(error)!r:.200}") from None
    match body:
        case [[], dict() as named, _] if all(isinstance(one, str) for one in named):
            return named
        case _:
            raise RefusedMessageError(f"for {name}: its arguments are not by name")
