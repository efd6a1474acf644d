"""An application beside the workers, that hints."""

from __future__ import annotations

from celery import Celery
from kombu.entity import Queue

from outbox_core.bootstrap import Outbox
from tasks import transport
from tasks.hints import CeleryHints


def hinting_outbox(broker_url: str) -> Outbox:
    """An outbox as an application has it that imports `tasks`, without the settings which that read at its import."""
    transport.register()
    app = Celery("application", broker=broker_url)
    app.conf.update(
        task_queues=[Queue("drain"), Queue("effects")],  # type: ignore[no-untyped-call]  # kombu's
        task_default_queue="drain",
        task_routes={"outbox.drain_tenant": {"queue": "drain"}, "outbox.run_slice": {"queue": "effects"}},
    )
    return Outbox.from_settings(hints=CeleryHints(app, 600))
