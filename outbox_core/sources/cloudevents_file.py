"""A file of CloudEvents: one a line, one over several lines, or a JSON array of them.

Lines are read as a stream, no more than one at a time; the other two are read whole, up to a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from outbox_core.domain.errors import InvalidInputError
from outbox_core.sources.cloudevents import MAX_BODY_BYTES, parse, read_json
from outbox_core.sources.lines import BYTE_ORDER_MARK, Line, raw_lines, tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.domain.limits import Limits
    from outbox_core.sources.lines import Checked

MAX_WHOLE_BYTES = 64 * 1024 * 1024
"""The bound of a file that is read whole; reading takes about ten times that in memory."""

_HEAD_BYTES = 64 * 1024
"""Its form shows in the first of these bytes that is not blank."""


def check_file(stream: BinaryIO, limits: Limits, *, max_bytes: int = MAX_BODY_BYTES) -> Checked:
    """Read a whole file and keep nothing of it but counts and the first errors; nothing is taken."""
    return tally(read_file(stream, limits, max_bytes=max_bytes))


def read_file(stream: BinaryIO, limits: Limits, *, max_bytes: int = MAX_BODY_BYTES) -> Iterator[Line]:
    """Read CloudEvents from the start of a seekable stream, in their order; a bad one does not end the reading.

    A file that begins with a bracket is a batch, whose places are counted from 1. Else each line is one event, unless
    the first line is no JSON and the file as a whole is one event.
    """
    start = stream.read(_HEAD_BYTES).removeprefix(BYTE_ORDER_MARK).lstrip()[:1]
    stream.seek(0)
    if start == b"[":
        yield from _batch(stream, limits)
    elif start == b"{" and (one := _one_over_lines(stream, max_bytes)) is not None:
        yield _line(1, "the event", one, limits)
    else:
        stream.seek(0)
        for number, raw, size in raw_lines(stream, max_bytes):
            if size > max_bytes:
                said = f"line {number}: {size:,} bytes, the limit is {max_bytes:,}"
                yield Line(number, InvalidInputError(said))
            elif raw.strip():
                yield _line(number, f"line {number}", raw, limits)


def _batch(stream: BinaryIO, limits: Limits) -> Iterator[Line]:
    raw = stream.read(MAX_WHOLE_BYTES + 1)
    if len(raw) > MAX_WHOLE_BYTES:
        said = f"the batch is over {MAX_WHOLE_BYTES:,} bytes; write one event a line instead"
        yield Line(1, InvalidInputError(said))
        return
    try:
        events = parse(raw.removeprefix(BYTE_ORDER_MARK))
    except InvalidInputError as error:
        yield Line(1, InvalidInputError(f"the batch: {error}"))
        return
    for number, value in enumerate(events if isinstance(events, list) else (), 1):
        yield _line(number, f"event {number}", value, limits)


def _one_over_lines(stream: BinaryIO, max_bytes: int) -> object | None:
    """Return the value of a file that is one JSON text on more than one line, None where it is not."""
    raw = stream.read(max_bytes + 1).removeprefix(BYTE_ORDER_MARK)
    if len(raw) > max_bytes or b"\n" not in raw.strip():
        return None
    try:
        return parse(raw)
    except InvalidInputError:
        return None


def _line(number: int, place: str, given: object, limits: Limits) -> Line:
    try:
        return Line(number, read_json(parse(given) if isinstance(given, bytes) else given, limits))
    except InvalidInputError as error:
        return Line(number, InvalidInputError(f"{place}: {error}"))
