"""One-shot labels, promotions and projections on both stores (E22, E36, E38)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.board import Binding, Board, Card
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.identity import join_key, projection_key
from tests.harness.base import ACME
from tests.harness.examples import claim, subscription
from tests.harness.faults import Fault, FaultyStore, When
from tests.simulation.play import append, drain_whole, rows_of, run_whole, until_all_settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.domain.bot import Run
    from outbox_core.domain.projector import Projection
    from outbox_core.domain.subscription import Subscription
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness

LEASE = timedelta(seconds=60)


def put_card(store: TenantStore, *labels: str, card_id: str = "c1", **fields: Any) -> Card:  # noqa: ANN401 - of a card
    """Write a card's labels as they are now, whatever it was."""
    with store.transactions.begin() as transaction:
        found = [card for card in [_card(store, card_id)] if card is not None]
        version = found[0].version if found else 0
        card = Card(tenant_id=store.tenant_id, card_id=card_id, labels=labels, version=version, **fields)
        stored = store.cards.put(card, transaction)
        transaction.commit()
    return stored


def _card(store: TenantStore, card_id: str) -> Card | None:
    return store.cards.get(card_id) if store.cards.standing([card_id]) else None


def one_shot(tenant: str = ACME, sub_id: str = "once", label: str = "go", **more: Any) -> Subscription:  # noqa: ANN401
    terms = {"sources": ("board",), "labels": (label,), "consume_labels": (label,), **more}
    return subscription(sub_id, tenant=tenant, **terms)


def armed(harness: Harness, store: TenantStore, *labels: str, event_id: str = "a") -> None:
    """Put the labels on the card and append the event that says so, materialized."""
    put_card(store, *labels)
    append(store, harness.runtime(), event_id, source="board", subject="c1", labels=labels, action="labeled")
    drain_whole(store, harness.runtime())
    harness.change("tenant_slots", store.tenant_id, slice=[])


def counting(runs: Counter[str], then: Callable[[Run], Any] = lambda _: None) -> Callable[[Run], Any]:
    def bot(run: Run) -> Any:  # noqa: ANN401 - a bot's result
        runs[run.effect_id] += 1
        return then(run)

    return bot


@pytest.mark.promise("E36")
def test_a_label_is_spent_once_and_unrelated_ones_stay(harness: Harness) -> None:
    runs: Counter[str] = Counter()
    store = harness.acme
    add_subscription(store, one_shot())
    armed(harness, store, "Go", "keep")
    run_whole(store, harness.runtime({"bot": counting(runs)}))
    row = harness.row(join_key(ACME, "a", "once"))
    assert (row["state"], row["outcome"], row["consume_marked"], sum(runs.values())) == ("done", "delivered", True, 1)
    assert store.cards.get("c1").labels == ("keep",)


@pytest.mark.promise("E36")
@pytest.mark.parametrize(("rule", "stored"), [("straße", "STRASSE"), ("ΣΊΣΥΦΟΣ", "σίσυφος"), ("i\u0307", "İ")])
def test_a_one_shot_is_folded_as_matching_folds_in_every_script(harness: Harness, rule: str, stored: str) -> None:
    runs: Counter[str] = Counter()
    add_subscription(harness.acme, one_shot(label=rule))
    armed(harness, harness.acme, stored, "другое")
    run_whole(harness.acme, harness.runtime({"bot": counting(runs)}))
    assert sum(runs.values()) == 1
    assert harness.acme.cards.get("c1").labels == ("другое",)


@pytest.mark.promise("E36")
def test_two_effects_on_one_label_launch_once_and_the_other_is_dropped_as_spent(harness: Harness) -> None:
    runs: Counter[str] = Counter()
    add_subscription(harness.acme, one_shot(sub_id="first"))
    add_subscription(harness.acme, one_shot(sub_id="second"))
    armed(harness, harness.acme, "go")
    run_whole(harness.acme, harness.runtime({"bot": counting(runs)}))
    outcomes = Counter(row["outcome"] for row in harness.raw("trigger_effects"))
    assert outcomes == {"delivered": 1, "label_spent_by_another": 1}
    assert sum(runs.values()) == 1


@pytest.mark.promise("E36")
def test_a_failed_launch_is_retried_without_consuming_again(harness: Harness) -> None:
    runs: Counter[str] = Counter()

    def then(run: Run) -> None:
        if runs[run.effect_id] == 1:
            raise ValueError

    store, runtime = harness.acme, harness.runtime({"bot": counting(runs, then)})
    add_subscription(store, one_shot())
    armed(harness, store, "go")
    run_whole(store, runtime)
    assert store.cards.get("c1").labels == ()
    harness.advance(timedelta(seconds=30))
    run_whole(store, runtime)
    row = harness.row(join_key(ACME, "a", "once"))
    assert (row["state"], row["outcome"], row["attempts"], sum(runs.values())) == ("done", "delivered", 1, 2)


@pytest.mark.promise("E36")
@pytest.mark.scenario(52)
def test_a_label_that_comes_back_while_its_first_launch_retries_launches_both(harness: Harness) -> None:
    """Effect 1 consumes and fails, the label comes back, effect 2 consumes, effect 1 retries."""
    runs: Counter[str] = Counter()
    first, second = (join_key(ACME, event_id, "once") for event_id in ("a", "b"))

    def then(run: Run) -> None:
        if run.effect_id == first and runs[first] == 1:
            raise ValueError

    store, runtime = harness.acme, harness.runtime({"bot": counting(runs, then)})
    add_subscription(store, one_shot())
    armed(harness, store, "go")
    run_whole(store, runtime)
    armed(harness, store, "go", event_id="b")
    run_whole(store, runtime)
    assert (runs[first], runs[second]) == (1, 1)
    assert store.cards.get("c1").labels == ()
    harness.advance(timedelta(seconds=30))
    run_whole(store, runtime)
    assert (runs[first], runs[second]) == (2, 1)
    assert {harness.row(effect_id)["outcome"] for effect_id in (first, second)} == {"delivered"}


@pytest.mark.promise("E36")
@pytest.mark.scenario(59)
def test_a_worker_that_stalled_before_its_consume_changes_nothing_when_it_wakes(harness: Harness) -> None:
    """B reclaims, consumes, launches, settles; the label returns for another effect; then A wakes."""
    runs: Counter[str] = Counter()
    store = harness.acme
    add_subscription(store, one_shot())
    armed(harness, store, "go")
    runtime = harness.runtime({"bot": counting(runs)})
    woken = FaultyStore(harness.store)
    a = woken.tenant(ACME)
    begin = a.transactions.begin
    stalled = False

    def stall_then_begin() -> Any:  # noqa: ANN401 - as the port
        nonlocal stalled
        if not stalled:
            stalled = True
            harness.advance(LEASE + timedelta(seconds=1))
            run_whole(harness.store.tenant(ACME), runtime)
            put_card(harness.store.tenant(ACME), "go")
        return begin()

    a.transactions.begin = stall_then_begin  # type: ignore[method-assign] # the stall is placed inside the port
    run_slice(a, harness.runtime({"bot": counting(runs)}, worker="stalled"))
    assert stalled
    assert store.cards.get("c1").labels == ("go",)
    assert runs == {join_key(ACME, "a", "once"): 1}
    append(store, runtime, "b", source="board", subject="c1", labels=("go",))
    drain_whole(store, runtime)
    run_whole(store, runtime)
    assert runs[join_key(ACME, "b", "once")] == 1


@pytest.mark.promise("E27", "E36")
def test_a_worker_that_stalled_between_its_consume_and_its_launch_launches_nothing_when_it_wakes(
    harness: Harness,
) -> None:
    """Its lease is over by its own clock as well; another one has found the mark and launched."""
    runs: Counter[str] = Counter()
    store, runtime = harness.acme, harness.runtime({"bot": counting(runs)})
    add_subscription(store, one_shot())
    armed(harness, store, "go")

    def stall() -> None:
        harness.advance(LEASE + timedelta(seconds=1))
        run_whole(store, runtime)

    woken = FaultyStore(harness.store, Fault("transaction.commit", When.AFTER, None, then=stall))
    run_slice(woken.tenant(ACME), harness.runtime({"bot": counting(runs)}, worker="stalled"))
    assert woken.struck
    assert runs == {join_key(ACME, "a", "once"): 1}
    row = harness.row(join_key(ACME, "a", "once"))
    assert (row["state"], row["outcome"], row["attempts"]) == ("done", "delivered", 1)


@pytest.mark.promise("E36")
def test_after_its_consume_only_a_missing_or_disabled_rule_drops_a_launch(harness: Harness) -> None:
    runs: Counter[str] = Counter()

    def then(run: Run) -> None:
        if runs[run.effect_id] == 1:
            raise ValueError

    store, runtime = harness.acme, harness.runtime({"bot": counting(runs, then)})
    add_subscription(store, one_shot())
    armed(harness, store, "go")
    run_whole(store, runtime)
    match = {"sources": ["board"], "labels": ["go"], "types": ["another"]}
    harness.change("trigger_subscriptions", join_key(ACME, "once"), match=match)
    harness.advance(timedelta(seconds=30))
    run_whole(store, runtime)
    assert sum(runs.values()) == 2
    armed(harness, store, "go", event_id="b")
    assert sorted(rows_of(harness, ACME)) == ["a|once"]


@pytest.mark.promise("E36")
@pytest.mark.parametrize("unable", ["bot", "card"])
def test_a_label_is_not_spent_where_nothing_can_launch(harness: Harness, unable: str) -> None:
    store = harness.acme
    add_subscription(store, one_shot())
    armed(harness, store, "go")
    if unable == "card":
        put_card(store, "go", deleted_at=harness.now())
    run_whole(store, harness.runtime({} if unable == "bot" else {"bot": counting(Counter())}))
    row = harness.row(join_key(ACME, "a", "once"))
    assert (row["state"], row.get("outcome")) == (("pending", None) if unable == "bot" else ("done", "card_gone"))
    assert store.cards.get("c1").labels == ("go",)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"labels": ("other",)}, "not among the labels"),
        ({"mode": "board"}, "mode direct"),
        ({"sources": ()}, "sources"),
        ({"sources": ("board", "app")}, "sources"),
    ],
)
def test_a_rule_that_could_not_spend_its_label_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        one_shot(**more)


# --- mode board ---


@pytest.mark.promise("E38")
def test_a_promotion_stamps_its_card_once_and_the_same_bot_again_is_left(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("stamp", mode="board", vars={"a": 1}))
    put_card(store, "x")
    append(store, runtime, "a", "b", source="board", subject="c1")
    drain_whole(store, runtime)
    run_whole(store, runtime)
    card = store.cards.get("c1")
    assert (card.bot, dict(card.bot_args), card.version) == ("bot", {"a": 1}, 2)
    assert {row["outcome"] for row in harness.raw("trigger_effects")} == {"promoted"}
    assert harness.raw("runs") == []


def test_a_promotion_of_a_card_that_is_gone_meanwhile_is_dropped(harness: Harness) -> None:
    store, runtime = harness.acme, harness.runtime()
    add_subscription(store, subscription("stamp", mode="board"))
    put_card(store)
    append(store, runtime, "a", source="board", subject="c1")
    drain_whole(store, runtime)
    put_card(store, deleted_at=harness.now())
    run_whole(store, runtime)
    assert harness.row(join_key(ACME, "a", "stamp"))["outcome"] == "card_gone"


# --- projections ---


def bind(store: TenantStore, binding: Binding | None = None, board_id: str = "b1") -> None:
    known = [board.version for board in store.boards.all() if board.board_id == board_id]
    with store.transactions.begin() as transaction:
        version = known[0] if known else 0
        board = Board(tenant_id=store.tenant_id, board_id=board_id, binding=binding, version=version)
        store.boards.put(board, transaction)
        transaction.commit()


MIRROR = Binding(kind="mirror", target="there")


def moved(harness: Harness, event_id: str = "m", **more: Any) -> None:  # noqa: ANN401 - of attributes
    where = {"source": "board", "subject": "c1", "board": "b1", "from_state": "todo", "state": "doing"}
    append(harness.acme, harness.runtime(), event_id, **{**where, **more})
    drain_whole(harness.acme, harness.runtime())


@pytest.mark.promise("E22")
def test_a_move_on_a_bound_board_is_owed_its_projection_without_any_rule(harness: Harness) -> None:
    seen: list[Projection] = []
    put_card(harness.acme)
    bind(harness.acme, MIRROR)
    moved(harness)
    run_whole(harness.acme, harness.runtime(projectors={"mirror": seen.append}))
    (projection,) = seen
    assert (projection.effect_id, projection.target, projection.board) == (projection_key(ACME, "m"), "there", "b1")
    assert projection.event.attributes.snapshot.state == "doing"
    row = harness.row(projection_key(ACME, "m"))
    assert (row["kind"], row["state"], row["outcome"], row["sub_id"], row["bot_id"]) == (
        "projection",
        "done",
        "delivered",
        "",
        "",
    )


@pytest.mark.promise("E22")
def test_what_a_machine_or_a_run_moved_is_projected_and_launches_nothing(harness: Harness) -> None:
    add_subscription(harness.acme, subscription("s"))
    put_card(harness.acme)
    bind(harness.acme, MIRROR)
    moved(harness, "machine", reason="state_rename")
    moved(harness, "run", run_id="r1")
    moved(harness, "person")
    assert sorted(rows_of(harness, ACME)) == [
        "machine|#projection",
        "person|#projection",
        "person|s",
        "run|#projection",
    ]


@pytest.mark.promise("E22")
@pytest.mark.parametrize("why", ["unbound", "no move", "gone", "unknown board", "no board"])
def test_nothing_is_projected_where_no_bound_board_saw_a_move(harness: Harness, why: str) -> None:
    bind(harness.acme, None if why == "unbound" else MIRROR)
    put_card(harness.acme, deleted_at=harness.now() if why == "gone" else None)
    more = {"no move": {"from_state": ""}, "unknown board": {"board": "b2"}, "no board": {"board": ""}}
    moved(harness, **more.get(why, {}))
    assert rows_of(harness, ACME) == {}


@pytest.mark.promise("E22")
def test_a_projection_with_nowhere_to_go_is_an_error_and_never_done(harness: Harness) -> None:
    put_card(harness.acme)
    bind(harness.acme, MIRROR)
    moved(harness)
    bind(harness.acme, None)
    runtime = harness.runtime(projectors={"mirror": lambda _: None})
    run_whole(harness.acme, runtime)
    row = harness.row(projection_key(ACME, "m"))
    assert (row["state"], row["attempts"]) == ("pending", 1)
    assert "nowhere" in row["last_error"]
    until_all_settled(harness, harness.acme, runtime)
    assert harness.row(projection_key(ACME, "m"))["state"] == "failed"


@pytest.mark.promise("E22", "E40")
def test_a_projector_that_raises_is_retried_and_stops_nobody(harness: Harness) -> None:
    tries: Counter[str] = Counter()

    def projector(projection: Projection) -> None:
        tries[projection.event.event_id] += 1
        if projection.event.event_id == "m1" and projection.attempt == 1:
            raise ValueError

    put_card(harness.acme)
    bind(harness.acme, MIRROR)
    moved(harness, "m1")
    moved(harness, "m2")
    runtime = harness.runtime(projectors={"mirror": projector})
    until_all_settled(harness, harness.acme, runtime)
    assert tries == {"m1": 2, "m2": 1}
    assert {row["state"] for row in harness.raw("trigger_effects")} == {"done"}


@pytest.mark.promise("E23")
def test_a_worker_that_does_not_know_the_bindings_kind_passes_it_over(harness: Harness) -> None:
    put_card(harness.acme)
    bind(harness.acme, MIRROR)
    moved(harness)
    run_whole(harness.acme, harness.runtime())
    row = harness.row(projection_key(ACME, "m"))
    assert (row["state"], row["attempts"]) == ("pending", 0)


@pytest.mark.promise("E22", "E25")
def test_rows_of_both_kinds_share_one_order_and_one_claim(harness: Harness) -> None:
    add_subscription(harness.acme, subscription("s"))
    put_card(harness.acme)
    bind(harness.acme, MIRROR)
    moved(harness)
    held = claim(harness.acme, 10, LEASE)
    assert {effect.kind for effect in held.effects} == {"launch", "projection"}
