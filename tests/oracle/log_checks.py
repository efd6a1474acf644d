"""Checks of the log, the cursor, the flag and the journal; each yields a line for each violation."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.oracle.evidence import Document
    from tests.oracle.stored import Stored


def appended_once(stored: Stored) -> Iterator[str]:
    """Check every acknowledged event is stored once, an unclear one at most once, and nothing that nobody appended."""
    evidence = stored.evidence
    times = Counter(event["event_id"] for event in stored.events)
    times.update(str(document["_id"]).partition("|")[2] for document in stored.broken)
    for event_id in sorted(evidence.acknowledged):
        if times[event_id] != 1:
            yield f"event {event_id} was acknowledged and is stored {times[event_id]} times"
    for event_id in sorted(evidence.unclear - evidence.acknowledged):
        if times[event_id] > 1:
            yield f"event {event_id}, whose append was unclear, is stored {times[event_id]} times"
    known = evidence.acknowledged | evidence.unclear
    for event in stored.events:
        event_id = event["event_id"]
        if event_id in evidence.refused - known:
            yield f"event {event_id} was refused and is stored at {event['seq']}"
        elif event_id not in known and event["type"] not in evidence.bots_append:
            yield f"event {event_id} at {event['seq']} is one that nobody appended"
        elif times[event_id] > 1 and event_id not in known:
            yield f"event {event_id} of a bot is stored {times[event_id]} times"


def numbered_once(stored: Stored) -> Iterator[str]:
    """Check no two documents of the log share a number, and each has one that was given out."""
    for number, documents in stored.numbers.items():
        ids = ", ".join(sorted(str(document["event_id"]) for document in documents))
        if len(documents) > 1:
            yield f"number {number} is given twice, to {ids}"
        if not isinstance(number, int) or not 1 <= number <= stored.given_out:
            yield f"event {ids} stands at {number!r}, a number that was not given out (the counter: {stored.given_out})"


def no_hole_behind_the_cursor(stored: Stored) -> Iterator[str]:
    """Check every number up to the cursor holds an event, a tombstone or a document that was recorded as dead."""
    for seq in range(1, stored.reached + 1):
        if seq not in stored.numbers:
            yield f"the cursor stands at {stored.reached}, past number {seq}, which holds nothing"
    if stored.reached > stored.given_out:
        yield f"the cursor stands at {stored.reached}, past the last number given out, {stored.given_out}"


def nothing_unmaterialized_behind_the_cursor(stored: Stored) -> Iterator[str]:
    """Check every row that an event at or below the cursor owes is there."""
    for key, (event, rule) in stored.owed().items():
        if event["seq"] <= stored.reached and key not in stored.rows:
            yield (
                f"the cursor stands at {stored.reached}, past event {event['event_id']} at {event['seq']}, "
                f"and its row for {rule.sub_id} is not there"
            )
    for key, document in stored.owed_dead().items():
        if document["seq"] <= stored.reached and key not in stored.rows:
            yield f"the cursor stands at {stored.reached}, past {document['_id']}, which is not recorded as dead"


def flag_is_set_while_work_is_owed(stored: Stored) -> Iterator[str]:
    """Check the undrained flag is clear only where the cursor has reached the counter."""
    if stored.counter and stored.counter.get("undrained") is not True and stored.given_out > stored.reached:
        yield (
            f"the undrained flag is clear, the counter at {stored.given_out} and the cursor at {stored.reached}: "
            "what lies between is stranded"
        )


def drained_to_the_end(stored: Stored) -> Iterator[str]:
    """Check, at rest, the cursor has come to the last number that was given out, and the flag says so."""
    if stored.reached < stored.given_out:
        yield f"at rest the cursor stands at {stored.reached}, and {stored.given_out} numbers were given out"
    elif stored.counter.get("undrained") is True:
        yield f"at rest the undrained flag is set, and all up to {stored.reached} is drained"


def journal_covers_the_log(stored: Stored) -> Iterator[str]:
    """Check the entries that counted follow one another from 1 to the cursor, and say what their batches came to."""
    chain: list[Document] = []
    entry_id = stored.cursor.get("entry_id") or ""
    while entry_id:
        entry = stored.journal.get(entry_id)
        if entry is None or entry in chain:
            yield f"the journal's entry {entry_id} counted, and is {'not there' if entry is None else 'in a circle'}"
            return
        chain.append(entry)
        entry_id = entry.get("follows") or ""
    owed = Counter(event["seq"] for event, _ in stored.owed().values())
    owed.update(document["seq"] for document in stored.owed_dead().values())
    expected = 1
    for entry in reversed(chain):
        first, last = entry["first_seq"], entry["last_seq"]
        if first != expected:
            yield f"the journal's entry {entry['entry_id']} begins at {first}, where {expected} is next"
        rows = sum(owed[seq] for seq in range(first, last + 1))
        if entry["rows"] != rows:
            yield f"the journal's entry of {first} to {last} tells of {entry['rows']} rows, where {rows} are owed"
        skipped = {skip["seq"] for skip in entry["skips"]}
        for document in [*stored.tombstones, *stored.broken]:
            if first <= document["seq"] <= last and document["seq"] not in skipped:
                yield f"the journal does not tell that {document['_id']} at {document['seq']} was passed"
        expected = last + 1
    if expected != stored.reached + 1:
        yield f"the journal ends at {expected - 1}, and the cursor stands at {stored.reached}"
