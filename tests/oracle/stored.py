"""The stored documents of one tenant, read once, and what they owe."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.oracle.evidence import PROJECTION, Document, Evidence, Reader, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MACHINES = {"watchdog", "state_rename", "state_delete", "field_rename"}


def key_of(tenant: str, event_id: str, sub_id: str) -> str:
    """Return the key of the row that an event owes."""
    return f"{tenant}|{event_id}|{sub_id}"


def dead_key_of(tenant: str, document_id: str) -> str:
    """Return the key of the row of a stored event that does not decode."""
    return f"{tenant}|#event|{document_id}"


class Stored:
    """Reads in an order in which nothing that goes on meanwhile can look like a fault.

    The flag and the counter come before the cursor, the cursor before the log, the log before the rows: each of them
    only ever follows the next.
    """

    def __init__(self, read: Reader, evidence: Evidence) -> None:
        self.evidence = evidence
        tenant = evidence.tenant
        counters, cursors = self._own(read, "event_sequences"), self._own(read, "trigger_cursors")
        self.counter: Document = counters[0] if counters else {}
        self.cursor: Document = cursors[0] if cursors else {}
        # A journal entry stands on the cursor until it is in the journal, so that is read later.
        entries = [*self.cursor.get("journal", ()), *self._own(read, "drain_journal")]
        self.journal = {entry["entry_id"]: entry for entry in entries}
        log = self._own(read, "board_events")
        self.numbers: dict[object, list[Document]] = defaultdict(list)
        for document in log:
            self.numbers[document.get("seq")].append(document)
        self.tombstones = [document for document in log if document.get("void") is True]
        self.broken = [document for document in log if document["_id"] in evidence.broken]
        self.events = [one for one in log if one.get("void") is not True and one["_id"] not in evidence.broken]
        under = f"{tenant}|"
        found = list(read("trigger_effects"))
        self.rows: Mapping[str, Document] = {
            row["_id"]: row for row in found if row.get("tenant_id") == tenant or str(row["_id"]).startswith(under)
        }
        self.runs: Mapping[str, Document] = {run["_id"]: run for run in self._own(read, "runs")}

    @property
    def reached(self) -> int:
        """How far the cursor is."""
        return int(self.cursor.get("seq", 0))

    @property
    def given_out(self) -> int:
        """The highest number given out."""
        return int(self.counter.get("last_seq", 0))

    def owed(self) -> dict[str, tuple[Document, Rule]]:
        """Return the key of each row that the log owes, with its event and its rule."""
        tenant = self.evidence.tenant
        return {
            key_of(tenant, event["event_id"], rule.sub_id): (event, rule)
            for event in self.events
            for rule in self.evidence.rules
            if self._owes(event, rule)
        }

    def owed_dead(self) -> dict[str, Document]:
        """Return the key of each dead event's row."""
        return {dead_key_of(self.evidence.tenant, document["_id"]): document for document in self.broken}

    def _owes(self, event: Document, rule: Rule) -> bool:
        if event["event_id"] in self.evidence.owes_nothing or (rule.types and event["type"] not in rule.types):
            return False
        if rule.sub_id == PROJECTION:
            snapshot = event.get("snapshot") or {}
            return event["source"] == "board" and bool(snapshot.get("from_state")) and bool(snapshot.get("board"))
        return not event.get("run_id") and event.get("reason") not in _MACHINES

    def _own(self, read: Reader, collection: str) -> list[Document]:
        documents: Iterable[Document] = read(collection)
        return [document for document in documents if document.get("tenant_id") == self.evidence.tenant]
