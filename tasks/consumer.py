"""A Celery consumer that no message can end.

Celery builds a request from a message's headers and body before any of its guards: a body that is not a list of three,
or a task that is no text, raises in the worker's main process. That ends the worker, the message goes back to its
queue, and the next worker ends on it. Here such a message is refused, as Celery refuses other invalid ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker.consumer import Consumer as UpstreamConsumer

if TYPE_CHECKING:
    from collections.abc import Callable

# What wrong content raises. The broker's own errors are none of these, and must pass: they make the worker reconnect.
_WRONG_CONTENT = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError)


class Consumer(UpstreamConsumer):
    """Celery's consumer, with every message's content taken for hostile."""

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], object]:  # noqa: ANN401 - Celery's own
        """Return Celery's handler of one message; what its content raises refuses the message."""
        handle = super().create_task_handler(*args, **options)

        def guarded(message: Any) -> object:  # noqa: ANN401 - kombu's message
            try:
                return handle(message)
            except _WRONG_CONTENT as error:
                return self.on_invalid_task(None, message, error)

        return guarded
