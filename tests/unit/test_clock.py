"""When a process says that its clock is off."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from celery import signals

from outbox_core.domain.errors import TransientError
from outbox_core.domain.rarely import Rarely
from tasks import clock

if TYPE_CHECKING:
    from outbox_core.ports.maintenance import Maintenance

pytestmark = pytest.mark.promise("C06")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(clock, "_alarms", Rarely())
    monkeypatch.setattr(clock, "_looks", {"discarded": Rarely(), "ready": Rarely()})
    monkeypatch.setattr(clock, "_discarded", 0)
    caplog.set_level(logging.INFO, logger="outbox.clock")


def server(ahead: timedelta = timedelta(), error: Exception | None = None) -> Maintenance:
    class Server:
        def now(self) -> datetime:
            if error is not None:
                raise error
            return datetime.now(UTC) + ahead

    return Server()  # type: ignore[return-value]  # no more than that is asked


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (timedelta(seconds=-61), "61 s ahead of the database's: this process discards"),
        (timedelta(seconds=61), "s behind the database's: other workers discard"),
        (timedelta(seconds=59), ""),
        (timedelta(seconds=-59), ""),
        (timedelta(0), ""),
    ],
)
def test_a_clock_that_is_off_by_a_tenth_of_the_ticks_expiry_is_told_of(
    ahead: timedelta, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock.compare(server(ahead))
    assert said in caplog.text
    assert len(caplog.records) == bool(said)
    assert all(record.levelname == "ERROR" for record in caplog.records)


def test_it_is_told_once_an_hour_in_each_direction(caplog: pytest.LogCaptureFixture) -> None:
    for minutes in (5, 6, -5, -6):
        clock.compare(server(timedelta(minutes=minutes)))
    assert ["behind" in record.getMessage() for record in caplog.records] == [True, False]


def test_a_database_that_is_away_raises_no_alarm_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    clock.compare(server(error=TransientError("away")))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "the clock was not compared with the database's: away")
    ]


def test_expired_messages_make_it_look_aside_and_rarely_and_revoked_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_in: list[str] = []
    looked = threading.Event()

    def look() -> None:
        looked_in.append(threading.current_thread().name)
        looked.set()

    monkeypatch.setattr(clock, "_look", look)
    signals.task_revoked.send(sender=None, expired=False)
    assert clock._discarded == 0
    for _ in range(100):
        signals.task_revoked.send(sender=None, expired=True)
    assert looked.wait(10)
    assert clock._discarded == 100
    assert looked_in == ["outbox-clock"]
