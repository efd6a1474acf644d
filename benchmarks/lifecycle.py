"""What observing deletions costs, each figure beside the raw limit of the same run where there is one.

    python -m benchmarks.lifecycle [--only backlog deletes wake-ups idle] [--events 10000] …

backlog: one consumer that is ten thousand events behind, plain, idempotent and transactional, beside bare pymongo that
reads the same events and moves a cursor by compare-and-set as often. deletes: deletions by eight processes for one
tenant and for eight, beside a bare transaction of the same writes. wake-ups: from the commit to the observer, in real
workers, with hints and by ticks alone, beside a bare Celery message. idle: what consumers that have nothing to do cost
a minute, at the default ticks. Commands are counted, and exact on any machine; times mean something as ratios alone.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pymongo import monitoring
from pymongo.read_concern import ReadConcern

from benchmarks.measuring import SentCommands, commands
from outbox_core import LifecycleConsumer, Outbox
from outbox_core.adapters.mongo.client import DURABLE, connect
from outbox_core.adapters.mongo.consumer_rows import CURSORS
from outbox_core.adapters.mongo.lifecycle_documents import event_document
from outbox_core.adapters.mongo.lifecycle_stream import OUTBOX, SEQUENCES
from outbox_core.cli import programs
from outbox_core.domain.consumer import Start
from outbox_core.domain.lifecycle_event import CARD_DELETED, LifecycleEvent, Standing
from outbox_core.domain.observer import Observer
from outbox_core.embedded import EmbeddedMongo, EmbeddedRedis, Supervisor
from outbox_core.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pymongo.client_session import ClientSession
    from pymongo.database import Database

    Mongo = Database[dict[str, Any]]

PARTS = ("backlog", "deletes", "wake-ups", "idle")
BEHIND = "behind"
PAGE = 100
AT_ONCE = {"plain": 1, "idempotent": PAGE, "transactional": PAGE}
"""How many events each kind of observer acknowledges at once."""

_READY = timedelta(seconds=60)
_SEEN_WITHIN_S = 180.0


COMMANDS = SentCommands()


def measured(work: Callable[..., object], *given: object) -> tuple[float, int]:
    """Return how many seconds it took, and how many commands."""
    before, begun = COMMANDS.sent.total(), time.perf_counter()
    work(*given)
    return time.perf_counter() - begun, COMMANDS.sent.total() - before


# A backlog.


def fill(database: Mongo, events: int) -> None:
    """Store deletions as `delete_card` leaves them, without waiting for each."""
    deleted_at = datetime(2026, 11, 30, 15, tzinfo=UTC)
    for first in range(1, events + 1, 1_000):
        told = [
            LifecycleEvent(
                tenant_id=BEHIND,
                sequence=number,
                event_type=CARD_DELETED,
                task_id=f"card-{number}",
                deleted_at=deleted_at,
                prior_column="todo",
                prior_status=Standing.ACTIVE,
                writer_process_id="writer",
                occurred_at=deleted_at,
            )
            for number in range(first, min(first + 1_000, events + 1))
        ]
        database[OUTBOX].insert_many([{"_id": f"{BEHIND}|{one.event_id}", **event_document(one)} for one in told])
        cards = ({"tenant_id": BEHIND, "card_id": one.task_id, "deleted_at": deleted_at} for one in told)
        database["board_cards"].insert_many([{"_id": f"{BEHIND}|{card['card_id']}", **card} for card in cards])
    counter = {"_id": BEHIND, "tenant_id": BEHIND, "last_sequence": events, "numbered_at": deleted_at}
    database[SEQUENCES].insert_one(counter)


def raw_backlog(database: Mongo, events: int, kind: str) -> None:
    """Read the same events, and move a cursor by compare-and-set past as many at once; nothing else."""
    cursors, key, at_once = database["bare_cursors"], f"bare-{kind}", AT_ONCE[kind]
    cursors.insert_one({"_id": key, "seq": 0})

    def moves(after: int, to: int, session: ClientSession | None = None) -> None:
        if not cursors.update_one({"_id": key, "seq": after}, {"$set": {"seq": to}}, session=session).matched_count:
            raise SystemExit("somebody else moves the cursor")

    reached = 0
    with database.client.start_session() as session:
        while reached < events:
            query = {"tenant_id": BEHIND, "sequence": {"$gt": reached}}
            page = list(database[OUTBOX].find(query).sort("sequence", 1).limit(PAGE))
            for number in (row["sequence"] for row in page[at_once - 1 :: at_once] or page[-1:]):
                if kind == "transactional":
                    with session.start_transaction(ReadConcern("snapshot"), DURABLE):
                        moves(reached, number, session)
                else:
                    moves(reached, number)
                reached = number


def observed(outbox: Outbox, events: int, kind: str) -> None:
    """Let one consumer catch up."""
    told = 0

    def count(_: object) -> None:
        nonlocal told
        told += 1

    observer = Observer(
        consumer_id=kind,
        function=count,
        start=Start.BEGINNING,
        idempotent=kind == "idempotent",
        transactional=kind == "transactional",
    )
    consumer = LifecycleConsumer(outbox, BEHIND, observer)
    while told < events or consumer.poll_once().more:
        consumer.poll_once()


def backlog(outbox: Outbox, database: Mongo, events: int) -> None:
    fill(database, events)
    for kind in AT_ONCE:
        bare = measured(raw_backlog, database, events, kind)
        ours = measured(observed, outbox, events, kind)
        print(
            f"backlog of {events:,}, {kind}: {events / ours[0]:,.0f} events/s, {ours[1] / events:.3f} commands each;"
            f" bare {events / bare[0]:,.0f}/s, {bare[1] / events:.3f} commands each: {bare[0] / ours[0]:.0%} of it"
        )


# Deletions.


def delete_all(tenant: str, cards: Sequence[str]) -> int:
    """Delete cards in a process of its own."""
    outbox = Outbox.from_settings()
    boards = outbox.boards(tenant)
    for card in cards:
        boards.delete_card(card)
    outbox.close()
    return len(cards)


def delete_bare(tenant: str, cards: Sequence[str]) -> int:
    """Make the same writes in a transaction, by the driver alone: the card, its event, the counter, two rows more."""
    settings = load_settings()
    database = connect(settings.mongo_url.get_secret_value(), settings.mongo_db, settings.limits)

    def body(session: ClientSession, card: str) -> None:
        key = f"{tenant}|{card}"
        database["bare_cards"].update_one({"_id": key, "v": 1}, {"$set": {"v": 2}}, session=session)
        database["bare_events"].insert_one({"_id": key, "tenant_id": tenant, "data": "x" * 400}, session=session)
        counter = database["bare_counters"].find_one_and_update({"_id": tenant}, {"$inc": {"n": 1}}, session=session)
        for name in ("bare_outbox", "bare_audit"):
            row = {"_id": key, "tenant_id": tenant, "n": (counter or {}).get("n"), "data": "x" * 200}
            database[name].insert_one(row, session=session)

    with database.client.start_session() as session:
        for card in cards:
            session.with_transaction(partial(body, card=card), ReadConcern("snapshot"), DURABLE)
    database.client.close()
    return len(cards)


def deletes(outbox: Outbox, database: Mongo, count: int, writers: int) -> None:
    """Delete by so many processes; they are there, and connected to nothing, before the time is taken."""
    cards = [f"card-{number}" for number in range(count)]
    shares = [cards[number::writers] for number in range(writers)]
    with ProcessPoolExecutor(writers, mp_context=get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.5] * writers))
        for many in sorted({1, writers}):
            tenants = [f"del-{many}-{number % many}" for number in range(writers)]
            for tenant, share in zip(tenants, shares, strict=True):
                put_cards(outbox, database, tenant, share)
            begun = time.perf_counter()
            list(pool.map(delete_bare, tenants, shares))
            bare = count / (time.perf_counter() - begun)
            begun = time.perf_counter()
            list(pool.map(delete_all, tenants, shares))
            ours = count / (time.perf_counter() - begun)
            found = database[OUTBOX].count_documents({"tenant_id": {"$in": tenants}})
            if found != count:
                raise SystemExit(f"{found} events for {count} deletions")
            print(
                f"deletes by {writers} processes, {many} tenant(s): {ours:,.0f}/s; bare transactions {bare:,.0f}/s:"
                f" {ours / bare:.0%} of it"
            )
    put_cards(outbox, database, "del-alone", ["one", "two"])
    boards = outbox.boards("del-alone")
    boards.delete_card("one")
    print(f"a deletion alone: {measured(boards.delete_card, 'two')[1]} commands")


def put_cards(outbox: Outbox, database: Mongo, tenant: str, cards: Sequence[str]) -> None:
    """Put cards on a board, as bare rows: only their deletion is measured."""
    outbox.boards(tenant).create_board("main", ["todo"])
    rows = [{"tenant_id": tenant, "card_id": card, "board": "main", "state": "todo", "version": 1} for card in cards]
    database["board_cards"].insert_many([{"_id": f"{tenant}|{row['card_id']}", **row} for row in rows])
    database["bare_cards"].insert_many([{"_id": f"{tenant}|{card}", "v": 1} for card in cards])
    database["bare_counters"].update_one({"_id": tenant}, {"$setOnInsert": {"n": 0}}, upsert=True)


# Wake-ups, and idleness: in real processes.


@contextmanager
def deployed(folder: Path, *, workers: int = 2) -> Iterator[None]:
    """Run a worker and a beat, with the default ticks."""
    supervisor = Supervisor()
    try:
        for name, argv, ready in (
            ("worker", programs.worker(workers), " ready."),
            ("beat", programs.beat(), "Starting"),
        ):
            log = folder / f"{name}.log"
            log.unlink(missing_ok=True)
            process = supervisor.spawn(name, [sys.executable, "-m", "celery", *argv], log=log)
            process.await_ready(partial(says, log, ready), _READY)
        yield
    finally:
        supervisor.stop_all()


def says(log: Path, word: str) -> bool:
    return word in log.read_text("utf-8", "replace")


def seen(folder: Path) -> dict[str, float]:
    """Return when each thing was first seen."""
    path = folder / "seen"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    times: dict[str, float] = {}
    for line in lines:
        what, at = line.rsplit(" ", 1)
        times.setdefault(what, float(at))
    return times


def await_seen(folder: Path, names: Sequence[str]) -> dict[str, float]:
    give_up = time.monotonic() + _SEEN_WITHIN_S
    while not (found := seen(folder)).keys() >= set(names):
        if time.monotonic() > give_up:
            raise SystemExit(f"not seen in {_SEEN_WITHIN_S:g} s: {len(set(names) - found.keys())} of {len(names)}")
        time.sleep(0.05)
    return found


def wake_ups(outbox: Outbox, database: Mongo, folder: Path, count: int) -> None:
    """Tell how long it is from a commit to the observer; each sample is of a tenant and a consumer of its own."""
    from benchmarks.observers import WAKING, ping  # noqa: PLC0415 - they read the environment
    from tasks import outbox as hinting  # noqa: PLC0415

    tenants = [f"wake-{number}" for number in range(count)]
    for tenant in tenants:
        put_cards(outbox, database, tenant, ["first", "hinted", "ticked"])
        outbox.consumers(tenant).register(WAKING, start="beginning")

    def deleted(by: Outbox, card: str, pause: float) -> list[float]:
        sent: dict[str, float] = {}
        for tenant in tenants:
            done = by.boards(tenant).delete_card(card).card
            event = (
                f"task-deleted:{card}:{done.deleted_at:%Y-%m-%dT%H:%M:%S}.{done.deleted_at.microsecond // 1000:03d}Z"  # type: ignore[union-attr]
            )
            sent[f"{tenant}/{event}"] = time.time()
            time.sleep(pause)
        found = await_seen(folder, list(sent))
        return [found[name] - at for name, at in sent.items()]

    with deployed(folder):
        deleted(hinting, "first", 0)
        names = [f"ping-{number}" for number in range(count)]
        sent = {}
        for name in names:
            sent[name] = time.time()
            ping.apply_async(kwargs={"name": name}, queue="lifecycle", ignore_result=True)
            time.sleep(0.1)
        found = await_seen(folder, names)
        bare = [found[name] - sent[name] for name in names]
        hinted = deleted(hinting, "hinted", 0.1)
        ticked = deleted(outbox, "ticked", 0.1)
    limit = statistics.median(bare)
    for how, times in (("a bare message", bare), ("with hints", hinted), ("by ticks alone", ticked)):
        median, worst = statistics.median(times), sorted(times)[math.ceil(0.99 * len(times)) - 1]
        print(
            f"wake-up, {how}: median {median * 1000:,.0f} ms, p99 {worst * 1000:,.0f} ms of {count}:"
            f" {median / limit:,.1f} times a bare message"
        )


def idle(outbox: Outbox, database: Mongo, folder: Path, mongod: int, consumers: int, seconds: float) -> None:
    """Tell what consumers that have nothing to do cost, beyond what the same deployment costs without them."""
    from benchmarks.observers import IDLE  # noqa: PLC0415 - they read the environment

    process = psutil.Process(mongod)

    def cost() -> tuple[float, float]:
        before, used = commands(database), sum(process.cpu_times()[:2])
        time.sleep(seconds)
        sent = (commands(database) - before).total()
        return sent * 60 / seconds, (sum(process.cpu_times()[:2]) - used) * 60 / seconds

    with deployed(folder):
        nobody = cost()
        tenants = [f"idle-{number}" for number in range(-(-consumers // len(IDLE)))]
        made = [(tenant, consumer_id) for tenant in tenants for consumer_id in IDLE][:consumers]
        for tenant, consumer_id in made:
            outbox.consumers(tenant).register(consumer_id, start="beginning")
        mine = {"consumer_id": {"$in": list(IDLE)}}
        busy = {**mine, "$or": [{"last_acked_sequence": None}, {"lease_owner": {"$ne": ""}}]}
        while database[CURSORS].count_documents(busy):
            time.sleep(0.5)
        # Idle for a while, as they mostly are: each is due at another moment.
        cap_ms = outbox.settings.limits.consumer_idle_cap / timedelta(milliseconds=1)
        due = {"$add": ["$$NOW", {"$toLong": {"$multiply": [{"$rand": {}}, cap_ms]}}]}
        database[CURSORS].update_many(mine, [{"$set": {"idle_polls": 10, "next_poll_at": due}}])
        somebody = cost()
        asked = sum(row["idle_polls"] - 10 for row in database[CURSORS].find(mine))
    polls = consumers * 60 / outbox.settings.limits.consumer_poll.total_seconds()
    more = somebody[0] - nobody[0]
    print(
        f"{consumers} idle consumers, looked at {asked * 60 / seconds:,.0f} times a minute:"
        f" {more:,.0f} commands a minute beyond the {nobody[0]:,.0f} of nobody:"
        f" {more / polls:.1%} of a read each per tick; mongod {somebody[1]:.2f} s CPU a minute,"
        f" {nobody[1]:.2f} for nobody"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--deletes", type=int, default=1_600)
    parser.add_argument("--writers", type=int, default=8, help="how many processes delete")
    parser.add_argument("--wake-ups", type=int, default=50)
    parser.add_argument("--consumers", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60, help="how long idleness is measured, twice")
    given = parser.parse_args()
    monitoring.register(COMMANDS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with EmbeddedMongo(folder / "mongo") as mongo, EmbeddedRedis(folder / "broker") as broker:
            os.environ.update(
                OUTBOX_MONGO_URL=mongo.url,
                OUTBOX_MONGO_DB="bench",
                OUTBOX_BROKER_URL=broker.url,
                OUTBOX_BOTS="benchmarks.observers",
                BENCH_FOLDER=str(folder),
            )
            run(folder, mongo.pid, given)


def run(folder: Path, mongod: int, given: argparse.Namespace) -> None:
    settings = load_settings()
    outbox = Outbox.from_settings(settings)
    outbox.ensure_schema()
    database = connect(settings.mongo_url.get_secret_value(), settings.mongo_db, settings.limits)
    version, load = database.client.server_info()["version"], os.getloadavg()[0]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores (load {load:.1f}), MongoDB {version},"
        " w: majority, journaled"
    )
    if "backlog" in given.only:
        backlog(outbox, database, given.events)
    if "deletes" in given.only:
        deletes(outbox, database, given.deletes, given.writers)
    if "wake-ups" in given.only:
        wake_ups(outbox, database, folder, given.wake_ups)
    if "idle" in given.only:
        idle(outbox, database, folder, mongod, given.consumers, given.seconds)
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    outbox.close()


if __name__ == "__main__":
    main()
