"""Tries one contestant: deploys it, runs jobs through it, checks that each ran once, and prints what it found.

python -m benchmarks.peers NAME --jobs 2000 --processes 2 [--latency 50]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestant import Ledger, Unavailable
from benchmarks.contestants import known
from benchmarks.measuring import cpu_seconds
from benchmarks.peers.peer import PeerDeployment
from outbox_core.embedded.supervisor import wait_for

if TYPE_CHECKING:
    from benchmarks.contestant import Contestant, Deployment

_CACHE = Path(".bench")
_STALLED = timedelta(seconds=120)


def main() -> int:
    """Returns 0 if every job ran once."""
    contestants, missing = known()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(contestants))
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--latency", type=int, default=0, metavar="JOBS", help="also put so many in one by one")
    parser.add_argument("--cache", type=Path, default=_CACHE)
    asked = parser.parse_args()
    if asked.name is None:
        print("\n".join(sorted(contestants)))
        print("\n".join(f"{name}: {reason}" for name, reason in missing.items()))
        return 0
    try:
        wrong = _try(contestants[asked.name], asked)
    except Unavailable as reason:
        wrong = f"unavailable: {reason}"
    print(wrong or "every job ran once")
    return 1 if wrong else 0


def _try(contestant: Contestant, asked: argparse.Namespace) -> str:
    """Returns what is wrong, or ""."""
    facts = contestant.prepare(asked.cache)
    for name in ("version", "durability", "batching", "notes"):
        print(f"{name:>11}: {getattr(facts, name)}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        ledger = Ledger(Path(folder) / "ledger")
        begun = time.perf_counter()
        with contestant.deploy(Path(folder), asked.cache, asked.processes) as deployment:
            print(f"    started: {time.perf_counter() - begun:.1f} s")
            done = 0
            # The first run warms it up.
            for jobs in (min(500, asked.jobs), asked.jobs):
                _run(deployment, ledger, done, jobs)
                done += jobs
            if asked.latency and isinstance(deployment, PeerDeployment):
                _latency(deployment, ledger, done, asked.latency)
                done += asked.latency
            ending = time.perf_counter()
        print(f"      ended: {time.perf_counter() - ending:.1f} s")
        counts = ledger.read().counts
    never = sum(number not in counts for number in range(done))
    again = sum(times > 1 for times in counts.values())
    return f"{never} of {done} jobs never ran, {again} ran more than once" if never or again else ""


def _run(deployment: Deployment, ledger: Ledger, first: int, jobs: int) -> None:
    cpu = [cpu_seconds(pids) for pids in (deployment.servers, deployment.clients)]
    begun = time.perf_counter()
    deployment.enqueue(first, jobs)
    enqueued = time.perf_counter()
    if not wait_for(lambda: deployment.settled() >= first + jobs, _STALLED):
        print(f"    stalled: {deployment.settled()} of {first + jobs} are done")
    ended = time.perf_counter()
    cpu = [cpu_seconds(pids) - used for pids, used in zip((deployment.servers, deployment.clients), cpu, strict=True)]
    wait_for(lambda: ledger.read().counts.total() >= first + jobs, timedelta(seconds=5))
    print(
        f"       jobs: {jobs:,}, {jobs / (ended - begun):,.0f} a second; put in at {jobs / (enqueued - begun):,.0f} a"
        f" second; CPU per 1,000 jobs: server {cpu[0] / jobs * 1_000:.2f} s, clients {cpu[1] / jobs * 1_000:.2f} s;"
        f" processes that ran them: {len(list(ledger.folder.iterdir()))}"
    )


def _latency(deployment: PeerDeployment, ledger: Ledger, first: int, jobs: int) -> None:
    """Put jobs in one by one, each when the last has run."""
    waits = []
    for number in range(first, first + jobs):
        published = deployment.publish(number)
        if not wait_for(partial(_has_started, ledger, number), _STALLED):
            print(f"    stalled: job {number}")
            return
        waits.append((ledger.starts[number] - published.returned) * 1_000)
    print(
        f"    latency: from published to start, {jobs} jobs: median {statistics.median(waits):.2f} ms,"
        f" most {max(waits):.2f} ms"
    )


def _has_started(ledger: Ledger, number: int) -> bool:
    return number in ledger.read().starts


if __name__ == "__main__":
    sys.exit(main())
