"""`outbox schema`: bring the database up to date, or say what is missing."""

from __future__ import annotations

import click

from outbox_core.cli.group import Exit
from outbox_core.cli.opening import opened
from outbox_core.cli.output import json_option, print_json, say


@click.command(short_help="Create or update collections and indexes.")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 where a step is missing.")
@json_option
@click.pass_context
def schema(ctx: click.Context, *, check: bool, as_json: bool) -> None:
    """Apply the numbered steps that the database lacks; a second run does nothing.

    \b
    JSON: {"applied": [NAME, ...], "pending": [NAME, ...]}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened(needs_schema=False) as outbox:
        applied = [] if check else list(outbox.ensure_schema())
        pending = list(outbox.store.maintenance.pending_schema()) if check else []
    if as_json:
        print_json({"applied": applied, "pending": pending})
    elif check:
        say("\n".join(f"missing: {name}" for name in pending) or "the schema is up to date")
    else:
        say("\n".join(f"applied: {name}" for name in applied) or "the schema is up to date")
    ctx.exit(Exit.REFUSED if pending else Exit.OK)
