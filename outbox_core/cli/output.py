"""What commands print: JSON or a table on stdout, messages on stderr."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.table import Table

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
tenant_option = click.option("--tenant", required=True, metavar="TENANT", help="The tenant.")


def say(text: str) -> None:
    """Print a message for a person, on stderr."""
    click.echo(text, err=True)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on one line of stdout; instants as ISO 8601 in UTC, sets sorted."""
    click.echo(json.dumps(document, ensure_ascii=False, default=_plain))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, folds: Sequence[str] = ()) -> None:
    """Print a table on stdout: folded to the width of a terminal, one line a row in a pipe; white space is one blank.

    The columns named in `folds` give way first where the terminal is narrow; without any, all do.
    """
    click.echo(table_text(columns, rows, folds=folds), nl=False)


def table_text(columns: Sequence[str], rows: Iterable[Sequence[object]], *, folds: Sequence[str] = ()) -> str:
    """Return the table that `print_table` prints."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - celery's processes import this package and need no tables
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(
        box=SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False, show_edge=False, show_header=any(columns)
    )
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=bool(folds) and column not in folds)
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return _rendered(table)


def instant_text(value: object) -> str:
    """Return an instant as people read it, to the second, in UTC."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%SZ")
    return "" if value is None else str(value)


def _rendered(table: Table) -> str:
    import io  # noqa: PLC0415 - with rich
    import shutil  # noqa: PLC0415 - with rich

    from rich.console import Console  # noqa: PLC0415 - see table_text

    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else 100_000
    # A pipe gets plain words: no colour, no width, nothing cut.
    console = Console(file=io.StringIO(), width=width, force_terminal=on_terminal, legacy_windows=False)
    with console.capture() as captured:
        console.print(table, soft_wrap=False)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _cell(value: object) -> str:
    from rich.markup import escape  # noqa: PLC0415 - see table_text

    return escape(" ".join(instant_text(value).split()))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, set | frozenset | tuple):
        return sorted(value)
    return str(value)
