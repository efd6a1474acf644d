"""Celery messages of any content, through our consumer and Celery's own tracer, in this process.

tests/acceptance/test_hostile_messages.py sends some hundred of the same to a real worker.
"""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, patch

import pytest
from celery import signals
from celery.app.trace import build_tracer, trace_task_ret
from celery.worker.strategy import default
from hypothesis import given
from hypothesis import strategies as st

from tasks.transport import Channel
from tests.fuzz.door import Door
from tests.fuzz.forged import TASKS, Forged, forgeries, honest
from tests.fuzz.profile import inputs, tried
from tests.harness.base import ACME, OTHER
from tests.harness.twin import TwinHarness
from tests.simulation.play import append

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.worker.request import Request

pytestmark = [pytest.mark.promise("C02"), pytest.mark.filterwarnings("ignore:Generating overly large repr")]


class InProcess:
    """What stands between a broker and a pool's child, without either: a worker's consumer, and a child's tracer."""

    def __init__(self, door: Door) -> None:
        from tasks import app  # noqa: PLC0415 - it reads the environment
        from tasks.consumer import Consumer  # noqa: PLC0415 - as above

        app.loader.import_default_modules()
        self.app = app
        self.door = door
        self.requests: list[Request] = []
        self.published: list[str] = []
        self.rejected = 0
        self.consumer: Any = Consumer.__new__(Consumer)
        self.consumer.__dict__.update(
            app=app,
            hostname="here",
            connection_errors=(),
            on_task_message=(),
            call_soon=lambda call, *arguments: call(*arguments),
            call_soon_ack=lambda call, *arguments: call(*arguments),
            event_dispatcher=MagicMock(enabled=False),
            controller=MagicMock(state=MagicMock(revoked=set())),
            on_task_request=self.requests.append,
            disable_rate_limits=True,
            restart_count=0,
            _maximum_prefetch_restored=True,
            pool=MagicMock(),
            timer=MagicMock(),
            qos=MagicMock(),
            _limit_task=MagicMock(),
            _limit_post_eta=MagicMock(),
            task_buckets={},
        )
        self.consumer.strategies = {name: default(task, app, self.consumer) for name, task in app.tasks.items()}
        self.handle = self.consumer.create_task_handler()
        for name, task in app.tasks.items():
            task.__trace__ = build_tracer(name, task, app.loader, "here", app=app)

    def deliver(self, forged: Forged) -> bool:
        """Hand a message over as the transport does, and run what the worker makes of it; say whether it ran."""
        channel = MagicMock()
        channel.decode_body = lambda body, _encoding=None: base64.b64decode(body)
        try:
            message = Channel.Message(json.loads(forged.envelope()), channel=channel)
        except (KeyError, TypeError, ValueError):
            # What tasks.transport drops before there is a message; anything else would end the worker.
            return False
        message.accept = {"application/json"}
        self.requests.clear()
        self.handle(message)
        if not self.requests:
            # A message with an eta waits in the timer, where it would stay: ours have none.
            assert message.acknowledged, "it was neither run nor refused, so the next worker meets it again"
            assert not self.consumer.qos.increment_eventually.called
            return False
        (request,) = self.requests
        assert request.time_limits in ((None, None), [None, None]), "a message set a time limit"
        assert request.eta is None
        trace_task_ret(
            request._type,
            request.id,
            request._request_dict,
            request._body,
            request._content_type,
            request._content_encoding,
            app=self.app,
        )
        return True


@contextmanager
def in_process() -> Iterator[InProcess]:
    from tasks import outbox  # noqa: PLC0415 - it reads the environment

    door = Door(TwinHarness())
    here = InProcess(door)
    opened, outbox._opened = outbox._opened, door.outbox._opened

    def note(*arguments: object, **_options: object) -> None:
        here.published.append(str(arguments)[:200])

    try:
        with patch.object(here.app.amqp, "send_task_message", note), patch("celery.canvas.Signature.apply_async", note):
            yield here
    finally:
        outbox._opened = opened


@inputs(30)
@given(forged=st.lists(forgeries(), min_size=3, max_size=6))
def test_no_message_runs_twice_what_was_settled_publishes_anything_or_reaches_another_tenant(
    forged: list[Forged],
) -> None:
    with in_process() as here:
        append(here.door.harness.acme, here.door.runtime, "before")
        here.door.work_out()
        before = {tenant: here.door.harness.raw("trigger_effects", tenant_id=tenant) for tenant in (ACME, OTHER)}
        for one in forged:
            ran = here.deliver(one)
            tried[f"message: {'run' if ran else 'refused'}"] += 1
        assert here.published == []
        after = {tenant: here.door.harness.raw("trigger_effects", tenant_id=tenant) for tenant in (ACME, OTHER)}
        assert after == before, "a settled row was touched"
        append(here.door.harness.acme, here.door.runtime, "after")
        assert here.deliver(honest("outbox.drain_tenant", tenant=ACME))
        assert here.deliver(honest("outbox.run_slice", tenant=ACME))
        assert [seen[1] for seen in here.door.seen if seen[0] == ACME] == ["before", "after"]
        assert {row["tenant_id"] for row in here.door.harness.raw("tenant_slots")} <= {ACME, OTHER, *STRANGERS}


STRANGERS = {"nobody", "x", "later", "board", "deleted", "null", "true", "NaN", "-1", "1e999", ".", "..", "a.b"}


def test_every_task_of_ours_is_among_those_that_are_forged() -> None:
    with in_process() as here:
        assert {name for name in here.app.tasks if not name.startswith("celery.")} == set(TASKS)


@pytest.mark.parametrize("task", ["celery.map", "celery.starmap", "celery.group", "celery.chord", "celery.chain"])
def test_celerys_own_tasks_run_nothing_that_a_message_names(task: str) -> None:
    with in_process() as here:
        inner = {"task": "outbox.run_slice", "args": [], "kwargs": {}, "options": {}}
        before = len(here.door.seen)
        body = json.dumps([[inner, [{"tenant": ACME}]], {"task": inner, "it": [[]]}, {}]).encode()
        assert not here.deliver(honest(task)._replace(body=body))
        assert len(here.door.seen) == before
        assert here.published == []


def test_what_a_refused_message_held_is_told_in_one_bounded_line(caplog: pytest.LogCaptureFixture) -> None:
    told: list[object] = []
    signals.task_rejected.connect(lambda **given: told.append(given["exc"]), weak=False, dispatch_uid="test")
    try:
        with in_process() as here:
            here.deliver(honest("outbox.run_slice")._replace(headers={"task": "x\n" * 10_000, "id": "1"}))
    finally:
        signals.task_rejected.disconnect(dispatch_uid="test")
    (line,) = [record.getMessage() for record in caplog.records if "a message was refused" in record.getMessage()]
    assert "\n" not in line
    assert len(line) < 300
    assert len(told) == 1
