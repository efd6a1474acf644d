"""The group of commands: finds each one late, and turns every error of ours into one line and an exit code."""

from __future__ import annotations

import importlib
from enum import IntEnum
from typing import Any

import click

from outbox_core.domain.errors import ConfigurationError, InvalidInputError, OutboxError, TransientError

_COMMANDS = {
    "dev": "outbox_core.cli.dev:dev",
    "schema": "outbox_core.cli.schema:schema",
    "ingest": "outbox_core.cli.ingest:ingest",
    "subscriptions": "outbox_core.cli.subscriptions:subscriptions",
    "boards": "outbox_core.cli.boards:boards",
    "cards": "outbox_core.cli.cards:cards",
    "effects": "outbox_core.cli.effects:effects",
    "consumers": "outbox_core.cli.consumers:consumers",
    "dead": "outbox_core.cli.dead:dead",
    "stats": "outbox_core.cli.stats:stats",
}


class Exit(IntEnum):
    """What the command ended as."""

    OK = 0
    REFUSED = 1
    BAD_INPUT = 2
    UNREACHABLE = 3


EXIT_CODES = """\b
Exit codes:
  0  done
  1  refused, not found, or part of the work failed
  2  wrong usage, settings or input; nothing was written
  3  the store or the broker could not be reached; try again"""


def exit_code(error: OutboxError) -> Exit:
    """Return what an error ends a command as."""
    if isinstance(error, TransientError):
        return Exit.UNREACHABLE
    if isinstance(error, ConfigurationError | InvalidInputError):
        return Exit.BAD_INPUT
    return Exit.REFUSED


def tell(error: OutboxError) -> Exit:
    """Print an error as one line on stderr; return what it ends a command as."""
    click.echo("outbox: " + " ".join(str(error).split()), err=True)
    return exit_code(error)


class LateGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which a newcomer meets them."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None where there is none of that name."""
        del ctx
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        """Run a command; an OutboxError becomes one line on stderr and its exit code."""
        try:
            return super().invoke(ctx)
        except OutboxError as error:
            ctx.exit(tell(error))


@click.version_option(package_name="effect-outbox", prog_name="outbox", message="%(prog)s %(version)s")
@click.group(cls=LateGroup, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
def outbox() -> None:
    """Run, feed and watch an effect outbox.

    Settings come from the environment: OUTBOX_MONGO_URL, OUTBOX_MONGO_DB, OUTBOX_BROKER_URL, OUTBOX_BOTS, and every
    limit as OUTBOX_<NAME>. With --json a command prints JSON alone on stdout; messages go to stderr. After an error
    stdout is empty, with --json too: the exit code and one line on stderr say what was wrong. (The document of `ingest`
    tells of bad lines.)
    """


def main() -> None:
    """Run the script `outbox`."""
    outbox(prog_name="outbox")
