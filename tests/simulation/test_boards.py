"""The use cases of boards and cards on both stores: each change and its event commit together (E17, E18, E22)."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.change_column import ColumnChanged
from outbox_core.application.ingest_delivery import ingest_delivery
from outbox_core.boards import Boards
from outbox_core.domain.board import CardChange
from outbox_core.domain.errors import (
    BoardNotFoundError,
    CardNotFoundError,
    InvalidInputError,
    OutboxError,
    TransientError,
    UnclearCommitError,
)
from outbox_core.domain.event import MACHINE_REASONS, STATE_DELETE, STATE_RENAME, WATCHDOG, Event
from outbox_core.domain.forge_delivery import Delivery
from outbox_core.domain.limits import MAX_COLUMN_CARDS
from tests.harness.base import ACME
from tests.harness.examples import subscription
from tests.harness.faults import Death, Fault, FaultyStore, When, with_calls
from tests.simulation.play import append, drain_whole, rows_of, run_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.domain.board import Board
    from outbox_core.domain.bot import Run
    from outbox_core.domain.projector import Projection
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness
    from tests.harness.on_mongo import MongoHarness

COLUMNS = ("todo", "doing", "done")


def boards_of(harness: Harness, store: TenantStore | None = None) -> Boards:
    return Boards(store or harness.acme, harness.runtime())


@pytest.fixture
def boards(harness: Harness) -> Boards:
    """A board `b` with three columns, and a card `c` in its first one."""
    made = boards_of(harness)
    made.create_board("b", COLUMNS)
    made.create_card("b", "The pump runs dry", card_id="c", labels=["Bug"], author="ada")
    return made


def events(store: TenantStore) -> list[Event]:
    """Return what the tenant's log tells."""
    return [entry for entry in store.log.read_after(0, 10_000) if isinstance(entry, Event)]


def told(store: TenantStore) -> list[str]:
    return [event.attributes.action for event in events(store)]


# --- what each use case does ---


@pytest.mark.promise("E17")
def test_each_change_appends_one_event_that_carries_the_card_as_it_is_after(harness: Harness, boards: Boards) -> None:
    boards.move_card("c", "doing", author="bob", reason="it is urgent", run_id="r1")
    boards.label_card("c", add=["Hot"], remove=["bug"])
    boards.archive_card("c")
    boards.restore_card("c")
    boards.delete_card("c")
    boards.restore_card("c")
    created, moved, labeled, unlabeled, *rest = (event.attributes for event in events(harness.acme))
    assert {event.attributes.subject for event in events(harness.acme)} == {"c"}
    assert {(event.attributes.source, event.attributes.type) for event in events(harness.acme)} == {("board", "card")}
    assert (created.action, created.snapshot.state, created.snapshot.labels) == ("created", "todo", ("Bug",))
    assert (created.snapshot.from_state, created.snapshot.board, created.snapshot.author) == ("", "b", "ada")
    assert (moved.action, moved.snapshot.from_state, moved.snapshot.state) == ("moved", "todo", "doing")
    assert (moved.reason, moved.run_id, moved.snapshot.author) == ("it is urgent", "r1", "bob")
    assert (labeled.action, labeled.snapshot.labels, labeled.snapshot.from_state) == ("labeled", ("Hot",), "")
    assert (unlabeled.action, unlabeled.snapshot.labels) == ("unlabeled", ("Hot",))
    assert [one.action for one in rest] == ["archived", "restored", "deleted", "restored"]
    assert {(one.snapshot.state, one.snapshot.labels) for one in rest} == {("doing", ("Hot",))}
    data = [dict(event.data) for event in events(harness.acme)]
    assert data[0] == {"title": "The pump runs dry"}
    assert (data[2]["labels_added"], data[3]["labels_removed"]) == (["Hot"], ["Bug"])


@pytest.mark.parametrize(
    "again",
    [
        lambda boards: boards.move_card("c", "todo"),
        lambda boards: boards.label_card("c", add=["BUG"], remove=["never there"]),
        lambda boards: boards.restore_card("c"),
        lambda boards: boards.rename_column("b", "todo", "todo"),
        lambda boards: boards.create_board("b", COLUMNS),
        lambda boards: boards.unbind("b"),
    ],
)
def test_a_change_that_makes_no_difference_appends_and_writes_nothing(
    harness: Harness, boards: Boards, again: Callable[[Boards], object]
) -> None:
    before = harness.raw("board_cards"), harness.raw("boards"), harness.raw("board_events")
    again(boards)
    assert (harness.raw("board_cards"), harness.raw("boards"), harness.raw("board_events")) == before


@pytest.mark.promise("E46")
@pytest.mark.parametrize(
    ("change", "undo"),
    [
        (lambda boards: boards.move_card("c", "doing", event_id="x"), lambda boards: boards.move_card("c", "todo")),
        (
            lambda boards: boards.label_card("c", add=["go"], event_id="x"),
            lambda boards: boards.label_card("c", remove=["go"]),
        ),
        (lambda boards: boards.archive_card("c", event_id="x"), lambda boards: boards.restore_card("c")),
        (lambda boards: boards.delete_card("c", event_id="x"), lambda boards: boards.restore_card("c")),
    ],
)
def test_the_same_event_id_again_changes_nothing_also_where_the_change_was_undone_since(
    harness: Harness, boards: Boards, change: Callable[[Boards], Any], undo: Callable[[Boards], Any]
) -> None:
    first = change(boards)
    undo(boards)
    before = harness.raw("board_cards"), harness.raw("board_events")
    assert change(boards).seqs == first.seqs
    assert (harness.raw("board_cards"), harness.raw("board_events")) == before


@pytest.mark.promise("E46")
def test_a_card_that_names_no_id_is_made_once_for_one_event_id(harness: Harness, boards: Boards) -> None:
    first = boards.create_card("b", "Twice", event_id="x")
    again = boards.create_card("b", "Twice", event_id="x")
    assert (first.card, first.seqs) == (again.card, again.seqs)
    assert told(harness.acme) == ["created", "created"]
    with pytest.raises(InvalidInputError, match="not of card 'other'"):
        boards.create_card("b", "Twice", card_id="other", event_id="x")


@pytest.mark.promise("E46", "O06")
def test_the_id_of_another_cards_event_is_refused_and_not_taken_for_a_repeat(harness: Harness, boards: Boards) -> None:
    boards.create_card("b", "Other", card_id="d")
    boards.move_card("c", "doing", event_id="x")
    append(harness.acme, harness.runtime(), "of-an-app")
    for event_id in ("x", "of-an-app"):
        with pytest.raises(InvalidInputError, match="not of card 'd'"):
            boards.move_card("d", "doing", event_id=event_id)
    assert boards.card("d").state == "todo"


@pytest.mark.promise("E17")
def test_two_moves_in_one_tick_are_both_offered_each_with_its_own_state_and_labels(
    harness: Harness, boards: Boards
) -> None:
    runs: list[Run] = []
    add_subscription(harness.acme, subscription("doing", subject_states=("doing",), labels=("hot",)))
    add_subscription(harness.acme, subscription("done", actions=("moved",), subject_states=("done",)))
    boards.label_card("c", add=["hot"])
    boards.move_card("c", "doing")
    boards.label_card("c", remove=["hot"])
    boards.move_card("c", "done")
    drain_whole(harness.acme, harness.runtime())
    run_whole(harness.acme, harness.runtime({"bot": runs.append}))
    seen = [(run.effect_id.rpartition("|")[2], run.event.attributes.snapshot) for run in runs]
    assert [(sub_id, one.from_state, one.state, one.labels) for sub_id, one in seen] == [
        ("doing", "todo", "doing", ("Bug", "hot")),
        ("done", "doing", "done", ("Bug",)),
    ]


@pytest.mark.promise("E36")
def test_a_one_shot_that_people_put_on_is_spent_once_each_time_and_the_other_labels_stay(
    harness: Harness, boards: Boards
) -> None:
    runs: list[Run] = []
    once = subscription("once", sources=("board",), labels=("go",), consume_labels=("go",))
    add_subscription(harness.acme, once)
    for arming in (1, 2):
        boards.label_card("c", add=["Go"])
        boards.move_card("c", "doing" if arming == 1 else "done")
        drain_whole(harness.acme, harness.runtime())
        run_whole(harness.acme, harness.runtime({"bot": runs.append}))
        assert (len(runs), boards.card("c").labels) == (arming, ("Bug",))
        boards.label_card("c", remove=["go"])
    outcomes = Counter(row["outcome"] for row in harness.raw("trigger_effects"))
    assert outcomes == {"delivered": 2, "label_spent_by_another": 2}


def test_a_deletion_is_repeated_with_the_same_time_and_a_second_one_is_later(harness: Harness, boards: Boards) -> None:
    """All of it within what may be one millisecond."""
    times = []
    for _ in range(5):
        deleted = boards.delete_card("c").card.deleted_at
        assert deleted is not None
        assert boards.delete_card("c").card.deleted_at == deleted
        assert boards.delete_card("c").seqs == ()
        times.append(deleted)
        boards.restore_card("c")
    assert times == sorted(set(times))
    assert told(harness.acme)[1:] == ["deleted", "restored"] * 5


def test_two_deletions_within_a_millisecond_do_not_share_their_time(twin: Harness) -> None:
    boards = boards_of(twin)
    boards.create_board("b", COLUMNS)
    boards.create_card("b", "t", card_id="c")
    first = boards.delete_card("c").card.deleted_at
    boards.restore_card("c")
    second = boards.delete_card("c").card.deleted_at
    assert first is not None
    assert second == first + timedelta(milliseconds=1)


@pytest.mark.promise("E11")
def test_an_archived_card_is_deleted_with_the_snapshot_from_before_and_its_rules_still_match(
    harness: Harness, boards: Boards
) -> None:
    add_subscription(harness.acme, subscription("gone", actions=("deleted",), labels=("bug",)))
    boards.move_card("c", "done")
    boards.archive_card("c")
    boards.delete_card("c")
    last = events(harness.acme)[-1].attributes
    assert (last.action, last.snapshot.state, last.snapshot.labels) == ("deleted", "done", ("Bug",))
    drain_whole(harness.acme, harness.runtime())
    assert [row.partition("|")[2] for row in rows_of(harness, ACME)] == ["gone"]


def test_a_restored_card_is_whole_and_finds_a_column_where_its_own_has_gone(harness: Harness, boards: Boards) -> None:
    boards.archive_card("c")
    boards.delete_card("c")
    boards.rename_column("b", "todo", "later")
    assert boards.card("c").state == "todo"
    card = boards.restore_card("c").card
    assert (card.state, card.archived_at, card.deleted_at) == ("later", None, None)
    assert card.last_deleted_at is not None
    assert events(harness.acme)[-1].attributes.snapshot.from_state == "todo"


def test_archived_and_deleted_cards_are_not_listed(harness: Harness, boards: Boards) -> None:
    for name in "defg":
        boards.create_card("b", name, card_id=name)
    boards.archive_card("d")
    boards.delete_card("e")
    assert [card.card_id for card in boards.cards("b")] == ["c", "f", "g"]
    assert [card.card_id for card in boards.cards("b", after="c", limit=1)] == ["f"]
    assert boards_of(harness, harness.other).cards("b") == []


# --- what is refused, with nothing written ---


@pytest.mark.promise("O06")
@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda b: b.create_board("b", ["other"]), InvalidInputError, "already"),
        (lambda b: b.create_board("b2", []), InvalidInputError, "at least one column"),
        (lambda b: b.create_board("b2", "todo"), InvalidInputError, "not one text"),
        (lambda b: b.create_board("b2", ["a", "A"]), InvalidInputError, "called the same"),
        (lambda b: b.create_board("b2", [" a"]), InvalidInputError, "without space"),
        (lambda b: b.create_board("b2", ["a\nb"]), InvalidInputError, "one line"),
        (lambda b: b.create_board("b2", ["x" * 101]), InvalidInputError, "limit is 100"),
        (lambda b: b.create_board("b 2", ["a"]), InvalidInputError, "board: 'b 2' is not an id"),
        (lambda b: b.bind("b", "no kind", "t"), InvalidInputError, "projector kind"),
        (lambda b: b.bind("b", "kind", ""), InvalidInputError, "target"),
        (lambda b: b.bind("nowhere", "kind", "t"), BoardNotFoundError, "no board 'nowhere'"),
        (lambda b: b.create_card("nowhere", "t"), BoardNotFoundError, "no board 'nowhere'"),
        (
            lambda b: b.create_card("b", "t", column="no"),
            BoardNotFoundError,
            "no column 'no'; it has todo, doing, done",
        ),
        (lambda b: b.create_card("b", "t", card_id="c"), InvalidInputError, "already"),
        (lambda b: b.create_card("b", ""), InvalidInputError, "title"),
        (lambda b: b.create_card("b", "t", labels="one"), InvalidInputError, "not one text"),
        (lambda b: b.create_card("b", "t", body="\ud800"), InvalidInputError, "Unicode"),
        (lambda b: b.create_card("b", "t", body="x" * 70_000), InvalidInputError, "70,000 characters"),
        (lambda b: b.move_card("c", "no"), BoardNotFoundError, "no column 'no'"),
        (lambda b: b.move_card("nobody", "todo"), CardNotFoundError, "no card 'nobody'"),
        (lambda b: b.move_card("c", "doing", watchdog=True, reason="x"), InvalidInputError, "watchdog"),
        (lambda b: b.move_card("c", "doing", event_id="no id"), InvalidInputError, "event id"),
        (lambda b: b.label_card("c"), InvalidInputError, "at least one label"),
        (lambda b: b.label_card("c", add=["x"], remove=["X"]), InvalidInputError, "both added and removed"),
        (lambda b: b.label_card("c", add=[f"l{n}" for n in range(100)]), InvalidInputError, "at most 100 labels"),
        (lambda b: b.delete_card("nobody"), CardNotFoundError, "no card"),
        (lambda b: b.restore_card("nobody"), CardNotFoundError, "no card"),
        (lambda b: b.rename_column("b", "no", "new"), BoardNotFoundError, "no column 'no'"),
        (lambda b: b.rename_column("b", "todo", "Done"), InvalidInputError, "called the same"),
        (lambda b: b.rename_column("b", "todo", ""), InvalidInputError, "column"),
        (lambda b: b.remove_column("b", "todo"), InvalidInputError, "holds 1 cards; name the column"),
        (lambda b: b.remove_column("b", "todo", into="no"), BoardNotFoundError, "no column 'no'"),
        (lambda b: b.remove_column("b", "todo", into="todo"), InvalidInputError, "its own cards"),
        *(
            (lambda b, reason=reason: b.move_card("c", "doing", reason=reason), InvalidInputError, "machine's own")
            for reason in sorted(MACHINE_REASONS)
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_leaves_everything_as_it_was(
    harness: Harness, boards: Boards, change: Callable[[Boards], object], error: type[OutboxError], said: str
) -> None:
    before = (
        harness.raw("board_cards"),
        harness.raw("boards"),
        harness.raw("board_events"),
        harness.raw("event_sequences"),
    )
    with pytest.raises(error, match=said) as refused:
        change(boards)
    assert "\n" not in str(refused.value)
    after = (
        harness.raw("board_cards"),
        harness.raw("boards"),
        harness.raw("board_events"),
        harness.raw("event_sequences"),
    )
    assert after == before


def test_a_deleted_card_changes_no_more_and_an_archived_one_does_not_move(boards: Boards) -> None:
    boards.archive_card("c")
    with pytest.raises(InvalidInputError, match="archived; restore it first"):
        boards.move_card("c", "doing")
    boards.delete_card("c")
    changes: tuple[Callable[[], object], ...] = (
        lambda: boards.move_card("c", "doing"),
        lambda: boards.label_card("c", add=["x"]),
        lambda: boards.archive_card("c"),
    )
    for change in changes:
        with pytest.raises(CardNotFoundError, match="deleted; restore it first"):
            change()
    with pytest.raises(InvalidInputError, match="already; it is deleted"):
        boards.create_card("b", "again", card_id="c")


def test_a_boards_last_column_stays(boards: Boards) -> None:
    assert boards.remove_column("b", "todo", into="done").cards == 1
    boards.remove_column("b", "doing")
    with pytest.raises(InvalidInputError, match="at least one column"):
        boards.remove_column("b", "done")
    assert boards.board("b").columns == ("done",)


# --- columns and their cards ---


def many(boards: Boards, harness: Harness, count: int) -> None:
    """Put cards in `todo` past the use cases, as fast as the store takes them."""
    with harness.acme.transactions.begin() as transaction:
        example = boards.card("c")
        for number in range(count - 1):
            card = replace(example, card_id=f"c{number}", version=0, labels=("go",))
            harness.acme.cards.put(card, transaction)
        transaction.commit()


@pytest.mark.promise("E18", "E22")
def test_a_rename_of_a_column_with_many_cards_queues_nothing_but_its_projections(
    harness: Harness, boards: Boards
) -> None:
    """A launch, a promotion and a one-shot would match each of its 200 cards."""
    many(boards, harness, 200)
    boards.bind("b", "mirror", "there")
    add_subscription(harness.acme, subscription("launch"))
    add_subscription(harness.acme, subscription("stamp", mode="board"))
    add_subscription(harness.acme, subscription("once", sources=("board",), labels=("go",), consume_labels=("go",)))
    assert boards.rename_column("b", "todo", "next", author="ada").cards == 200
    assert boards.remove_column("b", "next", into="doing").cards == 200
    drain_whole(harness.acme, harness.runtime())
    rows = Counter((row["kind"], row["sub_id"]) for row in harness.raw("trigger_effects"))
    assert rows == {("projection", ""): 400}
    moves = Counter(
        (one.reason, one.snapshot.from_state, one.snapshot.state)
        for one in (event.attributes for event in events(harness.acme)[1:])
    )
    assert moves == {(STATE_RENAME, "todo", "next"): 200, (STATE_DELETE, "next", "doing"): 200}
    seen: list[Projection] = []
    run_whole(harness.acme, harness.runtime(projectors={"mirror": seen.append}))
    assert len({projection.effect_id for projection in seen}) == 400
    cards = harness.raw("board_cards")
    assert {(card["state"], card["bot"]) for card in cards} == {("doing", "")}
    assert sum("go" in card["labels"] for card in cards) == 199


@pytest.mark.promise("E18")
def test_a_watchdogs_move_launches_nothing_and_a_persons_does(harness: Harness, boards: Boards) -> None:
    runs: list[Run] = []
    boards.bind("b", "mirror", "there")
    add_subscription(harness.acme, subscription("launch", actions=("moved",)))
    boards.move_card("c", "doing", watchdog=True)
    assert events(harness.acme)[-1].attributes.reason == WATCHDOG
    for column, reason in (("todo", ""), ("doing", "unblocked"), ("done", "run_finished"), ("todo", "run_failed")):
        boards.move_card("c", column, reason=reason)
    drain_whole(harness.acme, harness.runtime())
    run_whole(harness.acme, harness.runtime({"bot": runs.append}, projectors={"mirror": lambda _: None}))
    assert [run.event.attributes.reason for run in runs] == ["", "unblocked", "run_finished", "run_failed"]
    assert Counter(row["kind"] for row in harness.raw("trigger_effects")) == {"launch": 4, "projection": 5}


@pytest.mark.promise("E19")
def test_a_change_that_a_run_makes_launches_nothing(harness: Harness, boards: Boards) -> None:
    add_subscription(harness.acme, subscription("launch"))
    boards.label_card("c", add=["triaged"], run_id="r1")
    drain_whole(harness.acme, harness.runtime())
    assert rows_of(harness, ACME) == {}


def test_archived_cards_move_along_and_deleted_ones_stay(boards: Boards) -> None:
    boards.create_card("b", "archived", card_id="a")
    boards.create_card("b", "deleted", card_id="d")
    boards.archive_card("a")
    boards.delete_card("d")
    assert boards.rename_column("b", "todo", "Todo").cards == 2
    assert boards.board("b").columns == ("Todo", "doing", "done")
    assert {name: boards.card(name).state for name in "acd"} == {"a": "Todo", "c": "Todo", "d": "todo"}


def test_a_column_with_more_cards_than_one_transaction_moves_is_refused_and_left(
    harness: Harness, boards: Boards
) -> None:
    many(boards, harness, MAX_COLUMN_CARDS + 1)
    with pytest.raises(InvalidInputError, match="more than 1,000 cards"):
        boards.rename_column("b", "todo", "next")
    assert boards.board("b").columns == COLUMNS
    boards.delete_card("c")
    assert boards.rename_column("b", "todo", "next").cards == MAX_COLUMN_CARDS
    assert {card["state"] for card in harness.raw("board_cards", deleted_at=None)} == {"next"}


@pytest.mark.promise("E22", "E17")
def test_a_move_on_a_forges_own_board_is_projected_where_that_is_bound(harness: Harness) -> None:
    """Also the first that is heard of a card, and a delivery that comes late is no move."""
    boards = boards_of(harness)
    boards.create_board("gh.project.PVT_1", ["Todo", "Doing", "Done"])
    boards.bind("gh.project.PVT_1", "mirror", "there")

    def arrives(event_id: str, before: str, after: str, minute: int) -> None:
        at = harness.now().replace(minute=minute, microsecond=0)
        change = CardChange(card_id="gh.item.1", at=at, board="gh.project.PVT_1", state=after, from_state=before)
        ingest_delivery(
            harness.acme,
            harness.runtime(),
            Delivery(
                event_id=event_id,
                type="projects_v2_item",
                action="edited",
                subject="gh.item.1",
                actor="a",
                change=change,
            ),
        )

    arrives("m1", "Todo", "Doing", 10)
    arrives("m3", "Doing", "Done", 30)
    arrives("m2", "Done", "Doing", 20)
    moves = [
        (one.snapshot.from_state, one.snapshot.state) for one in (event.attributes for event in events(harness.acme))
    ]
    assert moves == [("Todo", "Doing"), ("Doing", "Done"), ("", "Done")]
    drain_whole(harness.acme, harness.runtime())
    assert sorted(rows_of(harness, ACME)) == ["m1|#projection", "m3|#projection"]
    assert boards.move_card("gh.item.1", "Todo").card.state == "Todo"


# --- deaths, lost answers, races ---

CHANGES: dict[str, tuple[Callable[[Boards], object], int]] = {
    "create": (lambda b: b.create_card("b", "new", card_id="n"), 1),
    "move": (lambda b: b.move_card("c", "doing"), 1),
    "label": (lambda b: b.label_card("c", add=["x"], remove=["bug"]), 2),
    "archive": (lambda b: b.archive_card("c"), 1),
    "delete": (lambda b: b.delete_card("c"), 1),
    "restore": (lambda b: b.restore_card("d"), 1),
    "rename": (lambda b: b.rename_column("b", "todo", "next"), 2),
    "remove": (lambda b: b.remove_column("b", "todo", into="done"), 2),
}
"""Each change, and how many events tell of it."""


def prepared(harness: Harness, tenant: str) -> Boards:
    boards = boards_of(harness, harness.store.tenant(tenant))
    boards.create_board("b", COLUMNS)
    for name in "cde":
        boards.create_card("b", name, card_id=name, labels=["bug"])
    boards.delete_card("d")
    return boards


def image(harness: Harness, tenant: str) -> object:
    """What the board and its cards are, but for times."""
    cards = [
        (one["card_id"], one["state"], one["labels"], one["archived_at"] is None, one["deleted_at"] is None)
        for one in harness.raw("board_cards", tenant_id=tenant)
    ]
    return sorted(cards), [one["columns"] for one in harness.raw("boards", tenant_id=tenant)]


@pytest.mark.promise("E14")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_whose_process_dies_anywhere_is_whole_with_its_events_or_nothing(harness: Harness, name: str) -> None:
    change, count = CHANGES[name]
    prepared(harness, "alive")
    before = image(harness, "alive")
    counting = FaultyStore(harness.store)
    change(boards_of(harness, counting.tenant("alive")))
    after, old = image(harness, "alive"), len(events(harness.store.tenant("alive"))) - count
    assert after != before
    seen = set()
    for number, call in enumerate(counting.calls, start=1):
        for when in When:
            tenant = f"dead-{number}-{when.value}"
            prepared(harness, tenant)
            store = FaultyStore(harness.store, Fault(number, when))
            with suppress(Death):
                change(boards_of(harness, store.tenant(tenant)))
            new = len(events(harness.store.tenant(tenant))) - old
            # A call that raises by itself, since there is no such card yet, has no answer after which to die.
            committed = not store.dead or (call == "transaction.commit" and when is When.AFTER)
            assert (image(harness, tenant), new) == ((after, count) if committed else (before, 0)), (call, when)
            seen.add(committed)
    assert seen == {True, False}


@pytest.mark.promise("E46")
@pytest.mark.parametrize("name", CHANGES)
def test_a_commit_whose_answer_was_lost_is_found_out_and_not_repeated(harness: Harness, name: str) -> None:
    change, count = CHANGES[name]
    prepared(harness, ACME)
    old = len(events(harness.acme))
    store = FaultyStore(harness.store, Fault("transaction.commit", When.AFTER, UnclearCommitError))
    answer = change(boards_of(harness, store.tenant(ACME)))
    assert store.struck
    assert len(events(harness.acme)) == old + count
    if isinstance(answer, ColumnChanged):
        assert answer.cards == 2


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("when", When)
def test_a_store_that_does_not_answer_for_a_moment_costs_no_more_than_that(
    harness: Harness, name: str, when: When
) -> None:
    change, count = CHANGES[name]
    for number, call in enumerate(("transactions.begin", "cards.put", "log.insert", "transaction.commit")):
        tenant = f"t{number}"
        prepared(harness, tenant)
        old = len(events(harness.store.tenant(tenant)))
        store = FaultyStore(harness.store, Fault(call, when, TransientError, 2))
        change(boards_of(harness, store.tenant(tenant)))
        assert store.struck
        assert len(events(harness.store.tenant(tenant))) == old + count


def together(*calls: Callable[[], object]) -> None:
    """Run calls in threads that start at once; what one raises, this raises."""
    barrier, errors = threading.Barrier(len(calls)), list[BaseException]()

    def run(call: Callable[[], object]) -> None:
        barrier.wait()
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_concurrent_labels_and_moves_of_one_card_converge(mongo_harness: MongoHarness) -> None:
    mongo_harness.local_clock.sleeps_really = True
    prepared(mongo_harness, ACME)
    boards = boards_of(mongo_harness)
    together(
        *(lambda name=name: boards.label_card("c", add=[name]) for name in ("l1", "l2", "l3", "l4", "l5")),
        lambda: boards.label_card("c", remove=["bug"]),
        lambda: boards.move_card("c", "doing"),
        lambda: boards.move_card("c", "doing"),
    )
    card = boards.card("c")
    assert sorted(card.labels) == ["l1", "l2", "l3", "l4", "l5"]
    assert card.state == "doing"
    mine = [event.attributes for event in events(mongo_harness.acme) if event.attributes.subject == "c"]
    assert Counter(one.action for one in mine) == {"created": 1, "labeled": 5, "unlabeled": 1, "moved": 1}
    assert mine[-1].snapshot.labels == card.labels, "the last event carries the card as it is"


@pytest.mark.promise("E46")
def test_one_event_id_from_many_threads_changes_the_card_once(mongo_harness: MongoHarness) -> None:
    mongo_harness.local_clock.sleeps_really = True
    boards = prepared(mongo_harness, ACME)
    seqs: list[tuple[int, ...]] = []
    together(*[lambda: seqs.append(boards.label_card("c", add=["x"], event_id="e").seqs)] * 6)
    assert len(set(seqs)) == 1
    assert told(mongo_harness.acme).count("labeled") == 1


def before_find(store: TenantStore, number: int, other: Callable[[], object]) -> TenantStore:
    """Let another change commit just before the store is asked for known event ids for the `number`th time."""
    calls: list[object] = []

    def find(*args: Any) -> object:  # noqa: ANN401 - as the port
        calls.append(args)
        if len(calls) == number:
            other()
        return store.log.find(*args)

    return with_calls(store, "log", find=find)


@pytest.mark.promise("E46")
def test_a_repeat_that_began_before_the_first_one_committed_answers_with_the_card_as_that_left_it(
    harness: Harness, boards: Boards
) -> None:
    racing = before_find(harness.acme, 1, lambda: boards.create_card("b", "Twice", event_id="made"))
    made = boards_of(harness, racing).create_card("b", "Twice", event_id="made")
    assert made.card == boards.card("made")
    racing = before_find(harness.acme, 1, lambda: boards.move_card("c", "doing", event_id="moved"))
    assert boards_of(harness, racing).move_card("c", "doing", event_id="moved").card.state == "doing"
    assert told(harness.acme) == ["created", "created", "moved"]


@pytest.mark.promise("E46", "O06")
def test_an_event_id_that_another_card_takes_meanwhile_leaves_no_change_of_which_nothing_tells(
    harness: Harness, boards: Boards
) -> None:
    boards.create_card("b", "Other", card_id="d")
    store = before_find(harness.acme, 2, lambda: boards.label_card("c", add=["x"], event_id="x"))
    with pytest.raises(InvalidInputError, match="not of card 'd'"):
        boards_of(harness, store).label_card("d", add=["x"], event_id="x")
    assert boards.card("d").labels == ()
    assert told(harness.acme) == ["created", "created", "labeled"]


@pytest.mark.promise("E17")
def test_a_rename_that_others_undid_before_its_repeat_tells_of_every_move(harness: Harness, boards: Boards) -> None:
    faulty = FaultyStore(harness.store, Fault("transaction.commit", When.AFTER, UnclearCommitError)).tenant(ACME)
    begun: list[int] = []

    def begin() -> Any:  # noqa: ANN401 - as the port
        begun.append(1)
        if len(begun) == 2:
            boards.rename_column("b", "next", "todo")
        return faulty.transactions.begin()

    boards_of(harness, with_calls(faulty, "transactions", begin=begin)).rename_column("b", "todo", "next")
    assert boards.card("c").state == "next"
    assert told(harness.acme) == ["created", "moved", "moved", "moved"]


def test_no_card_is_left_in_a_column_that_is_renamed_while_cards_enter_it(mongo_harness: MongoHarness) -> None:
    """Neither reads what the other writes but for the board: without the collision there both would commit."""
    mongo_harness.local_clock.sleeps_really = True
    boards = prepared(mongo_harness, ACME)
    for number in range(6):
        old, new = f"name-{number}", f"name-{number + 1}"
        boards.rename_column("b", "doing" if number == 0 else old, new)

        def enter(column: str = new, number: int = number) -> None:
            with suppress(BoardNotFoundError):
                boards.create_card("b", "x", card_id=f"x{number}", column=column)

        def move(column: str = new) -> None:
            with suppress(BoardNotFoundError):
                boards.move_card("c", column)

        together(enter, move, partial(boards.rename_column, "b", new, f"mid-{number}"))
        boards.rename_column("b", f"mid-{number}", new)
        columns = boards.board("b").columns
        assert all(card.state in columns for card in boards.cards("b"))


def test_a_card_that_enters_a_column_collides_with_its_rename_on_the_board(harness: Harness, boards: Boards) -> None:
    """The race above, its order held: the rename commits between the move's look at the board and its commit."""
    renamed: list[ColumnChanged] = []
    store = harness.acme
    get = store.boards.get

    def get_then_rename(board_id: str, transaction: Any = None) -> Board:  # noqa: ANN401 - as the port
        found = get(board_id, transaction)
        if not renamed:
            renamed.append(boards_of(harness).rename_column("b", "doing", "next"))
        return found

    store.boards.get = get_then_rename  # type: ignore[method-assign] # the race is placed inside the port
    with pytest.raises(BoardNotFoundError, match="no column 'doing'"):
        boards_of(harness, store).move_card("c", "doing")
    assert boards.card("c").state == "todo"
