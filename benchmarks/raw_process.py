"""The processes of the raw limit, told by their standard input: bare pymongo, and no logic around it.

    python -m benchmarks.raw_process append    takes `first count`, answers `range first last` per batch, then `ok`
    python -m benchmarks.raw_process work      takes `first last`: works one batch
    python -m benchmarks.raw_process work-born-claimed

What each sends is said in raw_contestant.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pymongo import MongoClient, ReturnDocument
from pymongo.write_concern import WriteConcern

from benchmarks.jobs import BOT, PREFIX
from benchmarks.ledger import count
from benchmarks.outbox_stage import CHUNK, DATABASE, JOB, SUBSCRIPTION, tenant_names

if TYPE_CHECKING:
    from pymongo.database import Database

BATCH = 200
TENANT = tenant_names(1)[0]
LEASE = timedelta(minutes=1)
SEPARATOR = "|"
BY_ID = [("_id", 1)]


def connected() -> Database[dict[str, Any]]:
    client: MongoClient[dict[str, Any]] = MongoClient(os.environ["OUTBOX_MONGO_URL"], tz_aware=True)
    database = client.get_database(DATABASE, write_concern=WriteConcern(w="majority", j=True))
    database.command("ping")
    return database


def attributes() -> dict[str, Any]:
    """Return what rules match, as an event and a row carry it."""
    snapshot = {"state": "", "from_state": "", "labels": [], "repo": "", "author": "", "board": ""}
    seen = {"source": "app", "type": JOB, "action": "", "subject": "", "snapshot": snapshot}
    return {**seen, "reason": "", "run_id": ""}


def append(database: Database[dict[str, Any]], first: int, many: int) -> None:
    """Take a block of numbers and insert the events: two commands for a thousand."""
    for start in range(first, first + many, CHUNK):
        chunk = range(start, min(start + CHUNK, first + many))
        counter = database["event_sequences"].find_one_and_update(
            {"_id": TENANT},
            {"$inc": {"last_seq": len(chunk)}, "$set": {"tenant_id": TENANT}},
            upsert=True,
            return_document=ReturnDocument.AFTER,
        )
        last, now = int((counter or {})["last_seq"]), datetime.now(UTC)
        from_seq = last - len(chunk) + 1
        events = [
            {
                "_id": f"{TENANT}{SEPARATOR}{PREFIX}{number}",
                "tenant_id": TENANT,
                "seq": from_seq + at,
                "event_id": f"{PREFIX}{number}",
                **attributes(),
                "data": {},
                "trace": {},
                "occurred_at": None,
                "recorded_at": now,
            }
            for at, number in enumerate(chunk)
        ]
        database["board_events"].insert_many(events, ordered=False)
        for low in range(from_seq, last + 1, BATCH):
            print(f"range {low} {min(low + BATCH - 1, last)}", flush=True)
    print("ok", flush=True)


def work(database: Database[dict[str, Any]], first: int, last: int, *, born_claimed: bool) -> None:
    """Read a batch of events, insert its rows, claim them, run them, insert their runs, settle them."""
    query = {"tenant_id": TENANT, "seq": {"$gte": first, "$lte": last}}
    events = list(database["board_events"].find(query).batch_size(BATCH + 1))
    now = datetime.now(UTC)
    lease, claim_id = now + LEASE, f"{os.getpid()}-{first}"
    claimed = {"state": "claimed", "claim_id": claim_id, "claims": 1, "not_before": lease}
    pending = {"state": "pending", "claim_id": None, "claims": 0, "not_before": now}
    shape = attributes()
    rows = [
        {
            "_id": f"{event['_id']}{SEPARATOR}{SUBSCRIPTION}",
            "tenant_id": TENANT,
            "seq": event["seq"],
            "event_id": event["event_id"],
            "kind": "launch",
            "attributes": {name: event[name] for name in shape},
            "sub_id": SUBSCRIPTION,
            "bot_id": BOT,
            "attempts": 0,
            **(claimed if born_claimed else pending),
            "due_at": now,
            "runs_alone": False,
            "trace": {},
            "created_at": now,
            "updated_at": now,
        }
        for event in events
    ]
    effects = database["trigger_effects"]
    effects.insert_many(rows, ordered=False)
    ids = [row["_id"] for row in rows]
    if not born_claimed:
        effects.update_many({"_id": {"$in": ids}}, {"$set": {**claimed, "updated_at": now}}, hint=BY_ID)
    runs = []
    for row in rows:
        count(int(row["event_id"].removeprefix(PREFIX)))
        run = {"_id": row["_id"], "tenant_id": TENANT, "claims": 1, "claim_id": claim_id, "bot_id": BOT, "args": {}}
        runs.append({**run, "started_at": now, "finished_at": now, "result": None, "error": None})
    database["runs"].insert_many(runs, ordered=False)
    done = {"state": "done", "outcome": "delivered", "done_at": now, "updated_at": now}
    effects.update_many({"_id": {"$in": ids}, "claim_id": claim_id}, {"$set": done}, hint=BY_ID)


def main() -> None:
    role = sys.argv[1]
    database = connected()
    print("ready", flush=True)
    for line in sys.stdin:
        one, other = (int(word) for word in line.split())
        if role == "append":
            append(database, one, other)
        else:
            work(database, one, other, born_claimed=role == "work-born-claimed")


if __name__ == "__main__":
    main()
