"""What the processes of a peer in Python do alike, inside an environment of their own.

Only the standard library: neither this project nor what it needs is installed there. What the benchmark has to say to
them stands in environment variables.
"""

from __future__ import annotations

import os
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Listener
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

URL = "BENCH_URL"
"""The variable that names the peer's server."""

READY = "BENCH_READY"
"""The variable that names the folder in which a worker process says that it takes jobs."""

ADDRESS = "BENCH_ADDRESS"
"""The variable that names the file in which the process that takes orders says where it listens."""

CHUNK = 1_000
"""How many jobs are put in at once, by who can: as many as for the outbox."""


def url() -> str:
    """Returns where the peer's server is."""
    return os.environ[URL]


def announce() -> None:
    """Say that this process takes jobs."""
    (Path(os.environ[READY]) / str(os.getpid())).touch()


def chunks(first: int, count: int) -> Iterator[range]:
    """Yields the numbers of jobs by at most `CHUNK`."""
    for start in range(first, first + count, CHUNK):
        yield range(start, min(start + CHUNK, first + count))


def send_from_threads(send: Callable[[range], object], first: int, count: int, threads: int) -> None:
    """Have several threads send a share of the jobs each, where nothing sends many at once.

    A server that flushes before it answers then flushes once for all that wait, as it would for the requests of a busy
    application.
    """
    if count == 1:
        send(range(first, first + 1))
        return
    with ThreadPoolExecutor(threads) as pool:
        for sent in [pool.submit(send, range(first + share, first + count, threads)) for share in range(threads)]:
            sent.result()


def take_orders(enqueue: Callable[[int, int], object], unfinished: Callable[[], int]) -> None:
    """Serve the benchmark until it hangs up: put jobs in, and say how many are done.

    Args:
        enqueue: puts that many jobs in from this number on, and returns when they are durable.
        unfinished: asks the store how many jobs in it are not done for good.
    """
    put_in = 0
    with Listener(family="AF_UNIX") as listener:
        _write_whole(Path(os.environ[ADDRESS]), str(listener.address))
        with listener.accept() as benchmark:
            while True:
                try:
                    order = benchmark.recv()
                except EOFError:
                    return
                try:
                    match order:
                        case ("enqueue", first, count):
                            enqueue(first, count)
                            put_in += count
                            answer: object = None
                        case ("settled",):
                            answer = put_in - unfinished()
                        case ("publish", number):
                            began = time.time()
                            enqueue(number, 1)
                            answer = (began, time.time())
                            put_in += 1
                        case _:
                            raise ValueError(f"no such order: {order}")  # noqa: TRY301 - it is answered like any other
                except Exception:  # noqa: BLE001 - whatever it is, who ordered is told
                    benchmark.send((False, traceback.format_exc()))
                else:
                    benchmark.send((True, answer))


def _write_whole(path: Path, text: str) -> None:
    """Write a file that a reader finds whole or not at all."""
    draft = path.with_suffix(".draft")
    draft.write_text(text, "utf-8")
    draft.replace(path)
