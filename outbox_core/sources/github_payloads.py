"""GitHub's payloads as far as they are read, and what they say of a card.

Fields that GitHub may add are ignored, and one that is missing leaves the card's; a wrong type is an error that names
its path. Text is cut, names are bounded: whatever a payload holds, what leaves here stays small (`MOST_DATA_BYTES`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from outbox_core.domain.board import CardChange
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import DELETION_ACTIONS, Snapshot
from outbox_core.domain.forge_delivery import Delivery

MAX_TITLE_CHARS = 300
MAX_BODY_CHARS = 65_536
"""GitHub's own bound of a body; a card keeps no more than this."""

MAX_EXCERPT_CHARS = 2_000
MAX_URL_CHARS = 1_000
MAX_LABELS = 100
"""GitHub's own bound of an issue's labels."""

MOST_DATA_BYTES = 64 * 1024
"""What an event's data can come to at most, each character escaped: a quarter of what an event may be by default."""

UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
"""The time of a delivery that tells none: older than everything."""

_WITHIN_64_BITS = 2**63 - 1


def _as_utc(instant: datetime) -> datetime:
    """Return an instant as stores keep it: aware UTC, whole milliseconds. A time without a zone is taken as UTC."""
    try:
        utc = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except OverflowError:
        raise ValueError("lies outside of the years 1 to 9999") from None
    return utc.replace(microsecond=utc.microsecond // 1_000 * 1_000)


Name = Annotated[str, Field(max_length=200)]
Instant = Annotated[datetime, AfterValidator(_as_utc)]
Positive = Annotated[int, Field(strict=True, gt=0, le=_WITHIN_64_BITS)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _User(_Part):
    login: Name
    type: Name | None = None


class _Label(_Part):
    name: Annotated[str, Field(max_length=100)]


class _Named(_Part):
    title: str | None = None


class _PullLinks(_Part):
    html_url: str | None = None
    merged_at: Instant | None = None


class _Branch(_Part):
    ref: str | None = None
    sha: Name | None = None


class _Subject(_Part):
    """An issue or a pull request. `pull_request` is set in an issue that is a pull request's other side."""

    id: Positive
    number: Positive
    title: str | None = None
    body: str | None = None
    state: Name | None = None
    html_url: str | None = None
    user: _User | None = None
    assignee: _User | None = None
    labels: Annotated[list[_Label], Field(max_length=MAX_LABELS)] | None = None
    draft: bool | None = None
    merged: bool | None = None
    head: _Branch | None = None
    base: _Branch | None = None
    pull_request: _PullLinks | None = None
    created_at: Instant | None = None
    updated_at: Instant | None = None
    closed_at: Instant | None = None
    merged_at: Instant | None = None

    @property
    def last_changed(self) -> datetime | None:
        """When it changed, as far as the payload says."""
        return self.updated_at or self.merged_at or self.closed_at or self.created_at

    @property
    def card_state(self) -> str | None:
        """`open`, `closed` or `merged`; None where the payload does not say."""
        merged = self.merged or self.merged_at or (self.pull_request and self.pull_request.merged_at)
        return "merged" if merged and self.state != "open" else self.state

    @property
    def label_names(self) -> tuple[str, ...]:
        """Its labels, as the payload lists them."""
        return tuple(label.name for label in self.labels or ())


class _Comment(_Part):
    """A comment or a review."""

    id: Positive | None = None
    html_url: str | None = None
    body: str | None = None
    user: _User | None = None
    state: Name | None = None
    path: str | None = None
    created_at: Instant | None = None
    updated_at: Instant | None = None
    submitted_at: Instant | None = None

    @property
    def last_changed(self) -> datetime | None:
        """When it changed, as far as the payload says."""
        return self.updated_at or self.submitted_at or self.created_at


class _Repository(_Part):
    full_name: Name


class _Payload(_Part):
    action: Annotated[Name, Field(min_length=1)]
    issue: _Subject | None = None
    pull_request: _Subject | None = None
    comment: _Comment | None = None
    review: _Comment | None = None
    label: _Label | None = None
    milestone: _Named | None = None
    assignee: _User | None = None
    requested_reviewer: _User | None = None
    repository: _Repository | None = None
    sender: _User | None = None
    changes: dict[str, Any] | None = None
    before: Name | None = None
    after: Name | None = None


def read_payload(event_id: str, kind: str, place: str, payload: dict[str, Any], *, touches_card: bool) -> Delivery:
    """Return what a payload of `kind` says; its issue or pull request stands under `place`.

    Raises InvalidInputError, naming the JSON path, where the action, or the subject's id or number, is missing, or
    where any field that is read has a wrong type.

    The issue side of a pull request (an `issues` or `issue_comment` delivery whose issue has `pull_request`) carries
    another id than the pull request itself. It is taken as talk about the card that has the pull request's link, and
    changes nothing: what changes, GitHub says by `pull_request` too.
    """
    try:
        said = _Payload.model_validate(payload)
    except ValidationError as error:
        raise InvalidInputError(where_and_why(error)) from None
    subject = said.issue if place == "issue" else said.pull_request
    if subject is None:
        raise InvalidInputError(f"$.{place}: Field required")
    card_id = f"gh.pr.{subject.id}" if place == "pull_request" else f"gh.issue.{subject.id}"
    other_side = subject.pull_request if place == "issue" else None
    remark = said.comment or said.review
    occurred_at = (remark.last_changed if remark else None) or subject.last_changed
    actor = said.sender.login if said.sender else ""
    return Delivery(
        event_id=event_id,
        type=kind,
        action=said.action,
        subject=card_id,
        card_link=(url_of(other_side.html_url) or url_of(subject.html_url) or "") if other_side else "",
        actor=actor,
        change=_card_change(card_id, said, subject) if touches_card and other_side is None else None,
        seen=Snapshot(
            state=subject.card_state or "",
            labels=subject.label_names,
            repo=said.repository.full_name if said.repository else "",
            author=actor,
        ),
        data=_extract(said, subject, remark),
        occurred_at=occurred_at,
    )


def _card_change(card_id: str, said: _Payload, subject: _Subject) -> CardChange:
    """Return the change of a card.

    The list of labels counts only in `opened`, and there only where it creates the card: any other list may be older
    than a label that was taken away here. A card that is first seen by another action therefore begins without labels,
    but for the one that this delivery adds. A delivery without any time counts as older than everything.
    """
    label = (said.label.name,) if said.label else ()
    return CardChange(
        card_id=card_id,
        at=subject.last_changed or UNDATED,
        title=cut(subject.title, MAX_TITLE_CHARS),
        body=_said(subject, "body", cut(subject.body, MAX_BODY_CHARS)),
        state=subject.card_state,
        assignee=_said(subject, "assignee", subject.assignee.login if subject.assignee else None),
        link=url_of(subject.html_url),
        repo=said.repository.full_name if said.repository else None,
        author=subject.user.login if subject.user else None,
        opening_labels=subject.label_names if said.action == "opened" else (),
        labels_added=label if said.action == "labeled" else (),
        labels_removed=label if said.action == "unlabeled" else (),
        deletes=said.action in DELETION_ACTIONS,
    )


def _said(subject: _Subject, name: str, value: str | None) -> str | None:
    """Tell a field that is null, which empties the card's, from one that is missing, which leaves it."""
    return (value or "") if name in subject.model_fields_set else None


def _extract(said: _Payload, subject: _Subject, remark: _Comment | None) -> dict[str, Any]:
    """Return the event's data: what a bot most often asks, never the payload whole. A key without a value is left out.

    - `number`, `title`, `url`, `body` (an excerpt), `author`, `draft` of the issue or pull request
    - `head`, `base` (branch names) and `head_sha` of a pull request
    - `comment`: {`id`, `url`, `author`, `body` (an excerpt), `path`, `state` (of a review)}
    - what the action is about: `label`, `milestone`, `assignee`, `reviewer`, `before` and `after`, `changed` (names)
    - `sender` and `sender_type`
    """
    return present(
        {
            "number": subject.number,
            "title": cut(subject.title, MAX_TITLE_CHARS),
            "url": url_of(subject.html_url),
            "body": cut(subject.body, MAX_EXCERPT_CHARS),
            "author": subject.user and subject.user.login,
            "draft": subject.draft,
            "head": subject.head and cut(subject.head.ref, MAX_TITLE_CHARS),
            "head_sha": subject.head and subject.head.sha,
            "base": subject.base and cut(subject.base.ref, MAX_TITLE_CHARS),
            "comment": remark
            and present(
                {
                    "id": remark.id,
                    "url": url_of(remark.html_url),
                    "author": remark.user and remark.user.login,
                    "body": cut(remark.body, MAX_EXCERPT_CHARS),
                    "path": cut(remark.path, MAX_TITLE_CHARS),
                    "state": remark.state,
                }
            ),
            "label": said.label and said.label.name,
            "milestone": said.milestone and cut(said.milestone.title, MAX_TITLE_CHARS),
            "assignee": said.assignee and said.assignee.login,
            "reviewer": said.requested_reviewer and said.requested_reviewer.login,
            "before": said.before,
            "after": said.after,
            "changed": [name[:40] for name in sorted(said.changes)[:10]] if said.changes else None,
            "sender": said.sender and said.sender.login,
            "sender_type": said.sender and said.sender.type,
        }
    )


def present(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what has no value."""
    return {name: value for name, value in fields.items() if value is not None}


def cut(text: str | None, most_chars: int) -> str | None:
    """Cut a text that is too long, and show that it was cut."""
    return text if text is None or len(text) <= most_chars else text[: most_chars - 1] + "…"


def url_of(text: str | None) -> str | None:
    """Return a web address; one that is none, or that is too long to be one of GitHub's, is left out."""
    return text if text and len(text) <= MAX_URL_CHARS and text.startswith(("https://", "http://")) else None


def where_and_why(error: ValidationError) -> str:
    """Return the JSON path of the first fault, and what it is; nothing of the value itself."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"${path}: {first['msg']}"
