"""One GitHub delivery, read without any I/O."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox_core.domain.board import Card, apply_change
from outbox_core.domain.errors import ConfigurationError, InvalidInputError
from outbox_core.domain.event import BOARD, FORGE
from outbox_core.domain.forge_delivery import Delivery, Ignored
from outbox_core.sources.github import read_delivery
from outbox_core.sources.github_kinds import CARD_KINDS, COMMENT_KINDS, ITEM_KINDS, OTHER_KINDS
from outbox_core.sources.github_lines import check_lines, read_lines
from outbox_core.sources.github_payloads import MAX_BODY_CHARS, MAX_LABELS, MOST_DATA_BYTES
from outbox_core.sources.lines import MOST_ERRORS
from tests.deliveries import deliveries_of, delivery_files, issue_payload, pull_payload

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "it's a secret to everybody"  # noqa: S105 - of these tests


def headers(kind: str = "issues", delivery: str = "d-1", **more: str) -> dict[str, str]:
    return {"X-GitHub-Event": kind, "X-GitHub-Delivery": delivery, **more}


def signature(raw: bytes, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()


def said(payload: object, kind: str = "issues", delivery: str = "d-1") -> Delivery | Ignored:
    return read_delivery(headers(kind, delivery), json.dumps(payload).encode(), secret=None)


def taken(payload: object, kind: str = "issues", delivery: str = "d-1") -> Delivery:
    read = said(payload, kind, delivery)
    assert isinstance(read, Delivery)
    return read


def refused(payload: object, kind: str = "issues") -> str:
    with pytest.raises(InvalidInputError) as caught:
        said(payload, kind)
    text = str(caught.value)
    assert "\n" not in text
    return text


class TestEnvelope:
    @pytest.mark.promise("O06")
    def test_a_right_signature_over_the_raw_body_is_taken_whatever_the_case_of_the_header(self) -> None:
        raw = json.dumps(issue_payload(), indent=3).encode()
        read = read_delivery(headers() | {"x-HUB-signature-256": signature(raw)}, raw, secret=SECRET)
        assert read.event_id == "d-1"

    @pytest.mark.promise("O06")
    @pytest.mark.parametrize(
        "given_signature",
        [
            None,
            "",
            "sha256=",
            "sha1=abc",
            "sha256=" + "0" * 64,
            "sha256=é",
            signature(b"other"),
            signature(b"{}", "other"),
        ],
    )
    def test_a_missing_or_wrong_signature_is_refused_before_the_body_is_read(self, given_signature: str | None) -> None:
        more = {} if given_signature is None else {"X-Hub-Signature-256": given_signature}
        with pytest.raises(InvalidInputError, match=r"signature|Signature") as caught:
            read_delivery(headers(**more), b"not json", secret=SECRET)
        assert SECRET not in str(caught.value)

    @pytest.mark.promise("O06")
    def test_a_body_changed_by_one_byte_does_not_fit_its_signature(self) -> None:
        raw = json.dumps(issue_payload()).encode()
        with pytest.raises(InvalidInputError, match="does not fit the body"):
            read_delivery(headers() | {"X-Hub-Signature-256": signature(raw)}, raw + b" ", secret=SECRET)

    @pytest.mark.promise("O06")
    def test_an_empty_secret_is_a_wrong_setting_and_not_no_secret(self) -> None:
        with pytest.raises(ConfigurationError, match="secret is empty"):
            read_delivery(headers(), b"{}", secret="")

    @pytest.mark.promise("O06")
    def test_a_body_of_20_mb_gets_one_line_that_names_size_and_limit(self) -> None:
        with pytest.raises(InvalidInputError, match=r"20,000,000 bytes.*10,485,760") as caught:
            read_delivery(headers(), b" " * 20_000_000, secret=None)
        assert "\n" not in str(caught.value)

    @pytest.mark.promise("O06")
    @pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": "\\ud800"}', b"1" * 6_000])
    def test_a_body_that_is_not_json_is_refused(self, raw: bytes) -> None:
        with pytest.raises(InvalidInputError, match="not JSON"):
            read_delivery(headers(), raw, secret=None)

    @pytest.mark.promise("O06")
    @pytest.mark.parametrize(("payload", "name"), [(None, "null"), ([], "an array"), ("x", "a text"), (1, "a number")])
    def test_a_payload_that_is_no_object_is_refused_by_what_it_is(self, payload: object, name: str) -> None:
        assert name in refused(payload)

    @pytest.mark.promise("O06")
    @pytest.mark.parametrize("missing", ["X-GitHub-Event", "X-GitHub-Delivery"])
    def test_a_missing_header_is_named(self, missing: str) -> None:
        given_headers = {name: value for name, value in headers().items() if name != missing}
        with pytest.raises(InvalidInputError, match=missing):
            read_delivery(given_headers, json.dumps(issue_payload()).encode(), secret=None)

    @pytest.mark.promise("O06")
    def test_a_kind_that_github_does_not_have_is_refused_with_the_nearest_one(self) -> None:
        assert refused({"action": "opened"}, "issue") == "GitHub has no event 'issue'; did you mean issues?"
        assert refused({}, "🛸" * 500).startswith("GitHub has no event ")

    @pytest.mark.parametrize("kind", sorted(OTHER_KINDS))
    def test_a_known_kind_that_concerns_no_card_is_ignored_with_its_reason(self, kind: str) -> None:
        assert said({"zen": "anything"}, kind) == Ignored(event_id="d-1", kind=kind, reason="concerns no card")

    def test_no_kind_is_listed_twice(self) -> None:
        kinds = [*CARD_KINDS, *COMMENT_KINDS, *ITEM_KINDS, *OTHER_KINDS]
        assert len(kinds) == len(set(kinds))

    @pytest.mark.promise("E46")
    def test_a_delivery_id_that_fits_no_key_is_hashed_and_kept_in_the_data(self) -> None:
        read = taken(issue_payload(), delivery="a b|c")
        assert read.event_id == hashlib.sha256(b"a b|c").hexdigest()
        assert read.data["delivery"] == "a b|c"
        assert "delivery" not in taken(issue_payload()).data

    @pytest.mark.promise("O06")
    def test_a_delivery_id_without_end_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="200"):
            read_delivery(headers(delivery="x" * 201), json.dumps(issue_payload()).encode(), secret=None)


class TestCards:
    @pytest.mark.promise("E36")
    def test_opened_brings_its_list_of_labels_for_the_card_that_it_creates(self) -> None:
        read = taken(issue_payload("opened", state="open", labels=[{"name": "bug"}, {"name": "pump"}]))
        assert read.change is not None
        assert read.change.opening_labels == ("bug", "pump")
        created = apply_change("t", None, read.change)
        assert (created.labels, created.state, created.author) == (("bug", "pump"), "open", "ada")
        standing = Card(tenant_id="t", card_id=created.card_id, version=3)
        assert apply_change("t", standing, read.change).labels == ()

    @pytest.mark.promise("E36")
    @pytest.mark.parametrize("action", ["edited", "assigned", "closed", "labeled", "unlabeled", "milestoned"])
    def test_any_other_action_changes_labels_only_by_the_one_it_names(self, action: str) -> None:
        payload = issue_payload(action, labels=[{"name": "stale"}, {"name": "Bug"}], label={"name": "Bug"})
        change = taken(payload).change
        assert change is not None
        assert change.opening_labels == ()
        assert change.labels_added == (("Bug",) if action == "labeled" else ())
        assert change.labels_removed == (("Bug",) if action == "unlabeled" else ())
        assert "stale" not in apply_change("t", None, change).labels

    def test_labeled_without_its_label_adds_none(self) -> None:
        change = taken(issue_payload("unlabeled", labels=[{"name": "bug"}])).change
        assert change is not None
        assert (change.labels_added, change.labels_removed) == ((), ())

    def test_a_missing_field_leaves_the_cards_and_a_null_empties_it(self) -> None:
        missing = taken(issue_payload()).change
        emptied = issue_payload(body=None)
        emptied["issue"]["assignee"] = None
        null = taken(emptied).change
        assert missing is not None
        assert null is not None
        assert (missing.body, missing.assignee, missing.state) == (None, None, None)
        assert (null.body, null.assignee) == ("", "")

    @pytest.mark.parametrize(
        ("fields", "state"),
        [
            ({"state": "open"}, "open"),
            ({"state": "closed", "merged": False, "merged_at": None}, "closed"),
            ({"state": "closed", "merged": True}, "merged"),
            ({"state": "closed", "merged_at": "2026-11-02T09:00:00Z"}, "merged"),
        ],
    )
    def test_a_pull_request_is_open_closed_or_merged(self, fields: dict[str, Any], state: str) -> None:
        read = taken(pull_payload("closed", **fields), "pull_request")
        assert read.change is not None
        assert (read.subject, read.change.state, read.source) == ("gh.pr.9001", state, BOARD)

    @pytest.mark.parametrize("action", ["deleted", "transferred"])
    def test_a_deletion_and_a_transfer_end_the_card(self, action: str) -> None:
        change = taken(issue_payload(action)).change
        assert change is not None
        assert apply_change("t", None, change).gone

    def test_the_actor_is_the_sender_and_the_cards_author_is_who_opened_it(self) -> None:
        read = taken(issue_payload())
        assert read.change is not None
        assert (read.actor, read.change.author) == ("grace", "ada")

    @pytest.mark.parametrize(
        ("times", "at"),
        [
            ({"updated_at": "2026-11-02T10:00:00+02:00"}, datetime(2026, 11, 2, 8, tzinfo=UTC)),
            ({"updated_at": None, "closed_at": "2026-11-02T07:00:00Z"}, datetime(2026, 11, 2, 7, tzinfo=UTC)),
            (
                {"updated_at": None, "created_at": "2026-11-01T07:00:00.123456Z"},
                datetime(2026, 11, 1, 7, 0, 0, 123000, tzinfo=UTC),
            ),
            ({"updated_at": None}, datetime(1970, 1, 1, tzinfo=UTC)),
        ],
    )
    def test_the_time_is_the_last_that_the_payload_knows(self, times: dict[str, Any], at: datetime) -> None:
        payload = issue_payload()
        payload["issue"] |= times
        read = taken(payload)
        assert read.change is not None
        assert read.change.at == at

    @pytest.mark.promise("O06")
    @pytest.mark.parametrize(
        ("broken", "path"),
        [
            ({"action": None}, "$.action"),
            ({"action": ""}, "$.action"),
            ({"issue": None}, "$.issue"),
            ({"issue": {"number": 1}}, "$.issue.id"),
            ({"issue": {"id": 1}}, "$.issue.number"),
            ({"issue": {"id": "1", "number": 1}}, "$.issue.id"),
            ({"issue": {"id": True, "number": 1}}, "$.issue.id"),
            ({"issue": {"id": 2**64, "number": 1}}, "$.issue.id"),
            ({"issue": {"id": 1, "number": -1}}, "$.issue.number"),
            ({"issue": {"id": 1, "number": 1, "labels": [{"name": "a"}, {}]}}, "$.issue.labels[1].name"),
            ({"issue": {"id": 1, "number": 1, "labels": [{"name": "x"}] * (MAX_LABELS + 1)}}, "$.issue.labels"),
            ({"issue": {"id": 1, "number": 1, "updated_at": "yesterday"}}, "$.issue.updated_at"),
            ({"issue": {"id": 1, "number": 1, "updated_at": "0001-01-01T00:00:00+05:00"}}, "$.issue.updated_at"),
            ({"label": {"name": "x" * 101}}, "$.label.name"),
        ],
    )
    def test_what_a_card_kind_must_have_is_named_by_its_path(self, broken: dict[str, Any], path: str) -> None:
        assert f"{path}: " in refused(issue_payload() | broken)

    @pytest.mark.promise("O06")
    def test_a_pull_request_delivery_without_its_pull_request_is_refused(self) -> None:
        assert "$.pull_request: " in refused(issue_payload(), "pull_request")


class TestComments:
    def test_a_comment_speaks_of_its_card_and_changes_nothing(self) -> None:
        comment = {"id": 5, "body": "hm", "user": {"login": "ida"}, "updated_at": "2026-11-02T11:00:00Z"}
        read = taken(
            issue_payload("created", state="open", labels=[{"name": "bug"}]) | {"comment": comment}, "issue_comment"
        )
        assert (read.source, read.type, read.subject, read.change) == (FORGE, "issue_comment", "gh.issue.7001", None)
        assert (read.seen.state, read.seen.labels, read.seen.repo, read.seen.author) == (
            "open",
            ("bug",),
            "acme/pumps",
            "grace",
        )
        assert read.data["comment"] == {"id": 5, "body": "hm", "author": "ida"}
        assert read.occurred_at == datetime(2026, 11, 2, 11, tzinfo=UTC)

    def test_a_comment_on_a_pull_request_names_the_card_by_its_link(self) -> None:
        links = {"html_url": "https://github.com/acme/pumps/pull/13", "merged_at": None}
        read = taken(issue_payload("created", pull_request=links), "issue_comment")
        assert read.card_link == "https://github.com/acme/pumps/pull/13"

    def test_the_issue_side_of_a_pull_request_makes_no_second_card(self) -> None:
        links = {"html_url": "https://github.com/acme/pumps/pull/13", "merged_at": "2026-11-02T09:00:00Z"}
        read = taken(issue_payload("milestoned", state="closed", pull_request=links))
        assert (read.change, read.source, read.seen.state) == (None, FORGE, "merged")

    @pytest.mark.parametrize(
        "kind", ["pull_request_review", "pull_request_review_comment", "pull_request_review_thread"]
    )
    def test_a_review_speaks_of_its_pull_request(self, kind: str) -> None:
        read = taken(pull_payload("submitted") | {"review": {"id": 3, "state": "approved"}}, kind)
        assert (read.subject, read.source, read.data["comment"]["state"]) == ("gh.pr.9001", FORGE, "approved")


class TestBounds:
    @pytest.mark.promise("E09", "O06")
    @pytest.mark.parametrize("character", ["x", "\x01", "🜁", '"'])
    def test_the_data_stays_small_whatever_the_payload_holds(self, character: str) -> None:
        def text(most: int) -> str:
            return character * most

        huge, name = text(300_000), text(200)
        user = {"login": name, "type": name}
        url = "https://" + text(992)
        comment = {"id": 2**62, "html_url": url, "body": huge, "user": user, "state": name, "path": huge}
        branch = {"ref": huge, "sha": name}
        fields = {"title": huge, "body": huge, "html_url": url, "user": user, "head": branch, "base": branch}
        payload = pull_payload(name)
        payload["pull_request"] |= fields
        payload |= {
            "comment": comment,
            "label": {"name": text(100)},
            "milestone": {"title": huge},
            "assignee": user,
            "requested_reviewer": user,
            "sender": user,
            "before": name,
            "after": name,
            "changes": {f"{number}{huge}": {} for number in range(20)},
        }
        read = read_delivery(headers("pull_request", name), json.dumps(payload).encode(), secret=None, max_bytes=2**30)
        assert isinstance(read, Delivery)
        assert len(json.dumps(dict(read.data), ensure_ascii=False).encode()) <= MOST_DATA_BYTES
        assert read.change is not None
        assert len(read.change.body or "") == MAX_BODY_CHARS

    def test_an_address_that_is_none_is_left_out(self) -> None:
        read = taken(issue_payload(html_url="javascript:alert(1)"))
        assert read.change is not None
        assert (read.change.link, read.data.get("url")) == (None, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from(
    [
        *(
            "id",
            "number",
            "title",
            "body",
            "state",
            "html_url",
            "user",
            "assignee",
            "labels",
            "draft",
            "merged",
            "head",
        ),
        *("base", "pull_request", "created_at", "updated_at", "closed_at", "merged_at"),
    ]
)
BESIDE = st.sampled_from(
    [
        *(
            "action",
            "issue",
            "pull_request",
            "comment",
            "review",
            "label",
            "milestone",
            "assignee",
            "sender",
            "changes",
        ),
        *("repository", "requested_reviewer", "before", "after"),
    ]
)
INSTANTS = st.datetimes().map(datetime.isoformat) | st.integers() | st.floats()


@pytest.mark.promise("O06")
class TestFuzz:
    @settings(max_examples=150, deadline=None)
    @given(st.dictionaries(st.text(), st.text(), max_size=3), st.binary(max_size=200), st.none() | st.text(min_size=1))
    def test_any_request_is_read_or_refused(self, more: dict[str, str], raw: bytes, secret: str | None) -> None:
        try:
            read = read_delivery(headers() | more, raw, secret=secret)
        except InvalidInputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right; nothing else is
        else:
            assert isinstance(read, Delivery | Ignored)

    @settings(max_examples=300, deadline=None)
    @given(
        st.sampled_from([*CARD_KINDS, *COMMENT_KINDS, *ITEM_KINDS]),
        st.dictionaries(FIELDS, JSON | INSTANTS, max_size=5),
        st.dictionaries(BESIDE, JSON, max_size=3),
        st.text(min_size=1, max_size=80),
    )
    def test_any_payload_is_read_or_refused_and_what_is_read_can_be_stored(
        self, kind: str, fields: dict[str, Any], beside: dict[str, Any], delivery: str
    ) -> None:
        payload = {**issue_payload(), **pull_payload()}
        payload["issue"] |= fields
        payload["pull_request"] |= fields
        payload |= {"project_card": {"id": 1, **fields}, "projects_v2_item": {"id": 1, **fields}}
        payload |= beside
        try:
            read = read_delivery(headers(kind, delivery), json.dumps(payload).encode(), secret=None)
        except InvalidInputError as error:
            assert str(error)  # noqa: PT017 - either outcome is right; nothing else is
            return
        assert isinstance(read, Delivery)
        json.dumps(dict(read.data), allow_nan=False, ensure_ascii=False).encode()
        assert read.occurred_at is None or read.occurred_at.tzinfo is UTC
        if read.change is not None:
            once = apply_change("t", None, read.change)
            assert apply_change("t", once, read.change) == once


class TestLines:
    def stream(self, *lines: object) -> io.BytesIO:
        return io.BytesIO(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))

    def line(self, delivery: str = "d-1", **more: object) -> dict[str, Any]:
        return {"event": "issues", "delivery": delivery, "payload": issue_payload(), **more}

    def signed(self, body: str, secret: str = SECRET) -> dict[str, Any]:
        return {"event": "issues", "delivery": "d-1", "body": body, "signature": signature(body.encode(), secret)}

    @pytest.mark.promise("O06")
    def test_bad_json_on_line_17_is_named_and_the_other_lines_are_still_read(self) -> None:
        lines = [self.line(f"d-{number}") for number in range(1, 21)]
        stream = self.stream(*lines[:16], b'{"event": ', *lines[17:])
        checked = check_lines(stream, secret=None)
        assert (checked.deliveries, checked.bad) == (19, 1)
        assert str(checked.errors[0]).startswith("line 17: not JSON: ")
        stream.seek(0)
        good = [line.said for line in read_lines(stream, secret=None) if isinstance(line.said, Delivery)]
        assert [delivery.event_id for delivery in good] == [f"d-{n}" for n in range(1, 21) if n != 17]

    @pytest.mark.promise("O06")
    @pytest.mark.parametrize(
        ("line", "why"),
        [
            (b"[]", "should be a valid dictionary"),
            (b"7", "should be a valid dictionary"),
            ({"delivery": "d", "payload": {}}, "$.event: Field required"),
            ({"event": "issues", "payload": {}}, "$.delivery: Field required"),
            ({"event": "issues", "delivery": "", "payload": {}}, "$.delivery: "),
            ({"event": "issues", "delivery": "d"}, "neither payload nor body"),
            ({"event": "issues", "delivery": "d", "payload": None}, "the payload is null"),
            ({"event": "issues", "delivery": "d", "body": "{"}, "the body is not JSON"),
            ({"event": "isues", "delivery": "d", "payload": {}}, "did you mean issues?"),
            ({"event": "issues", "delivery": "d", "payload": {}}, "$.action: Field required"),
        ],
    )
    def test_a_bad_line_says_its_number_and_what_to_do(self, line: object, why: str) -> None:
        (error,) = check_lines(self.stream(b"", line), secret=None).errors
        assert str(error).startswith("line 2: ")
        assert why in str(error)
        assert "\n" not in str(error)

    @pytest.mark.promise("O06")
    def test_with_a_secret_a_line_counts_only_with_a_body_and_its_signature(self) -> None:
        body = json.dumps(issue_payload(title="Größe\n"), indent=1)
        good, unsigned = self.signed(body), {"event": "issues", "delivery": "d-1", "body": body}
        checked = check_lines(self.stream(good, self.line(), unsigned, self.signed(body, "wrong")), secret=SECRET)
        assert (checked.deliveries, checked.bad) == (1, 3)
        assert [str(error).split(",")[0] for error in checked.errors] == [
            "line 2: a secret is set",
            "line 3: a secret is set",
            "line 4: the signature does not fit the body; check that both sides have the same secret",
        ]

    @pytest.mark.promise("O06")
    def test_with_an_empty_secret_nothing_is_read(self) -> None:
        with pytest.raises(ConfigurationError, match="secret is empty"):
            check_lines(self.stream(self.signed("{}")), secret="")

    @pytest.mark.promise("O06")
    @pytest.mark.parametrize("form", ["payload", "body"])
    def test_a_line_of_20_mb_is_refused_and_its_neighbours_are_read(self, form: str) -> None:
        big = issue_payload(body="x" * 20_000_000)
        line = {"event": "issues", "delivery": "d", form: big if form == "payload" else json.dumps(big)}
        checked = check_lines(self.stream(self.line(), line, self.line()), secret=None)
        assert (checked.deliveries, checked.bad) == (2, 1)
        assert str(checked.errors[0]).startswith("line 2: the body is 20,000,")

    @pytest.mark.promise("O06")
    def test_a_line_without_end_is_never_held_whole(self) -> None:
        class Endless(io.RawIOBase):
            """Counts the longest read that was asked for."""

            left, longest = 60_000_000, 0

            def readline(self, size: int | None = -1, /) -> bytes:
                Endless.longest = max(Endless.longest, -1 if size is None else size)
                part = min(self.left, size or 0)
                self.left -= part
                return b"x" * part

        checked = check_lines(Endless(), secret=None, max_bytes=1_000)  # type: ignore[arg-type]  # only readline is used
        assert str(checked.errors[0]).startswith("line 1: the body is 60,000,000 bytes")
        assert 0 < Endless.longest < 2_000_000

    def test_a_byte_order_mark_and_empty_lines_are_passed_over(self) -> None:
        raw = (
            b"\xef\xbb\xbf"
            + json.dumps(self.line()).encode()
            + b"\r\n\r\n"
            + json.dumps(self.line()).encode()
            + b"\n\n"
        )
        checked = check_lines(io.BytesIO(raw), secret=None)
        assert (checked.deliveries, checked.bad) == (2, 0)

    def test_a_file_of_bad_lines_is_counted_whole_and_told_of_in_part(self) -> None:
        checked = check_lines(io.BytesIO(b"x\n" * 500), secret=None)
        assert (checked.bad, len(checked.errors)) == (500, MOST_ERRORS)


@pytest.mark.parametrize("path", delivery_files(), ids=lambda path: path.stem)
class TestFiles:
    def test_every_delivery_of_a_real_file_is_taken_or_ignored_with_a_reason(self, path: Path) -> None:
        with path.open("rb") as stream:
            read = [line.said for line in read_lines(stream, secret=None)]
        assert [error for error in read if isinstance(error, InvalidInputError)] == []
        kinds = Counter(delivery["event"] for delivery in deliveries_of(path))
        taken_kinds = Counter(said.type for said in read if isinstance(said, Delivery))
        ignored_kinds = Counter(said.kind for said in read if isinstance(said, Ignored))
        assert taken_kinds + ignored_kinds == kinds
        assert {*taken_kinds} <= {*CARD_KINDS, *COMMENT_KINDS, *ITEM_KINDS}
        assert all(said.reason for said in read if isinstance(said, Ignored))

    def test_every_real_delivery_says_who_where_and_when(self, path: Path) -> None:
        with path.open("rb") as stream:
            for line in read_lines(stream, secret=None):
                if isinstance(line.said, Delivery):
                    assert all((line.said.actor, line.said.occurred_at))
                    # A project's item belongs to no repository, and GitHub sends no address of it.
                    where = line.said.seen.repo and line.said.data["url"]
                    assert where or (line.said.type == "projects_v2_item" and line.said.data["project"])


def test_the_examples_are_two_dozen_with_a_redelivery_a_deletion_and_noise() -> None:
    deliveries = deliveries_of(delivery_files()[0])
    ids = Counter(delivery["delivery"] for delivery in deliveries)
    assert 24 <= len(deliveries) <= 30
    assert max(ids.values()) == 2
    kinds = {(delivery["event"], delivery["payload"].get("action")) for delivery in deliveries}
    assert {("issues", "deleted"), ("pull_request", "closed"), ("star", "created"), ("ping", None)} <= kinds
