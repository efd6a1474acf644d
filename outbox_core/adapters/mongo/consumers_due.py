"""Which consumers of all tenants are due for a poll: two reads and two writes, however many there are."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pymongo
from bson import ObjectId

from outbox_core.adapters.mongo.consumer_edges import RUNNING, ahead, lease_is_over
from outbox_core.adapters.mongo.consumer_rows import BY_ID, CURSORS, LETTERS
from outbox_core.adapters.mongo.edges import NOW
from outbox_core.adapters.mongo.errors import translated
from outbox_core.adapters.mongo.lifecycle_stream import SEQUENCES
from outbox_core.domain.consumer import LetterState
from outbox_core.domain.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from pymongo.collection import Collection
    from pymongo.database import Database

    from outbox_core.domain.limits import Limits

_ROWS = 5_000
"""How many due rows one tick looks at; those that are due longest come first."""

_STEPS = 1_000
"""How many idle polls are told apart at most."""

_WRITE_S, _ONE_S, _MOST_HELD = 2.0, 0.25, 8
"""How long the rows of a tick are waited for together, then each alone, and how many in vain."""

_HEAD = {"from": SEQUENCES, "localField": "tenant_id", "foreignField": "_id", "as": "counter"}
_HAS_FAILED = {"$gt": ["$failing.next_attempt_at", NOW]}
_CURSOR = "$last_acked_sequence"


def due_consumers(
    database: Database[dict[str, Any]], limits: Limits, consumer_ids: Sequence[str], hold: timedelta, limit: int
) -> Sequence[tuple[str, str]]:
    """See ports.maintenance."""
    due = _due(limits, consumer_ids)
    cursors = database[CURSORS]
    with translated():
        rows = list(cursors.aggregate(_pipeline(due), hint="due", batchSize=_ROWS + 1))
        if not rows:
            return ()
        replaying = _replaying(database, consumer_ids)
        busy: list[dict[str, Any]] = []
        rest: list[dict[str, Any]] = []
        for row in rows:
            has_work = row["behind"] and not row["waits"]
            (busy if has_work or (row["tenant_id"], row["consumer_id"]) in replaying else rest).append(row)
        if rest:
            _write(cursors, due, [row["_id"] for row in rest], _put_off(limits))
        offered = busy[:limit]
        if not offered:
            return ()
        ids, token = [row["_id"] for row in offered], ObjectId()
        taken = {"next_poll_at": ahead(hold), "idle_polls": 0, "offer": token, "updated_at": NOW}
        if _write(cursors, due, ids, taken) < len(ids):
            # Another process has taken, paused or retired some of them since they were read, or holds them.
            found = cursors.find({"_id": {"$in": ids}, "offer": token}, {"_id": 1}, hint=BY_ID)
            ids = [row["_id"] for row in found.batch_size(len(ids) + 1)]
    kept = frozenset(ids)
    return [(row["tenant_id"], row["consumer_id"]) for row in offered if row["_id"] in kept]


def _write(cursors: Collection[dict[str, Any]], due: dict[str, Any], ids: Sequence[str], change: dict[str, Any]) -> int:
    """Write rows that are due, and return how many surely; one that somebody holds is left to a later tick.

    A process that was killed in a transaction leaves it open at the server for a minute or more, and a row that it
    wrote makes each write wait: it must not have all tenants wait with it.
    """
    update, held = [{"$set": change}], 0
    try:
        with translated(), pymongo.timeout(_WRITE_S):
            return cursors.update_many({**due, "_id": {"$in": list(ids)}}, update, hint=BY_ID).matched_count
    except TransientError as error:
        for row_id in ids:
            try:
                with translated(), pymongo.timeout(_ONE_S):
                    cursors.update_one({**due, "_id": row_id}, update, hint=BY_ID)
            except TransientError:
                held += 1
                if held >= _MOST_HELD:
                    raise error from None
    return 0


def _due(limits: Limits, consumer_ids: Sequence[str]) -> dict[str, Any]:
    """Return what is due: a time that is missing is one that is over."""
    over = lease_is_over(limits.longest_consumer_lease + limits.op_timeout)
    return {
        "consumer_id": {"$in": list(consumer_ids)},
        **RUNNING,
        "$expr": {"$and": [{"$lte": ["$next_poll_at", NOW]}, over]},
    }


def _pipeline(due: dict[str, Any]) -> list[dict[str, Any]]:
    head = {"$ifNull": [{"$first": "$counter.last_sequence"}, 0]}
    # A cursor that is no number, and one above the head, are to be reconciled.
    behind = {"$or": [{"$eq": ["$must_reconcile", True]}, {"$ne": [_CURSOR, head]}]}
    wanted = {"tenant_id": 1, "consumer_id": 1, "behind": behind, "waits": _HAS_FAILED}
    return [
        {"$match": due},
        {"$sort": {"next_poll_at": 1}},
        {"$limit": _ROWS},
        {"$lookup": _HEAD},
        {"$project": wanted},
    ]


def _replaying(database: Database[dict[str, Any]], consumer_ids: Sequence[str]) -> set[tuple[str, str]]:
    """Return the consumers that have letters to observe again; costs what waits, not what exists."""
    query = {"state": LetterState.REPLAYING.value, "consumer_id": {"$in": list(consumer_ids)}}
    wanted = {"_id": 0, "tenant_id": 1, "consumer_id": 1}
    found = database[LETTERS].find(query, wanted, hint="replaying").batch_size(_ROWS)
    return {(letter["tenant_id"], letter["consumer_id"]) for letter in found}


def _put_off(limits: Limits) -> dict[str, Any]:
    """Return the update of what has nothing to do: as an idle poll, or until the next try of what has failed."""
    delays = _idle_delays(limits)
    polls = {"$convert": {"input": "$idle_polls", "to": "int", "onError": 0, "onNull": 0}}
    step = {"$arrayElemAt": [delays, {"$max": [0, {"$min": [polls, len(delays) - 1]}]}]}
    jitter = {"$add": [0.8, {"$multiply": [0.4, {"$rand": {}}]}]}
    idly = {"$add": [NOW, {"$toLong": {"$multiply": [step, jitter]}}]}
    return {
        "next_poll_at": {"$cond": [_HAS_FAILED, "$failing.next_attempt_at", idly]},
        "idle_polls": {"$cond": [_HAS_FAILED, 0, {"$add": [{"$max": [0, polls]}, 1]}]},
        "updated_at": NOW,
    }


def _idle_delays(limits: Limits) -> list[int]:
    """Return in milliseconds what the limits say for 0, 1, 2, ... idle polls, up to where it grows no more."""
    delays: list[int] = []
    for polls in count():
        delay = int(limits.idle_delay(polls).total_seconds() * 1_000)
        if delays and (delay == delays[-1] or polls >= _STEPS):
            return delays
        delays.append(delay)
    raise AssertionError
