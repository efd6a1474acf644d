"""The named calls that span tenants."""

from __future__ import annotations

from datetime import datetime
from itertools import product
from typing import TYPE_CHECKING, Any

from bson.datetime_ms import DatetimeMS
from pymongo.errors import DuplicateKeyError

from outbox_core.adapters.mongo.client import TOLERANT
from outbox_core.adapters.mongo.consumers_due import due_consumers
from outbox_core.adapters.mongo.edges import LAST_DATE, NOW
from outbox_core.adapters.mongo.errors import translated
from outbox_core.adapters.mongo.lifecycle_stream import SEQUENCES
from outbox_core.adapters.mongo.schema import apply_steps, pending_steps
from outbox_core.adapters.mongo.slots import take_slots
from outbox_core.domain.effect_lifecycle import LIVE
from outbox_core.domain.identity import is_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from pymongo.collection import Collection
    from pymongo.database import Database

    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Entropy
    from outbox_core.ports.slots import Lane


class MongoMaintenance:
    """Implements ports.maintenance.Maintenance."""

    def __init__(self, database: Database[dict[str, Any]], limits: Limits, entropy: Entropy) -> None:
        self._database = database
        self._limits = limits
        self._entropy = entropy

    def now(self) -> datetime:
        """See the port."""
        with translated():
            now: datetime = self._database.aggregate([{"$documents": [{"now": NOW}]}]).next()["now"]
        return now

    def tick_due(self, name: str, interval: timedelta) -> bool:
        """See the port."""
        ticks, ahead = self._tolerant("ticks"), int(interval.total_seconds() * 1000)
        # A read's time is that of its beginning: another beat's tick may have come, and been set, after that.
        reach = ahead + int(self._limits.op_timeout.total_seconds() * 1000)
        with translated():
            found = ticks.find_one({"_id": name}, {"next_at": 1, "now": NOW, "latest": {"$add": [NOW, reach]}})
            next_at = None if found is None else found.get("next_at")
            # One that is no time counts as over: all tenants wait for this tick.
            if found is not None and isinstance(next_at, datetime) and found["now"] < next_at <= found["latest"]:
                return False
            update = [{"$set": {"next_at": {"$add": [NOW, ahead]}}}]
            if found is not None:
                # What is no date may come otherwise than it is stored, and is looked for by that alone.
                read = next_at if isinstance(next_at, datetime | DatetimeMS) else {"$not": {"$type": "date"}}
                return ticks.update_one({"_id": name, "next_at": read}, update).modified_count == 1
            try:
                return ticks.update_one({"_id": name, "next_at": None}, update, upsert=True).upserted_id is not None
            except DuplicateKeyError:
                return False

    def undrained_tenants(self, after: str, limit: int) -> Sequence[str]:
        """See the port."""
        query = {"undrained": True, "tenant_id": {"$gt": after}}
        with translated():
            found = self._tolerant("event_sequences").find(query, {"_id": 0, "tenant_id": 1})
            tenants = [document["tenant_id"] for document in found.sort("tenant_id", 1).limit(limit)]
        return [tenant for tenant in tenants if is_id(tenant)]

    def due_tenants(self) -> Sequence[str]:
        """See the port."""
        due: dict[str, float] = {}
        for state, (order, asked) in product(LIVE, ((1, {"$lte": ["$due", NOW]}), (-1, {"$gt": ["$due", LAST_DATE]}))):
            # One state at a time, with the tenant predicate: only so is this a walk over one key of each tenant, its
            # first for what is due, its last for what no clock reaches.
            pipeline: list[dict[str, Any]] = [
                {"$match": {"tenant_id": {"$gt": ""}, "state": state.value}},
                {"$sort": dict.fromkeys(("tenant_id", "state", "not_before"), order)},
                {"$group": {"_id": "$tenant_id", "due": {"$first": "$not_before"}}},
                {"$match": {"$expr": asked}},
            ]
            with translated():
                for found in self._tolerant("trigger_effects").aggregate(pipeline):
                    tenant, place = found["_id"], _due_order(found.get("due"))
                    if is_id(tenant):
                        due[tenant] = min(place, due.get(tenant, place))
        return sorted(due, key=lambda tenant: (due[tenant], tenant))

    def lagging_tenants(self, after: str, limit: int) -> tuple[Sequence[str], str]:
        """See the port."""
        with translated():
            counters = list(
                self._tolerant("event_sequences")
                .find({"_id": {"$gt": after}}, {"last_seq": _number("last_seq"), "undrained": 1})
                .sort("_id", 1)
                .limit(limit)
            )
            ids = [counter["_id"] for counter in counters]
            cursors = self._database["trigger_cursors"].find({"_id": {"$in": ids}}, {"seq": _number("seq")})
            reached = {cursor["_id"]: cursor["seq"] for cursor in cursors}
        lagging = [
            counter["_id"]
            for counter in counters
            if is_id(counter["_id"])
            and counter.get("undrained") is not True
            and counter["last_seq"] > reached.get(counter["_id"], 0)
        ]
        return lagging, ids[-1] if len(ids) == limit else ""

    def _tolerant(self, collection: str) -> Collection[dict[str, Any]]:
        return self._database[collection].with_options(codec_options=TOLERANT)

    def take_slots(self, lane: Lane, tenants: Sequence[str], hold: timedelta) -> Mapping[str, str]:
        """See the port."""
        return take_slots(self._database, lane, tenants, hold, self._limits, self._entropy.token())

    def due_consumers(self, consumer_ids: Sequence[str], hold: timedelta, limit: int) -> Sequence[tuple[str, str]]:
        """See the port."""
        return due_consumers(self._database, self._limits, consumer_ids, hold, limit)

    def lifecycle_tenants(self, after: str, limit: int) -> Sequence[str]:
        """See the port."""
        with translated():
            found = self._database[SEQUENCES].find({"_id": {"$gt": after}}, {"_id": 1}).sort("_id", 1).limit(limit)
            return [counter["_id"] for counter in found.batch_size(limit + 1)]

    def ensure_schema(self) -> Sequence[str]:
        """See the port."""
        return apply_steps(self._database)

    def pending_schema(self) -> Sequence[str]:
        """See the port."""
        return pending_steps(self._database)


def _number(field: str) -> dict[str, Any]:
    """Read a counter, one that is missing or damaged as 0: it must not end the walk over all the others."""
    return {"$convert": {"input": f"${field}", "to": "long", "onError": 0, "onNull": 0}}


def _due_order(due: Any) -> float:  # noqa: ANN401 - a stored value, a date if all is well
    """Sort what is no date first: it is parked by the next claim."""
    return due.timestamp() if hasattr(due, "timestamp") else float("-inf")
