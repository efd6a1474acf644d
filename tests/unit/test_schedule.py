"""The table of ticks, the tasks that it names, and the configuration that both run under."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from beat_schedule import TICKS
from outbox_core.domain.limits import Limits


def of_a_fresh_process(program: str, **environment: str) -> Any:  # noqa: ANN401 - what the program prints as JSON
    """Tasks read the environment at their import, so each question is asked of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PATH": "", **environment}
    )
    return json.loads(done.stdout)


@pytest.mark.promise("C09")
def test_importing_the_schedule_loads_neither_celery_nor_the_core() -> None:
    loaded = of_a_fresh_process("import sys, json, beat_schedule; print(json.dumps(sorted(sys.modules)))")
    assert not {name for name in loaded if name.split(".")[0] in {"celery", "kombu", "outbox_core", "tasks", "pymongo"}}


TABLE = """
import json, tasks
app = tasks.app
app.loader.import_default_modules()
print(json.dumps({
    "tasks": sorted(app.tasks),
    "schedule": app.conf.beat_schedule,
    "queues": sorted(app.amqp.queues),
    "routes": {name: app.amqp.router.route({}, name)["queue"].name for name in app.tasks if name.startswith("outbox.")},
    "conf": {name: app.conf[name] for name in (
        "accept_content", "task_acks_late", "task_ignore_result", "worker_disable_prefetch",
        "task_create_missing_queues", "broker_channel_error_retry", "worker_send_task_events", "beat_scheduler")},
}))
"""


@pytest.mark.promise("C09")
def test_every_name_in_the_schedule_is_a_registered_task_on_the_queue_that_the_schedule_says() -> None:
    told = of_a_fresh_process(TABLE)
    for tick in TICKS:
        assert tick.task in told["tasks"]
        assert told["schedule"][tick.name]["task"] == tick.task
        assert told["routes"][tick.task] == tick.queue
    assert len(told["schedule"]) == len(TICKS)
    assert set(told["routes"].values()) == set(told["queues"])


@pytest.mark.promise("C09", "E06")
def test_the_defaults_of_the_schedule_are_those_of_the_limits() -> None:
    limits = Limits()
    names = {field.name for field in fields(Limits)}
    for tick in TICKS:
        assert tick.limit in names
        assert timedelta(seconds=tick.interval_seconds) == getattr(limits, tick.limit)
        assert timedelta(seconds=tick.expires_seconds) == limits.tick_expiry


def test_the_deployments_intervals_take_the_place_of_the_defaults() -> None:
    told = of_a_fresh_process(TABLE, OUTBOX_DRAIN_TICK="700ms", OUTBOX_TICK_EXPIRY="20m")
    assert told["schedule"]["drain"]["schedule"] == 0.7
    assert told["schedule"]["sweep"]["schedule"] == 5.0
    assert {entry["options"]["expires"] for entry in told["schedule"].values()} == {1200.0}


@pytest.mark.promise("C08")
def test_the_configuration_is_the_one_that_survived() -> None:
    assert of_a_fresh_process(TABLE)["conf"] == {
        "accept_content": ["json"],
        "task_acks_late": False,
        "task_ignore_result": True,
        "worker_disable_prefetch": True,
        "task_create_missing_queues": False,
        "broker_channel_error_retry": True,
        "worker_send_task_events": True,
        "beat_scheduler": "tasks.beat:Scheduler",
    }


HARD_LIMIT = """
import json, tasks
from datetime import timedelta
from outbox_core import bot
from tasks.worker import _load_bots
tasks.app.loader.import_default_modules()
@bot("slow", time_limit=timedelta(minutes=7))
def slow(run): ...
_load_bots()
print(json.dumps(tasks.app.tasks["outbox.run_slice"].time_limit))
"""


@pytest.mark.promise("E32")
def test_a_slice_is_killed_only_after_its_time_and_its_longest_bot_and_a_grace() -> None:
    assert of_a_fresh_process(HARD_LIMIT) == 1 + 7 * 60 + 30


WORKER = """
import json
from celery import signals
import tasks.worker as worker
from outbox_core.domain.errors import TransientError

calls = []

class Store:
    def ensure_schema(self):
        calls.append("ensure_schema")
        raise TransientError("away")

    def close(self):
        calls.append("close")

worker.app.loader.import_default_modules()
worker.outbox = Store()
worker.hints.flush = lambda: calls.append("flush")
signals.worker_init.send(sender=None)
signals.worker_shutting_down.send(sender=None)
calls.append(worker.stopping.is_set())
signals.worker_process_shutdown.send(sender=None)
print(json.dumps(calls))
"""


@pytest.mark.promise("C05")
def test_a_worker_forks_without_its_parents_connection_and_ends_with_its_hints_sent() -> None:
    """Also where the schema could not be ensured: a MongoDB client does not survive a fork."""
    assert of_a_fresh_process(WORKER) == ["ensure_schema", "close", True, "flush"]


WRONG = """
import json
try:
    import tasks
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.promise("O06")
def test_an_application_that_imports_tasks_with_a_wrong_setting_gets_an_error_it_can_catch() -> None:
    name, said = of_a_fresh_process(WRONG, OUTBOX_DRAIN_TICK="soon")
    assert name == "ConfigurationError"
    assert "OUTBOX_DRAIN_TICK" in said
