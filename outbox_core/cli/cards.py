"""`outbox cards`: the cards of a tenant's boards."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outbox_core.cli.opening import opened
from outbox_core.cli.output import instant_text, json_option, print_json, print_table, say, tenant_option
from outbox_core.domain.errors import BoardNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outbox_core.application.change_card import CardChanged
    from outbox_core.bootstrap import Outbox
    from outbox_core.domain.board import Card

_Command = TypeVar("_Command", bound="Callable[..., Any]")

_FIELDS = (
    "card_id",
    "board",
    "state",
    "title",
    "body",
    "labels",
    "assignee",
    "author",
    "link",
    "repo",
    "bot",
    "bot_args",
    "archived_at",
    "deleted_at",
    "version",
)

_card_id = click.argument("card_id", metavar="CARD")


def _cause(command: _Command) -> _Command:
    """Add the options that say who changes a card, and why."""
    for option in (
        click.option(
            "--event-id", default="", metavar="ID", help="The change's event; the same again changes nothing."
        ),
        click.option(
            "--run-id", default="", metavar="ID", help="The run that changes it; such a change launches nothing."
        ),
        click.option("--reason", default="", metavar="TEXT", help="Why."),
        click.option("--author", default="", metavar="WHO", help="Who changes it."),
    ):
        command = option(command)
    return command


@click.group(short_help="Add, list, show, move, label, archive, restore, delete cards.")
def cards() -> None:
    """Add, list and show cards, and change them: each change and its event are written together, or not at all."""


@cards.command("add")
@tenant_option
@click.argument("card_id", metavar="[CARD]", required=False, default="")
@click.option("--board", "board_id", required=True, metavar="BOARD", help="The board that it stands on.")
@click.option("--title", required=True, metavar="TEXT", help="Its title.")
@click.option("--column", default="", metavar="COLUMN", help="Where it stands; without it, in the first column.")
@click.option("--body", default="", metavar="TEXT", help="Its text.")
@click.option("--label", "labels", multiple=True, metavar="LABEL", help="A label; may be given several times.")
@click.option("--assignee", default="", metavar="WHO", help="Who works on it.")
@click.option("--link", default="", metavar="URL", help="Where it is kept outside.")
@_cause
@json_option
def add(*, tenant: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Put a card on a board; without CARD its id is made up.

    \b
    JSON: {"card": {"card_id", "board", "state", "title", "body", "labels",
      "assignee", "author", "link", "repo", "bot", "bot_args",
      "archived_at", "deleted_at", "version"}, "seqs": [NUMBER, ...]}
    `state` is its column; `seqs` are the numbers of the change's events.
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.boards(tenant).create_card(**given)
    _print_changed(changed, f"stands in {changed.card.state}", as_json=as_json)


@cards.command("list")
@tenant_option
@click.option("--board", "board_id", required=True, metavar="BOARD", help="The board.")
@click.option("--after", default="", metavar="CARD", help="Only cards above this id; see next_after.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@json_option
def list_cards(*, tenant: str, board_id: str, after: str, limit: int, as_json: bool) -> None:
    """List the cards of a board by id, those that are archived or deleted left out.

    \b
    JSON: {"cards": [as `add` prints one, ...], "next_after": CARD or null}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        found = outbox.boards(tenant).cards(board_id, after=after, limit=limit)
        if not found and not after:
            _say_if_no_board(outbox, tenant, board_id)
    next_after = found[-1].card_id if len(found) == limit else None
    if as_json:
        print_json({"cards": [card_document(card) for card in found], "next_after": next_after})
        return
    print_table(
        ("card", "column", "title", "labels", "assignee"),
        ((card.card_id, card.state, card.title, ", ".join(card.labels), card.assignee) for card in found),
        folds=("title", "labels"),
    )
    if next_after is not None:
        same = f"--tenant {shlex.quote(tenant)} --board {shlex.quote(board_id)} --limit {limit}"
        say(f"there may be more: outbox cards list {same} --after {shlex.quote(next_after)}")


@cards.command("show")
@tenant_option
@_card_id
@json_option
def show(*, tenant: str, card_id: str, as_json: bool) -> None:
    """Show a card, a deleted one too.

    \b
    JSON: {"card": as `add` prints it}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        document = card_document(outbox.boards(tenant).card(card_id))
    if as_json:
        print_json({"card": document})
        return
    said = ((name, value) for name, value in document.items() if value not in (None, "", [], {}))
    print_table(("field", "value"), ((name, _told(value)) for name, value in said), folds=("value",))


@cards.command("move")
@tenant_option
@_card_id
@click.argument("column")
@click.option("--watchdog", is_flag=True, help="An automation moves it: that launches nothing.")
@_cause
@json_option
def move(*, tenant: str, card_id: str, column: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Move a card to another column of its board.

    \b
    JSON: {"card": as `add` prints it, "seqs": [] where it stood there already}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.boards(tenant).move_card(card_id, column, **given)
    _print_changed(changed, f"stands in {changed.card.state}", as_json=as_json)


@cards.command("label")
@tenant_option
@_card_id
@click.option("--add", "add_labels", multiple=True, metavar="LABEL", help="Add it; may be given several times.")
@click.option("--remove", "remove_labels", multiple=True, metavar="LABEL", help="Take it off; as --add.")
@_cause
@json_option
def label(
    *,
    tenant: str,
    card_id: str,
    add_labels: tuple[str, ...],
    remove_labels: tuple[str, ...],
    as_json: bool,
    **given: Any,  # noqa: ANN401 - click's options
) -> None:
    """Add labels to a card, and take labels off it; the others stay.

    \b
    JSON: {"card": as `add` prints it, "seqs": [] where it changed nothing}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.boards(tenant).label_card(card_id, add=add_labels, remove=remove_labels, **given)
    _print_changed(changed, f"carries {', '.join(changed.card.labels) or 'no label'}", as_json=as_json)


@cards.command("archive")
@tenant_option
@_card_id
@_cause
@json_option
def archive(*, tenant: str, card_id: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Take a card off the board's view.

    \b
    JSON: {"card": as `add` prints it, "seqs": [] where it was archived already}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.boards(tenant).archive_card(card_id, **given)
    _print_changed(changed, "is archived", as_json=as_json)


@cards.command("restore")
@tenant_option
@_card_id
@_cause
@json_option
def restore(*, tenant: str, card_id: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Bring a deleted or an archived card back.

    \b
    JSON: {"card": as `add` prints it, "seqs": [] where it was there already}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.boards(tenant).restore_card(card_id, **given)
    _print_changed(changed, f"stands in {changed.card.state}", as_json=as_json)


@cards.command("delete")
@tenant_option
@_card_id
@_cause
@json_option
def delete(*, tenant: str, card_id: str, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Mark a card deleted; a repeat tells the same time.

    \b
    JSON: {"card": as `add` prints it, "seqs": [] where it was deleted already}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.boards(tenant).delete_card(card_id, **given)
    _print_changed(changed, f"is deleted since {instant_text(changed.card.deleted_at)}", as_json=as_json)


def card_document(card: Card) -> Mapping[str, Any]:
    """Return a card as `--json` prints it."""
    return {
        **{name: getattr(card, name) for name in _FIELDS},
        "labels": list(card.labels),
        "bot_args": dict(card.bot_args),
    }


def _say_if_no_board(outbox: Outbox, tenant: str, board_id: str) -> None:
    """Say so where no card is shown because the board's name is a typo; a forge's boards have cards alone."""
    try:
        outbox.boards(tenant).board(board_id)
    except BoardNotFoundError as error:
        say(f"{error}, and no card stands on one of that name")


def _print_changed(changed: CardChanged, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"card": card_document(changed.card), "seqs": list(changed.seqs)})
        return
    told = ", ".join(f"event {seq}" for seq in changed.seqs) or "nothing changed"
    click.echo(f"card {changed.card.card_id} {text} ({told})")


def _told(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return ", ".join(map(str, value)) if isinstance(value, list) else instant_text(value)
