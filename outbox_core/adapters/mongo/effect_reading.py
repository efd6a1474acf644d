"""Looking at rows, for people and for the next sweep; nothing here changes one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from outbox_core.adapters.mongo.edges import (
    FIRST_DATE,
    LAST_DATE,
)
from outbox_core.adapters.mongo.effect_rows import BY_ID, LIVE_STATES, EffectRows
from outbox_core.adapters.mongo.errors import translated
from outbox_core.domain.effect_lifecycle import State
from outbox_core.domain.errors import (
    EffectNotFoundError,
)
from outbox_core.domain.identity import join_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


class ReadingRows(EffectRows):
    """Reads by id, by time and by count."""

    def next_due(self) -> datetime | None:
        """See the port."""
        times = []
        for state in LIVE_STATES:
            query = {"tenant_id": self._tenant, "state": state, "not_before": {"$gte": FIRST_DATE, "$lte": LAST_DATE}}
            with translated():
                found = self._rows.find_one(query, {"_id": 0, "not_before": 1}, sort=[("not_before", 1)])
            if found is not None:
                times.append(found["not_before"])
        return min(times, default=None)

    def get(self, effect_id: str) -> Mapping[str, Any]:
        """See the port."""
        query = {"_id": effect_id, "tenant_id": self._tenant}
        with translated():
            found = self._rows.find_one(query)
            run = self._runs.find_one(query)
        if found is None:
            raise EffectNotFoundError(f"tenant {self._tenant} has no effect {effect_id[:200]!r}")
        return {**found, "run": run}

    def list(
        self, *, state: str | None = None, sub_id: str | None = None, after: str = "", limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        query = {**self._own_rows(after), "tenant_id": self._tenant}
        query |= {name: value for name, value in (("state", state), ("sub_id", sub_id)) if value is not None}
        with translated():
            return list(self._rows.find(query).sort(BY_ID).hint(BY_ID).limit(limit))

    def newest(
        self, *, state: str | None = None, sub_id: str | None = None, after: str = "", limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """See the port."""
        query: dict[str, Any] = {**self._own_rows(), "tenant_id": self._tenant}
        query |= {name: value for name, value in (("state", state), ("sub_id", sub_id)) if value is not None}
        with translated():
            if after:
                last = self._rows.find_one({"_id": after, "tenant_id": self._tenant}, {"seq": 1})
                if last is None:
                    raise EffectNotFoundError(f"tenant {self._tenant} has no row {after!r}: begin without it")
                # Compared as they sort, a number that is missing or none at all included.
                number, mark = {"$ifNull": ["$seq", None]}, {"$literal": last.get("seq")}
                query["$expr"] = {
                    "$or": [
                        {"$lt": [number, mark]},
                        {"$and": [{"$eq": [number, mark]}, {"$gt": ["$_id", {"$literal": after}]}]},
                    ]
                }
            newest_first = [("seq", -1), ("_id", 1)]
            return list(self._rows.find(query).sort(newest_first).hint(BY_ID).limit(limit).allow_disk_use(True))

    def _own_rows(self, after: str = "") -> dict[str, Any]:
        """Return the range of the tenant's row keys: the index on `_id` serves what no other index holds whole."""
        prefix = join_key(self._tenant, "")
        return {"_id": {"$gt": max(after, prefix), "$lt": prefix + "\U0010ffff"}}

    def counts(self) -> Mapping[str, int]:
        """See the port."""
        pipeline: Sequence[Mapping[str, Any]] = [
            {"$match": {**self._own_rows(), "tenant_id": self._tenant}},
            {"$group": {"_id": {"state": "$state", "outcome": "$outcome"}, "rows": {"$sum": 1}}},
        ]
        counted: dict[str, int] = defaultdict(int)
        with translated():
            groups = list(self._rows.aggregate(pipeline))
        for group in groups:
            state, outcome = group["_id"].get("state"), group["_id"].get("outcome")
            counted[f"{state}:{outcome}" if state == State.DONE.value else str(state)] += group["rows"]
        return dict(counted)
