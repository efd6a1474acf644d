"""A tenant's slots: a list on its tenant_slots for slices, one on its cursor for the drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo import ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from outbox_core.adapters.mongo.errors import DUPLICATE_KEY, translated
from outbox_core.ports.slots import Lane

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from pymongo.collection import Collection
    from pymongo.database import Database

    from outbox_core.domain.limits import Limits
    from outbox_core.ports.runtime import Entropy

_CHUNK = 1_000
_COLLECTIONS = {Lane.SLICE: "tenant_slots", Lane.DRAIN: "trigger_cursors"}
_AT_ONCE, _LOCAL = WriteConcern(w=1), ReadConcern("local")
"""A slot that a failover takes back is one that ends early: nothing waits for a majority to hold it."""


class MongoSlots:
    """Implements ports.slots.Slots."""

    def __init__(self, database: Database[dict[str, Any]], tenant_id: str, limits: Limits, entropy: Entropy) -> None:
        self._tenant = tenant_id
        self._limits = limits
        self._entropy = entropy
        self._database = database

    def take(self, lane: Lane, hold: timedelta) -> str | None:
        """See the port."""
        token = self._entropy.token()
        with translated():
            found = slots_of(self._database, lane).find_one_and_update(
                {"_id": self._tenant},
                taking(self._tenant, lane, token, hold, self._limits),
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        return token if holds(found, lane, token) else None

    def rotate(self, lane: Lane, token: str, hold: timedelta) -> str | None:
        """See the port."""
        fresh = self._entropy.token()
        found = self._replace(lane, token, fresh, hold)
        return fresh if holds(found, lane, fresh) else None

    def extend(self, lane: Lane, token: str, hold: timedelta) -> bool:
        """See the port."""
        return holds(self._replace(lane, token, token, hold), lane, token)

    def give_back(self, lane: Lane, token: str) -> bool:
        """See the port."""
        with translated():
            before = slots_of(self._database, lane).find_one_and_update(
                {"_id": self._tenant, f"{lane.value}.token": token},
                {"$pull": {lane.value: {"token": token}}},
                return_document=ReturnDocument.BEFORE,
            )
        slots = None if before is None else before[lane.value]
        return isinstance(slots, list) and len(slots) >= _cap(lane, self._limits)

    def _replace(self, lane: Lane, token: str, fresh: str, hold: timedelta) -> dict[str, Any] | None:
        with translated():
            return slots_of(self._database, lane).find_one_and_update(
                {"_id": self._tenant, f"{lane.value}.token": token},
                replacement(lane, token, fresh, hold, self._limits),
                return_document=ReturnDocument.AFTER,
            )


def slots_of(database: Database[dict[str, Any]], lane: Lane) -> Collection[dict[str, Any]]:
    """Return the collection in which the slots of a lane stand."""
    return database.get_collection(_COLLECTIONS[lane], write_concern=_AT_ONCE, read_concern=_LOCAL)


def take_slots(
    database: Database[dict[str, Any]],
    lane: Lane,
    tenants: Sequence[str],
    hold: timedelta,
    limits: Limits,
    token: str,
) -> Mapping[str, str]:
    """Take one free slot of each tenant under one token, in two commands a thousand tenants."""
    slots = slots_of(database, lane)
    taken: dict[str, str] = {}
    for start in range(0, len(tenants), _CHUNK):
        chunk = tenants[start : start + _CHUNK]
        writes = [
            UpdateOne({"_id": tenant}, taking(tenant, lane, token, hold, limits), upsert=True) for tenant in chunk
        ]
        with translated():
            try:
                slots.bulk_write(writes, ordered=False)
            except BulkWriteError as error:
                # Two offers met at a tenant's first slot; the other one has it.
                if {item.get("code") for item in error.details.get("writeErrors", [])} != {DUPLICATE_KEY}:
                    raise
            found = slots.find({"_id": {"$in": list(chunk)}, f"{lane.value}.token": token}, {"_id": 1})
            taken |= {document["_id"]: token for document in found}
    return taken


def taking(tenant_id: str, lane: Lane, token: str, hold: timedelta, limits: Limits) -> list[dict[str, Any]]:
    """Return the update that takes a slot of a lane under `token` where one is free."""
    cap = _cap(lane, limits)
    return [
        {
            "$set": {
                "tenant_id": {"$literal": tenant_id},
                lane.value: _live(lane, limits.longest_hold + limits.op_timeout),
            }
        },
        {
            "$set": {
                lane.value: {
                    "$cond": [
                        {"$lt": [{"$size": f"${lane.value}"}, cap]},
                        {"$concatArrays": [f"${lane.value}", [_slot(token, hold)]]},
                        f"${lane.value}",
                    ]
                }
            }
        },
    ]


def replacement(lane: Lane, token: str, fresh: str, hold: timedelta, limits: Limits) -> list[dict[str, Any]]:
    """Return the update that lets a held slot go on under a fresh token."""
    renewed = {
        "$map": {
            "input": _live(lane, limits.longest_hold + limits.op_timeout),
            "as": "slot",
            "in": {"$cond": [{"$eq": ["$$slot.token", {"$literal": token}]}, _slot(fresh, hold), "$$slot"]},
        }
    }
    return [{"$set": {lane.value: renewed}}]


def _cap(lane: Lane, limits: Limits) -> int:
    return limits.tenant_slots if lane is Lane.SLICE else 1


def _live(lane: Lane, reach: timedelta) -> dict[str, Any]:
    """Slots whose end lies ahead, but not beyond `reach` (a server's clock may have stepped back).

    A command's time is that of its beginning, so one that began first and ran last finds slots that end later than the
    longest hold from its own time: by at most what a command lasts.
    """
    field = f"${lane.value}"
    return {
        "$filter": {
            "input": {"$cond": [{"$isArray": field}, field, []]},
            "as": "slot",
            "cond": {"$and": [{"$gt": ["$$slot.until", "$$NOW"]}, {"$lte": ["$$slot.until", _ahead(reach)]}]},
        }
    }


def _slot(token: str, hold: timedelta) -> dict[str, Any]:
    return {"token": {"$literal": token}, "until": _ahead(hold)}


def _ahead(duration: timedelta) -> dict[str, Any]:
    return {"$add": ["$$NOW", int(duration.total_seconds() * 1000)]}


def holds(document: Mapping[str, Any] | None, lane: Lane, token: str) -> bool:
    """A slot that somebody has damaged is held by nobody, and ends with its time."""
    slots = None if document is None else document.get(lane.value)
    return isinstance(slots, list) and any(isinstance(slot, dict) and slot.get("token") == token for slot in slots)
