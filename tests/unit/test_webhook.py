"""Webhooks without any network: signatures, what an answer means, which addresses are public, and the settings."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from standardwebhooks import Webhook, WebhookVerificationError

from outbox_core.domain.errors import ConfigurationError, DefinitiveError, OutboxError, RetryLater
from outbox_core.settings import load_settings
from outbox_core.webhook.addresses import Allowed, addresses_of
from outbox_core.webhook.sending import Target
from outbox_core.webhook.signing import signed_headers, webhook_id
from outbox_core.webhook.verdict import LATEST, SOONEST, Answer, NotDeliveredError, judge, retry_after

NOW = datetime(2026, 11, 30, 15, tzinfo=UTC)
OLD, NEW = ("whsec_" + base64.b64encode(letter * 32).decode() for letter in (b"o", b"n"))


class TestSignature:
    """The Standard Webhooks rules, by hand and by their own library."""

    def test_it_is_the_hmac_of_id_time_and_body_for_each_secret(self) -> None:
        headers = signed_headers("acme|e.1|rule", NOW, '{"a":"ü"}', [SecretStr(NEW), SecretStr(OLD)])
        signed = f"acme|e~1|rule.{int(NOW.timestamp())}." + '{"a":"ü"}'
        by_hand = [
            "v1," + base64.b64encode(hmac.new(letter * 32, signed.encode(), hashlib.sha256).digest()).decode()
            for letter in (b"n", b"o")
        ]
        assert headers == {
            "webhook-id": "acme|e~1|rule",
            "webhook-timestamp": "1796050800",
            "webhook-signature": " ".join(by_hand),
        }

    def test_while_a_secret_is_replaced_receivers_with_either_accept_it_and_no_other_does(self) -> None:
        body = '{"a":1}'
        headers = signed_headers("t|e|s", datetime.now(UTC), body, [SecretStr(NEW), SecretStr(OLD)])
        for secret in (OLD, NEW):
            assert Webhook(secret).verify(body, headers) == {"a": 1}
        with pytest.raises(WebhookVerificationError):
            Webhook("whsec_" + base64.b64encode(b"x" * 32).decode()).verify(body, headers)

    @given(first=st.from_regex(r"\A[A-Za-z0-9._-]{1,9}\Z"), second=st.from_regex(r"\A[A-Za-z0-9._-]{1,9}\Z"))
    def test_no_two_effects_share_a_webhook_id_and_none_holds_a_full_stop(self, first: str, second: str) -> None:
        one, other = (webhook_id(f"t|{name}|s") for name in (first, second))
        assert (one == other) == (first == second)
        assert "." not in one


def answer(status: int, excerpt: str = "", **headers: str) -> Answer:
    return Answer(
        "https://shop.example", status, {name.replace("_", "-"): value for name, value in headers.items()}, excerpt
    )


@pytest.mark.promise("E33")
class TestVerdict:
    """Done, later, again, or never."""

    @pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
    def test_2xx_is_done(self, status: int) -> None:
        judge(answer(status), NOW)

    @pytest.mark.parametrize("status", [300, 301, 302, 304, 307, 308])
    def test_a_redirect_parks_and_says_so(self, status: int) -> None:
        with pytest.raises(DefinitiveError, match="redirects are not followed"):
            judge(answer(status, location="http://127.0.0.1/"), NOW)

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422, 451])
    def test_another_4xx_parks(self, status: int) -> None:
        with pytest.raises(DefinitiveError, match=f"https://shop.example answered {status}: gone"):
            judge(answer(status, "gone", retry_after="5"), NOW)

    @pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 599, 999])
    def test_not_now_and_the_server_s_own_fault_are_a_failed_try(self, status: int) -> None:
        with pytest.raises(NotDeliveredError) as said:
            judge(answer(status), NOW)
        assert not isinstance(said.value, DefinitiveError)

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_retry_after_is_waited_for(self, status: int) -> None:
        with pytest.raises(RetryLater) as later:
            judge(answer(status, retry_after="120"), NOW)
        assert later.value.delay == timedelta(minutes=2)

    @pytest.mark.parametrize(
        ("text", "delay"),
        [
            ("30", timedelta(seconds=30)),
            (" 30 ", timedelta(seconds=30)),
            ("0", SOONEST),
            ("86400", LATEST),
            ("9" * 5_000, LATEST),
            (format_datetime(NOW + timedelta(seconds=90), usegmt=True), timedelta(seconds=90)),
            (format_datetime(NOW - timedelta(seconds=90), usegmt=True), SOONEST),
            (format_datetime(NOW + timedelta(days=90), usegmt=True), LATEST),
            ("", None),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("Mon, 99 Nov 2026 99:00:00 GMT", None),
            ("³", None),
        ],
    )
    def test_a_retry_after_is_seconds_or_a_date_within_bounds_or_counts_as_none(
        self, text: str, delay: timedelta | None
    ) -> None:
        assert retry_after({"retry-after": text}, NOW) == delay

    def test_a_date_is_held_against_the_answer_s_own_clock(self) -> None:
        theirs = NOW - timedelta(hours=5)
        headers = {
            "retry-after": format_datetime(theirs + timedelta(minutes=3), usegmt=True),
            "date": format_datetime(theirs, usegmt=True),
        }
        assert retry_after(headers, NOW) == timedelta(minutes=3)

    @given(st.text())
    def test_no_text_of_a_retry_after_breaks_it(self, text: str) -> None:
        delay = retry_after({"retry-after": text, "date": text}, NOW)
        assert delay is None or SOONEST <= delay <= LATEST


NOT_PUBLIC = [
    "127.0.0.1",
    "127.8.9.1",
    "0.0.0.0",  # noqa: S104 - an address that must be refused
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "fe80::1%eth0",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
]


class TestAddresses:
    """What may be connected to."""

    @pytest.mark.parametrize("address", NOT_PUBLIC)
    def test_an_address_that_is_not_public_is_refused_in_each_of_its_forms(self, address: str) -> None:
        assert not Allowed.of([]).permits("host", address)
        everywhere = ["0.0.0.0/0", "::/0"]
        assert Allowed.of(everywhere).permits("host", address)

    @pytest.mark.parametrize(
        "address", ["8.8.8.8", "1.1.1.1", "2001:4860:4860::8888", "64:ff9b::808:808", "::ffff:8.8.8.8"]
    )
    def test_a_public_one_is_permitted(self, address: str) -> None:
        assert Allowed.of([]).permits("host", address)

    def test_a_host_is_allowed_by_its_name_and_a_network_by_its_numbers(self) -> None:
        allowed = Allowed.of(["Hooks.Internal", "10.1.0.0/16", "fd00::/8"])
        assert allowed.permits("hooks.internal", "192.168.0.1")
        assert not allowed.permits("evil.hooks.internal", "192.168.0.1")
        assert allowed.permits("any", "10.1.2.3")
        assert allowed.permits("any", "::ffff:10.1.2.3")
        assert not allowed.permits("any", "10.2.0.1")
        assert allowed.permits("any", "fd00:ec2::254")

    def test_of_several_addresses_only_the_permitted_are_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = [(socket.AF_INET, 1, 6, "", (number, 443)) for number in ("10.0.0.1", "8.8.8.8", "8.8.8.8")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
        assert addresses_of("host", 443, Allowed.of([])) == ["8.8.8.8"]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers[:1])
        with pytest.raises(DefinitiveError, match=r"host is at 10\.0\.0\.1, which is not public; .*ALLOW_PRIVATE"):
            addresses_of("host", 443, Allowed.of([]))

    @pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "[::1]"])
    def test_no_spelling_of_a_loopback_address_passes(self, host: str) -> None:
        target = Target.of(f"http://{host}/", [])
        with pytest.raises(OutboxError):
            addresses_of(target.host, target.port, target.allowed)

    def test_a_name_that_does_not_resolve_is_a_failed_try(self) -> None:
        with pytest.raises(NotDeliveredError, match="does not resolve"):
            addresses_of("no-such-host.invalid", 443, Allowed.of([]))
        with pytest.raises(NotDeliveredError, match="does not resolve"):
            addresses_of("x" * 64, 443, Allowed.of([]))


@pytest.mark.promise("O06", "O07")
class TestTarget:
    """The address in a rule."""

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "shop.example",
            "ftp://shop.example/",
            "file:///etc/passwd",
            "https://",
            "http://[::1",
            "https://a:999999/",
            "https://a:0/",
            "//x",
        ],
    )
    def test_what_is_no_address_is_refused_without_being_repeated(self, url: str) -> None:
        with pytest.raises(DefinitiveError) as refused:
            Target.of(url + ("?token=SECRET" if url else ""), [])
        assert "SECRET" not in str(refused.value)

    def test_a_password_in_it_is_refused_and_a_path_is_never_shown(self) -> None:
        with pytest.raises(DefinitiveError, match="no user or password"):
            Target.of("https://user:SECRET@shop.example/", [])
        assert (
            Target.of("https://shop.example:8443/hooks/SECRET?token=SECRET", []).origin == "https://shop.example:8443"
        )
        assert Target.of("https://[2001:db8::1]/", []).origin == "https://[2001:db8::1]"
        assert Target.of("https://bücher.example/", []).host == "xn--bcher-kva.example"


class TestSettings:
    """OUTBOX_WEBHOOK_SECRETS and OUTBOX_WEBHOOK_ALLOW_PRIVATE."""

    def test_secrets_are_read_by_name_and_never_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OUTBOX_WEBHOOK_SECRETS", json.dumps({"shop": [NEW, OLD], "bill": OLD.rstrip("=")}))
        settings = load_settings()
        assert [one.get_secret_value() for one in settings.webhook_secrets["shop"]] == [NEW, OLD]
        assert len(settings.webhook_secrets["bill"]) == 1
        assert OLD[6:20] not in repr(settings) + str(settings)
        assert OLD[6:20] not in settings.model_dump_json()

    @pytest.mark.promise("O06", "O07")
    @pytest.mark.parametrize(
        ("value", "said"),
        [
            ("SECRET", "must be a JSON object of names and secrets"),
            ('["SECRET"]', "must be a JSON object of names and secrets"),
            ('{"shop": "SECRET"}', "shop: a secret is whsec_ and the Base64 of 24 to 64 random bytes"),
            ('{"shop": "whsec_SECRET"}', "shop: a secret is whsec_"),
            ('{"shop": "whsec_SECRET!SECRET!SECRET!SECRET!SECRET"}', "shop: a secret is whsec_"),
            ('{"shop": "whsec_' + "SECRET" * 20 + '"}', "shop: a secret is whsec_"),
            ('{"shop": []}', "shop: a secret is whsec_"),
            ('{"shop": 5}', "shop: a secret is whsec_"),
            ('{"shop": {"a": "SECRET"}}', "shop: a secret is whsec_"),
            ('{"no name": "SECRET"}', "'no name' is no name of a secret"),
        ],
    )
    def test_a_wrong_secret_is_refused_by_its_name_and_not_repeated(
        self, monkeypatch: pytest.MonkeyPatch, value: str, said: str
    ) -> None:
        monkeypatch.setenv("OUTBOX_WEBHOOK_SECRETS", value)
        with pytest.raises(ConfigurationError) as refused:
            load_settings()
        assert f"OUTBOX_WEBHOOK_SECRETS: {said}" in str(refused.value)
        assert "SECRET" not in str(refused.value).replace("OUTBOX_WEBHOOK_SECRETS", "")

    @pytest.mark.parametrize(
        ("value", "read"),
        [
            ("on", ("0.0.0.0/0", "::/0")),
            ("off", ()),
            ("", ()),
            (
                "10.0.0.0/8, hooks.internal,fd00::/8,127.0.0.1",
                ("10.0.0.0/8", "hooks.internal", "fd00::/8", "127.0.0.1"),
            ),
        ],
    )
    def test_private_addresses_are_allowed_by_a_switch_or_a_list(
        self, monkeypatch: pytest.MonkeyPatch, value: str, read: tuple[str, ...]
    ) -> None:
        monkeypatch.setenv("OUTBOX_WEBHOOK_ALLOW_PRIVATE", value)
        assert load_settings().webhook_allow_private == read

    @pytest.mark.promise("O06")
    @pytest.mark.parametrize("value", ["http://hooks.internal", "10.0.0.0/99", "a b", "300.1.1.1", "x,*.internal"])
    def test_what_is_neither_host_nor_network_is_refused(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        monkeypatch.setenv("OUTBOX_WEBHOOK_ALLOW_PRIVATE", value)
        with pytest.raises(ConfigurationError, match=r"OUTBOX_WEBHOOK_ALLOW_PRIVATE: .* is no host or network"):
            load_settings()
