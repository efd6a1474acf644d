"""`outbox ingest`: take in a file of GitHub deliveries or CloudEvents, checked whole before anything is taken."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import click

from outbox_core.application.append_events import append_events
from outbox_core.application.ingest_delivery import ingest_delivery
from outbox_core.cli.group import Exit
from outbox_core.cli.opening import opened
from outbox_core.cli.output import json_option, print_json, print_table, say, tenant_option
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import NewEvent
from outbox_core.domain.forge_delivery import Delivery
from outbox_core.domain.identity import require_id
from outbox_core.sources.lines import tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click._termui_impl import ProgressBar

    from outbox_core.bootstrap import Outbox
    from outbox_core.sources.lines import Checked, Line

_LONG = 200
"""From this many events on a terminal sees a progress bar."""

_LONG_BYTES = 16 * 1024 * 1024
"""From this many bytes on the check alone takes seconds, and a terminal sees a progress bar."""

_BLOCK = 50
"""CloudEvents that are appended at once."""


@click.command(short_help="Take in a file of GitHub deliveries or CloudEvents.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@tenant_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["github", "cloudevents"]),
    default="github",
    show_default=True,
    help="Its form.",
)
@click.option("--keep-going", is_flag=True, help="Take the good lines of a file that has bad ones.")
@json_option
@click.pass_context
def ingest(ctx: click.Context, *, file: Path, tenant: str, form: str, keep_going: bool, as_json: bool) -> None:
    """Take in FILE, or standard input for `-`: one GitHub delivery a line.

    \b
      {"event": "issues", "delivery": ID, "payload": {...}}
    or, signed,
      {"event": "issues", "delivery": ID, "body": TEXT,
       "signature": "sha256=..."}

    With --format cloudevents, CloudEvents 1.0 in JSON: one a line, one in all, or an array of them.

    \b
      {"specversion": "1.0", "id": ID, "source": URI, "type": TYPE, ...}

    The file is checked whole first: one bad line, and nothing is taken. With --keep-going the good lines are taken,
    and the exit code is 1 where there were bad ones. Taking a delivery or an event twice is one event. Where
    OUTBOX_GITHUB_SECRET is set, every line of GitHub's must carry a body and its signature.

    \b
    JSON: {"taken": N, "known": N, "ignored": {KIND: N, ...}, "refused": N,
      "errors": [TEXT, ...]}
    "known" were taken before; "errors" are the first of the refused.
    """  # noqa: D301 - click's mark for text that it must not wrap
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(_readable(file))
        outbox = stack.enter_context(opened())
        require_id(tenant, "tenant")
        checked = _check(outbox, form, stream, quiet=as_json)
        for error in checked.errors:
            say(f"outbox: {error}")
        if checked.bad > len(checked.errors):
            say(f"outbox: and {checked.bad - len(checked.errors)} more bad lines")
        if checked.bad and not keep_going:
            say("outbox: nothing was taken; mend the file, or give --keep-going to take its good lines")
            if as_json:
                _print(Counter(), checked, as_json=True)
            ctx.exit(Exit.BAD_INPUT)
        stream.seek(0)
        counts = _take(outbox, tenant, _read(outbox, form, stream), checked.deliveries, quiet=as_json)
    _print(counts, checked, as_json=as_json)
    ctx.exit(Exit.REFUSED if checked.bad else Exit.OK)


def _read(outbox: Outbox, form: str, stream: BinaryIO) -> Iterator[Line]:
    """Read the file's lines from its start, each as what it says or as its error."""
    if form == "cloudevents":
        from outbox_core.sources.cloudevents_file import read_file  # noqa: PLC0415 - other commands need no such library

        return read_file(stream, outbox.settings.limits)
    from outbox_core.sources.github_lines import read_lines  # noqa: PLC0415 - as above

    secret = outbox.settings.github_secret
    return read_lines(stream, secret=secret.get_secret_value() if secret else None)


def _check(outbox: Outbox, form: str, stream: BinaryIO, *, quiet: bool) -> Checked:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    with _bar("checking", size, hidden=quiet or size < _LONG_BYTES) as bar:

        def watched() -> Iterator[Line]:
            for line in _read(outbox, form, stream):
                bar.update(stream.tell() - bar.pos)
                yield line

        return tally(watched())


def _take(outbox: Outbox, tenant: str, lines: Iterator[Line], events: int, *, quiet: bool) -> Counter[str]:
    """Take the good lines; return how many events were taken, and how many were known."""
    store, runtime = outbox.tenant(tenant), outbox.runtime
    counts: Counter[str] = Counter()
    block: list[NewEvent] = []
    with _bar("taking", events, hidden=quiet or events < _LONG) as bar:

        def append_block() -> None:
            fresh = {one.seq for one in append_events(store, runtime, block) if not one.duplicate}
            counts["taken"] += len(fresh)
            counts["known"] += len(block) - len(fresh)
            bar.update(len(block))
            block.clear()

        for line in lines:
            match line.said:
                case Delivery() as delivery:
                    counts["taken" if ingest_delivery(store, runtime, delivery).fresh else "known"] += 1
                    bar.update(1)
                case NewEvent() as event:
                    block.append(event)
                    if len(block) == _BLOCK:
                        append_block()
                case _:
                    pass
        append_block()
    return counts


def _bar(label: str, length: int, *, hidden: bool) -> ProgressBar[int]:
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=hidden or not sys.stderr.isatty())


def _print(counts: Counter[str], checked: Checked, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "taken": counts["taken"],
                "known": counts["known"],
                "ignored": dict(sorted(checked.ignored.items())),
                "refused": checked.bad,
                "errors": [str(error) for error in checked.errors],
            }
        )
        return
    print_table(
        ("events", ""),
        [
            ("taken", counts["taken"]),
            ("known already", counts["known"]),
            *((f"ignored: {kind}", count) for kind, count in sorted(checked.ignored.items())),
            ("refused", checked.bad),
        ],
    )


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[BinaryIO]:
    """Open the file so that it can be read twice; what cannot be, standard input above all, is copied first."""
    try:
        stream = sys.stdin.buffer if str(file) == "-" else file.open("rb")
        if str(file) == "-" or not stream.seekable():
            stream = _copied(stream)
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be read: {error.strerror}") from error
    with stream:
        yield stream


def _copied(stream: BinaryIO) -> BinaryIO:
    copy = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - whoever asked for it closes it
    shutil.copyfileobj(stream, copy)
    copy.seek(0)
    return copy
