"""What a file from outside holds, place by place, told before anything of it is taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import NewEvent
from outbox_core.domain.forge_delivery import Delivery, Ignored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_ERRORS = 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SKIP_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """What stands at this number of a file (a line, or a place in a batch), or an error that names it."""

    number: int
    said: Delivery | Ignored | NewEvent | InvalidInputError


@dataclass(frozen=True, slots=True)
class Checked:
    """What a file holds: what becomes events, what is ignored by kind, and the errors of bad lines.

    `errors` holds the first MOST_ERRORS, `bad` counts all of them.
    """

    deliveries: int
    ignored: Counter[str]
    bad: int
    errors: tuple[InvalidInputError, ...]


def tally(lines: Iterable[Line]) -> Checked:
    """Go through all lines and keep nothing of them but counts and the first errors."""
    deliveries, bad, ignored = 0, 0, Counter[str]()
    errors: list[InvalidInputError] = []
    for line in lines:
        match line.said:
            case Delivery() | NewEvent():
                deliveries += 1
            case Ignored(kind=kind):
                ignored[kind] += 1
            case InvalidInputError() as error:
                bad += 1
                errors += [error] if len(errors) < MOST_ERRORS else []
    return Checked(deliveries, ignored, bad, tuple(errors))


def raw_lines(stream: BinaryIO, longest: int) -> Iterator[tuple[int, bytes, int]]:
    """Read lines from where the stream stands: number, bytes, and how long the line is.

    Of a line that is longer than `longest` no more than that, and one byte, is held; it is read over to its end.
    """
    number = 0
    while raw := stream.readline(longest + 1):
        number += 1
        size = len(raw)
        if size > longest:
            size += _skip_line(stream, raw)
        yield number, raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw, size


def _skip_line(stream: BinaryIO, read: bytes) -> int:
    """Read on to the line's end; return how many bytes that were."""
    skipped = 0
    while not read.endswith(b"\n") and (read := stream.readline(_SKIP_BYTES)):
        skipped += len(read)
    return skipped
