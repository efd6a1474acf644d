"""How fast appended events become settled effects on real parts, and how many MongoDB commands each costs.

    python -m benchmarks.main_job [--effects 20000] [--workers 1 2]

Starts a replica set and a broker of its own, appends the events, then starts a worker pool and a beat, and measures
from the first drain to the last settled row. Commands are the server's own count (exact on any machine); times are of
this machine and mean something only beside another figure of the same run.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox_core import Outbox
from outbox_core.adapters.mongo.client import connect
from outbox_core.application.new_event import new_event
from outbox_core.bots import load_bots
from outbox_core.cli import programs
from outbox_core.embedded import EmbeddedMongo, EmbeddedRedis, Supervisor
from outbox_core.settings import load_settings

if TYPE_CHECKING:
    from pymongo.database import Database

TENANT = "bench"
NOT_OURS = frozenset({"hello", "isMaster", "ping", "serverStatus", "replSetHeartbeat", "endSessions", "getMore"})
"""Commands of the driver's monitoring, of the server itself, and of the measurement."""


def commands(database: Database[dict[str, Any]]) -> Counter[str]:
    """Return how often the server has run each command."""
    counted = database.client.admin.command("serverStatus")["metrics"]["commands"]
    totals = {name: value["total"] for name, value in counted.items() if isinstance(value, dict) and "total" in value}
    return Counter({name: int(total) for name, total in totals.items() if total and name not in NOT_OURS})


def settled(outbox: Outbox) -> int:
    return sum(count for state, count in outbox.tenant(TENANT).effects.counts().items() if state.startswith("done"))


def wait_for(outbox: Outbox, effects: int) -> float:
    """Wait until that many rows are done; return the moment."""
    while settled(outbox) < effects:
        time.sleep(0.05)
    return time.perf_counter()


def alone(outbox: Outbox, database: Database[dict[str, Any]], effects: int) -> Counter[str]:
    """Append, drain and run in this process, without ticks or hints; return the commands that it took."""
    store = outbox.tenant(TENANT)
    before = commands(database)
    outbox.append_many(TENANT, [new_event(outbox.runtime.entropy, type="thing") for _ in range(effects)])
    while (drained := outbox.drain_tenant(TENANT)) is None or drained.step.name != "CAUGHT_UP":
        pass
    while (worked := outbox.run_slice(TENANT)) is None or worked.more:
        pass
    spent = commands(database) - before
    if store.effects.next_due() is not None:
        raise SystemExit("rows are left")
    return spent


def measure_pools(outbox: Outbox, folder: Path, environment: dict[str, str], effects: int, workers: list[int]) -> None:
    done = settled(outbox)
    for processes in workers:
        events = [new_event(outbox.runtime.entropy, type="thing") for _ in range(effects)]
        outbox.append_many(TENANT, events)
        supervisor = Supervisor()
        try:
            celery = [sys.executable, "-m", "celery"]
            for name, argv in (("worker", programs.worker(processes)), ("beat", programs.beat())):
                log = folder / f"{name}-{processes}.log"
                supervisor.spawn(name, [*celery, *argv], log=log, env=environment)
            wait_for(outbox, done + 1)
            started = time.perf_counter()
            took = wait_for(outbox, done + effects) - started
        finally:
            supervisor.stop_all()
        done += effects
        print(f"{processes} worker processes: {effects} effects in {took:.1f} s, {effects / took:,.0f}/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--effects", type=int, default=20_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with EmbeddedMongo(folder / "mongo") as mongo, EmbeddedRedis(folder / "broker") as broker:
            environment = {
                **os.environ,
                "OUTBOX_MONGO_URL": mongo.url,
                "OUTBOX_MONGO_DB": "bench",
                "OUTBOX_BROKER_URL": broker.url,
                "OUTBOX_BOTS": "benchmarks.bots",
            }
            os.environ.update(environment)
            run(folder, environment, arguments.effects, arguments.workers)


def run(folder: Path, environment: dict[str, str], effects: int, workers: list[int]) -> None:
    settings = load_settings()
    outbox = Outbox.from_settings(settings)
    load_bots(["benchmarks.bots"])
    outbox.ensure_schema()
    outbox.subscribe(TENANT, "all", "count-it", types=["thing"])
    database = connect(settings.mongo_url.get_secret_value(), settings.mongo_db, settings.limits)
    version = database.client.server_info()["version"]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, MongoDB {version}, w: majority, journaled")
    alone(outbox, database, 1)
    for count in (1, 1_000):
        spent = alone(outbox, database, count)
        print(f"{count} effects alone: {spent.total() / count:.3f} commands each ({dict(spent.most_common())})")
    measure_pools(outbox, folder, environment, effects, workers)
    outbox.close()


if __name__ == "__main__":
    main()
