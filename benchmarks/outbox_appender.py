"""A process that appends jobs to an outbox as an application does, told by its standard input: `first count [tenant]`.

It answers each line with `ok` when the events are durable. The hints leave from its background thread.
"""

from __future__ import annotations

import sys

from benchmarks.outbox_stage import CHUNK, job_event, tenant_names
from tasks import outbox


def append(tenant: str, first: int, count: int) -> None:
    for start in range(first, first + count, CHUNK):
        outbox.append_many(tenant, [job_event(number) for number in range(start, min(start + CHUNK, first + count))])


def main() -> None:
    tenants = tenant_names(int(sys.argv[1]))
    # Connected before it is measured.
    outbox.tenant(tenants[0]).log.head()
    print("ready", flush=True)
    for line in sys.stdin:
        first, count, *named = line.split()
        if named:
            append(named[0], int(first), int(count))
        else:
            share = -(-int(count) // len(tenants))
            end = int(first) + int(count)
            for tenant, start in zip(tenants, range(int(first), end, share), strict=False):
                append(tenant, start, min(share, end - start))
        print("ok", flush=True)


if __name__ == "__main__":
    main()
