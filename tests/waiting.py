"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from outbox_core.domain.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 0.01
Result = TypeVar("Result")


def wait_until(condition: Callable[[], object], timeout: float = 10.0, what: str = "") -> None:
    """Poll until the condition is true; fail the test after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or condition}")
        time.sleep(POLL_S)


def patiently(call: Callable[[], Result], timeout: float = 30.0) -> Result:
    """Repeat what may be repeated while the store gives no answer: a busy disk is not what a test is about."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return call()
        except TransientError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_S)
