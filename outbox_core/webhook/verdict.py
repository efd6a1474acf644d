"""What an answer means for the effect: done, later, again, or never."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from outbox_core.domain.errors import DefinitiveError, OutboxError, RetryLater

if TYPE_CHECKING:
    from collections.abc import Mapping

SOONEST = timedelta(seconds=1)
LATEST = timedelta(hours=1)
"""Bounds of what a Retry-After may ask for."""

_AGAIN = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_NOT_NOW = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
_SECONDS = re.compile(r"\d+", re.ASCII)
_MOST_DIGITS = 9


class NotDeliveredError(OutboxError):
    """A try that failed; another one may succeed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the host `origin`: headers by lower-case name, and the beginning of its body for a person."""

    origin: str
    status: int
    headers: Mapping[str, str]
    excerpt: str


def judge(answer: Answer, now: datetime) -> None:
    """Return where the answer is 2xx; raise RetryLater, NotDeliveredError or DefinitiveError otherwise."""
    status = answer.status
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return
    said = f"{answer.origin} answered {status}" + (f": {answer.excerpt}" if answer.excerpt else "")
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        raise DefinitiveError(f"{said}; redirects are not followed: put the final address into the rule")
    if status in _NOT_NOW and (delay := retry_after(answer.headers, now)) is not None:
        raise RetryLater(delay, said)
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _AGAIN:
        raise DefinitiveError(said)
    raise NotDeliveredError(said)


def retry_after(headers: Mapping[str, str], now: datetime) -> timedelta | None:
    """Return how long the answer asks to wait, within SOONEST and LATEST; None where it does not say, or not clearly.

    A date is held against the answer's own Date, where it has one: its clock may differ from ours.
    """
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        asked = LATEST if len(text) > _MOST_DIGITS else timedelta(seconds=int(text))
    else:
        until = _date(text)
        if until is None:
            return None
        asked = until - (_date(headers.get("date", "")) or now)
    return max(SOONEST, min(asked, LATEST))


def _date(text: str) -> datetime | None:
    try:
        read = parsedate_to_datetime(text)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
