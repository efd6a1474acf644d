"""`outbox boards`: the boards of a tenant, their columns and what they are bound to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from outbox_core.bots import load_bots, projectors
from outbox_core.cli.opening import opened
from outbox_core.cli.output import json_option, print_json, print_table, say, tenant_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox_core.application.change_column import ColumnChanged
    from outbox_core.domain.board import Board

_board_id = click.argument("board_id", metavar="BOARD")
_author = click.option("--author", default="", metavar="WHO", help="Who does it; the cards' events tell.")


@click.group(short_help="Add, list, show and bind boards; change their columns.")
def boards() -> None:
    """Add, list, show and bind boards: columns, in which cards stand, and a projector that their moves are told."""


@boards.command("add")
@tenant_option
@_board_id
@click.option("--column", "columns", multiple=True, required=True, metavar="NAME", help="A column; several, in order.")
@json_option
def add(*, tenant: str, board_id: str, columns: tuple[str, ...], as_json: bool) -> None:
    """Make a board; the same one again is left as it is.

    \b
    JSON: {"board": {"id", "columns", "binding": {"kind", "target"} or null}}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        board = outbox.boards(tenant).create_board(board_id, columns)
    _print_board(board, f"board {board.board_id} has the columns {', '.join(board.columns)}", as_json=as_json)


@boards.command("list")
@tenant_option
@json_option
def list_boards(*, tenant: str, as_json: bool) -> None:
    """List the boards, by id.

    \b
    JSON: {"boards": [as `add` prints one, ...]}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        found = outbox.tenant(tenant).boards.all()
        if not found:
            say(f"tenant {tenant} has no boards yet")
    if as_json:
        print_json({"boards": [board_document(board) for board in found]})
        return
    print_table(
        ("board", "columns", "bound to"),
        ((board.board_id, ", ".join(board.columns), _bound_to(board)) for board in found),
        folds=("columns", "bound to"),
    )


@boards.command("show")
@tenant_option
@_board_id
@json_option
def show(*, tenant: str, board_id: str, as_json: bool) -> None:
    """Show a board.

    \b
    JSON: {"board": as `add` prints it}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        board = outbox.boards(tenant).board(board_id)
    if as_json:
        print_json({"board": board_document(board)})
        return
    print_table(
        ("field", "value"),
        (("board", board.board_id), ("columns", ", ".join(board.columns)), ("bound to", _bound_to(board))),
        folds=("value",),
    )


@boards.command("bind")
@tenant_option
@_board_id
@click.option("--kind", required=True, metavar="KIND", help="The projector that is told of each move.")
@click.option("--target", required=True, metavar="TARGET", help="What the projector is told to reflect to.")
@json_option
def bind(*, tenant: str, board_id: str, kind: str, target: str, as_json: bool) -> None:
    """Bind a board: each move of its cards is told to a projector from now on.

    \b
    JSON: {"board": as `add` prints it}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        load_bots(outbox.settings.bots)
        board = outbox.boards(tenant).bind(board_id, kind, target)
    if projectors.get(kind) is None:
        known = ", ".join(sorted(one.kind for one in projectors)) or "none"
        say(f"no module in OUTBOX_BOTS has a projector of kind {kind!r}, known here: {known}; moves wait for one")
    _print_board(board, f"board {board.board_id} is bound to {_bound_to(board)}", as_json=as_json)


@boards.command("unbind")
@tenant_option
@_board_id
@json_option
def unbind(*, tenant: str, board_id: str, as_json: bool) -> None:
    """Bind a board to nothing; projections that wait already then fail, since they have nowhere to go.

    \b
    JSON: {"board": as `add` prints it}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        board = outbox.boards(tenant).unbind(board_id)
    _print_board(board, f"board {board.board_id} is bound to nothing", as_json=as_json)


@boards.command("rename-column")
@tenant_option
@_board_id
@click.argument("column")
@click.argument("name")
@_author
@json_option
def rename_column(*, tenant: str, board_id: str, column: str, name: str, author: str, as_json: bool) -> None:
    """Rename a column; its cards move along in the same transaction, and launch nothing.

    \b
    JSON: {"board": as `add` prints it, "cards": how many moved along}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.boards(tenant).rename_column(board_id, column, name, author=author)
    _print_changed(changed, as_json=as_json)


@boards.command("remove-column")
@tenant_option
@_board_id
@click.argument("column")
@click.option("--into", default="", metavar="COLUMN", help="The column that takes its cards; needed if it has any.")
@_author
@json_option
def remove_column(*, tenant: str, board_id: str, column: str, into: str, author: str, as_json: bool) -> None:
    """Remove a column; its cards move to another one in the same transaction, and launch nothing.

    \b
    JSON: {"board": as `add` prints it, "cards": how many moved along}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.boards(tenant).remove_column(board_id, column, into=into, author=author)
    _print_changed(changed, as_json=as_json)


def board_document(board: Board) -> Mapping[str, Any]:
    """Return a board as `--json` prints it."""
    bound = board.binding
    return {
        "id": board.board_id,
        "columns": list(board.columns),
        "binding": None if bound is None else {"kind": bound.kind, "target": bound.target},
    }


def _bound_to(board: Board) -> str:
    return "" if board.binding is None else f"{board.binding.kind}: {board.binding.target}"


def _print_board(board: Board, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"board": board_document(board)})
    else:
        click.echo(text)


def _print_changed(changed: ColumnChanged, *, as_json: bool) -> None:
    if as_json:
        print_json({"board": board_document(changed.board), "cards": changed.cards})
    else:
        columns = ", ".join(changed.board.columns)
        cards = "1 card" if changed.cards == 1 else f"{changed.cards} cards"
        click.echo(f"board {changed.board.board_id} has the columns {columns}; {cards} moved along")
