"""The plays of the matrix: what a use case finds, what it does, and what was promised of it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.errors import PyMongoError

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.append_events import append_events
from outbox_core.application.append_in_session import append_in_session
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.enable_subscription import enable_subscription
from outbox_core.application.ingest_delivery import ingest_delivery
from outbox_core.application.repair_undrained import repair_undrained
from outbox_core.application.run_in_transaction import run_in_transaction
from outbox_core.application.run_slice import run_slice
from outbox_core.application.run_turn import run_turn
from outbox_core.boards import Boards
from outbox_core.domain.board import Binding, Board, Card, CardChange
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import (
    BoardNotFoundError,
    CardNotFoundError,
    ContentionError,
    DefinitiveError,
    InvalidInputError,
    RetryLater,
)
from outbox_core.domain.forge_delivery import Delivery
from outbox_core.domain.identity import join_key
from tests.harness.examples import new_event, subscription
from tests.harness.faults import Death, with_calls
from tests.harness.on_mongo import MongoHarness
from tests.oracle import PROJECTION, Promise, Rest, Rule
from tests.simulation.play import append, drain_whole
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.domain.bot import Run
    from outbox_core.domain.observer import Observer
    from outbox_core.ports.store import TenantStore
    from tests.oracle import Watcher
    from tests.simulation.crash.scene import Actor, Scene

MEMORY, MONGO = "memory", "mongo"
BOTH = frozenset({MEMORY, MONGO})
FAILED = frozenset({Rest("failed")})
THINGS = frozenset({"thing"})
CLAIM = "effects.claim_due"


def _no_bots(_scene: Scene, _actor: Actor) -> Mapping[str, Bot | Callable[..., Any]]:
    return {}


def _no_observers(_scene: Scene, _actor: Actor) -> tuple[Observer, ...]:
    return ()


def _nothing(_scene: Scene) -> Iterable[str]:
    return ()


def _nothing_forgotten(_scene: Scene) -> Iterable[tuple[str, str]]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What one point of the matrix is struck in.

    `act` is the use case. Where it is `sent_again`, whoever takes over does it again, as a caller does that got no
    answer; where another does something else `meanwhile`, that is all it does. What `must_be_sent` is done again also
    where nobody takes over. `check` yields what is broken beyond what the oracle knows; `claims` names the call that
    takes what another may take over, `flag_lost` says that the tenant's flag is wrong at first. `watchers` are the
    consumers that the oracle judges, None where the play has nothing to do with deletions.
    """

    name: str
    prepare: Callable[[Scene], object]
    act: Callable[[Scene, Actor], object]
    rules: Callable[[Scene], tuple[Rule, ...]]
    bots: Callable[[Scene, Actor], Mapping[str, Bot | Callable[..., Any]]] = _no_bots
    projectors: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Scene], Iterable[str]] = _nothing
    finish: Callable[[Scene, Actor], object] | None = None
    meanwhile: Callable[[Scene, Actor], object] | None = None
    sent_again: bool = False
    must_be_sent: bool = False
    promises: tuple[str, ...] = ()
    by_ticks: bool = False
    claims: str = ""
    flag_lost: bool = False
    bots_append: frozenset[str] = frozenset()
    broken: tuple[str, ...] = ()
    owes_nothing: frozenset[str] = frozenset()
    forged: tuple[str, ...] = ()
    observers: Callable[[Scene, Actor], tuple[Observer, ...]] = _no_observers
    watchers: Callable[[Scene], tuple[Watcher, ...]] | None = None
    forgotten: Callable[[Scene], Iterable[tuple[str, str]]] = _nothing_forgotten
    stores: frozenset[str] = BOTH

    @property
    def mark(self) -> pytest.MarkDecorator:
        """The mark of a test that plays it."""
        return pytest.mark.promise(*self.promises)


# --- what plays begin with ---


def subscribe(scene: Scene, sub_id: str = "s", **more: Any) -> None:  # noqa: ANN401 - of a rule
    add_subscription(scene.store, subscription(sub_id, tenant=scene.tenant, **{"types": ("thing",), **more}))


def appended(scene: Scene, *event_ids: str, **more: Any) -> None:  # noqa: ANN401 - of attributes
    runtime = scene.harness.runtime()
    scene.acknowledge(event_ids, lambda: append(scene.store, runtime, *event_ids, **more))


def put_card(store: TenantStore, card_id: str, *labels: str) -> None:
    with store.transactions.begin() as transaction:
        store.cards.put(Card(tenant_id=store.tenant_id, card_id=card_id, labels=labels), transaction)
        transaction.commit()


def bind(store: TenantStore) -> None:
    with store.transactions.begin() as transaction:
        binding = Binding(kind="mirror", target="there")
        store.boards.put(Board(tenant_id=store.tenant_id, board_id="b1", binding=binding), transaction)
        transaction.commit()


def drained(scene: Scene) -> None:
    """Leave the rows of what was appended pending, and every slot free."""
    drain_whole(scene.store, scene.harness.runtime())
    scene.lapse()


def logged(*event_ids: str, **rule: Any) -> Callable[[Scene], None]:  # noqa: ANN401 - of a rule
    """Prepare events that each owe a launch of the bot `bot`."""

    def prepare(scene: Scene) -> None:
        subscribe(scene, **rule)
        appended(scene, *event_ids)

    return prepare


def owed(*event_ids: str, **rule: Any) -> Callable[[Scene], None]:  # noqa: ANN401 - of a rule
    """Prepare one pending launch of the bot `bot` for each event."""
    return drained_after(logged(*event_ids, **rule))


def drained_after(log: Callable[[Scene], None]) -> Callable[[Scene], None]:
    """Prepare the pending rows of what is logged."""

    def prepare(scene: Scene) -> None:
        log(scene)
        drained(scene)

    return prepare


def labelled(**rule: Any) -> Callable[[Scene], None]:  # noqa: ANN401 - of a rule
    """Prepare an event of a card `c1` with the labels go and keep."""

    def prepare(scene: Scene) -> None:
        subscribe(scene, sources=("board",), labels=("go",), **rule)
        put_card(scene.store, "c1", "go", "keep")
        appended(scene, "a", source="board", subject="c1", labels=("go", "keep"))

    return prepare


def armed(**rule: Any) -> Callable[[Scene], None]:  # noqa: ANN401 - of a rule
    """Prepare one pending row of a card `c1` with the labels go and keep."""
    return drained_after(labelled(**rule))


def rules(*given: Rule) -> Callable[[Scene], tuple[Rule, ...]]:
    return lambda _: given


def one_slice(_scene: Scene, actor: Actor) -> None:
    run_slice(actor.store, actor.runtime)


def one_turn(_scene: Scene, actor: Actor) -> None:
    run_turn(actor.store, actor.runtime)


def one_drain(_scene: Scene, actor: Actor) -> None:
    drain_tenant(actor.store, actor.runtime)


def says(function: Callable[[Run], object], **more: Any) -> Callable[[Scene, Actor], dict[str, Bot]]:  # noqa: ANN401
    """Return bots of which `bot` does this."""
    return lambda _scene, _actor: {"bot": Bot(bot_id="bot", function=function, **more)}


def nothing(_run: object) -> None:
    """Do nothing: that it ran is noted down by whoever calls it."""


# --- draining ---


def _log(scene: Scene) -> None:
    store = scene.store
    subscribe(scene, "one", types=())
    subscribe(scene, "two")
    put_card(store, "here")
    bind(store)
    appended(scene, "free", "broken")
    appended(scene, "here", source="board", subject="here", board="b1", from_state="todo", state="doing")
    appended(scene, "gone", source="board", subject="gone")
    store.log.fill(store.log.allocate(1).seqs)
    appended(scene, "last")
    scene.harness.change("board_events", join_key(scene.tenant, "broken"), type=17)


def _log_with_a_hole(scene: Scene) -> None:
    subscribe(scene)
    appended(scene, "a")
    scene.store.log.allocate(2)
    appended(scene, "b")
    drain_tenant(scene.store, scene.harness.runtime())
    scene.lapse()


def _one_event(scene: Scene) -> None:
    subscribe(scene)
    appended(scene, "a")


def _append_one_more(scene: Scene, actor: Actor) -> None:
    """The drain has read the log, and has not yet cleared the flag."""
    events = [new_event("late")]
    scene.acknowledge(("late",), lambda: append_events(actor.store, actor.runtime, events))


def _log_with_poison(scene: Scene) -> None:
    subscribe(scene)
    appended(scene, "a", "poison", "b")
    snapshot = {"labels": ["x" * 1_000] * 20}
    scene.harness.change("board_events", join_key(scene.tenant, "poison"), snapshot=snapshot)


THING = Rule(sub_id="s", types=THINGS)
DRAINS = (
    Play(
        name="drain",
        promises=("E11", "E12", "E13", "E14", "E22"),
        prepare=_log,
        act=one_drain,
        rules=rules(Rule(sub_id="one"), Rule(sub_id="two", types=THINGS), Rule(sub_id=PROJECTION)),
        bots=says(nothing),
        projectors={"mirror": nothing},
        limits={"event_batch": 3},
        broken=("broken",),
        owes_nothing=frozenset({"gone"}),
    ),
    Play(
        name="drain a hole",
        promises=("E03", "E04", "E14"),
        prepare=_log_with_a_hole,
        act=one_drain,
        rules=rules(THING),
        bots=says(nothing),
    ),
    Play(
        name="drain while another appends",
        promises=("E16",),
        prepare=_one_event,
        act=one_drain,
        rules=rules(THING),
        bots=says(nothing),
        meanwhile=_append_one_more,
    ),
    Play(
        name="drain a poison",
        promises=("E08", "E14", "E15"),
        prepare=_log_with_poison,
        act=one_drain,
        rules=rules(THING),
        bots=says(nothing),
        limits={"poison_ticks": 2},
        broken=("poison",),
    ),
)


# --- appending ---


def _subscribed(scene: Scene) -> None:
    subscribe(scene)
    appended(scene, "known")


def _append(scene: Scene, actor: Actor) -> None:
    events = [new_event(event_id) for event_id in ("a", "known", "b")]
    scene.acknowledge(("a", "b"), lambda: append_events(actor.store, actor.runtime, events))


def _in_transaction(scene: Scene, actor: Actor) -> None:
    def body(transaction: OutboxTransaction) -> None:
        try:
            actor.store.cards.get("c1", transaction.transaction)
        except CardNotFoundError:
            card = Card(tenant_id=scene.tenant, card_id="c1")
            actor.store.cards.put(card, transaction.transaction)
            transaction.append_event(new_event("a"))

    scene.acknowledge(("a",), lambda: run_in_transaction(actor.store, actor.runtime, body))


def _card_and_event(scene: Scene) -> Iterable[str]:
    cards = [(card["_id"], card["version"]) for card in scene.raw("board_cards")]
    if len(cards) != sum(event["event_id"] == "a" for event in scene.raw("board_events")):
        yield f"the card and its event did not commit together: {cards}"
    if any(version != 1 for _, version in cards):
        yield f"the card was written more than once: {cards}"


def _in_callers_session(scene: Scene, actor: Actor) -> None:
    harness = scene.harness
    assert isinstance(harness, MongoHarness)
    orders = harness.database["orders"]

    def call() -> None:
        with harness.database.client.start_session() as session, session.start_transaction():
            held = SimpleNamespace(session=session)
            actor.faulty.open.append(held)
            try:
                if orders.find_one({"_id": scene.tenant}, session=session) is None:
                    orders.insert_one({"_id": scene.tenant, "tenant_id": scene.tenant}, session=session)
                append_in_session(actor.store, actor.runtime, [new_event("a")], session)
                actor.faulty.foreign("session.commit", session.commit_transaction)()
            finally:
                actor.faulty.open.remove(held)

    def until_not_undone() -> None:
        while True:
            try:
                return call()
            except (PyMongoError, ContentionError) as error:
                labelled = getattr(error, "has_error_label", lambda _: False)
                if not labelled("TransientTransactionError"):
                    raise

    scene.acknowledge(("a",), until_not_undone)


def _order_and_event(scene: Scene) -> Iterable[str]:
    orders = scene.raw("orders")
    if len(orders) != sum(event["event_id"] == "a" for event in scene.raw("board_events")):
        yield f"the caller's write and its event did not commit together: {orders}"


def _ingest(scene: Scene, actor: Actor) -> None:
    at = scene.harness.now()
    link = "https://forge.example/1"
    change = CardChange(card_id="c1", at=at, link=link, state="open", labels_added=("hot",))
    touches = Delivery(event_id="a", type="thing", action="labeled", subject="c1", actor="ada", change=change)
    speaks = Delivery(event_id="b", type="thing", action="created", subject="x", actor="ada", card_link=link)
    for delivery in (touches, speaks):
        scene.acknowledge((delivery.event_id,), partial(ingest_delivery, actor.store, actor.runtime, delivery))


def _board(scene: Scene, actor: Actor) -> None:
    boards = Boards(actor.store, actor.runtime)
    with suppress(InvalidInputError):  # Its column was renamed by an earlier try.
        boards.create_board("b1", ["todo", "doing", "done"])
    boards.bind("b1", "mirror", "there")
    scene.acknowledge(("a",), lambda: boards.create_card("b1", "t", card_id="c1", event_id="a"))
    scene.acknowledge(("m",), lambda: boards.move_card("c1", "doing", event_id="m"))
    with suppress(BoardNotFoundError):  # Renamed by an earlier try.
        boards.rename_column("b1", "doing", "working")
    scene.acknowledge(("l",), lambda: boards.label_card("c1", add=["hot"], event_id="l"))


def _card_is_as_told(scene: Scene) -> Iterable[str]:
    cards = scene.raw("board_cards")
    told = [event for event in scene.raw("board_events") if event.get("source") == "board"]
    newest = max(told, key=lambda event: int(event["seq"]), default=None)
    if (newest is None) is bool(cards):
        yield f"a card without an event, or an event without a card: {cards}"
    elif newest is not None and (cards[0]["state"], cards[0]["labels"]) != (
        newest["snapshot"]["state"],
        newest["snapshot"]["labels"],
    ):
        yield f"the card is {cards[0]}, and the last event tells of {newest['snapshot']}"
    times = Counter((event["action"], event["snapshot"]["state"]) for event in told)
    for change, count in times.items():
        if count > 1:
            yield f"{change} is told {count} times"


APPENDS = (
    Play(
        name="append",
        promises=("E01", "E46"),
        prepare=_subscribed,
        act=_append,
        rules=rules(THING),
        bots=says(nothing),
        sent_again=True,
    ),
    Play(
        name="run_in_transaction",
        promises=("E02", "E14"),
        prepare=_subscribed,
        act=_in_transaction,
        rules=rules(THING),
        bots=says(nothing),
        check=_card_and_event,
        sent_again=True,
    ),
    Play(
        name="a caller's session",
        promises=("E02",),
        prepare=_subscribed,
        act=_in_callers_session,
        rules=rules(THING),
        bots=says(nothing),
        check=_order_and_event,
        sent_again=True,
        stores=frozenset({MONGO}),
    ),
    Play(
        name="ingest_delivery",
        promises=("E14", "E46"),
        prepare=_subscribed,
        act=_ingest,
        rules=rules(THING),
        bots=says(nothing),
        check=_card_is_as_told,
        sent_again=True,
    ),
    Play(
        name="change a board",
        promises=("E14", "E46"),
        prepare=lambda scene: subscribe(scene, types=()),
        act=_board,
        rules=rules(Rule(sub_id="s"), Rule(sub_id=PROJECTION)),
        bots=says(nothing),
        projectors={"mirror": nothing},
        check=_card_is_as_told,
        sent_again=True,
        bots_append=frozenset({"card"}),
    ),
)


# --- rules ---


def _change_rules(scene: Scene, actor: Actor) -> None:
    store = actor.store
    add_subscription(store, subscription("new", tenant=scene.tenant, types=("thing",)))
    store.subscriptions.set_enabled("off", enabled=False)
    enable_subscription(store, "on")
    store.subscriptions.remove("gone")


def _old_rules(scene: Scene) -> None:
    for sub_id in ("off", "on", "gone"):
        subscribe(scene, sub_id)
    scene.store.subscriptions.set_enabled("on", enabled=False)
    appended(scene, "before", type="another")


RULES = (
    Play(
        name="change rules",
        promises=("E07",),
        prepare=_old_rules,
        act=_change_rules,
        rules=rules(Rule(sub_id="new", types=THINGS), Rule(sub_id="on", types=THINGS)),
        bots=says(nothing),
        finish=lambda scene, _actor: appended(scene, "after"),
        sent_again=True,
        must_be_sent=True,
    ),
)


# --- slices ---


def _file(run: Run) -> None:
    """Write in the transaction that commits with the row."""
    if run.transaction is None:
        raise DefinitiveError("no transaction")
    # Under an id of its own each time: one that is fixed lets the log hide that it happened twice.
    run.transaction.append(type="filed", subject=run.effect_id)


def _filed(scene: Scene) -> Callable[[str], int]:
    def count(effect_id: str) -> int:
        filed = [event for event in scene.raw("board_events") if event.get("type") == "filed"]
        return sum(event["subject"] == effect_id for event in filed)

    return count


def exactly_once(**more: Any) -> Callable[[Scene], tuple[Rule, ...]]:  # noqa: ANN401 - of a Rule
    return lambda scene: (Rule(sub_id="s", types=THINGS, promise=Promise.EXACTLY_ONCE, count=_filed(scene), **more),)


def _paid_once(scene: Scene) -> Iterable[str]:
    """One death costs each row of its claim an attempt at most."""
    for row in scene.raw("trigger_effects"):
        if row["attempts"] > 1:
            yield f"effect {row['_id']} paid {row['attempts']} attempts for one death"


def _paid_each_death(scene: Scene) -> Iterable[str]:
    """A claim that did not come back costs one attempt; one who wakes gives back for nothing what nobody has taken."""
    yield from _paid_once(scene)
    for row in scene.raw("trigger_effects"):
        if not scene.woke and row["attempts"] != row["claims"] - 1:
            yield f"effect {row['_id']} paid {row['attempts']} attempts in {row['claims']} claims"


def _spent(scene: Scene) -> Iterable[str]:
    (card,) = scene.raw("board_cards")
    if card["labels"] != ["keep"] or card["version"] != 2:
        yield f"the label was not spent once: {card}"
    rows = scene.raw("trigger_effects")
    if [row.get("consume_marked") for row in rows] != [True]:
        yield f"what consumed the label does not say so: {rows}"


def _stamped(scene: Scene) -> Iterable[str]:
    (card,) = scene.raw("board_cards")
    if (card["bot"], card["bot_args"], card["version"]) != ("bot", {"a": 1}, 2):
        yield f"the card is not stamped once: {card}"


def _moves(scene: Scene) -> None:
    bind(scene.store)
    put_card(scene.store, "c1")
    where = {"source": "board", "subject": "c1", "board": "b1"}
    appended(scene, "m1", from_state="todo", state="doing", **where)
    appended(scene, "m2", from_state="doing", state="done", **where)
    drained(scene)


def _disabled(scene: Scene) -> None:
    for sub_id in ("off", "gone", "edited"):
        subscribe(scene, sub_id)
    appended(scene, "a")
    drained(scene)
    scene.store.subscriptions.set_enabled("off", enabled=False)
    scene.store.subscriptions.remove("gone")
    scene.harness.change("trigger_subscriptions", join_key(scene.tenant, "edited"), match={"types": ["another"]})


def _first_time(run: Run) -> None:
    if run.attempt == 1:
        raise ValueError("the first try")


def _file_the_second_time(run: Run) -> None:
    _file(run)
    _first_time(run)


def _later(scene: Scene, _actor: Actor) -> dict[str, Any]:
    def bot(run: Run) -> None:
        # This try is noted down already.
        if sum(execution.effect_id == run.effect_id for execution in scene.executions) == 1:
            raise RetryLater(timedelta(hours=1))

    return {"bot": bot}


def _refusing(_run: Run) -> None:
    raise DefinitiveError("never")


def _raising(_run: Run) -> None:
    raise ValueError("always")


def _hung(scene: Scene) -> None:
    owed("a")(scene)
    scene.harness.change("trigger_effects", join_key(scene.tenant, "a", "s"), attempts=5, claims=5)


def _forged(scene: Scene) -> None:
    owed("a")(scene)
    (row,) = scene.raw("trigger_effects")
    scene.harness.put_raw("trigger_effects", {**row, "_id": f"not-{scene.tenant}|a|s"})
    scene.harness.put_raw("trigger_effects", {**row, "_id": f"{scene.tenant}|f|s", "event_id": "another"})
    scene.harness.put_raw("trigger_effects", {**row, "_id": f"{scene.tenant}|n|s", "event_id": "n", "not_before": None})


def _known_to_the_second(_scene: Scene, actor: Actor) -> dict[str, Any]:
    return {} if actor.name == "first" else {"bot": nothing}


def _told_to_stop(_scene: Scene, actor: Actor) -> dict[str, Any]:
    def bot(_run: Run) -> None:
        actor.stops = actor.name == "first"

    return {"bot": bot}


BEAT = timedelta(milliseconds=10)
HOLD = timedelta(seconds=30)


def _slice_with_a_fast_heart(_scene: Scene, actor: Actor) -> None:
    """The heart's period hangs on the hold of a slot; the slot itself is held for as long as ever."""
    slots = actor.store.slots
    store = with_calls(
        actor.store,
        "slots",
        take=lambda lane, _hold: slots.take(lane, HOLD),
        extend=lambda lane, token, _hold: slots.extend(lane, token, HOLD),
    )
    run_slice(store, actor.runtime)


def _long(_scene: Scene, actor: Actor) -> dict[str, Any]:
    """Let the heart beat once while the first row runs: it renews, and ends the slice."""

    def bot(run: Run) -> None:
        if actor.name == "first" and run.event.event_id == "a":
            extended = actor.faulty.answered.count("slots.extend")
            actor.clock.advance(BEAT)

            def beaten() -> bool:
                answered = actor.faulty.answered
                return actor.faulty.dead or (
                    answered.count("slots.extend") > extended and "effects.release" in answered
                )

            wait_until(beaten, timeout=20, what="a beat of the heart")
            if actor.faulty.dead:
                raise Death  # Its heart was struck: the process is gone, the bot with it.

    return {"bot": bot}


SLICES = (
    Play(
        name="plain launch",
        promises=("E26", "E28", "E37"),
        prepare=owed("a", "b", "c"),
        act=one_slice,
        claims=CLAIM,
        rules=rules(THING),
        bots=says(nothing),
        check=_paid_each_death,
    ),
    Play(
        name="transactional launch",
        promises=("E26", "E37"),
        prepare=owed("a", "b"),
        act=one_slice,
        claims=CLAIM,
        rules=exactly_once(),
        bots=says(_file, transactional=True),
        bots_append=frozenset({"filed"}),
        check=_paid_once,
    ),
    Play(
        name="promotion",
        promises=("E14", "E38"),
        prepare=armed(mode="board", vars={"a": 1}),
        act=one_slice,
        claims=CLAIM,
        rules=rules(
            Rule(
                sub_id="s",
                types=THINGS,
                promise=Promise.RUNS_NOTHING,
                rests=frozenset({Rest("done", "promoted")}),
            )
        ),
        check=_stamped,
    ),
    Play(
        name="one-shot",
        promises=("E14", "E36"),
        prepare=armed(consume_labels=("go",)),
        act=one_slice,
        claims=CLAIM,
        rules=rules(THING),
        bots=says(nothing),
        check=_spent,
    ),
    Play(
        name="transactional one-shot",
        promises=("E14", "E36", "E37"),
        prepare=armed(consume_labels=("go",)),
        act=one_slice,
        claims=CLAIM,
        rules=exactly_once(),
        bots=says(_file, transactional=True),
        bots_append=frozenset({"filed"}),
        check=_spent,
    ),
    Play(
        name="projection",
        promises=("E22",),
        prepare=_moves,
        act=one_slice,
        claims=CLAIM,
        rules=rules(Rule(sub_id=PROJECTION)),
        projectors={"mirror": nothing},
    ),
    Play(
        name="drop",
        promises=("E34", "E35"),
        prepare=_disabled,
        act=one_slice,
        claims=CLAIM,
        rules=rules(
            *(
                Rule(sub_id=sub_id, promise=Promise.RUNS_NOTHING, rests=frozenset({Rest("done", outcome)}))
                for sub_id, outcome in (
                    ("off", "subscription_disabled"),
                    ("gone", "subscription_not_found"),
                    ("edited", "subscription_no_longer_matches"),
                )
            )
        ),
        bots=says(nothing),
    ),
    Play(
        name="retry",
        promises=("E33",),
        prepare=owed("a", "b"),
        act=one_slice,
        claims=CLAIM,
        rules=rules(THING),
        bots=says(_first_time),
    ),
    Play(
        name="transactional retry",
        promises=("E33", "E37"),
        prepare=owed("a"),
        act=one_slice,
        claims=CLAIM,
        rules=exactly_once(),
        bots=says(_file_the_second_time, transactional=True),
        bots_append=frozenset({"filed"}),
    ),
    Play(
        name="retry_later",
        promises=("E33",),
        prepare=owed("a"),
        act=one_slice,
        claims=CLAIM,
        rules=rules(THING),
        bots=_later,
    ),
    Play(
        name="pass_over",
        promises=("E23",),
        prepare=owed("a"),
        act=one_slice,
        claims=CLAIM,
        rules=rules(THING),
        bots=_known_to_the_second,
    ),
    Play(
        name="fail at once",
        promises=("E33",),
        prepare=owed("a"),
        act=one_slice,
        claims=CLAIM,
        rules=rules(Rule(sub_id="s", rests=FAILED)),
        bots=says(_refusing),
    ),
    Play(
        name="fail",
        promises=("E33",),
        prepare=owed("a", "b"),
        act=one_slice,
        claims=CLAIM,
        rules=rules(Rule(sub_id="s", rests=FAILED)),
        bots=says(_raising),
    ),
    Play(
        name="park_hung",
        promises=("E29",),
        prepare=_hung,
        act=one_slice,
        claims=CLAIM,
        rules=rules(Rule(sub_id="s", promise=Promise.RUNS_NOTHING, rests=FAILED)),
        bots=says(nothing),
    ),
    Play(
        name="refuse and park_malformed",
        promises=("E24", "E45"),
        prepare=_forged,
        act=one_slice,
        claims=CLAIM,
        rules=rules(THING),
        bots=says(nothing),
        forged=("not-{tenant}|a|s", "{tenant}|f|s", "{tenant}|n|s"),
    ),
    Play(
        name="release",
        promises=("E41",),
        prepare=owed("a", "b", "c"),
        act=one_slice,
        claims=CLAIM,
        rules=rules(THING),
        bots=_told_to_stop,
    ),
    Play(
        name="renew",
        promises=("E32", "E41"),
        prepare=owed("a", "b"),
        act=_slice_with_a_fast_heart,
        claims=CLAIM,
        rules=rules(THING),
        bots=_long,
        limits={"slot_hold": 3 * BEAT, "slice_time": timedelta(milliseconds=1)},
    ),
)


# --- turns ---


def _in_a_turn(name: str, log: Callable[[Scene], None]) -> Play:
    """Return a slice's play in which the rows are born of a turn."""
    (play,) = (play for play in SLICES if play.name == name)
    return replace(play, name=f"{name} in a turn", prepare=log, act=one_turn, claims="effects.materialize")


TURNS = (
    *(replace(play, name=f"{play.name} in a turn", act=one_turn) for play in DRAINS),
    _in_a_turn("plain launch", logged("a", "b", "c")),
    _in_a_turn("transactional launch", logged("a", "b")),
    _in_a_turn("promotion", labelled(mode="board", vars={"a": 1})),
    _in_a_turn("transactional one-shot", labelled(consume_labels=("go",))),
    _in_a_turn("release", logged("a", "b", "c")),
)


# --- ticks ---


def _undrained(scene: Scene) -> None:
    subscribe(scene)
    appended(scene, "a", "b")
    for tick in scene.harness.raw("ticks"):
        scene.harness.change("ticks", tick["_id"], next_at=scene.harness.now() - timedelta(seconds=1))


def _flag_lost(scene: Scene) -> None:
    _undrained(scene)
    scene.harness.change("event_sequences", scene.tenant, undrained=False)


def _two_ticks(_scene: Scene, actor: Actor) -> None:
    actor.faulty.maintenance.ensure_schema()  # As a worker does when it starts; here there is nothing left to do.
    actor.tick()


def _repair(_scene: Scene, actor: Actor) -> None:
    repair_undrained(actor.faulty, actor.runtime)
    actor.tick()


TICKS = (
    Play(
        name="drain and sweep ticks",
        promises=("E16", "E42", "C01"),
        prepare=_undrained,
        act=_two_ticks,
        rules=rules(THING),
        bots=says(nothing),
        by_ticks=True,
    ),
    Play(
        name="repair_undrained",
        promises=("E16",),
        prepare=_flag_lost,
        act=_repair,
        rules=rules(THING),
        bots=says(nothing),
        by_ticks=True,
        flag_lost=True,
        sent_again=True,
        must_be_sent=True,
    ),
)

OF_EFFECTS = (*DRAINS, *APPENDS, *RULES, *SLICES, *TURNS, *TICKS)
