"""Decide what a batch of a log owes, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.domain.effect import DEAD_EVENT, LAUNCH, PROJECTION, NewEffect, bounded
from outbox_core.domain.errors import TransientError
from outbox_core.domain.event import Event, Tombstone, Undecodable
from outbox_core.domain.identity import join_key
from outbox_core.domain.rule_index import index_of
from outbox_core.domain.subscription import mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from outbox_core.domain.board import Binding
    from outbox_core.domain.event import LogEntry
    from outbox_core.domain.poison import Poison
    from outbox_core.domain.rule_index import RuleIndex
    from outbox_core.domain.subscription import Subscription
    from outbox_core.ports.drain_progress import Cursor
    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore

VOID = "void"
UNDECODABLE = "undecodable"
POISON = "poison"
CARD_GONE = "card_gone"
OBSERVATIONAL = "observational"
MACHINE_CAUSED = "machine_caused"


@dataclass(frozen=True, slots=True)
class Batch:
    """The first `length` entries, the rows they owe, the numbers that owe none for a reason, and the poison counts.

    `rules` and `bindings` are what was read to decide it: the enabled rules, and the bound boards that events moved on.
    """

    length: int
    rows: tuple[NewEffect, ...]
    skips: tuple[tuple[int, str], ...]
    poison: Poison
    rules: Sequence[Subscription]
    bindings: Mapping[str, Binding | str]


@dataclass(frozen=True, slots=True)
class _Verdict:
    rows: tuple[NewEffect, ...] = ()
    skip: str = ""
    failure: str = ""


def decide_batch(
    store: TenantStore, runtime: Runtime, cursor: Cursor, entries: Sequence[LogEntry], refused: Mapping[int, str]
) -> Batch:
    """Normalize, match and encode every entry; cut before the first that fails, and after the one that is too much.

    `refused` names numbers whose rows the store would not take. An entry that fails every time is counted, at most
    once per poison interval, and becomes a dead event when its count is full; one that does not decode at once.
    Raises TransientError where the store does not answer: then nothing is decided at all (E10).
    """
    around = _read_surroundings(store, entries)
    judged = _judge_as_far_as_taken(store, runtime, entries, refused, around)
    failing = {entry.seq: verdict.failure for entry, verdict in judged if verdict.failure}
    poison = cursor.poison.counted(failing, cursor.now, runtime.limits.poison_interval)
    rows: list[NewEffect] = []
    skips: list[tuple[int, str]] = []
    length = 0
    for entry, found in judged:
        verdict = found
        if verdict.failure:
            if poison.counts.get(entry.seq, 0) < runtime.limits.poison_ticks or not isinstance(entry, Event):
                break
            verdict = _Verdict(rows=(_dead_event(store, entry, verdict.failure),), skip=POISON)
        length += 1
        rows.extend(verdict.rows)
        if verdict.skip:
            skips.append((entry.seq, verdict.skip))
        if len(rows) >= runtime.limits.batch_rows:
            break
    return Batch(length, tuple(rows), tuple(skips), poison, around.enabled, around.bindings)


def _judge_as_far_as_taken(
    store: TenantStore,
    runtime: Runtime,
    entries: Sequence[LogEntry],
    refused: Mapping[int, str],
    around: _Surroundings,
) -> list[tuple[LogEntry, _Verdict]]:
    """Judge every entry up to the one at which the batch is full; with many rules the rest would cost many times that.

    Where one fails the batch ends before it, and the rest is judged all the same: what fails there counts as well.
    """
    judged: list[tuple[LogEntry, _Verdict]] = []
    rows, failed = 0, False
    for entry in entries:
        verdict = _Verdict(failure=refused[entry.seq]) if entry.seq in refused else _judge(store, entry, around)
        judged.append((entry, verdict))
        rows += len(verdict.rows)
        failed = failed or bool(verdict.failure)
        if rows >= runtime.limits.batch_rows and not failed:
            break
    return judged


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What the events of a batch are judged by, each read once."""

    enabled: Sequence[Subscription]
    rules: RuleIndex
    standing: frozenset[str]
    bindings: Mapping[str, Binding | str]


def _read_surroundings(store: TenantStore, entries: Sequence[LogEntry]) -> _Surroundings:
    # After the events: a rule that was answered for before an event was appended is then among these.
    enabled = store.subscriptions.enabled()
    seen = [entry.attributes for entry in entries if isinstance(entry, Event)]
    cards = {one.subject for one in seen if one.concerns_card and not one.tells_of_deletion}
    boards = {one.snapshot.board for one in seen if one.tells_of_move}
    return _Surroundings(
        enabled=enabled,
        rules=index_of(enabled),
        standing=store.cards.standing(cards) if cards else frozenset(),
        bindings=store.boards.bindings(boards) if boards else {},
    )


def _judge(store: TenantStore, entry: LogEntry, around: _Surroundings) -> _Verdict:
    match entry:
        case Tombstone():
            return _Verdict(skip=VOID)
        case Undecodable():
            return _Verdict(rows=(_dead_event(store, entry, entry.error),), skip=UNDECODABLE)
        case Event():
            try:
                return _judge_event(store, entry, around)
            except TransientError:
                raise
            except Exception as error:  # noqa: BLE001 - the named edge: normalizing and matching one event
                return _Verdict(failure=bounded(f"{type(error).__name__}: {error}"))


def _judge_event(store: TenantStore, event: Event, around: _Surroundings) -> _Verdict:
    """Decide from what the event recorded, never from what its card is now (E17); the card must only still exist."""
    seen = event.attributes
    if seen.concerns_card and not seen.tells_of_deletion and seen.subject not in around.standing:
        return _Verdict(skip=CARD_GONE)
    rows = [*_projections(store, event, around)]
    skip = OBSERVATIONAL if seen.observational else MACHINE_CAUSED if seen.machine_caused else ""
    if not skip:
        rows.extend(
            _row(store, event, LAUNCH, sub_id=rule.sub_id, bot_id=rule.bot_id)
            for rule in around.rules.candidates(seen)
            if not rule.horizon.covers(event.seq) and mismatch(rule, seen) is None
        )
    for row in rows:
        store.effects.check(row)
    return _Verdict(rows=tuple(rows), skip=skip)


def _projections(store: TenantStore, event: Event, around: _Surroundings) -> Iterator[NewEffect]:
    """A move on a bound board is owed to no subscription, and whoever made it (E22)."""
    if event.attributes.tells_of_move and event.attributes.snapshot.board in around.bindings:
        yield _row(store, event, PROJECTION)


def _row(store: TenantStore, event: Event, kind: str, *, sub_id: str = "", bot_id: str = "") -> NewEffect:
    return NewEffect(
        tenant_id=store.tenant_id,
        seq=event.seq,
        event_id=event.event_id,
        kind=kind,
        attributes=event.attributes,
        sub_id=sub_id,
        bot_id=bot_id,
        trace=event.trace,
    )


def _dead_event(store: TenantStore, entry: Event | Undecodable, error: str) -> NewEffect:
    event_id = entry.event_id if isinstance(entry, Event) else ""
    return NewEffect(
        tenant_id=store.tenant_id,
        seq=entry.seq,
        event_id=event_id,
        kind=DEAD_EVENT,
        attributes=None,
        document_id=entry.document_id if isinstance(entry, Undecodable) else join_key(store.tenant_id, event_id),
        error=bounded(error),
    )
