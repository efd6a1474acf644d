"""GitHub's own boards: the cards of projects (classic), and the items of projects, as cards of their own.

An item stands beside the issue or pull request that it may show: it has a column of its own, its board's, and another
life. Its board is the project, `gh.project.<id>`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outbox_core.domain.board import CardChange
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import DELETION_ACTIONS, Snapshot
from outbox_core.domain.forge_delivery import Delivery
from outbox_core.domain.identity import fitting_id
from outbox_core.sources.github_payloads import (
    MAX_BODY_CHARS,
    MAX_EXCERPT_CHARS,
    MAX_TITLE_CHARS,
    UNDATED,
    Instant,
    Name,
    Positive,
    cut,
    present,
    url_of,
    where_and_why,
)

if TYPE_CHECKING:
    from datetime import datetime

_STATUS = "status"


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _User(_Part):
    login: Name
    type: Name | None = None


class _Repository(_Part):
    full_name: Name


class _Named(_Part):
    name: Name


class _Value(_Part):
    """The change of one of an item's fields; GitHub tells the values only of some types of fields."""

    field_name: Name | None = None
    field_type: Name | None = None
    before: _Named | Any = Field(default=None, alias="from", union_mode="left_to_right")
    after: _Named | Any = Field(default=None, alias="to", union_mode="left_to_right")

    @property
    def is_status(self) -> bool:
        """It is the field after which a project's board has its columns, and its value is told."""
        told = {"before", "after"} & self.model_fields_set
        return self.field_type == "single_select" and (self.field_name or "").casefold() == _STATUS and bool(told)


class _From(_Part):
    before: Any = Field(default=None, alias="from")


class _Changes(_Part):
    column_id: _From | None = None
    field_value: _Value | None = None


class _ClassicCard(_Part):
    id: Positive
    column_id: Positive | None = None
    project_url: str | None = None
    note: str | None = None
    archived: bool | None = None
    creator: _User | None = None
    content_url: str | None = None
    url: str | None = None
    created_at: Instant | None = None
    updated_at: Instant | None = None


class _Item(_Part):
    id: Positive
    project_node_id: Name | None = None
    content_node_id: Name | None = None
    content_type: Name | None = None
    creator: _User | None = None
    archived_at: Instant | None = None
    created_at: Instant | None = None
    updated_at: Instant | None = None


class _Envelope(_Part):
    action: Annotated[Name, Field(min_length=1)]
    repository: _Repository | None = None
    sender: _User | None = None
    changes: _Changes | None = None


class _OfClassic(_Envelope):
    project_card: _ClassicCard


class _OfItem(_Envelope):
    projects_v2_item: _Item


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What either kind of payload says of its card."""

    card_id: str
    board: str | None
    state: str | None
    from_state: str | None
    archived: bool | None
    creator: _User | None
    changed_at: datetime | None
    note: str | None = None
    has_note: bool = False
    data: dict[str, Any]


def read_item(event_id: str, kind: str, payload: dict[str, Any]) -> Delivery:
    """Return what a `project_card` or `projects_v2_item` payload says.

    A classic card's state is its column's id, since GitHub sends no more of it; an item's is the value of its project's
    field `Status`, where the delivery tells it. Raises InvalidInputError, naming the JSON path, where the action or the
    card's id is missing, or where any field that is read has a wrong type.
    """
    said: _OfClassic | _OfItem
    try:
        said = _OfClassic.model_validate(payload) if kind == "project_card" else _OfItem.model_validate(payload)
    except ValidationError as error:
        raise InvalidInputError(where_and_why(error)) from None
    read = _classic(said) if isinstance(said, _OfClassic) else _item(said)
    actor = said.sender.login if said.sender else ""
    repo = said.repository.full_name if said.repository else None
    change = CardChange(
        card_id=read.card_id,
        at=read.changed_at or UNDATED,
        board=read.board,
        title=_title(read.note) if read.has_note else None,
        body=(cut(read.note, MAX_BODY_CHARS) or "") if read.has_note else None,
        state=read.state,
        from_state=read.from_state,
        archived=read.archived,
        repo=repo,
        author=read.creator.login if read.creator else None,
        deletes=said.action in DELETION_ACTIONS,
    )
    return Delivery(
        event_id=event_id,
        type=kind,
        action=said.action,
        subject=read.card_id,
        actor=actor,
        change=change,
        seen=Snapshot(state=read.state or "", repo=repo or "", author=actor, board=read.board or ""),
        data=present({**read.data, "sender": actor or None, "sender_type": said.sender and said.sender.type}),
        occurred_at=read.changed_at,
    )


def _classic(said: _OfClassic) -> _Read:
    card, moved = said.project_card, said.changes and said.changes.column_id
    project = (card.project_url or "").rstrip("/").rpartition("/")[2]
    return _Read(
        card_id=f"gh.card.{card.id}",
        board=_board(project),
        state=str(card.column_id) if card.column_id else None,
        from_state=str(moved.before) if moved and isinstance(moved.before, int) else None,
        archived=card.archived,
        creator=card.creator,
        changed_at=card.updated_at or card.created_at,
        note=card.note,
        has_note="note" in card.model_fields_set,
        data={
            "url": url_of(card.url),
            "project": cut(project, MAX_TITLE_CHARS),
            "column": card.column_id,
            "note": cut(card.note, MAX_EXCERPT_CHARS),
            "content_url": url_of(card.content_url),
        },
    )


def _item(said: _OfItem) -> _Read:
    item, value = said.projects_v2_item, said.changes and said.changes.field_value
    status = value if value and value.is_status else None
    return _Read(
        card_id=f"gh.item.{item.id}",
        board=_board(item.project_node_id or ""),
        state=_name(status.after) or "" if status else None,
        from_state=_name(status.before) if status else None,
        archived=item.archived_at is not None if "archived_at" in item.model_fields_set else None,
        creator=item.creator,
        changed_at=item.updated_at or item.created_at,
        data={
            "project": item.project_node_id,
            "content": item.content_node_id,
            "content_type": item.content_type,
            "field": value and value.field_name,
        },
    )


def _board(project: str) -> str | None:
    return fitting_id(f"gh.project.{project}") if project else None


def _name(value: object) -> str | None:
    return value.name if isinstance(value, _Named) else None


def _title(note: str | None) -> str:
    """Return a note's first line; a card that shows an issue has no note."""
    return cut(next(iter((note or "").strip().splitlines()), ""), MAX_TITLE_CHARS) or ""
