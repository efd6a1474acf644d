"""One hot tenant: how many appends a second its log takes from 1, 8 and 32 writers, in and out of transactions.

Beside each, in the same run, a bare insert of the same document, w: majority and journaled, and a bare transaction of
the same two writes. Nobody drains meanwhile. Writers are threads of up to four processes.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from benchmarks.bench import Case, Outcome, Table, interleaved
from benchmarks.figures import Spread, ratios
from benchmarks.jobs import PREFIX
from benchmarks.outbox_stage import JOB, environ, outbox_stage, tenant_names
from benchmarks.raw_process import attributes, connected
from outbox_core import Outbox
from outbox_core.adapters.mongo.client import DURABLE
from outbox_core.domain.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.client_session import ClientSession

    from benchmarks.bench import Bench
    from outbox_core.application.run_in_transaction import OutboxTransaction

WRITERS = (1, 8, 32)
MOST_PROCESSES = 4
HOT = tenant_names(1)[0]
BARE = {"append": "bare insert", "transaction": "bare transaction"}
"""What each way of appending is held against."""

_SOON_S = 0.5


@dataclass(frozen=True, slots=True)
class Written:
    """What writers did together."""

    appends: int
    failures: int
    seconds: float

    @property
    def rate(self) -> float:
        """Appends a second."""
        return self.appends / self.seconds


def run(bench: Bench) -> Outcome:
    """Measure each number of writers."""
    figures: dict[str, Any] = {}
    rows = []
    with bench.folder("appends") as folder, outbox_stage(folder) as stage, environ(stage.environment):
        seconds = bench.size(1.5, 0.4)
        with ProcessPoolExecutor(MOST_PROCESSES, mp_context=get_context("spawn")) as pool:
            ways = [*BARE, *BARE.values()]
            for way in ways:
                _together(pool, way, MOST_PROCESSES, 0.2)
            for writers in WRITERS:
                bench.tell(f"{writers} writers")
                work: list[tuple[str, Callable[[], Written]]] = [
                    (way, partial(_together, pool, way, writers, seconds)) for way in ways
                ]
                found = interleaved(bench, work)
                figures[str(writers)] = _figures(found)
                rows += [_row(writers, way, figures[str(writers)]) for way in BARE]
    columns = ("writers", "way", "appends/s", "bare, writes/s", "share of bare", "failed and told")
    return Outcome(figures, [Table("Appends of one hot tenant", columns, rows)])


def _figures(found: dict[str, list[Written]]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        way: {
            "rate": Spread.of([one.rate for one in each]).document(),
            "failures": sum(one.failures for one in each),
        }
        for way, each in found.items()
    }
    for way, bare in BARE.items():
        values = [figures[one]["rate"]["values"] for one in (way, bare)]
        figures[way]["share"] = ratios(*values).document()
    return figures


def _row(writers: int, way: str, figures: dict[str, Any]) -> list[str]:
    def text(of: str, what: str) -> str:
        return Spread.of(figures[of][what]["values"]).text()

    return [
        str(writers),
        way,
        text(way, "rate"),
        text(BARE[way], "rate"),
        text(way, "share"),
        str(figures[way]["failures"]),
    ]


def _together(pool: ProcessPoolExecutor, way: str, writers: int, seconds: float) -> Written:
    """Have so many writers write for a while, all from one moment on."""
    processes = min(writers, MOST_PROCESSES)
    start = time.time() + _SOON_S
    asked = [pool.submit(write, way, writers // processes, start, seconds) for _ in range(processes)]
    counts = [one.result() for one in asked]
    return Written(sum(done for done, _ in counts), sum(failed for _, failed in counts), seconds)


def write(way: str, threads: int, start: float, seconds: float) -> tuple[int, int]:
    """Write from this process; return how many appends came to be, and how many the store refused."""
    made = _WAYS[way]()
    made()
    with ThreadPoolExecutor(threads) as pool:
        time.sleep(max(0.0, start - time.time()))
        end = time.monotonic() + seconds
        counts = list(pool.map(lambda _: _until(end, made), range(threads)))
    return sum(done for done, _ in counts), sum(failed for _, failed in counts)


def _until(end: float, once: Callable[[], object]) -> tuple[int, int]:
    done = failed = 0
    while time.monotonic() < end:
        try:
            once()
        except (TransientError, PyMongoError):
            failed += 1
        else:
            done += 1
    return done, failed


def _outbox() -> Outbox:
    global _opened  # noqa: PLW0603 - one connection per writing process
    _opened = _opened or Outbox.from_settings()
    return _opened


_opened: Outbox | None = None
_bare: Any = None


def _database() -> Any:  # noqa: ANN401 - pymongo's
    global _bare  # noqa: PLW0603 - one connection per writing process
    if _bare is None:
        _bare = connected()
    return _bare


def _append() -> Callable[[], object]:
    outbox = _outbox()
    return lambda: outbox.append(HOT, type=JOB)


def _in_transaction() -> Callable[[], object]:
    outbox = _outbox()

    def body(transaction: OutboxTransaction) -> None:
        row = {"_id": uuid4().hex, "tenant_id": HOT}
        transaction.database["bare_orders"].insert_one(row, session=transaction.session)
        transaction.append(type=JOB)

    return lambda: outbox.run_in_transaction(HOT, body)


def _event() -> dict[str, Any]:
    """Return the document of an event, as it is stored."""
    event_id = f"{PREFIX}{uuid4().hex}"
    event = {"_id": f"{HOT}|{event_id}", "tenant_id": HOT, "seq": time.monotonic_ns(), "event_id": event_id}
    return {**event, **attributes(), "data": {}, "trace": {}, "occurred_at": None, "pid": os.getpid()}


def _insert() -> Callable[[], object]:
    events = _database()["bare_events"]
    return lambda: events.insert_one(_event())


def _bare_transaction() -> Callable[[], object]:
    database = _database()

    def body(session: ClientSession) -> None:
        row = {"_id": uuid4().hex, "tenant_id": HOT}
        database["bare_orders"].insert_one(row, session=session)
        database["bare_events"].insert_one(_event(), session=session)

    def once() -> None:
        with database.client.start_session() as session:
            session.with_transaction(body, ReadConcern("snapshot"), DURABLE)

    return once


_WAYS: dict[str, Callable[[], Callable[[], object]]] = {
    "append": _append,
    "transaction": _in_transaction,
    "bare insert": _insert,
    "bare transaction": _bare_transaction,
}

CASES = (Case("appends", "Appends of one hot tenant", run),)
