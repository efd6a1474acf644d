"""A process that appends jobs to an outbox as an application does, told by its standard input.

A line is `first count [tenant]` or `hint tenant`. It answers each with `ok` and when it began and returned, once the
events are durable. The hints leave from its background thread.
"""

from __future__ import annotations

import sys
import time

from benchmarks.outbox_stage import CHUNK, job_event, tenant_names
from tasks import outbox


def append(tenant: str, first: int, count: int, rules: int) -> None:
    for start in range(first, first + count, CHUNK):
        chunk = range(start, min(start + CHUNK, first + count))
        outbox.append_many(tenant, [job_event(number, rules) for number in chunk])


def main() -> None:
    tenants, rules = tenant_names(int(sys.argv[1])), int(sys.argv[2])
    # Connected before it is measured.
    outbox.tenant(tenants[0]).log.head()
    print("ready", flush=True)
    for line in sys.stdin:
        first, count, *named = line.split()
        began = time.time()
        if first == "hint":
            outbox.hint(count)
        elif named:
            append(named[0], int(first), int(count), rules)
        else:
            share = -(-int(count) // len(tenants))
            end = int(first) + int(count)
            for tenant, start in zip(tenants, range(int(first), end, share), strict=False):
                append(tenant, start, min(share, end - start), rules)
        print(f"ok {began:.6f} {time.time():.6f}", flush=True)


if __name__ == "__main__":
    main()
