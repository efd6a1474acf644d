"""The plays of deletions, and of the consumers that are told of them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from outbox_core.application.ingest_delivery import ingest_delivery
from outbox_core.application.offer_polls import offer_polls, wake_consumers
from outbox_core.application.prune_lifecycle import prune_lifecycle
from outbox_core.domain.board import CardChange
from outbox_core.domain.consumer import LetterState, Start
from outbox_core.domain.delivery import MAX_ATTEMPTS
from outbox_core.domain.errors import ConsumerRetiredError, DefinitiveError
from outbox_core.domain.forge_delivery import Delivery
from outbox_core.domain.observer import Observation, Observer, Reconciliation
from tests.oracle import Told, Watcher
from tests.simulation.crash.plays import Play, drained, rules
from tests.simulation.crash.watching import CURSORS
from tests.simulation.observing import put_cards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.simulation.crash.scene import Actor, Scene

OLD = timedelta(days=40)
"""Longer than the stream and its letters are kept."""
CLAIM = "consumers.lease"
CARDS = frozenset({"c1", "c2", "c3"})


# --- what plays begin with ---


def registered(scene: Scene, consumer_id: str = "cache", start: Start = Start.BEGINNING) -> None:
    consumers = scene.store.consumers
    scene.journal.ask("consumer-registered", lambda: consumers.register(consumer_id, start, "ann"))


def deleted(scene: Scene, *card_ids: str) -> None:
    scene.journal.delete(scene.store, scene.harness.runtime(), *card_ids)


def restored(scene: Scene, *card_ids: str) -> None:
    scene.journal.restore(scene.store, scene.harness.runtime(), *card_ids)


def event_id(scene: Scene, card_id: str) -> str:
    """Return the id of the last event of a card."""
    events = [event for event in scene.raw("lifecycle_outbox") if event["task_id"] == card_id]
    return str(max(events, key=lambda event: int(event["sequence"]))["event_id"])


def polled(scene: Scene, consumer_id: str = "cache") -> None:
    """Let one consumer observe all there is, by a process that ended before the play."""
    earlier = scene.actor("earlier")
    scene.lapse()
    for _ in range(2):
        earlier.poll_one(consumer_id)
    scene.lapse()


def watched(*card_ids: str, back: tuple[str, ...] = ()) -> Callable[[Scene], None]:
    """Prepare a consumer that has not begun, and cards of which these are deleted, and these restored."""

    def prepare(scene: Scene) -> None:
        put_cards(scene.store, *sorted(CARDS))
        registered(scene)
        deleted(scene, *card_ids)
        restored(scene, *back)
        drained(scene)

    return prepare


def tried_nine_times(scene: Scene) -> None:
    """Leave the consumer before its first event, whose next failure is the last one."""
    watched("c1", "c2")(scene)
    failing = {
        "event_id": event_id(scene, "c1"),
        "attempts": MAX_ATTEMPTS - 1,
        "next_attempt_at": scene.harness.now() - timedelta(seconds=1),
        "failure_class": "ValueError",
    }
    scene.harness.change(CURSORS, f"{scene.tenant}|cache", last_acked_sequence=0, failing=failing)


def parked(scene: Scene) -> None:
    """Leave a letter of the deletion of c1."""
    tried_nine_times(scene)
    polled(scene)


def asked(scene: Scene) -> None:
    """Leave a letter that waits to be observed again."""
    parked(scene)
    _ask_replay(scene, scene.store.consumers)


def _ask_replay(scene: Scene, consumers: Any) -> None:  # noqa: ANN401 - the port, or a proxy of it
    known = event_id(scene, "c1")
    scene.journal.ask("consumer-replayed", lambda: consumers.ask_replay("cache", known, "ann", "why"), once=True)


# --- observers, and what is promised of them ---


def observes(
    function: Callable[[Scene, Observation], object] = lambda _scene, _told: None,
    **more: Any,  # noqa: ANN401
) -> Callable[[Scene, Actor], tuple[Observer, ...]]:
    """Return the observer `cache`, which does this."""

    def observers(scene: Scene, _actor: Actor) -> tuple[Observer, ...]:
        given = {"consumer_id": "cache", "start": Start.BEGINNING, "reconcile": _rebuild, **more}
        return (Observer(function=partial(function, scene), **given),)

    return observers


def _rebuild(_given: Reconciliation) -> None:
    """Do nothing: what it was given is noted down by whoever calls it."""


def _file(_scene: Scene, told: Observation) -> None:
    """Write in the transaction that commits with the cursor, under an id of its own each time."""
    if told.transaction is None:
        raise DefinitiveError("no transaction")
    told.transaction.append(type="seen", subject=told.event_id)


def _filed(scene: Scene) -> Callable[[str], int]:
    def count(of: str) -> int:
        return sum((event.get("type"), event.get("subject")) == ("seen", of) for event in scene.raw("board_events"))

    return count


def _refuse(_scene: Scene, told: Observation) -> None:
    if (told.event.event_type, told.event.task_id) == ("task:deleted", "c1"):
        raise ValueError("always")


def _refuse_but_replayed(scene: Scene, told: Observation) -> None:
    if not told.replayed:
        _refuse(scene, told)


def _file_when_replayed(scene: Scene, told: Observation) -> None:
    _file(scene, told)
    _refuse_but_replayed(scene, told)


def _fail_first(scene: Scene, told: Observation) -> None:
    """Fail at c2, until a failure of it is noted down."""
    failures = [one for one in scene.journal.entries if isinstance(one, Told) and one.failed]
    if told.event.task_id == "c2" and not failures:
        raise ValueError("the first try")


def cache(**more: Any) -> Callable[[Scene], tuple[Watcher, ...]]:  # noqa: ANN401 - of a Watcher
    return lambda _scene: (Watcher(consumer_id="cache", **{"began_with": CARDS, **more}),)


def exactly_once(scene: Scene) -> tuple[Watcher, ...]:
    return (Watcher(consumer_id="cache", exact=_filed(scene), parks=frozenset({"c1"})),)


def poll(_scene: Scene, actor: Actor) -> None:
    actor.poll()


def lifecycle_play(**given: Any) -> Play:  # noqa: ANN401 - of a Play
    """Return a play of deletions, whose cards' events the log holds as well."""
    usual = {"rules": rules(), "observers": observes(), "watchers": cache(), "bots_append": frozenset({"card", "seen"})}
    return Play(**{**usual, **given})


# --- changes ---


def _delete(scene: Scene, actor: Actor) -> None:
    scene.journal.delete(actor.store, actor.runtime, "c1")


def _restore(scene: Scene, actor: Actor) -> None:
    scene.journal.restore(actor.store, actor.runtime, "c1")


def _delivered(scene: Scene, actor: Actor) -> None:
    """A forge tells that it has deleted c1."""
    change = CardChange(card_id="c1", at=scene.harness.now(), deletes=True)
    delivery = Delivery(event_id="a", type="thing", action="deleted", subject="c1", actor="ada", change=change)
    take_in = partial(ingest_delivery, actor.store, actor.runtime, delivery)
    scene.acknowledge(("a",), lambda: scene.journal.change("task:deleted", "c1", take_in))


CHANGES = (
    lifecycle_play(
        name="delete a card",
        promises=("L01", "L02", "L03", "L04"),
        prepare=watched("c1", back=("c1",)),
        act=_delete,
        sent_again=True,
    ),
    lifecycle_play(
        name="restore a card", promises=("L01", "L18"), prepare=watched("c1"), act=_restore, sent_again=True
    ),
    lifecycle_play(name="a forge deletes", promises=("L01", "L02"), prepare=watched(), act=_delivered, sent_again=True),
)


# --- polls ---


def _with_a_reconciliation(scene: Scene) -> None:
    put_cards(scene.store, *sorted(CARDS))
    deleted(scene, "c1")
    registered(scene, start=Start.LATEST)
    drained(scene)


def _another_deletes(scene: Scene, actor: Actor) -> None:
    scene.journal.delete(actor.store, actor.runtime, "c2")


POLLS = (
    lifecycle_play(
        name="poll",
        promises=("L05", "L06", "L07", "L18"),
        prepare=watched("c1", "c2", "c3", back=("c2",)),
        act=poll,
        claims=CLAIM,
    ),
    lifecycle_play(
        name="poll an idempotent one",
        promises=("L05", "L06", "L07"),
        prepare=watched("c1", "c2", "c3"),
        act=poll,
        claims=CLAIM,
        observers=observes(idempotent=True),
        limits={"observe_batch": 2},
    ),
    lifecycle_play(
        name="poll a transactional one",
        promises=("L05", "L06", "L07", "L18"),
        prepare=watched("c1", "c2", "c3", back=("c2",)),
        act=poll,
        claims=CLAIM,
        observers=observes(_file, transactional=True),
        watchers=exactly_once,
        limits={"observe_batch": 2},
    ),
    lifecycle_play(
        name="an event fails",
        promises=("L06", "L09"),
        prepare=watched("c1", "c2", "c3"),
        act=poll,
        claims=CLAIM,
        observers=observes(_fail_first),
    ),
    lifecycle_play(
        name="park",
        promises=("L07", "L10"),
        prepare=tried_nine_times,
        act=poll,
        claims=CLAIM,
        observers=observes(_refuse),
        watchers=cache(parks=frozenset({"c1"})),
    ),
    lifecycle_play(
        name="reconcile",
        promises=("L05", "L12"),
        prepare=_with_a_reconciliation,
        act=poll,
        claims=CLAIM,
        observers=observes(start=Start.LATEST),
        watchers=cache(joined=True),
    ),
    lifecycle_play(
        name="reconcile while another deletes",
        promises=("L12",),
        prepare=_with_a_reconciliation,
        act=poll,
        meanwhile=_another_deletes,
        observers=observes(start=Start.LATEST),
        watchers=cache(joined=True),
    ),
)


# --- letters ---


def _asked_and_restored(scene: Scene) -> None:
    parked(scene)
    known = event_id(scene, "c1")
    restored(scene, "c1")
    consumers = scene.store.consumers
    scene.journal.ask("consumer-replayed", lambda: consumers.ask_replay("cache", known, "ann", "why"), once=True)
    drained(scene)


def _operate_letters(scene: Scene, actor: Actor) -> None:
    _ask_replay(scene, actor.store.consumers)
    _resolve(scene, actor)


def _resolve(scene: Scene, actor: Actor) -> None:
    consumers, known = actor.store.consumers, event_id(scene, "c1")
    scene.journal.ask("letter-resolved", lambda: consumers.resolve("cache", known, "ann", "why"))


def _state_is(state: LetterState, why: str = "") -> Callable[[Scene], Iterable[str]]:
    def check(scene: Scene) -> Iterable[str]:
        found = [(letter["state"], letter.get("settled_why") or "") for letter in scene.raw("lifecycle_dead_letters")]
        if found != [(state.value, why)]:
            yield f"the letters are {found}"

    return check


_OBSERVED = _state_is(LetterState.RESOLVED, "observed")
LETTERS = (
    lifecycle_play(
        name="replay a letter",
        promises=("L11",),
        prepare=asked,
        act=poll,
        claims=CLAIM,
        observers=observes(_refuse_but_replayed),
        watchers=cache(parks=frozenset({"c1"})),
        check=_OBSERVED,
    ),
    lifecycle_play(
        name="replay a letter in a transaction",
        promises=("L06", "L11"),
        prepare=asked,
        act=poll,
        claims=CLAIM,
        observers=observes(_file_when_replayed, transactional=True),
        watchers=exactly_once,
        check=_OBSERVED,
    ),
    lifecycle_play(
        name="a replay fails",
        promises=("L11",),
        prepare=asked,
        act=poll,
        claims=CLAIM,
        observers=observes(_refuse),
        watchers=cache(parks=frozenset({"c1"})),
        check=_state_is(LetterState.UNRESOLVED),
    ),
    lifecycle_play(
        name="a replay comes too late",
        promises=("L11", "L18"),
        prepare=_asked_and_restored,
        act=poll,
        claims=CLAIM,
        observers=observes(_refuse_but_replayed),
        watchers=cache(parks=frozenset({"c1"})),
        check=_state_is(LetterState.RESOLVED, "superseded"),
    ),
    lifecycle_play(
        name="resolve what is replayed",
        promises=("L06", "L11"),
        prepare=asked,
        act=poll,
        meanwhile=_resolve,
        observers=observes(_file_when_replayed, transactional=True),
        watchers=exactly_once,
    ),
    lifecycle_play(
        name="an operator settles letters",
        promises=("L11",),
        prepare=parked,
        act=_operate_letters,
        observers=observes(_refuse_but_replayed),
        watchers=cache(parks=frozenset({"c1"})),
        sent_again=True,
    ),
)


# --- operators ---


def _register(scene: Scene, actor: Actor) -> None:
    consumers = actor.store.consumers
    scene.journal.ask("consumer-registered", lambda: consumers.register("cache", Start.BEGINNING, "ann"), once=True)
    consumers.set_paused(["cache"], paused=True)
    consumers.set_paused(["cache"], paused=False)


def _only_cards(scene: Scene) -> None:
    put_cards(scene.store, *sorted(CARDS))


def _retire_and_return(scene: Scene, actor: Actor) -> None:
    consumers = actor.store.consumers
    scene.journal.ask("consumer-retired", lambda: consumers.retire("cache", "ann", "why"))
    # It may find the one that another try has registered.
    again = partial(consumers.register, "cache", Start.BEGINNING, "ann")
    scene.journal.ask("consumer-registered", again, sure=False)


def _registered_after_each_retirement(scene: Scene) -> Iterable[str]:
    rows = [row["code"].rpartition(":")[2] for row in scene.raw("run_audit")]
    if rows.count("consumer-registered") != 1 + rows.count("consumer-retired"):
        yield f"it was not registered once after each retirement: {rows}"


def _retire(scene: Scene, actor: Actor) -> None:
    consumers = actor.store.consumers
    scene.journal.ask("consumer-retired", lambda: consumers.retire("cache", "ann", "why"), once=True)


def _poll_retired_meanwhile(scene: Scene, actor: Actor) -> None:
    del actor
    consumers = scene.store.consumers
    scene.journal.ask("consumer-retired", lambda: consumers.retire("cache", "ann", "why"), once=True)


def _skip(scene: Scene, actor: Actor) -> None:
    consumers = actor.store.consumers
    scene.journal.ask("consumer-skipped", lambda: consumers.skip("cache", "ann", "why"))
    scene.journal.ask("reconcile-asked", lambda: consumers.require_reconcile("cache", "ann", "why"))


def _must_and_cannot(scene: Scene) -> None:
    watched("c1")(scene)
    consumers = scene.store.consumers
    scene.journal.ask("reconcile-asked", lambda: consumers.require_reconcile("cache", "ann", "why"))


def _skipped(scene: Scene, _actor: Actor) -> None:
    """Whoever operates it answers for what was missed, and the next deletion is observed again."""
    consumers = scene.store.consumers
    scene.journal.ask("consumer-skipped", lambda: consumers.skip("cache", "ann", "why"))
    deleted(scene, "c2")


def _retired(scene: Scene, actor: Actor) -> None:
    try:
        actor.store.consumers.ask_replay("cache", event_id(scene, "c1"), "ann", "why")
    except ConsumerRetiredError:
        return
    raise AssertionError("a retired consumer's letter is to be replayed")


OPERATORS = (
    lifecycle_play(
        name="register",
        promises=("L05", "L22"),
        prepare=_only_cards,
        act=_register,
        sent_again=True,
        must_be_sent=True,
    ),
    lifecycle_play(
        name="retire and return",
        promises=("L14",),
        prepare=watched("c1", "c2"),
        act=_retire_and_return,
        sent_again=True,
        must_be_sent=True,
        check=_registered_after_each_retirement,
    ),
    lifecycle_play(
        name="retire one with letters",
        promises=("L13", "L14"),
        prepare=parked,
        act=_retire,
        sent_again=True,
        must_be_sent=True,
        observers=observes(_refuse),
        watchers=cache(parks=frozenset({"c1"}), rests="retired", began_with=None),
        check=_state_is(LetterState.RESOLVED, "its consumer was retired"),
        finish=_retired,
    ),
    lifecycle_play(
        name="poll while it is retired",
        promises=("L14",),
        prepare=watched("c1", "c2"),
        act=poll,
        meanwhile=_poll_retired_meanwhile,
        finish=_poll_retired_meanwhile,
        watchers=cache(rests="retired", began_with=None),
    ),
    lifecycle_play(
        name="skip and reconcile",
        promises=("L12",),
        prepare=watched("c1"),
        act=_skip,
        sent_again=True,
        must_be_sent=True,
    ),
    lifecycle_play(
        name="stop",
        promises=("L12",),
        prepare=_must_and_cannot,
        act=poll,
        claims=CLAIM,
        observers=observes(reconcile=None),
        watchers=cache(began_with=None),
        finish=_skipped,
    ),
)


# --- ticks ---


def _offer_and_wake(scene: Scene, actor: Actor) -> None:
    offer_polls(actor.faulty, actor.runtime)
    actor.take_messages()
    scene.journal.delete(actor.store, actor.runtime, "c3")
    actor.take_messages()
    wake_consumers(actor.store, actor.runtime)


def _old_stream(scene: Scene) -> None:
    """Three events are old and passed by both consumers, the fourth by one alone; a letter is old and resolved."""
    put_cards(scene.store, "c4")
    parked(scene)
    registered(scene, "slow")
    deleted(scene, "c3")
    for consumer_id in ("cache", "slow"):
        polled(scene, consumer_id)
    deleted(scene, "c4")
    polled(scene)
    consumers, known = scene.store.consumers, event_id(scene, "c1")
    scene.journal.ask("letter-resolved", lambda: consumers.resolve("cache", known, "ann", "why"))
    long_ago = scene.harness.now() - OLD
    for event in scene.raw("lifecycle_outbox"):
        scene.harness.change("lifecycle_outbox", event["_id"], occurred_at=long_ago)
    (letter,) = scene.raw("lifecycle_dead_letters")
    scene.harness.change("lifecycle_dead_letters", letter["_id"], settled_at=long_ago)
    drained(scene)
    for tick in scene.harness.raw("ticks"):
        scene.harness.change("ticks", tick["_id"], next_at=long_ago)


def _prune(scene: Scene, actor: Actor) -> None:
    """Two ticks: the batch of the first is full before it has come to the letters."""
    for _ in range(2):
        prune_lifecycle(actor.faulty, actor.runtime)
        scene.lapse()


def _two(scene: Scene, actor: Actor) -> tuple[Observer, ...]:
    (one,) = observes(_refuse)(scene, actor)
    (two,) = observes(consumer_id="slow")(scene, actor)
    return one, two


def _both(_scene: Scene) -> tuple[Watcher, ...]:
    begun = CARDS | {"c4"}
    return (
        Watcher(consumer_id="cache", parks=frozenset({"c1"}), began_with=begun),
        Watcher(consumer_id="slow", began_with=begun),
    )


def _forgotten(scene: Scene) -> Iterable[tuple[str, str]]:
    return {("cache", row["detail"]["event_id"]) for row in scene.raw("run_audit") if row["subject"] == "c1"}


def _what_is_kept(scene: Scene) -> Iterable[str]:
    kept = sorted(event["sequence"] for event in scene.raw("lifecycle_outbox"))
    if kept not in ([3, 4], [4], []):
        yield f"the stream keeps {kept}"


TICKS = (
    lifecycle_play(
        name="offer and wake",
        promises=("L15", "L17"),
        prepare=watched("c1", "c2"),
        act=_offer_and_wake,
        by_ticks=True,
    ),
    lifecycle_play(
        name="prune",
        promises=("L12", "L13"),
        prepare=_old_stream,
        act=_prune,
        by_ticks=True,
        sent_again=True,
        must_be_sent=True,
        observers=_two,
        watchers=_both,
        forgotten=_forgotten,
        limits={"prune_batch": 2},
        check=_what_is_kept,
    ),
)

OF_LIFECYCLE = (*CHANGES, *POLLS, *LETTERS, *OPERATORS, *TICKS)
