"""CloudEvents 1.0, read without any I/O: what conforms is taken whole, what does not is refused in one line."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox_core.domain.errors import EventTooLargeError, InvalidInputError
from outbox_core.domain.event import CLOUDEVENTS, NewEvent
from outbox_core.domain.limits import Limits
from outbox_core.domain.subscription import Match, Subscription, mismatch
from outbox_core.sources.cloudevents import MAX_BODY_BYTES, event_id_of, read_bodies, read_body, read_json
from outbox_core.sources.cloudevents_file import check_file, read_file

LIMITS = Limits()
STRUCTURED = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
BATCHED = {"content-type": "application/cloudevents-batch+json"}


def ce(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - an attribute, or data
    """The smallest CloudEvent, with more to it; None takes an attribute away."""
    whole = {"specversion": "1.0", "id": "1", "source": "/shop/orders", "type": "com.example.order.placed", **more}
    return {name: value for name, value in whole.items() if value is not None}


def read(**more: Any) -> NewEvent:  # noqa: ANN401 - as ce
    return read_json(ce(**more), LIMITS)


def binary(body: bytes = b"", **headers: str) -> NewEvent:
    named = {f"ce-{name}": value for name, value in ce().items()}
    return read_body({**named, **{name.replace("_", "-"): value for name, value in headers.items()}}, body, LIMITS)


class TestWhatConforms:
    """Examples of the specification's rules: each is taken, and nothing of it is lost."""

    def test_the_smallest_event_is_type_and_source_and_its_data_is_the_event_itself(self) -> None:
        event = read()
        assert (event.attributes.source, event.attributes.type) == (CLOUDEVENTS, "com.example.order.placed")
        assert (event.attributes.action, event.attributes.subject, event.occurred_at) == ("", "", None)
        assert event.data == ce()

    @pytest.mark.parametrize(
        "more",
        [
            {"subject": "order-17"},
            {"source": "https://github.com/cloudevents/spec/pull/123"},
            {"source": "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66"},
            {"source": "mailto:cncf-wg-serverless@lists.cncf.io"},
            {"source": "1-555-123-4567"},
            {"id": "any text, ünïcode too | with bars"},
            {"dataschema": "https://example.com/schema#v1"},
            {"datacontenttype": "application/json; charset=utf-8", "data": {"a": 1}},
            {"datacontenttype": "text/xml", "data": "<much/>"},
            {"data": None},
            {"data": [1, "two", None, {"three": 3.5}]},
            {"data": "a text"},
            {"data": False},
            {"data_base64": "3q2+7w=="},
            {"time": "2018-04-05T17:31:00Z"},
            {"comexampleextension1": "value", "comexampleothervalue": 5, "flag": True},
            {"averyveryverylongextensionname1234567890": "allowed, though not advised"},
            {"count": -(2**31)},
            {"empty": ""},
        ],
        ids=str,
    )
    def test_it_is_taken_and_kept_whole(self, more: dict[str, Any]) -> None:
        given = {**ce(), **more}
        assert read_json(given, LIMITS).data == given

    def test_an_attribute_that_is_null_counts_as_not_there(self) -> None:
        assert read_json({**ce(), "subject": None, "time": None}, LIMITS).data == ce()

    @pytest.mark.parametrize(
        ("text", "instant"),
        [
            ("2018-04-05T17:31:00Z", datetime(2018, 4, 5, 17, 31, tzinfo=UTC)),
            ("2018-04-05t17:31:00.1234567z", datetime(2018, 4, 5, 17, 31, 0, 123_000, tzinfo=UTC)),
            ("2018-04-05T17:31:00+02:30", datetime(2018, 4, 5, 15, 1, tzinfo=UTC)),
            ("2016-12-31T23:59:60Z", datetime(2016, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        ],
    )
    def test_its_time_is_when_it_occurred(self, text: str, instant: datetime) -> None:
        assert read(time=text).occurred_at == instant

    @pytest.mark.promise("E20")
    def test_rules_match_its_type_its_subject_s_state_and_its_extensions(self) -> None:
        event = read(action="Paid", state="late", repo="acme/shop", author="mia", labels="urgent, big ,", priority=3)
        seen = event.attributes
        assert (seen.action, seen.snapshot.state, seen.snapshot.repo, seen.snapshot.author) == (
            "Paid",
            "late",
            "acme/shop",
            "mia",
        )
        assert seen.snapshot.labels == ("urgent", "big")
        match = Match(
            sources=("cloudevents",),
            types=("com.example.order.placed",),
            actions=("paid",),
            subject_states=("late",),
            labels=("BIG",),
        )
        assert mismatch(Subscription(tenant_id="t", sub_id="r", bot_id="b", match=match), seen) is None
        assert event.data["priority"] == 3

    def test_extensions_of_other_types_are_matched_in_their_canonical_text(self) -> None:
        seen = read(state=17, action=True).attributes
        assert (seen.snapshot.state, seen.action) == ("17", "true")

    def test_no_extension_can_pass_itself_off_as_a_machine_s_hand_or_a_run(self) -> None:
        event = read(reason="watchdog", runid="r", source="/board")
        assert not event.attributes.machine_caused
        assert not event.attributes.observational
        assert not event.attributes.concerns_card

    def test_its_trace_context_becomes_the_event_s_and_a_malformed_one_counts_as_none(self) -> None:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        assert read(traceparent=parent, tracestate="a=1").trace == {"traceparent": parent, "tracestate": "a=1"}
        assert read(traceparent="nonsense", tracestate="a=1").trace == {}


@pytest.mark.promise("E46")
class TestItsId:
    """Source and id together say which event it is."""

    def test_one_id_from_two_sources_is_two_events_and_the_same_pair_is_one(self) -> None:
        assert read(source="/a").event_id != read(source="/b").event_id
        assert read(source="/a").event_id == read(source="/a", type="other").event_id == event_id_of("/a", "1")

    def test_no_two_pairs_share_an_id_where_their_texts_run_together(self) -> None:
        assert read(source="/a", id="b 1").event_id != read(source="/a%20b", id="1").event_id
        assert read(source="/a", id="b1").event_id != read(source="/ab", id="1").event_id


VIOLATIONS: list[tuple[object, str]] = [
    (ce(specversion=None), "specversion missing; a CloudEvent has id, source, type, specversion"),
    (ce(id=None, type=None), "id, type missing"),
    (ce(specversion="0.3"), "'specversion' must be '1.0'"),
    (ce(specversion=1.0), "specversion is neither text"),
    (ce(id=""), "'id' must not be None or empty"),
    (ce(id=17), "id is no text"),
    (ce(source=""), "'source' must not be None or empty"),
    (ce(source="not a uri"), "source is no URI reference"),
    (ce(source="/ü"), "source is no URI reference"),
    (ce(type=""), "'type' must not be None or empty"),
    (ce(subject=""), "'subject' must not be empty"),
    (ce(time="yesterday"), "time is no RFC 3339 time"),
    (ce(time="2018-04-05 17:31:00Z"), "time is no RFC 3339 time"),
    (ce(time="2018-04-05T17:31:00"), "time is no RFC 3339 time"),
    (ce(time="20180405T173100Z"), "time is no RFC 3339 time"),
    (ce(time="2018-02-30T17:31:00Z"), "time is no time of the years"),
    (ce(time="0001-01-01T00:00:00+23:00"), "time is no time of the years"),
    (ce(time=1_522_949_460), "time is no text"),
    (ce(dataschema="relative/schema"), "dataschema is no absolute URI"),
    (ce(dataschema=""), "'dataschema' must not be empty"),
    (ce(datacontenttype="json"), "datacontenttype is no media type"),
    (ce(datacontenttype=""), "'datacontenttype' must not be empty"),
    (ce(myExtension="x"), "'myExtension' is no name of an attribute; use a-z and 0-9"),
    (ce(my_extension="x"), "is no name of an attribute"),
    ({**ce(), "": "x"}, "'' is no name of an attribute"),
    ({**ce(), "newline\n": "x"}, "is no name of an attribute"),
    (ce(extension={"a": 1}), "extension is neither text, integer nor boolean; put it into data"),
    (ce(extension=[1]), "extension is neither text, integer nor boolean"),
    (ce(extension=1.5), "extension is neither text, integer nor boolean"),
    (ce(extension=2**31), "extension is an integer beyond 32 bits"),
    (ce(subject="a\0b"), "subject holds a character that an attribute cannot hold"),
    (ce(extension="a\nb"), "extension holds a character"),
    (ce(data=1, data_base64="AA=="), "both data and data_base64"),
    (ce(data_base64="?"), "data_base64 is not Base64"),
    (ce(data_base64=5), "data_base64 is no text"),
    (ce(data={"big": 2**64}), "does not fit 64 bits"),
    ([ce()], "a CloudEvent is one JSON object"),
    ("text", "a CloudEvent is one JSON object"),
    (None, "a CloudEvent is one JSON object"),
]


@pytest.mark.promise("O06")
@pytest.mark.parametrize(("wrong", "said"), VIOLATIONS, ids=[said for _, said in VIOLATIONS])
def test_what_breaks_the_specification_is_refused_in_one_line(wrong: object, said: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        read_json(wrong, LIMITS)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("O06", "E09")
def test_what_is_over_a_limit_of_the_log_is_refused_before_anything_is_taken() -> None:
    with pytest.raises(EventTooLargeError, match=r"data is .* the limit is 262144"):
        read(data="x" * 262_144)
    with pytest.raises(EventTooLargeError, match="the attributes that rules match"):
        read(subject="x" * 9_000)
    deep: object = 1
    for _ in range(70):
        deep = [deep]
    with pytest.raises(InvalidInputError, match="nested deeper"):
        read(data=deep)


class TestHttp:
    """Content modes, with the library that other people's senders use at the other end."""

    @pytest.mark.parametrize("data", [{"a": [1, "ü"]}, "a text", b"\x00\xff"], ids=["json", "text", "bytes"])
    def test_what_the_library_sends_in_either_mode_reads_as_the_same_event(self, data: Any) -> None:  # noqa: ANN401
        kind = {"dict": "application/json", "str": "text/plain", "bytes": "application/octet-stream"}[
            type(data).__name__
        ]
        sent = CloudEvent(
            {
                "id": 'quoted "id" 100%',
                "source": "/a",
                "type": "x",
                "subject": "ünïcode",
                "datacontenttype": kind,
                "time": datetime(2026, 11, 30, 15, tzinfo=UTC),
                "labels": "one,two",
            },
            data,
        )
        structured, in_binary = to_structured_event(sent), to_binary_event(sent)
        one = read_body(structured.headers, structured.body, LIMITS)
        assert read_body(in_binary.headers, in_binary.body, LIMITS) == one
        assert one.attributes.subject == "ünïcode"
        assert one.attributes.snapshot.labels == ("one", "two")
        kept = base64.b64decode(one.data["data_base64"]) if isinstance(data, bytes) else one.data["data"]
        assert kept == data

    @pytest.mark.parametrize(
        ("kind", "body", "kept"),
        [
            ("application/json", b'{"a": 1}', {"data": {"a": 1}}),
            ("application/vnd.x+json", b"[1]", {"data": [1]}),
            ("", b'{"a": 1}', {"data": {"a": 1}}),
            ("", b"not json", {"data_base64": "bm90IGpzb24="}),
            ("text/plain; charset=latin-1", b"\xfc", {"data": "ü"}),
            ("text/plain; charset=none-such", b"\xfc", {"data_base64": "/A=="}),
            ("text/plain", b"\xfc", {"data_base64": "/A=="}),
            ("image/png", b"\x89", {"data_base64": "iQ=="}),
            ("application/json", b"", {}),
        ],
    )
    def test_a_binary_mode_s_body_is_kept_as_its_content_type_says(
        self, kind: str, body: bytes, kept: dict[str, Any]
    ) -> None:
        event = binary(body, **({"Content_Type": kind} if kind else {}))
        named = {"datacontenttype": kind} if kind else {}
        assert event.data == {**ce(), **named, **kept}

    def test_a_quoted_header_is_unquoted(self) -> None:
        assert binary(b"", CE_Subject='"a \\"quoted\\" %C3%BC"').attributes.subject == 'a "quoted" ü'

    def test_a_batch_is_one_event_each_and_may_be_empty(self) -> None:
        body = json.dumps([ce(id="1"), ce(id="2")]).encode()
        assert [event.data["id"] for event in read_bodies(BATCHED, body, LIMITS)] == ["1", "2"]
        assert read_bodies(BATCHED, b"[]", LIMITS) == []
        assert [event.data["id"] for event in read_bodies(STRUCTURED, json.dumps(ce()).encode(), LIMITS)] == ["1"]

    @pytest.mark.promise("O06")
    @pytest.mark.parametrize(
        ("headers", "body", "said"),
        [
            (STRUCTURED, b"{", "not JSON"),
            (STRUCTURED, b'{"a": NaN}', "not JSON"),
            (STRUCTURED, b"[" * 100_000, "not JSON"),
            (STRUCTURED, b" " * (MAX_BODY_BYTES + 1), "the limit is"),
            (BATCHED, b"[]", "take it with ingest_cloudevents"),
            ({"Content-Type": "application/cloudevents+avro"}, b"", "event format 'application/cloudevents+avro'"),
            ({"Content-Type": "application/json"}, b"{}", "neither a Content-Type of application/cloudevents+json nor"),
            ({}, b"", "neither a Content-Type"),
            ({"ce-id": "1"}, b"", "source, type, specversion missing"),
            ({"ce-id": "%FF"}, b"", "the header ce-id is not percent-encoded UTF-8"),
            ({"ce-datacontenttype": "a/b"}, b"", "give Content-Type"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_a_request_that_is_none_is_refused_in_one_line(
        self, headers: dict[str, str], body: bytes, said: str
    ) -> None:
        with pytest.raises(InvalidInputError) as refused:
            read_body(headers, body, LIMITS)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)

    @pytest.mark.promise("O06")
    def test_one_wrong_event_makes_its_batch_wrong_by_its_place(self) -> None:
        with pytest.raises(InvalidInputError, match=r"^event 2: id missing"):
            read_bodies(BATCHED, json.dumps([ce(), ce(id=None)]).encode(), LIMITS)
        with pytest.raises(InvalidInputError, match="a JSON array"):
            read_bodies(BATCHED, b"{}", LIMITS)

    @pytest.mark.promise("O06")
    def test_a_body_that_claims_json_and_is_none_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="the body should be application/json: not JSON"):
            binary(b"{", Content_Type="application/json")


def lines(raw: bytes, max_bytes: int = MAX_BODY_BYTES) -> list[str]:
    """What a file says: ids, and errors as they are told."""
    return [
        line.said.data["id"] if isinstance(line.said, NewEvent) else str(line.said)
        for line in read_file(io.BytesIO(raw), LIMITS, max_bytes=max_bytes)
    ]


class TestAFile:
    """One event a line, one over many lines, or an array."""

    def test_the_three_forms_say_the_same(self) -> None:
        events = [ce(id="1"), ce(id="2")]
        apart = b"\n".join(json.dumps(event).encode() for event in events)
        assert lines(apart) == lines(b"\xef\xbb\xbf\r\n" + apart + b"\n\n") == ["1", "2"]
        assert lines(json.dumps(events).encode()) == lines(b"\n " + json.dumps(events, indent=2).encode()) == ["1", "2"]
        assert lines(json.dumps(events[0], indent=2).encode()) == lines(json.dumps(events[0]).encode()) == ["1"]
        assert lines(b"") == lines(b"\n \n") == lines(b"[]") == []

    @pytest.mark.promise("O06")
    def test_a_bad_one_is_told_by_its_place_and_the_others_are_read(self) -> None:
        good, bad = json.dumps(ce()).encode(), json.dumps(ce(id=None)).encode()
        assert lines(good + b"\n\n" + bad + b"\n[]\n" + good) == [
            "1",
            "line 3: id missing; a CloudEvent has id, source, type, specversion",
            "line 4: a CloudEvent is one JSON object",
            "1",
        ]
        assert lines(b"[" + good + b"," + bad + b",7]")[1:] == [
            "event 2: id missing; a CloudEvent has id, source, type, specversion",
            "event 3: a CloudEvent is one JSON object",
        ]
        assert lines(bad)[0].startswith("line 1: id missing")
        assert lines(b"{\n" + good)[0].startswith("line 1: not JSON")
        assert lines(b"[" + good)[0].startswith("the batch: not JSON")
        assert lines(json.dumps(ce(id=None), indent=1).encode())[0].startswith("the event: id missing")

    @pytest.mark.promise("O06")
    def test_a_line_above_the_bound_is_told_and_passed_over(self) -> None:
        good = json.dumps(ce()).encode()
        huge = json.dumps(ce(data="x" * 5_000)).encode()
        assert lines(huge + b"\n" + good, max_bytes=1_000) == [
            f"line 1: {len(huge) + 1:,} bytes, the limit is 1,000",
            "1",
        ]

    def test_its_check_counts_and_keeps_nothing(self) -> None:
        checked = check_file(io.BytesIO(b"\n".join([json.dumps(ce()).encode(), b"{"] * 40)), LIMITS)
        assert (checked.deliveries, checked.bad, len(checked.errors)) == (40, 40, 20)


NAMES = st.sampled_from(
    [
        "specversion",
        "id",
        "source",
        "type",
        "subject",
        "time",
        "data",
        "data_base64",
        "datacontenttype",
        "labels",
        "x",
        "X",
    ]
)
FREE = ("subject", "time", "data", "data_base64", "datacontenttype", "dataschema", "labels", "x")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("1.0")
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


@pytest.mark.promise("O06")
class TestFuzz:
    """Whatever comes is an event or one line of InvalidInputError."""

    @staticmethod
    def takes(headers: dict[str, str], raw: bytes) -> None:
        try:
            said: list[object] = [*read_bodies(headers, raw, LIMITS)]
        except InvalidInputError as refused:
            said = [refused]
        assert all(isinstance(one, NewEvent) or "\n" not in str(one) for one in said)

    @settings(max_examples=300, deadline=None)
    @given(
        value=JSON
        | st.fixed_dictionaries(
            {name: st.just(text) for name, text in ce().items()},
            optional=dict.fromkeys(FREE, JSON),
        )
    )
    def test_any_json(self, value: Any) -> None:  # noqa: ANN401 - any
        raw = json.dumps(value).encode(errors="surrogatepass")
        self.takes(STRUCTURED, raw)
        self.takes(BATCHED, raw)
        assert len(list(read_file(io.BytesIO(raw), LIMITS))) >= 0

    @settings(max_examples=200, deadline=None)
    @given(raw=st.binary(max_size=200))
    def test_any_bytes(self, raw: bytes) -> None:
        for headers in (STRUCTURED, BATCHED, {"ce-id": "1", "ce-source": "/", "ce-type": "x", "ce-specversion": "1.0"}):
            self.takes(headers, raw)
        assert all(isinstance(line.said, NewEvent | InvalidInputError) for line in read_file(io.BytesIO(raw), LIMITS))

    @settings(max_examples=300, deadline=None)
    @given(
        headers=st.dictionaries(
            st.sampled_from(
                ["ce-id", "Ce-Source", "ce-type", "ce-specversion", "ce-time", "ce-x", "ce-", "content-type"]
            ),
            st.text(max_size=30) | st.sampled_from(["1.0", "/a", "application/json", "text/plain; charset=", "%", '"']),
        ),
        raw=st.binary(max_size=30),
    )
    def test_any_headers(self, headers: dict[str, str], raw: bytes) -> None:
        self.takes(headers, raw)
