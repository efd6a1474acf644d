"""`outbox dev`: the whole stack on one machine, until it is told to stop."""

from __future__ import annotations

import os
import shlex
import time
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outbox_core.cli.output import json_option, print_json, print_table, say
from outbox_core.cli.stopping import StopRequested, stop_signals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox_core.cli.stack import Stack

_TEND_S = 0.5


@click.command(short_help="Run the whole stack here.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".outbox-dev"),
    show_default=True,
    help="Where its data and logs lie; a second start finds them.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes of the pool.")
@click.option("--flower/--no-flower", default=True, help="Whether Flower runs.")
@click.option("--flower-port", type=click.IntRange(1, 65535), help="Flower's port; else 5555 or the next free one.")
@click.option("--bots", metavar="MODULES", help="Modules of bots to import, joined by commas; else OUTBOX_BOTS.")
@json_option
def dev(*, folder: Path, workers: int, flower: bool, flower_port: int | None, bots: str | None, as_json: bool) -> None:
    """Run a replica set, a broker, a worker pool, a beat and Flower, until Ctrl-C or SIGTERM.

    OUTBOX_MONGO_URL and OUTBOX_BROKER_URL, where set, take the place of the private servers. A part that dies is
    started again after a pause; one that dies five times in a row ends the stack with exit code 1. No process is
    left behind, not even after a kill -9 of this one. A stop waits for the bots in hand; a second Ctrl-C or SIGTERM
    stops at once.

    \b
    JSON, one line when all of it works:
      {"folder", "environment": {"OUTBOX_MONGO_URL", ...},
       "flower_url": URL or null,
       "parts": [{"name", "address", "log", "pid"}]}
    "environment" is what a shell needs beside its own variables.
    """  # noqa: D301 - click's mark for text that it must not wrap
    from outbox_core.cli.opening import checked_environment  # noqa: PLC0415 - other commands need no servers
    from outbox_core.cli.stack import Stack  # noqa: PLC0415 - as above

    settings = checked_environment({} if bots is None else {"OUTBOX_BOTS": bots})
    stack = Stack(folder, workers=workers, flower=flower, flower_port=flower_port, settings=settings, report=say)
    try:
        with stop_signals():
            _run(stack, as_json=as_json)
    except StopRequested:
        say("stopped; the data stays in " + str(folder))


def _run(stack: Stack, *, as_json: bool) -> None:
    from outbox_core.cli.opening import apply_schema  # noqa: PLC0415 - other commands need no driver

    say(f"starting in {stack.folder} …")
    try:
        stack.start(before_programs=apply_schema)
        if as_json:
            print_json(stack_document(stack))
        else:
            print_stack(stack)
            say("\nCtrl-C stops all of it.")
        while True:
            time.sleep(_TEND_S)
            stack.tend()
    except StopRequested:
        say("\nstopping …")
        raise
    finally:
        stack.stop()


def stack_document(stack: Stack) -> Mapping[str, object]:
    """Return what `outbox dev --json` prints."""
    return {
        "folder": str(stack.folder),
        "environment": _to_export(stack),
        "flower_url": stack.flower_url,
        "parts": [
            {"name": place.what, "address": place.address, "log": place.log and str(place.log), "pid": place.pid}
            for place in stack.places
        ],
    }


def print_stack(stack: Stack) -> None:
    """Print where each part is, and how to point a shell at it."""
    rows = [(place.what, place.address, place.pid, place.log and _short(place.log)) for place in stack.places]
    print_table(("part", "where", "process", "log"), rows, folds=("where", "log"))
    click.echo("\nPoint a shell at it:")
    for name, value in _to_export(stack).items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _to_export(stack: Stack) -> Mapping[str, str]:
    """Return what the caller's shell does not have; so nothing that it holds, a secret above all, is printed.

    PYTHONPATH is no secret: it comes wherever another folder or another shell would not find the bots without it.
    """
    own = {name: value for name, value in sorted(stack.environment.items()) if os.environ.get(name) != value}
    places = _import_path(stack.environment.get("OUTBOX_BOTS", ""))
    return {**own, "PYTHONPATH": os.pathsep.join(places)} if places else own


def _import_path(bots: str) -> list[str]:
    """Return PYTHONPATH's folders by their whole names, and before them the current one where bots lie in it."""
    here = str(Path.cwd())
    tops = {module.strip().partition(".")[0] for module in bots.split(",") if module.strip()}
    given = [str(Path(place).absolute()) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    found_here = any(PathFinder.find_spec(top, [here]) is not None for top in tops)
    return list(dict.fromkeys([*([here] if found_here else []), *given]))


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
