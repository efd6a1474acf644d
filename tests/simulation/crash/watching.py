"""What happens to a tenant's cards and to those who watch them, noted down outside of the store."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outbox_core.application.change_card import CardChanged
from outbox_core.application.delete_card import delete_card
from outbox_core.application.restore_card import restore_card
from outbox_core.domain.board_input import Cause
from tests.oracle import REBUILDING, Change, Rebuilt, Told, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outbox_core.domain.consumer import PollReport
    from outbox_core.domain.lifecycle_event import LifecycleEvent
    from outbox_core.domain.observer import Observation, Observer, Reconciliation
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Document
    from tests.harness.faults import FaultyStore
    from tests.oracle import Watcher

OBSERVE, REBUILD, NOTICE = "observer.call", "observer.reconcile", "notice"
"""The calls of an observer and of whoever is notified, which are struck as the store's calls are."""
ACKNOWLEDGED = frozenset({"consumers.acknowledge", "consumers.replayed", "consumers.reconciled"})
CURSORS = "lifecycle_consumer_cursors"


class Journal:
    """The history that the oracle is told of. Every process of a scene writes into the same one."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.entries: list[Told | Rebuilt] = []
        self.notices: list[str] = []
        self.may_repeat: set[tuple[str, str]] = set()
        self.sightings: list[tuple[str, object]] = []
        self._asked: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._once: set[str] = set()
        self._ticks = 0

    def again(self) -> Journal:
        """Return a journal that begins with what this one holds."""
        copy = Journal()
        copy.changes, copy.entries = list(self.changes), list(self.entries)
        copy.notices, copy.sightings = list(self.notices), list(self.sightings)
        copy._asked, copy._answered, copy._once = self._asked.copy(), self._answered.copy(), set(self._once)
        copy._ticks = self._ticks
        return copy

    def tick(self) -> int:
        """Return the next place in the order of all things."""
        self._ticks += 1
        return self._ticks

    def change(self, event_type: str, card_id: str, call: Callable[[], object]) -> None:
        """Change a card: until the answer is there, it is unclear whether it is changed."""
        number = len(self.changes)
        tried = any((one.event_type, one.card_id, one.ended) == (event_type, card_id, None) for one in self.changes)
        begun = Change(event_type=event_type, card_id=card_id, began=self.tick())
        self.changes.append(begun)
        answer = call()
        ended = replace(begun, ended=self.tick())
        if isinstance(answer, CardChanged):
            deleted_at = answer.card.deleted_at or answer.card.last_deleted_at
            ended = replace(ended, deleted_at=deleted_at, fresh=bool(answer.seqs) and not tried)
        self.changes[number] = ended

    def delete(self, store: TenantStore, runtime: Runtime, *card_ids: str) -> None:
        for card_id in card_ids:
            self.change("task:deleted", card_id, lambda: delete_card(store, runtime, card_id, Cause()))  # noqa: B023 - called at once

    def restore(self, store: TenantStore, runtime: Runtime, *card_ids: str) -> None:
        for card_id in card_ids:
            self.change("task:restored", card_id, lambda: restore_card(store, runtime, card_id, Cause()))  # noqa: B023 - called at once

    def ask(self, code: str, call: Callable[[], object], *, once: bool = False, sure: bool = True) -> None:
        """Do as an operator, who is to be audited; `once` says that a repeat finds it done.

        Where it is not `sure`, the answer does not say whether this very call did it.
        """
        self._asked[code] += 1
        self._once |= {code} if once else set()
        answer = call()
        self._answered[code] += sure and (once or answer is not False)

    def sight(self, rows: Iterable[Document]) -> None:
        """Note how far each consumer is."""
        for row in rows:
            self.sightings.append((row["consumer_id"], row.get("last_acked_sequence")))

    def watch(self, tenant: str, watchers: Sequence[Watcher], forgotten: Iterable[tuple[str, str]]) -> Watch:
        """Return what the oracle is told."""
        asked = {}
        for code, tries in self._asked.items():
            least = self._answered[code]
            asked[code] = (min(least, 1), 1) if code in self._once else (least, tries)
        return Watch(
            tenant=tenant,
            watchers=tuple(watchers),
            changes=tuple(self.changes),
            journal=tuple(self.entries),
            notices=tuple(self.notices),
            may_repeat=frozenset(self.may_repeat),
            sightings=tuple(self.sightings),
            asked=asked,
            forgotten=frozenset(forgotten),
        )


class Notices:
    """Implements ports.runtime.Outlets: notes down each notice, and may be struck at it."""

    def __init__(self, journal: Journal, faulty: FaultyStore) -> None:
        self._notice = faulty.foreign(NOTICE, journal.notices.append)

    def committed(self, event: LifecycleEvent) -> None:
        """See the port."""
        self._notice(event.event_id)

    def polled(self, report: PollReport) -> None:
        """See the port."""


class Observers:
    """Implements ports.runtime.Observers: the observers of one process, each call noted down by the observer itself."""

    def __init__(self, observers: Sequence[Observer], journal: Journal, faulty: FaultyStore) -> None:
        self._journal = journal
        self._faulty = faulty
        self._seen: list[tuple[str, str]] = []
        self._in_turn: tuple[str, str] | None = None
        self._known = {one.consumer_id: self._noted(one) for one in observers}

    def get(self, consumer_id: str) -> Observer | None:
        """See the port."""
        return self._known.get(consumer_id)

    def ids(self) -> Sequence[str]:
        """See the port."""
        return list(self._known)

    def unacknowledged(self) -> set[tuple[str, str]]:
        """Return what was observed here and is not acknowledged in the store; of a plain observer the last alone."""
        seen = iter(self._seen)
        waiting: set[tuple[str, str]] = set()
        for name in self._faulty.landed:
            if name in {OBSERVE, REBUILD}:
                one = next(seen)
                waiting = waiting | {one} if self._known[one[0]].idempotent else {one}
            elif name in ACKNOWLEDGED:
                waiting.clear()
        return waiting

    def in_hand(self) -> set[tuple[str, str]]:
        """Return what an observer is about to be told, if it is."""
        return {self._in_turn} - {None}  # type: ignore[return-value] # None is taken out

    def _noted(self, observer: Observer) -> Observer:
        journal, entries = self._journal, self._journal.entries

        def body(told: Observation) -> None:
            event, number = told.event, len(entries)
            begun = Told(
                consumer_id=told.consumer_id,
                event_id=told.event_id,
                event_type=event.event_type,
                card_id=event.task_id,
                sequence=event.sequence,
                replayed=told.replayed,
                ended=False,
                began=journal.tick(),
            )
            entries.append(begun)
            try:
                observer.function(told)
            except Exception:
                entries[number] = replace(begun, ended=True, failed=True)
                raise
            finally:
                self._in_turn = None
            entries[number] = replace(begun, ended=True)
            self._seen.append((told.consumer_id, told.event_id))

        struck = self._faulty.foreign(OBSERVE, body)

        def noted(told: Observation) -> None:
            self._in_turn = (told.consumer_id, told.event_id)
            struck(told)

        return replace(observer, function=noted, reconcile=self._rebuilding(observer.reconcile))

    def _rebuilding(self, reconcile: Callable[[Reconciliation], Any] | None) -> Callable[[Reconciliation], Any] | None:
        if reconcile is None:
            return None
        entries = self._journal.entries

        def body(given: Reconciliation) -> None:
            cards = list(given.cards)
            number = len(entries)
            begun = Rebuilt(consumer_id=given.consumer_id, cards=frozenset(card.card_id for card in cards), ended=False)
            entries.append(begun)
            reconcile(given)
            self._in_turn = None
            entries[number] = replace(begun, ended=True)
            self._seen.append((given.consumer_id, REBUILDING))

        struck = self._faulty.foreign(REBUILD, body)

        def noted(given: Reconciliation) -> None:
            self._in_turn = (given.consumer_id, REBUILDING)
            struck(given)

        return noted
