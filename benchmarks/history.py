"""What long use leaves behind, made by the server itself: done rows with their events, runs and journal.

A pipeline over `$documents` writes with `$out`, unjournaled: a collection keeps its indexes and its validator. Meant
for collections that are empty.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from benchmarks.jobs import BOT
from benchmarks.outbox_stage import SUBSCRIPTION, tenant_names
from benchmarks.raw_process import SEPARATOR, attributes
from outbox_core.domain.limits import Limits

if TYPE_CHECKING:
    from pymongo.database import Database

    from benchmarks.outbox_stage import OutboxStage

Document: TypeAlias = dict[str, Any]

_AT_ONCE = 100_000
"""Numbers that one `$range` yields: an array of them must fit into a document."""

_TOGETHER = 2
_FAST = WriteConcern(w=1, j=False)


def fill_history(stage: OutboxStage, rows: int) -> None:
    """Give the first tenant so many events that are drained, and as many done rows and runs."""
    if not rows:
        return
    tenant = tenant_names(1)[0]
    database = stage.observer.database.with_options(write_concern=_FAST, read_concern=ReadConcern("local"))
    event_id: Any = {"$concat": ["old-", {"$toString": "$n"}]}
    key = {"$concat": [f"{tenant}{SEPARATOR}old-", {"$toString": "$n"}]}
    effect_key = {"$concat": [key, f"{SEPARATOR}{SUBSCRIPTION}"]}
    claim = {"$concat": ["claim-", {"$toString": {"$floor": {"$divide": ["$n", 200]}}}]}
    owned = {"tenant_id": tenant, "seq": "$n", "event_id": event_id}
    literal = {"$literal": attributes()}
    event: Document = {**{name: {"$literal": value} for name, value in attributes().items()}, "data": {"$literal": {}}}
    event |= {"trace": {"$literal": {}}, "occurred_at": None, "recorded_at": "$$NOW"}
    row: Document = {"kind": "launch", "state": "done", "attributes": literal, "sub_id": SUBSCRIPTION, "bot_id": BOT}
    row |= {"attempts": {"$literal": 0}, "claims": {"$literal": 1}, "claim_id": claim, "claimed_by": "worker"}
    row |= dict.fromkeys(("not_before", "due_at", "created_at", "updated_at", "done_at"), "$$NOW")
    row |= {"runs_alone": False, "outcome": "delivered", "trace": {"$literal": {}}}
    run: Document = {
        "tenant_id": tenant,
        "claims": {"$literal": 1},
        "claim_id": claim,
        "claimed_by": "worker",
        "bot_id": BOT,
    }
    run |= {"args": {"$literal": {}}, "started_at": "$$NOW", "finished_at": "$$NOW"}
    run |= {"result": None, "result_dropped": False, "error": None}
    batch = Limits().event_batch
    last = {"$multiply": ["$n", batch]}
    entry: Document = {"_id": {"$concat": [f"{tenant}{SEPARATOR}entry-", {"$toString": "$n"}]}, "tenant_id": tenant}
    entry |= {"entry_id": {"$concat": ["entry-", {"$toString": "$n"}]}, "follows": "", "skips": []}
    entry |= {"first_seq": {"$subtract": [last, batch - 1]}, "last_seq": last, "rows": {"$literal": batch}}
    with ThreadPoolExecutor(_TOGETHER) as pool:
        parts = [
            pool.submit(_generate, database, "trigger_effects", rows, {"_id": effect_key, **owned, **row}),
            pool.submit(_generate, database, "board_events", rows, {"_id": key, **owned, **event}),
            pool.submit(_generate, database, "runs", rows, {"_id": effect_key, **run}),
            pool.submit(_generate, database, "drain_journal", rows // batch, {**entry, "drained_at": "$$NOW"}),
        ]
        for part in parts:
            part.result()
    counter = {"tenant_id": tenant, "last_seq": rows, "undrained": False}
    database["event_sequences"].replace_one({"_id": tenant}, counter, upsert=True)
    cursor = {"tenant_id": tenant, "seq": rows, "rev": rows // batch}
    database["trigger_cursors"].replace_one({"_id": tenant}, cursor, upsert=True)
    # What is written back later would be paid by whoever is measured then.
    database.client.admin.command("fsync")


def fill_idle_tenants(stage: OutboxStage, tenants: int) -> None:
    """Put in tenants that have nothing to do: a counter, a cursor, a rule and a done row each."""
    if not tenants:
        return
    database = stage.observer.database.with_options(write_concern=_FAST, read_concern=ReadConcern("local"))
    name = {"$concat": ["idle-", {"$toString": "$n"}]}
    one = {"$literal": 1}
    sequence = {"_id": name, "tenant_id": name, "last_seq": one, "undrained": False, "numbered_at": "$$NOW"}
    rule: Document = {"_id": {"$concat": [name, SEPARATOR, SUBSCRIPTION]}, "tenant_id": name, "sub_id": SUBSCRIPTION}
    rule |= {"bot_id": BOT, "match": {"types": ["job"]}, "enabled": True}
    row: Document = {
        "_id": {"$concat": [name, f"{SEPARATOR}old{SEPARATOR}{SUBSCRIPTION}"]},
        "tenant_id": name,
        "seq": one,
    }
    row |= {"event_id": "old", "kind": "launch", "state": "done", "sub_id": SUBSCRIPTION, "bot_id": BOT}
    row |= {"not_before": "$$NOW", "done_at": "$$NOW", "outcome": "delivered"}
    _generate(database, "event_sequences", tenants, sequence)
    _generate(database, "trigger_cursors", tenants, {"_id": name, "tenant_id": name, "seq": one, "rev": one})
    _generate(database, "trigger_subscriptions", tenants, rule)
    _generate(database, "trigger_effects", tenants, row)


def _generate(database: Database[dict[str, Any]], collection: str, count: int, document: Document) -> None:
    """Write `count` documents made from the numbers 1 to `count`, `$n`."""
    blocks = [{"from": start, "to": min(start + _AT_ONCE, count + 1)} for start in range(1, count + 1, _AT_ONCE)]
    # An array of one block at a time, unwound before the next.
    pipeline: list[dict[str, Any]] = [
        {"$documents": blocks},
        {"$project": {"n": {"$range": ["$from", "$to"]}}},
        {"$unwind": "$n"},
        {"$replaceWith": document},
        {"$out": {"db": database.name, "coll": collection}},
    ]
    database.aggregate(pipeline, allowDiskUse=True)
