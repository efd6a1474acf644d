"""The stored documents of one tenant's lifecycle stream and its consumers, read once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.oracle.watch import DELETED, RESTORED, Rebuilt, Told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.oracle.evidence import Document, Reader
    from tests.oracle.watch import Watch

_PREFIX = "lifecycle-observation:"
POISONED, REPLAYED = f"{_PREFIX}consumer-poisoned", f"{_PREFIX}consumer-replayed"
RECONCILED, SKIPPED = f"{_PREFIX}consumer-reconciled", f"{_PREFIX}consumer-skipped"
SUPERSEDED = f"{_PREFIX}event-superseded"


class Watched:
    """Reads cursors before letters and audit rows, those before the counter, the counter before the events.

    What was read first then only ever follows what was read later, also while others write.
    """

    def __init__(self, read: Reader, watch: Watch) -> None:
        self.watch = watch
        own = {name: self._own(read, name) for name in _ORDER}
        self.consumers = {row["consumer_id"]: row for row in own["lifecycle_consumer_cursors"]}
        self.letters = {(row["consumer_id"], row["event_id"]): row for row in own["lifecycle_dead_letters"]}
        self.audit = own["run_audit"]
        self.counters = own["lifecycle_sequences"]
        self.events = sorted(own["lifecycle_outbox"], key=lambda event: int(event["sequence"]))
        self.cards = {row["_id"].partition("|")[2]: row for row in own["board_cards"]}
        self.head = int(self.counters[0]["last_sequence"]) if self.counters else 0
        self.floor = int(self.events[0]["sequence"]) if self.events else self.head + 1
        self.changes = [row for row in self.audit if row["code"] in {DELETED, RESTORED}]
        self.recorded: dict[str, set[str]] = defaultdict(set)
        self.covered: dict[str, int] = defaultdict(int)
        for row in self.audit:
            if row["code"] == SUPERSEDED:
                self.recorded[row["subject"]] |= set(superseded_in(row))
            elif row["code"] in {RECONCILED, SKIPPED}:
                self.covered[row["subject"]] = max(self.covered[row["subject"]], int(row["detail"]["head"]))

    @property
    def ledger(self) -> dict[int, Document]:
        """The audit rows of all changes by their numbers: they stay when the stream is pruned."""
        return {int(row["detail"]["sequence"]): row for row in self.changes}

    def audited(self, code: str, consumer_id: str, event_id: str) -> int:
        """Return how many audit rows of a code name a consumer and an event."""
        rows = [row for row in self.audit if row["code"] == code and row["subject"] == consumer_id]
        return sum(row["detail"].get("event_id") == event_id for row in rows)

    def cursor(self, consumer_id: str) -> int:
        """Return how far a consumer is; one that has not begun, or cannot be read, has passed nothing."""
        stored = self.consumers.get(consumer_id, {}).get("last_acked_sequence")
        return stored if isinstance(stored, int) and not isinstance(stored, bool) else 0

    def told(self, consumer_id: str, *, replayed: bool = False) -> Iterator[Told]:
        """Yield the calls of an observer, in their order."""
        for entry in self.watch.journal:
            if isinstance(entry, Told) and (entry.consumer_id, entry.replayed) == (consumer_id, replayed):
                yield entry

    def rebuilt(self, consumer_id: str) -> int:
        """Return how often a consumer has reconciled to the end."""
        calls = [entry for entry in self.watch.journal if isinstance(entry, Rebuilt) and entry.ended]
        return sum(entry.consumer_id == consumer_id for entry in calls)

    def _own(self, read: Reader, collection: str) -> list[Document]:
        return [document for document in read(collection) if document.get("tenant_id") == self.watch.tenant]


_ORDER = (
    "lifecycle_consumer_cursors",
    "lifecycle_dead_letters",
    "run_audit",
    "lifecycle_sequences",
    "lifecycle_outbox",
    "board_cards",
)


def superseded_in(row: Document) -> list[str]:
    """Return the ids that an audit row records as superseded."""
    return [one for one in str(row["detail"]["event_ids"]).split(",") if one]
