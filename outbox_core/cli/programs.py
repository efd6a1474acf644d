"""The command lines of the Celery processes: one home, for `outbox dev`, the demo and compose/ alike.

Each is what follows the word `celery`. Settings come from the environment alone, so no secret stands in a process list.
"""

from __future__ import annotations

_APP = ("-A", "tasks")


def worker(processes: int) -> tuple[str, ...]:
    """A pool of that many processes, which takes every queue."""
    return (*_APP, "worker", "--loglevel=INFO", f"--concurrency={processes}")


def beat() -> tuple[str, ...]:
    """The ticks; any number of these may run."""
    return (*_APP, "beat", "--loglevel=INFO")


def flower(address: str, port: int) -> tuple[str, ...]:
    """The web page of workers and slices."""
    return (*_APP, "flower", f"--address={address}", f"--port={port}")
