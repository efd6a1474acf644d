"""The webhook bot in real slices on both stores, against real servers: honest, flaky, slow and hostile ones."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from standardwebhooks import Webhook

import outbox_core.webhook
from outbox_core import Outbox
from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.append_events import append_events
from outbox_core.application.new_event import new_event
from outbox_core.application.run_slice import run_slice
from outbox_core.bots import load_bots, registry
from outbox_core.domain.errors import DefinitiveError, InvalidInputError
from outbox_core.webhook import sending
from outbox_core.webhook.sending import Target, send
from outbox_core.webhook.verdict import NotDeliveredError
from tests.harness.base import ACME
from tests.harness.examples import subscription
from tests.simulation.play import drain_whole, run_whole, until_all_settled
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from outbox_core.ports.runtime import Runtime
    from tests.harness.base import Document, Harness

KEY, OLD_KEY = b"k" * 32, b"o" * 24
SECRET, OLD_SECRET = ("whsec_" + base64.b64encode(key).decode() for key in (KEY, OLD_KEY))
HANG_UP = 0


@dataclass
class Receiver:
    """Verifies what it is sent by the rules, by hand, and answers what it is told to, 204 where it is told nothing."""

    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    posts: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    refused: int = 0
    body: bytes = b""
    address: str = "127.0.0.1"
    port: int = 0

    def __post_init__(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.take(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer((self.address, self.port), Handler)
        self.port = self.server.server_port
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/path-token?query-token=1"

    def take(self, request: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = request.rfile.read(int(headers["content-length"]))
        self.posts.append((headers, body))
        status, more = self.answers.pop(0) if self.answers else (204, {})
        if not verified(headers, body):
            self.refused += 1
            status = 401
        elif status == HANG_UP or status < 300:
            self.accepted.append(headers["webhook-id"])
        if status == HANG_UP:
            # It took the call, and its answer never arrives.
            request.close_connection = True
            return
        request.send_response(status)
        for name, value in more.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(0 if status == 204 else len(self.body)))
        request.end_headers()
        if status != 204:
            request.wfile.write(self.body)

    def stop(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def verified(headers: Mapping[str, str], body: bytes) -> bool:
    """Written from the rules, not with the library that signs."""
    if abs(time.time() - int(headers["webhook-timestamp"])) > 300:
        return False
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    right = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    return any(
        version == "v1" and hmac.compare_digest(signature, right)
        for version, _, signature in (one.partition(",") for one in headers["webhook-signature"].split(" "))
    )


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_WEBHOOK_SECRETS", json.dumps({"shop": SECRET, "turning": [SECRET, OLD_SECRET]}))
    monkeypatch.setenv("OUTBOX_WEBHOOK_ALLOW_PRIVATE", "127.0.0.0/8")


def runtime_of(harness: Harness) -> Runtime:
    load_bots(["outbox_core.webhook"])
    bot = registry.get("webhook")
    assert bot is not None
    return harness.runtime({"webhook": bot})


def owed(harness: Harness, event_id: str = "order.17", **rule_vars: Any) -> str:  # noqa: ANN401 - JSON
    """Leave one row for the bot; return its id."""
    runtime = runtime_of(harness)
    add_subscription(harness.acme, subscription("rule.1", bot_id="webhook", vars=rule_vars))
    event = new_event(
        harness.entropy,
        type="order",
        action="placed",
        subject="order-17",
        labels=["big"],
        data={"name": "Ü", "lines": [1, 2.5, None]},
        event_id=event_id,
        occurred_at=datetime(2026, 11, 30, 15, tzinfo=UTC),
    )
    append_events(harness.acme, runtime, [event])
    drain_whole(harness.acme, runtime)
    return f"{ACME}|{event_id}|rule.1"


def played(harness: Harness, effect_id: str) -> Document:
    until_all_settled(harness, harness.acme, runtime_of(harness))
    found: Document = dict(harness.acme.effects.get(effect_id))
    return found


@pytest.mark.promise("E37")
@pytest.mark.parametrize("name", ["shop", "turning"])
def test_a_receiver_that_verifies_by_the_rules_gets_the_event_and_the_status_is_kept(
    harness: Harness, receiver: Receiver, name: str
) -> None:
    row = played(harness, owed(harness, url=receiver.url, secret=name))
    assert (row["state"], row["outcome"], row["run"]["result"]) == ("done", "delivered", {"status": 204})
    ((headers, body),) = receiver.posts
    assert receiver.accepted == [f"{ACME}|order~17|rule~1"] == [row["_id"].replace(".", "~")]
    sent = Webhook(SECRET).verify(body, headers)
    assert (sent["type"], sent["data"]) == ("order", {"name": "Ü", "lines": [1, 2.5, None]})
    assert (sent["event_id"], sent["subject"], sent["timestamp"]) == (
        "order.17",
        "order-17",
        "2026-11-30T15:00:00.000Z",
    )
    assert sent["labels"] == ["big"]
    assert headers["content-type"] == "application/json"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert len(headers["webhook-signature"].split(" ")) == {"shop": 1, "turning": 2}[name]


@pytest.mark.promise("E33", "E37")
def test_a_flaky_receiver_gets_it_again_under_the_same_id_and_a_retry_after_costs_no_attempt(
    harness: Harness, receiver: Receiver
) -> None:
    receiver.answers = [(500, {}), (HANG_UP, {}), (429, {"Retry-After": "7"}), (503, {"Retry-After": "40"}), (503, {})]
    effect_id = owed(harness, url=receiver.url, secret="shop")  # noqa: S106 - its name
    row = played(harness, effect_id)
    assert (row["state"], row["attempts"]) == ("done", 3)
    ids = [headers["webhook-id"] for headers, _ in receiver.posts]
    assert ids == [effect_id.replace(".", "~")] * 6
    assert set(receiver.accepted) == set(ids)
    assert receiver.refused == 0
    bodies = [json.loads(body) for _, body in receiver.posts]
    # The harness moves stored times on MongoDB, that of the event too.
    assert len({json.dumps({**body, "timestamp": ""}) for body in bodies}) == 1


@pytest.mark.promise("E33")
@pytest.mark.scenario(13)
def test_a_retry_after_is_waited_for_and_no_longer(harness: Harness, receiver: Receiver) -> None:
    receiver.answers = [(429, {"Retry-After": "300"})]
    effect_id = owed(harness, url=receiver.url, secret="shop")  # noqa: S106 - its name
    runtime = runtime_of(harness)
    run_whole(harness.acme, runtime)
    row = harness.row(effect_id)
    assert (row["state"], row["attempts"]) == ("pending", 0)
    assert timedelta(seconds=290) < row["not_before"] - harness.now() <= timedelta(seconds=300)
    assert "answered 429" in row["last_error"]
    harness.advance(timedelta(seconds=290))
    run_slice(harness.acme, runtime)
    assert len(receiver.posts) == 1
    harness.advance(timedelta(seconds=11))
    run_whole(harness.acme, runtime)
    assert harness.row(effect_id)["state"] == "done"


@pytest.mark.promise("E33")
@pytest.mark.parametrize("status", [301, 307, 400, 404, 410])
def test_what_a_receiver_refuses_for_good_parks_at_once_and_no_redirect_is_followed(
    harness: Harness, receiver: Receiver, status: int
) -> None:
    receiver.body = b"  <p>\n gone\x07</p>"
    receiver.answers = [(status, {"Location": f"http://127.0.0.1:{receiver.port}/elsewhere"})]
    row = played(harness, owed(harness, url=receiver.url, secret="shop"))  # noqa: S106 - its name
    assert row["state"] == "failed"
    assert row["last_error"].startswith(
        f"DefinitiveError: http://127.0.0.1:{receiver.port} answered {status}: <p> gone?</p>"
    )
    assert len(receiver.posts) == 1


@pytest.mark.promise("E33")
def test_a_receiver_that_is_away_costs_the_budget_of_attempts(harness: Harness) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    row = played(harness, owed(harness, url=url, secret="shop"))  # noqa: S106 - its name
    assert (row["state"], row["attempts"]) == ("failed", harness.limits.max_effect_attempts)
    assert "NotDeliveredError: http://127.0.0.1" in row["last_error"]
    assert "refused" in row["last_error"]


@pytest.mark.promise("O06", "O07")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "webhook takes the vars url and secret"),
        ({"url": 5, "secret": "shop"}, "webhook takes the vars url and secret"),
        ({"url": "http://127.0.0.1/", "secret": "shop", "retries": 3}, "and nothing else"),
        (
            {"url": "http://127.0.0.1/", "secret": "PASSWORD"},
            "no name in OUTBOX_WEBHOOK_SECRETS; that has shop, turning",
        ),
        ({"url": "http://user:PASSWORD@127.0.0.1/", "secret": "shop"}, "url must hold no user or password"),
        ({"url": "gopher://127.0.0.1/PASSWORD", "secret": "shop"}, "url must be an http or https address"),
        ({"url": "http://10.1.2.3/PASSWORD", "secret": "shop"}, "10.1.2.3 is at 10.1.2.3, which is not public"),
        ({"url": "http://169.254.169.254/PASSWORD", "secret": "shop"}, "which is not public"),
        ({"url": "http://[::1]/PASSWORD", "secret": "shop"}, "which is not public"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rule_that_cannot_work_or_an_address_that_is_not_public_parks_at_once(
    twin: Harness, wrong: dict[str, Any], said: str
) -> None:
    row = played(twin, owed(twin, **wrong))
    assert (row["state"], row["attempts"]) == ("failed", 1)
    assert said in row["last_error"]
    assert "PASSWORD" not in row["last_error"]


@pytest.mark.promise("O06")
@pytest.mark.parametrize(
    "vars_",
    [{}, {"url": "u"}, {"secret": "s"}, {"url": "u", "secret": "s", "retries": 3}],
    ids=" ".join,
)
def test_a_rule_with_other_vars_than_url_and_secret_is_refused_where_it_is_made(vars_: dict[str, Any]) -> None:
    outbox = Outbox.local()
    with pytest.raises(InvalidInputError, match="bot 'webhook' takes"):
        outbox.subscribe("acme", "tell", "webhook", vars=vars_)
    with pytest.raises(InvalidInputError, match="event"):
        outbox.subscribe("acme", "tell", "webhook", vars={"url": "u", "secret": "s"}, args_var="event")
    assert outbox.subscribe("acme", "tell", "webhook", vars={"url": "u", "secret": "s"}).sub_id == "tell"


@pytest.mark.promise("O07")
def test_no_secret_and_no_token_of_an_address_is_in_a_row_a_run_or_a_log(
    harness: Harness, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.answers = [(500, {}), (HANG_UP, {}), (429, {"Retry-After": "1"}), (410, {})]
    effect_id = owed(harness, url=receiver.url, secret="turning")  # noqa: S106 - its name
    row = played(harness, effect_id)
    assert row["state"] == "failed"
    assert len(receiver.posts) == 4
    told = json.dumps([row, harness.raw("trigger_subscriptions")], default=str) + caplog.text
    for secret in (SECRET, OLD_SECRET, SECRET[6:], KEY.decode()):
        assert secret not in told
    del row["run"]["args"]  # The rule's own vars.
    assert "-token" not in json.dumps(row, default=str)
    # The driver's own debug log shows commands whole, rules included.
    assert "-token" not in "".join(one.getMessage() for one in caplog.records if not one.name.startswith("pymongo"))


# The sending itself.


class Scripted:
    """A server that does with each connection what it is told to, in a thread of its own."""

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        self.connections = 0
        self._act = act
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.stopping = threading.Event()
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if self.stopping.is_set():
                connection.close()
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._one, args=[connection]))
            self._threads[-1].start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._act(connection)
            except OSError:
                return

    def stop(self) -> None:
        self.stopping.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self._threads:
            thread.join(10)
        self._socket.close()


@pytest.fixture
def scripted() -> Iterator[Callable[[Callable[[Scripted, socket.socket], None]], Scripted]]:
    servers: list[Scripted] = []

    def make(act: Callable[[Scripted, socket.socket], None]) -> Scripted:
        servers.append(Scripted(lambda connection: act(servers[-1], connection)))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def post(port: int, total_s: float = 5, host: str = "127.0.0.1", scheme: str = "http", body: bytes = b"{}") -> Any:  # noqa: ANN401
    target = Target.of(f"{scheme}://{host}:{port}/", ["127.0.0.0/8"])
    return send(target, {"content-type": "application/json"}, body, connect_s=min(1, total_s), total_s=total_s)


def read_request(connection: socket.socket) -> None:
    """Read a request whose body is {}; a socket that is closed with unread bytes takes its answer back."""
    read = b""
    while not read.endswith(b"\r\n\r\n{}"):
        if not (more := connection.recv(65_536)):
            return
        read += more


def silent(server: Scripted, connection: socket.socket) -> None:
    del connection
    server.stopping.wait()


def dripping_headers(server: Scripted, connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not server.stopping.wait(0.05):
        connection.sendall(b"x")


def never_reading(server: Scripted, connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    server.stopping.wait()


@pytest.mark.promise("E32")
@pytest.mark.parametrize("act", [silent, dripping_headers, never_reading], ids=lambda act: act.__name__)
def test_a_server_that_dawdles_in_any_way_is_left_at_the_deadline(scripted: Any, act: Any) -> None:  # noqa: ANN401
    server = scripted(act)
    started = time.monotonic()
    with pytest.raises(NotDeliveredError, match="Timeout"):
        post(server.port, total_s=0.6, body=b"x" * 30_000_000)
    assert 0.5 < time.monotonic() - started < 3


def test_a_body_without_end_is_read_to_its_bound_and_a_success_s_body_not_at_all(scripted: Any) -> None:  # noqa: ANN401
    sent: Counter[str] = Counter()

    def endless(status: bytes) -> Callable[[Scripted, socket.socket], None]:
        def act(server: Scripted, connection: socket.socket) -> None:
            read_request(connection)
            connection.sendall(b"HTTP/1.1 " + status + b" X\r\nContent-Length: 10000000000\r\n\r\n")
            while not server.stopping.is_set():
                connection.sendall(b"y" * 65_536)
                sent[status.decode()] += 65_536

        return act

    started = time.monotonic()
    assert post(scripted(endless(b"500")).port).excerpt == "y" * 200
    assert post(scripted(endless(b"200")).port).excerpt == ""
    # The deadline would end it too, much later and after far more than what the sockets' buffers hold.
    assert time.monotonic() - started < 3
    assert all(count < 20_000_000 for count in sent.values())


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000,
    ],
    ids=["nothing", "no HTTP", "cut short", "no status", "too many headers"],
)
def test_what_is_no_http_is_a_failed_try(scripted: Any, sent: bytes) -> None:  # noqa: ANN401 - a fixture's function
    def act(_: Scripted, connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(sent)

    with pytest.raises(NotDeliveredError):
        post(scripted(act).port)


def test_an_answer_whose_body_breaks_off_counts_by_its_status(scripted: Any) -> None:  # noqa: ANN401
    def act(_: Scripted, connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 422 X\r\nContent-Length: 100\r\n\r\nwrong")

    answer = post(scripted(act).port)
    assert (answer.status, answer.excerpt) == (422, "wrong")


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let the name hooks.test resolve to these, one list after the other; return who was asked for."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - the system's own form
        if host != "hooks.test":
            return real(host, port, *given, **named)
        asked.append(host)
        numbers = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port)) for number in numbers]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_a_name_that_moves_after_its_check_is_reached_where_it_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the second answer would lead to an address that is not permitted."""
    outside = Receiver(address="127.0.0.2")
    inside = Receiver(address="127.0.0.1", port=outside.port)
    asked = resolving(monkeypatch, ["127.0.0.2"], ["127.0.0.1"])
    try:
        target = Target.of(f"http://hooks.test:{outside.port}/", ["127.0.0.2"])
        send(target, HEADERS, b"{}", connect_s=1, total_s=5)
        assert len(asked) == 1
        with pytest.raises(DefinitiveError, match=r"hooks\.test is at 127\.0\.0\.1"):
            send(target, HEADERS, b"{}", connect_s=1, total_s=5)
        assert (len(outside.posts), len(inside.posts)) == (1, 0)
        assert outside.posts[0][0]["host"] == f"hooks.test:{outside.port}"
    finally:
        outside.stop()
        inside.stop()


def test_of_a_name_s_addresses_the_refused_are_left_out_and_the_dead_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = Receiver(address="127.0.0.2")
    inside = Receiver(address="127.0.0.1", port=outside.port)
    resolving(monkeypatch, ["127.0.0.1", "127.0.0.3", "127.0.0.2"])
    try:
        target = Target.of(f"http://hooks.test:{outside.port}/", ["127.0.0.2", "127.0.0.3"])
        send(target, HEADERS, b"{}", connect_s=1, total_s=5)
        assert (len(outside.posts), len(inside.posts)) == (1, 0)
    finally:
        outside.stop()
        inside.stop()


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    target = Target.of(receiver.url, ["127.0.0.0/8"])
    assert send(target, HEADERS, b"{}", connect_s=1, total_s=5).status == 401
    assert len(receiver.posts) == 1


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for hooks.test that signs itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate with")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hooks.test"),
            *("-addext", "subjectAltName=DNS:hooks.test", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def test_tls_verifies_the_name_though_the_connection_goes_to_a_number(
    monkeypatch: pytest.MonkeyPatch,
    certified: tuple[Path, Path],
    scripted: Any,  # noqa: ANN401
) -> None:
    named: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certified)
    context.sni_callback = lambda _, name, __: named.append(name)

    def act(_: Scripted, connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            read_request(secured)
            secured.sendall(b"HTTP/1.1 204 X\r\n\r\n")

    server = scripted(act)
    resolving(monkeypatch, ["127.0.0.1"])
    sending._ssl_context.cache_clear()
    with pytest.raises(NotDeliveredError, match="certificate verify failed"):
        post(server.port, host="hooks.test", scheme="https")
    monkeypatch.setenv("SSL_CERT_FILE", str(certified[0]))
    sending._ssl_context.cache_clear()
    try:
        assert post(server.port, host="hooks.test", scheme="https").status == 204
        assert set(named) == {"hooks.test"}
        with pytest.raises(NotDeliveredError, match="certificate verify failed"):
            post(server.port, scheme="https")
    finally:
        sending._ssl_context.cache_clear()


@pytest.mark.promise("E32")
def test_the_bot_ends_within_its_own_limit(monkeypatch: pytest.MonkeyPatch, harness: Harness, scripted: Any) -> None:  # noqa: ANN401
    bot = registry.get("webhook")
    assert bot is not None
    assert bot.time_limit is not None
    assert bot.time_limit > outbox_core.webhook.TOTAL_TIME
    monkeypatch.setattr(outbox_core.webhook, "TOTAL_TIME", timedelta(seconds=0.3))
    server = scripted(silent)
    effect_id = owed(harness, url=f"http://127.0.0.1:{server.port}/", secret="shop")  # noqa: S106 - its name
    run_slice(harness.acme, runtime_of(harness))
    row = harness.row(effect_id)
    assert (row["state"], row["attempts"]) == ("pending", 1)
    assert "ReadTimeout" in row["last_error"]
    wait_until(lambda: server.connections == 1, what="the one connection")


HEADERS = {
    "content-type": "application/json",
    "webhook-id": "x",
    "webhook-timestamp": "0",
    "webhook-signature": "v1,x",
}
