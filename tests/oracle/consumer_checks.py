"""Checks of consumers, their dead letters and their audit; each yields a line for each violation."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.oracle.change_checks import identity
from tests.oracle.watch import DELETED, REBUILDING, RESTORED, Rebuilt, Told
from tests.oracle.watched import POISONED, RECONCILED, REPLAYED, SUPERSEDED, superseded_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.oracle.watch import Watcher
    from tests.oracle.watched import Watched

_STATES = {"unresolved", "replaying", "resolved"}


def cursors_only_advance(watched: Watched) -> Iterator[str]:
    """Check a cursor was never seen lower than before, but for a consumer that was registered again and has none."""
    last: dict[str, object] = {}
    now = [(row["consumer_id"], row.get("last_acked_sequence")) for row in watched.consumers.values()]
    for consumer_id, cursor in (*watched.watch.sightings, *now):
        before = last.get(consumer_id)
        if isinstance(before, int) and isinstance(cursor, int) and cursor < before:
            yield f"consumer {consumer_id} went back from {before} to {cursor}"
        last[consumer_id] = cursor
    for consumer_id, cursor in now:
        if isinstance(cursor, int) and cursor > watched.head:
            yield f"consumer {consumer_id} stands at {cursor}, past the head {watched.head}"


def passed_only_what_was_observed(watched: Watched) -> Iterator[str]:
    """Check of every event up to a cursor that it was observed, or is recorded as superseded or given up."""
    for watcher in watched.watch.watchers:
        name = watcher.consumer_id
        observed = {told.event_id for told in watched.told(name) if told.complete}
        for number, row in sorted(watched.ledger.items()):
            event_id = row["detail"]["event_id"]
            if watched.covered[name] < number <= watched.cursor(name) and not (
                event_id in observed or event_id in watched.recorded[name] or watched.audited(POISONED, name, event_id)
            ):
                yield f"consumer {name} stands at {watched.cursor(name)}, past {event_id} at {number}, and never saw it"


def observed_in_order(watched: Watched) -> Iterator[str]:
    """Check that events were observed in the order of their numbers, and again only where a process stopped.

    What a transactional observer was told in a transaction that was undone did not happen.
    """
    for watcher in watched.watch.watchers:
        times: Counter[str] = Counter()
        highest = 0
        for told in watched.told(watcher.consumer_id):
            if not told.complete:
                continue
            times[told.event_id] += 1
            if times[told.event_id] == 1 and told.sequence < highest:
                yield f"consumer {watcher.consumer_id} saw event {told.sequence} after event {highest}"
            highest = max(highest, told.sequence)
        if watcher.exact is None:
            yield from _repeats(watched, watcher, times)


def replayed_as_asked(watched: Watched) -> Iterator[str]:
    """Check that a letter's event was observed again as often as somebody asked for it, and no other was."""
    for watcher in watched.watch.watchers:
        name = watcher.consumer_id
        times = Counter(told.event_id for told in watched.told(name, replayed=True) if told.complete)
        for event_id, count in times.items():
            asked = watched.audited(REPLAYED, name, event_id)
            again = 1 if watcher.exact or (name, event_id) in watched.watch.may_repeat else 0
            if count > asked + again:
                yield f"consumer {name} saw {event_id} again {count} times, and was asked to {asked} times"


def transactional_exactly_once(watched: Watched) -> Iterator[str]:
    """Check what a transactional observer wrote for an event is there once, or not at all where it has not seen it."""
    for watcher in watched.watch.watchers:
        if watcher.exact is None:
            continue
        name = watcher.consumer_id
        for number, row in sorted(watched.ledger.items()):
            event_id, count = row["detail"]["event_id"], watcher.exact(row["detail"]["event_id"])
            letter = watched.letters.get((name, event_id))
            if letter is not None:
                wanted = int((letter["state"], letter.get("settled_why")) == ("resolved", "observed"))
            else:
                passed = event_id in watched.recorded[name] or number > watched.cursor(name)
                wanted = int(not passed and number > watched.covered[name])
            if count != wanted:
                at = watched.cursor(name)
                yield f"consumer {name} stands at {at}, and {event_id} at {number} happened {count} times"


def letters_are_whole(watched: Watched) -> Iterator[str]:
    """Check a letter and its audit row are there together, and each letter says truly what became of it."""
    audited = Counter((row["subject"], row["detail"]["event_id"]) for row in watched.audit if row["code"] == POISONED)
    for key in sorted(audited.keys() | watched.letters.keys()):
        gone = key not in watched.letters and key in watched.watch.forgotten
        if audited[key] != 1 or not (gone or key in watched.letters):
            there = "a letter" if key in watched.letters else "no letter"
            yield f"of {key[1]}, which {key[0]} gave up, there are {audited[key]} audit rows and {there}"
    numbers = {row["detail"]["event_id"]: number for number, row in watched.ledger.items()}
    for (name, event_id), letter in sorted(watched.letters.items()):
        copy, state = letter.get("event"), letter["state"]
        if letter["sequence"] != numbers.get(event_id) or letter["sequence"] > max(
            watched.cursor(name), watched.covered[name]
        ):
            yield f"the letter of {event_id} is of number {letter['sequence']}, and {name} is at {watched.cursor(name)}"
        if copy is not None and (copy["event_id"], copy["tenant_id"]) != (event_id, watched.watch.tenant):
            yield f"the letter of {event_id} holds another event, {copy['event_id']} of {copy['tenant_id']}"
        if letter["attempts"] != watched.watch.max_attempts or not letter["failure_class"]:
            tries = letter["attempts"]
            yield f"the letter of {event_id} tells of {tries} tries that failed: {letter['failure_class']!r}"
        settled = all(letter.get(field) for field in ("settled_at", "settled_by", "settled_why"))
        if state not in _STATES or settled is not (state == "resolved"):
            yield f"the letter of {event_id} is {state}, and {'says' if settled else 'does not say'} who settled it"
        asked = watched.audited(REPLAYED, name, event_id)
        if letter.get("replays", 0) != asked:
            yield f"the letter of {event_id} was to be replayed {letter.get('replays', 0)} times, audited {asked} times"
        observed = any(told.complete and told.event_id == event_id for told in watched.told(name, replayed=True))
        if letter.get("settled_why") == "observed" and not observed:
            yield f"the letter of {event_id} is settled as observed, and nobody saw it"


def superseded_rightly(watched: Watched) -> Iterator[str]:
    """Check that only deletions which a later change of the card undid are passed over, each recorded once."""
    restored = {row["detail"]["event_id"].split(":", 1)[1] for row in watched.changes if row["code"] == RESTORED}
    deleted = {row["detail"]["event_id"] for row in watched.changes if row["code"] == DELETED}
    for watcher in watched.watch.watchers:
        name = watcher.consumer_id
        rows = [row for row in watched.audit if row["code"] == SUPERSEDED and row["subject"] == name]
        observed = {told.event_id for told in watched.told(name) if told.complete}
        for event_id, count in Counter(one for row in rows for one in superseded_in(row)).items():
            if count > 1:
                yield f"consumer {name}: {event_id} is recorded as superseded {count} times"
            if event_id not in deleted or event_id.split(":", 1)[1] not in restored:
                yield f"consumer {name}: {event_id} is recorded as superseded, and nothing undid it"
            if event_id in observed and not watcher.exact and (name, event_id) not in watched.watch.may_repeat:
                yield f"consumer {name}: {event_id} is recorded as superseded, and was observed"


def reconciled_before_it_says_so(watched: Watched) -> Iterator[str]:
    """Check there is an audit row for each reconciliation that came to its end, and none without one."""
    rows = Counter(row["subject"] for row in watched.audit if row["code"] == RECONCILED)
    for name in watched.consumers:
        done, again = watched.rebuilt(name), int((name, REBUILDING) in watched.watch.may_repeat)
        if not done - again <= rows[name] <= done:
            yield f"consumer {name} is said to have reconciled {rows[name]} times, and did {done} times"


def operators_are_audited_once(watched: Watched) -> Iterator[str]:
    """Check there is an audit row for each action of an operator, and none without one."""
    rows = Counter(row["code"].rpartition(":")[2] for row in watched.audit)
    for code, (least, most) in sorted(watched.watch.asked.items()):
        if not least <= rows[code] <= most:
            yield f"{code}: {rows[code]} audit rows, where {least} to {most} are due"


def pruned_only_what_all_have_passed(watched: Watched) -> Iterator[str]:
    """Check the stream keeps what a consumer that is not retired has not passed."""
    for watcher in watched.watch.watchers:
        row = watched.consumers.get(watcher.consumer_id)
        if row is None or row.get("retired_at") is not None or watcher.joined:
            continue
        if watched.floor - 1 > max(watched.cursor(watcher.consumer_id), watched.covered[watcher.consumer_id]):
            at = row.get("last_acked_sequence")
            yield f"consumer {watcher.consumer_id} stands at {at}, and the stream begins at {watched.floor}"


def consumers_have_come_to_rest(watched: Watched) -> Iterator[str]:
    """Check, at rest, each consumer has passed all there is, waits for nothing, and gave up what it was to give up."""
    for watcher in watched.watch.watchers:
        name = watcher.consumer_id
        row = watched.consumers.get(name)
        if row is None:
            yield f"consumer {name} is not registered"
            continue
        rests = "retired" if row.get("retired_at") else "stopped" if row.get("stopped_for") else "at the head"
        if rests != watcher.rests:
            yield f"consumer {name} is {rests}, and was to be {watcher.rests}"
        elif rests == "at the head" and (row["last_acked_sequence"], row.get("failing")) != (watched.head, None):
            at = row["last_acked_sequence"]
            yield f"at rest consumer {name} stands at {at} of {watched.head}: {row.get('failing')}"
        waiting = [key for key, letter in watched.letters.items() if key[0] == name and letter["state"] == "replaying"]
        if waiting:
            yield f"at rest {name} has letters to observe again: {waiting}"
        subjects = {row["detail"]["event_id"]: row["subject"] for row in watched.changes}
        parked = {subjects.get(event_id) for owner, event_id in watched.letters if owner == name}
        if parked - watcher.parks:
            yield f"consumer {name} gave up {sorted(map(str, parked - watcher.parks))}, which never fails for good"


def caches_hold_what_lives(watched: Watched) -> Iterator[str]:
    """Check, at rest, whoever did what it was told holds exactly the cards that are not deleted."""
    live = {card_id for card_id, card in watched.cards.items() if card.get("deleted_at") is None}
    for watcher in watched.watch.watchers:
        if watcher.began_with is None:
            continue
        held = set(watcher.began_with)
        for entry in watched.watch.journal:
            if entry.consumer_id != watcher.consumer_id or not entry.ended:
                continue
            if isinstance(entry, Rebuilt):
                held = set(entry.cards)
            elif entry.complete:
                held = held | {entry.card_id} if entry.event_type == RESTORED else held - {entry.card_id}
        given_up = {
            row["subject"]
            for row in watched.changes
            if watched.audited(POISONED, watcher.consumer_id, row["detail"]["event_id"])
        }
        if held - given_up != live - given_up:
            yield f"consumer {watcher.consumer_id} holds {sorted(held)}, and {sorted(live)} live"


def told_only_what_still_holds(watched: Watched) -> Iterator[str]:
    """Check no observer was told of a deletion, at first or again, after its undoing had been answered."""
    undone: dict[str, int] = {}
    for change in watched.watch.changes:
        if change.event_type == RESTORED and change.deleted_at is not None and change.ended is not None:
            undone[identity(DELETED, change.card_id, change.deleted_at)] = change.ended
    for entry in watched.watch.journal:
        if (
            isinstance(entry, Told)
            and entry.began is not None
            and undone.get(entry.event_id, entry.began) < entry.began
        ):
            yield f"consumer {entry.consumer_id} was told of {entry.event_id} after it was undone"


def told_only_what_is_there(watched: Watched) -> Iterator[str]:
    """Check that observers were told of committed events alone, each by its number."""
    numbers = {row["detail"]["event_id"]: number for number, row in watched.ledger.items()}
    for entry in watched.watch.journal:
        if isinstance(entry, Told) and numbers.get(entry.event_id) != entry.sequence:
            yield f"consumer {entry.consumer_id} was told of {entry.event_id} as {entry.sequence}, which is not there"


def _repeats(watched: Watched, watcher: Watcher, times: Counter[str]) -> Iterator[str]:
    for event_id, count in times.items():
        allowed = 1 + int((watcher.consumer_id, event_id) in watched.watch.may_repeat)
        if count > allowed:
            yield f"consumer {watcher.consumer_id} saw {event_id} {count} times, where {allowed} may be"
