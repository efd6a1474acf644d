"""The Celery application: queues, ticks, and a configuration that outlives its broker.

`outbox` here is the one that sends hints; applications and task bodies share it.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from celery import Celery
from kombu.entity import Queue

from beat_schedule import TICKS
from outbox_core.bootstrap import Outbox
from outbox_core.ports.hints import NoHints
from outbox_core.settings import load_settings
from tasks import transport
from tasks.hints import CeleryHints

if TYPE_CHECKING:
    from outbox_core.domain.limits import Limits

DRAIN = "drain"
EFFECTS = "effects"
LIFECYCLE = "lifecycle"
MAINTENANCE = "maintenance"

_ROUTES = {
    "outbox.drain_tenant": {"queue": DRAIN},
    "outbox.run_turn": {"queue": EFFECTS},
    "outbox.run_slice": {"queue": EFFECTS},
    "outbox.poll_consumer": {"queue": LIFECYCLE},
    "outbox.wake_consumers": {"queue": LIFECYCLE},
    **{tick.task: {"queue": tick.queue} for tick in TICKS},
}


def ticks(limits: Limits) -> dict[str, dict[str, object]]:
    """Return beat's schedule: the table, with the deployment's intervals in the place of the defaults."""
    return {
        tick.name: {
            "task": tick.task,
            "schedule": getattr(limits, tick.limit).total_seconds(),
            "options": {"expires": limits.tick_expiry.total_seconds(), "queue": tick.queue},
        }
        for tick in TICKS
    }


class StopFlag:
    """One byte that a pool's parent shares with its children: only the parent may hear a SIGTERM.

    It must be made before the fork, which importing this module is. A child that is told by itself, as where a whole
    process group is, notes that down for the task that it runs.
    """

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)
        self._this_task = False

    def set(self) -> None:
        """Say that this worker shuts down."""
        self._byte[0] = 1

    def set_for_this_task(self) -> None:
        """Say that this process was told to stop, whatever the worker does."""
        self._this_task = True

    def start_task(self) -> None:
        """Forget what a task before was told: this worker goes on giving work to this process."""
        self._this_task = False

    def is_set(self) -> bool:
        """Say whether the work in hand is to be ended."""
        return self._this_task or self._byte[0] == 1


transport.register()
settings = load_settings()
stopping = StopFlag()

app = Celery(
    "outbox",
    include=["tasks.effects", "tasks.lifecycle", "tasks.maintenance"],
    # An application that imports this for `outbox` keeps its own current app; a worker sets its own anyway.
    set_as_current=False,
)
app.conf.update(
    broker_url=settings.broker_url.get_secret_value(),
    broker_channel_error_retry=True,  # Else a broker that became read-only ends the worker.
    broker_connection_max_retries=None,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "socket_timeout": 5,  # Else a publish to a hung broker blocks for ever, beat's too.
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "visibility_timeout": 120,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
    },
    task_publish_retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.2},
    accept_content=["json"],
    task_serializer="json",
    result_accept_content=["json"],
    task_ignore_result=True,
    task_acks_late=False,  # The row is the truth; a late ack would only run a settled slice again.
    task_queues=[Queue(name) for name in (DRAIN, EFFECTS, LIFECYCLE, MAINTENANCE)],  # type: ignore[no-untyped-call]  # kombu's
    task_default_queue=MAINTENANCE,
    task_create_missing_queues=False,
    task_routes=_ROUTES,
    worker_consumer="tasks.consumer:Consumer",
    worker_disable_prefetch=True,
    worker_prefetch_multiplier=1,
    worker_proc_alive_timeout=30,
    worker_send_task_events=True,  # Else Flower stays empty.
    task_send_sent_event=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    beat_scheduler="tasks.beat:Scheduler",  # In memory: the stored ticks are in the database.
    beat_max_loop_interval=5,
    beat_schedule=ticks(settings.limits),
    enable_utc=True,
)

hints = CeleryHints(app, settings.limits.tick_expiry.total_seconds())
outbox = Outbox.from_settings(
    settings, hints=hints if settings.hints else NoHints(), offers=hints, stopping=stopping.is_set
)


def slice_hard_limit_s(longest_bot_s: float) -> float:
    """Return after how many seconds a slice's process is killed; the last line of defence, never the usual one."""
    return (settings.limits.slice_time + settings.limits.kill_grace).total_seconds() + longest_bot_s
