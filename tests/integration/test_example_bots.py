"""The example bots, run by real slices on a real database, against a real server that sometimes fails."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

import examples.bots  # noqa: F401 - registers them
from outbox_core.application.add_subscription import add_subscription
from outbox_core.bootstrap import Outbox
from outbox_core.domain.limits import Limits
from outbox_core.domain.subscription import Subscription
from outbox_core.settings import Settings
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from outbox_core.embedded import EmbeddedMongo

LIMITS = Limits(backoff_base=timedelta(milliseconds=50), backoff_cap=timedelta(milliseconds=100))


@pytest.fixture
def outbox(mongo_server: EmbeddedMongo, database_name: str) -> Iterator[Outbox]:
    outbox = Outbox.from_settings(
        Settings(mongo_url=SecretStr(mongo_server.url), mongo_db=database_name, limits=LIMITS)
    )
    outbox.ensure_schema()
    yield outbox
    outbox.close()


class Target:
    """A web server that answers what it is told to, and remembers what it was sent."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.up = True
        self.posts: list[tuple[str, Any]] = []
        self.accepted: set[str] = set()
        target = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(204 if target.up else 503)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                key = self.headers["Idempotency-Key"]
                target.posts.append((key, json.loads(body) if body else None))
                status = target.answers.pop(0) if target.answers else 200
                if status == HANG_UP:
                    # It took the call, and its answer never arrives.
                    target.accepted.add(key)
                    self.close_connection = True
                    return
                if status < 400:
                    target.accepted.add(key)
                self._answer(status)

            def _answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


HANG_UP = 0


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.stop()


def subscribe(outbox: Outbox, bot_id: str, **given: object) -> None:
    add_subscription(outbox.tenant("acme"), Subscription(tenant_id="acme", sub_id="rule", bot_id=bot_id, vars=given))


def append(outbox: Outbox, count: int = 1) -> None:
    for number in range(count):
        outbox.append("acme", type="order", action="placed", subject=f"order-{number}", data={"number": number})
    outbox.drain_tenant("acme")


def slice_once(outbox: Outbox) -> None:
    assert outbox.run_slice("acme") is not None


def rows(outbox: Outbox) -> list[Mapping[str, Any]]:
    store = outbox.tenant("acme")
    return [store.effects.get(row["_id"]) for row in store.effects.list()]


def settled(outbox: Outbox) -> bool:
    slice_once(outbox)
    return outbox.tenant("acme").effects.next_due() is None


@pytest.mark.promise("E37")
def test_file_it_files_each_event_once_together_with_its_done_mark(outbox: Outbox) -> None:
    subscribe(outbox, "file-it", folder="orders")
    append(outbox, 5)
    wait_until(lambda: settled(outbox))
    with outbox.tenant("acme").transactions.begin() as transaction:
        files = list(transaction.database["example_files"].find())
        folder = transaction.database["example_folders"].find_one({"_id": "acme/orders"})
    assert Counter(one["effect_id"] for one in files) == Counter(row["_id"] for row in rows(outbox))
    assert folder["files"] == 5
    assert {row["run"]["result"]["folder"] for row in rows(outbox)} == {"orders"}


@pytest.mark.promise("E33", "E37")
def test_call_back_tries_again_under_the_same_key_where_its_target_fails_or_hangs_up(
    outbox: Outbox, target: Target
) -> None:
    subscribe(outbox, "call-back", url=target.url)
    target.answers = [500, HANG_UP, 429]
    append(outbox)
    wait_until(lambda: settled(outbox), 20)
    (row,) = rows(outbox)
    assert (row["state"], row["outcome"], row["attempts"]) == ("done", "delivered", 3)
    assert [key for key, _ in target.posts] == [row["_id"]] * 4
    assert target.accepted == {row["_id"]}
    assert target.posts[0][1]["data"] == {"number": 0}
    assert row["run"]["result"] == {"status": 200, "attempt": 4}


@pytest.mark.promise("E33")
def test_call_back_parks_at_once_what_its_target_refuses(outbox: Outbox, target: Target) -> None:
    subscribe(outbox, "call-back", url=target.url)
    target.answers = [404]
    append(outbox)
    wait_until(lambda: settled(outbox))
    (row,) = rows(outbox)
    assert row["state"] == "failed"
    assert "404" in row["last_error"]
    assert len(target.posts) == 1


@pytest.mark.promise("E33")
def test_call_back_spends_its_budget_on_a_target_that_is_away_and_parks(outbox: Outbox, target: Target) -> None:
    subscribe(outbox, "call-back", url=target.url)
    target.answers = [503] * 50
    append(outbox)
    wait_until(lambda: settled(outbox), 20)
    (row,) = rows(outbox)
    assert row["state"] == "failed"
    assert len(target.posts) == LIMITS.max_effect_attempts


@pytest.mark.promise("E33")
@pytest.mark.scenario(13)
def test_wait_for_target_waits_out_an_outage_with_no_attempt_spent(outbox: Outbox, target: Target) -> None:
    """Ten rows and far more tries than a budget holds; all of them flow once the target is up."""
    subscribe(outbox, "wait-for-target", url=target.url, every_seconds=0.02)
    target.up = False
    append(outbox, 10)
    for _ in range(LIMITS.max_effect_attempts * 2):
        slice_once(outbox)
    assert {(row["state"], row["attempts"]) for row in rows(outbox)} == {("pending", 0)}
    assert all("is down" in row["last_error"] for row in rows(outbox))
    target.up = True
    wait_until(lambda: settled(outbox), 20)
    assert {(row["state"], row["outcome"]) for row in rows(outbox)} == {("done", "delivered")}
    assert target.accepted == {row["_id"] for row in rows(outbox)}


def test_print_it_prints_and_is_done(outbox: Outbox, capsys: pytest.CaptureFixture[str]) -> None:
    subscribe(outbox, "print-it", colour="blue")
    append(outbox)
    wait_until(lambda: settled(outbox))
    assert capsys.readouterr().out.splitlines() == ["acme #1: order placed order-0 colour=blue"]
