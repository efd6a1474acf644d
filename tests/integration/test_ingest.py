"""Deliveries become cards and events, in one transaction, on the twin and on a real replica set."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.adapters.memory.clock import MemoryClock
from outbox_core.adapters.memory.store import MemoryStore
from outbox_core.adapters.mongo.client import connect
from outbox_core.adapters.mongo.store import MongoStore
from outbox_core.adapters.system import SystemClock, SystemEntropy
from outbox_core.application.drain_tenant import drain_tenant
from outbox_core.application.ingest_delivery import ingest_delivery
from outbox_core.bots import BotRegistry
from outbox_core.domain.board import Card
from outbox_core.domain.errors import CardNotFoundError, ContentionError, DefinitiveError, InvalidInputError
from outbox_core.domain.event import BOARD, FORGE, Event
from outbox_core.domain.forge_delivery import Delivery
from outbox_core.domain.limits import Limits
from outbox_core.domain.subscription import Match, Subscription
from outbox_core.ports.hints import NoHints
from outbox_core.ports.runtime import Runtime
from outbox_core.ports.store import TenantStore
from outbox_core.sources.github import read_delivery
from outbox_core.sources.github_lines import read_lines
from tests.deliveries import EXAMPLES, delivery_files, issue_payload, pull_payload
from tests.harness.faults import FaultyStore, transient_at, with_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pymongo.database import Database

    from outbox_core.embedded import EmbeddedMongo
    from outbox_core.ports.transactions import Transaction

TENANT = "acme"
MONGO_ONLY = pytest.mark.parametrize("place", ["mongo"], indirect=True)


@dataclass
class Place:
    """A store and a runtime. `database` is set on MongoDB."""

    store: MemoryStore | MongoStore
    runtime: Runtime
    database: Database[dict[str, Any]] | None = None

    @property
    def tenant(self) -> TenantStore:
        return self.store.tenant(TENANT)

    def ingest(self, delivery: Delivery, store: TenantStore | None = None) -> tuple[int, bool]:
        done = ingest_delivery(store or self.tenant, self.runtime, delivery)
        return done.seq, done.fresh

    def card(self, card_id: str = "gh.issue.7001") -> Card:
        return self.tenant.cards.get(card_id)

    def events(self) -> list[Event]:
        return [entry for entry in self.tenant.log.read_after(0, 1_000) if isinstance(entry, Event)]

    def write(self, card: Card) -> Card:
        with self.tenant.transactions.begin() as transaction:
            stored = self.tenant.cards.put(card, transaction)
            transaction.commit()
        return stored


@pytest.fixture(params=["memory", "mongo"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    limits, entropy = Limits(), SystemEntropy()
    if request.param == "memory":
        clock = MemoryClock()
        memory = MemoryStore(limits, clock=clock, entropy=entropy)
        yield Place(memory, Runtime(clock=clock, entropy=entropy, hints=NoHints(), bots=BotRegistry(), limits=limits))
        return
    server: EmbeddedMongo = request.getfixturevalue("mongo_server")
    database = connect(server.url, request.getfixturevalue("database_name"), limits)
    local = SystemClock()
    store = MongoStore(database, limits, local, entropy)
    store.maintenance.ensure_schema()
    runtime = Runtime(clock=local, entropy=entropy, hints=NoHints(), bots=BotRegistry(), limits=limits)
    yield Place(store, runtime, database)
    database.client.drop_database(database.name)
    database.client.close()


def delivery(payload: dict[str, Any], kind: str = "issues", delivery_id: str = "d-1") -> Delivery:
    headers = {"X-GitHub-Event": kind, "X-GitHub-Delivery": delivery_id}
    read = read_delivery(headers, json.dumps(payload).encode(), secret=None)
    assert isinstance(read, Delivery)
    return read


def labeled(label: str, delivery_id: str, action: str = "labeled") -> Delivery:
    return delivery(issue_payload(action, label={"name": label}), delivery_id=delivery_id)


def deliveries_in(path: Path) -> list[Delivery]:
    with path.open("rb") as stream:
        return [line.said for line in read_lines(stream, secret=None) if isinstance(line.said, Delivery)]


@pytest.mark.promise("E46")
@pytest.mark.parametrize("path", delivery_files(), ids=lambda path: path.stem)
def test_a_whole_file_taken_twice_gives_each_delivery_one_event_and_leaves_the_cards(place: Place, path: Path) -> None:
    said = deliveries_in(path)
    first = [place.ingest(one) for one in said]
    ids = [one.event_id for one in said]
    assert sum(fresh for _, fresh in first) == len(set(ids))
    subjects = {one.change.card_id for one in said if one.change is not None}
    cards = {card_id: place.card(card_id) for card_id in subjects}

    second = [place.ingest(one) for one in said]
    assert [seq for seq, _ in second] == [seq for seq, _ in first]
    assert not any(fresh for _, fresh in second)
    assert {card_id: place.card(card_id) for card_id in subjects} == cards
    assert Counter(event.event_id for event in place.events()) == Counter(set(ids))


@pytest.mark.promise("E17")
def test_each_event_of_the_examples_carries_its_card_as_it_was_then(place: Place) -> None:
    for one in deliveries_in(EXAMPLES):
        place.ingest(one)
    story = [
        (event.attributes.action, event.attributes.snapshot.from_state, event.attributes.snapshot.state, labels)
        for event in place.events()
        if event.attributes.subject == "gh.issue.3578110264" and event.attributes.source == BOARD
        for labels in [",".join(event.attributes.snapshot.labels)]
    ]
    assert story == [
        ("opened", "", "open", ""),
        ("labeled", "", "open", "bug"),
        ("assigned", "", "open", "bug"),
        ("labeled", "", "open", "bug,autofix"),
        ("unlabeled", "", "open", "bug"),
        ("closed", "open", "closed", "bug"),
        ("reopened", "closed", "open", "bug"),
        ("closed", "open", "closed", "bug"),
    ]
    merged = place.card("gh.pr.2941170583")
    assert (merged.state, merged.labels, merged.author) == ("merged", ("needs-review",), "tomas-kerr")
    assert place.card("gh.issue.3578166001").gone
    remarks = [event.attributes for event in place.events() if event.attributes.source == FORGE]
    assert Counter(remark.subject for remark in remarks) == {"gh.issue.3578110264": 1, "gh.pr.2941170583": 3}


@pytest.mark.promise("E46", "E36")
def test_a_redelivery_does_not_bring_back_a_label_that_was_taken_away_since(place: Place) -> None:
    first = place.ingest(labeled("autofix", "d-1"))
    spent = place.write(replace(place.card(), labels=()))
    again = place.ingest(labeled("autofix", "d-1"))
    assert (again, place.card()) == ((first[0], False), spent)


@pytest.mark.promise("E36")
def test_a_delivery_with_a_stale_list_of_labels_brings_none_back(place: Place) -> None:
    place.ingest(labeled("autofix", "d-1"))
    place.ingest(labeled("bug", "d-2"))
    place.write(replace(place.card(), labels=("bug",)))
    listed = [{"name": "autofix"}, {"name": "bug"}]
    for number, action in enumerate(("edited", "assigned", "opened", "closed", "reopened")):
        place.ingest(delivery(issue_payload(action, labels=listed), delivery_id=f"later-{number}"))
    assert place.card().labels == ("bug",)
    place.ingest(labeled("BUG", "d-3", "unlabeled"))
    assert place.card().labels == ()
    assert [event.attributes.snapshot.labels for event in place.events()][-2:] == [("bug",), ()]


def test_an_older_delivery_appends_its_event_and_leaves_newer_fields_and_a_tie_applies(place: Place) -> None:
    place.ingest(delivery(issue_payload("opened", at="2026-11-02T09:00:00Z", state="open"), delivery_id="d-1"))
    place.ingest(delivery(issue_payload("closed", at="2026-11-02T09:00:05Z", state="closed"), delivery_id="d-2"))
    older = issue_payload("edited", at="2026-11-02T09:00:04Z", state="open", title="An older title", body="was empty")
    assert place.ingest(delivery(older, delivery_id="d-3")) == (3, True)
    card = place.card()
    assert (card.state, card.title, card.body) == ("closed", "The pump runs dry", "was empty")
    assert place.events()[-1].attributes.snapshot.state == "closed"
    tie = issue_payload("edited", at="2026-11-02T09:00:05Z", title="A newer title")
    place.ingest(delivery(tie, delivery_id="d-4"))
    assert place.card().title == "A newer title"


def test_a_card_first_seen_through_a_label_begins_with_that_label_alone(place: Place) -> None:
    place.ingest(delivery(issue_payload("labeled", labels=[{"name": "old"}, {"name": "new"}], label={"name": "new"})))
    assert place.card().labels == ("new",)
    (event,) = place.events()
    assert (event.attributes.snapshot.labels, event.occurred_at) == (("new",), datetime(2026, 11, 2, 9, tzinfo=UTC))


def test_a_comment_sees_the_stored_card_and_without_one_what_it_says_itself(place: Place) -> None:
    def comment(delivery_id: str) -> Delivery:
        payload = issue_payload("created", state="open", labels=[{"name": "spent"}]) | {"comment": {"id": 1}}
        return delivery(payload, "issue_comment", delivery_id)

    place.ingest(comment("d-1"))
    with pytest.raises(CardNotFoundError):
        place.card()
    place.ingest(labeled("bug", "d-2"))
    before = place.card()
    place.ingest(comment("d-3"))
    assert place.card() == before
    seen = [(e.attributes.source, e.attributes.snapshot.labels) for e in place.events()]
    assert seen == [(FORGE, ("spent",)), (BOARD, ("bug",)), (FORGE, ("bug",))]


def test_a_comment_on_a_pull_request_finds_its_card_by_the_link_and_only_the_tenants_own(place: Place) -> None:
    link = "https://github.com/acme/pumps/pull/13"
    remark = issue_payload("created", state="open", pull_request={"html_url": link}) | {"comment": {"id": 1}}
    place.ingest(delivery(remark, "issue_comment", "d-1"))
    ingest_delivery(place.store.tenant("other"), place.runtime, delivery(pull_payload("opened"), "pull_request", "d-1"))
    place.ingest(delivery(remark, "issue_comment", "d-2"))
    place.ingest(delivery(pull_payload("opened", state="open", labels=[{"name": "x"}]), "pull_request", "d-3"))
    place.ingest(delivery(remark, "issue_comment", "d-4"))
    assert [event.attributes.subject for event in place.events()] == [
        "gh.issue.7001",
        "gh.issue.7001",
        "gh.pr.9001",
        "gh.pr.9001",
    ]
    assert place.events()[-1].attributes.snapshot.labels == ("x",)


@pytest.mark.promise("E11")
def test_a_deleted_card_skips_its_other_events_and_a_rule_on_deletions_fires(place: Place) -> None:
    place.ingest(labeled("bug", "d-1"))
    place.ingest(delivery(issue_payload("deleted"), delivery_id="d-2"))
    place.ingest(delivery(issue_payload("created") | {"comment": {"id": 1}}, "issue_comment", "d-3"))
    for sub_id, match in (("all", Match()), ("ends", Match(actions=("deleted",)))):
        place.tenant.subscriptions.add(Subscription(tenant_id=TENANT, sub_id=sub_id, bot_id="a-bot", match=match))
    report = drain_tenant(place.tenant, place.runtime)
    assert report is not None
    assert (report.reached_seq, report.rows) == (3, 3)
    owed = {(row["seq"], row["sub_id"]) for row in place.tenant.effects.list()}
    assert owed == {(2, "all"), (2, "ends"), (3, "all")}


@pytest.mark.promise("E46")
@pytest.mark.scenario(47)
def test_one_delivery_taken_by_eight_at_once_is_one_event_and_one_change(place: Place) -> None:
    one = labeled("bug", "d-1")
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: place.ingest(one), range(8)))
    assert len({seq for seq, _ in done}) == 1
    assert sum(fresh for _, fresh in done) == 1
    assert (place.card().version, place.card().labels) == (1, ("bug",))
    assert len(place.events()) == 1


@pytest.mark.promise("E17")
def test_labels_added_to_one_card_by_many_at_once_are_all_there_and_each_event_saw_its_own(place: Place) -> None:
    names = [f"label-{number}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: place.ingest(labeled(name, f"d-{name}")), names))
    assert set(place.card().labels) == set(names)
    seen = [event.attributes.snapshot.labels for event in place.events()]
    assert [len(labels) for labels in seen] == list(range(1, 13))
    assert all(event.event_id.removeprefix("d-") == event.attributes.snapshot.labels[-1] for event in place.events())


@pytest.mark.promise("E46")
def test_a_delivery_that_another_process_took_meanwhile_brings_no_label_back(place: Place) -> None:
    """It is taken, and its label consumed, between this process's looks at the card and at the log."""
    one, raced = labeled("bug", "d-1"), list[tuple[int, bool]]()

    def find_late(event_ids: list[str], *transaction: Any) -> object:  # noqa: ANN401 - the store's own
        found = place.tenant.log.find(event_ids, *transaction)
        if not raced:
            raced.append(place.ingest(one))
            place.ingest(labeled("bug", "d-2", action="unlabeled"))
        return found

    seq, fresh = place.ingest(one, with_calls(place.tenant, "log", find=find_late))
    assert [(seq, True)] == raced
    assert not fresh
    assert place.card().labels == ()


@pytest.mark.promise("E46")
@pytest.mark.parametrize("call", ["cards.get", "log.find", "transactions.begin", "log.allocate"])
def test_a_store_that_does_not_answer_for_a_moment_costs_no_delivery(place: Place, call: str) -> None:
    """A forge does not send twice by itself."""
    store = FaultyStore(place.store, transient_at(call, times=2))
    assert place.ingest(labeled("bug", "d-1"), store.tenant(TENANT))[1]
    assert store.struck
    assert place.card().labels == ("bug",)


@pytest.mark.promise("O06", "E09")
def test_an_event_that_is_refused_leaves_no_card_behind(place: Place) -> None:
    names = [{"name": f"{number:02}" + "ü" * 98} for number in range(100)]
    with pytest.raises(InvalidInputError, match="attributes"):
        place.ingest(delivery(issue_payload("opened", labels=names)))
    with pytest.raises(CardNotFoundError):
        place.card()
    assert place.events() == []


class Killed(BaseException):
    """The process died here."""


class Doomed:
    """A port whose every call counts against the life of its process."""

    def __init__(self, port: object, life: Life) -> None:
        self._port = port
        self._life = life

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method of any port
        method = getattr(self._port, name)
        return lambda *given, **named: self._life.call(lambda: method(*given, **named))


@dataclass
class Life:
    """How many more store calls this process makes, and whether it dies before or after the last."""

    calls_left: int
    after: bool
    dead: bool = False

    def call(self, method: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the port returns
        if self.dead:
            raise Killed
        self.calls_left -= 1
        self.dead = self.calls_left == 0
        if self.dead and not self.after:
            raise Killed
        result = method()
        if self.dead:
            raise Killed
        return result


class DoomedTransactions:
    """Transactions of which the commit is a store call too."""

    def __init__(self, tenant: TenantStore, life: Life) -> None:
        self._tenant = tenant
        self._life = life
        self.adopt = tenant.transactions.adopt

    def begin(self) -> Any:  # noqa: ANN401 - a context manager
        life, opened = self._life, self._tenant.transactions.begin()

        class Opened:
            def __enter__(self) -> Transaction:
                transaction = opened.__enter__()
                commit = transaction.commit
                transaction.commit = lambda: life.call(commit)  # type: ignore[method-assign]  # this test's fault
                return transaction

            def __exit__(self, *error: object) -> Any:  # noqa: ANN401 - as the store's own
                return opened.__exit__(*error)  # type: ignore[arg-type]  # passed on as it came

        return Opened()


def doomed(tenant: TenantStore, life: Life) -> TenantStore:
    ports = {
        port.name: Doomed(getattr(tenant, port.name), life)
        for port in fields(tenant)
        if port.name not in {"tenant_id", "transactions"}
    }
    return TenantStore(tenant_id=tenant.tenant_id, transactions=DoomedTransactions(tenant, life), **ports)


@pytest.mark.promise("E14")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_store_call_leaves_all_or_nothing_and_the_next_try_completes(place: Place, after: bool) -> None:  # noqa: FBT001 - a parameter of the test
    for number in range(1, 30):
        label, event_id = f"label-{number}", f"d-{number}"
        life = Life(number, after)
        known = {event.event_id for event in place.events()}
        try:
            place.ingest(labeled(label, event_id), doomed(place.tenant, life))
        except Killed:
            landed = event_id in {event.event_id for event in place.events()}
            labels = place.card().labels if known or landed else ()
            assert (label in labels) == landed
        if not life.dead:
            break
        assert place.ingest(labeled(label, event_id))[0] > 0
        assert label in place.card().labels
        assert Counter(event.event_id for event in place.events())[event_id] == 1
    else:
        pytest.fail("an ingest never came to its end")
    assert number > 6, "the ports were not counted"


@MONGO_ONLY
@pytest.mark.promise("E46")
@pytest.mark.scenario(47)
@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_whose_answers_are_lost_gives_one_event_and_one_change(place: Place, times: int) -> None:
    assert place.database is not None
    admin = place.database.client.admin
    data = {"failCommands": ["commitTransaction"], "closeConnection": True}
    admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)
    try:
        seq, _ = place.ingest(labeled("bug", "d-1"))
    finally:
        admin.command("configureFailPoint", "failCommand", mode="off")
    assert (place.card().labels, [event.seq for event in place.events()]) == (("bug",), [seq])


class TestCards:
    """The port's own promises."""

    def test_standing_is_what_exists_and_is_not_deleted(self, place: Place) -> None:
        place.write(Card(tenant_id=TENANT, card_id="a"))
        place.write(Card(tenant_id=TENANT, card_id="b", deleted_at=datetime(2026, 1, 1, tzinfo=UTC)))
        assert place.tenant.cards.standing(["a", "b", "c"]) == {"a"}
        assert place.store.tenant("other").cards.standing(["a"]) == frozenset()
        assert place.tenant.cards.standing([]) == frozenset()

    def test_a_card_comes_back_as_it_was_put(self, place: Place) -> None:
        at = datetime(2026, 11, 2, 9, 0, 0, 250_000, tzinfo=UTC)
        card = Card(
            tenant_id=TENANT,
            card_id="gh.pr.1",
            board="b",
            title="t",
            body="b" * 70_000,
            state="open",
            labels=("Bug", "größe"),
            assignee="a",
            link="https://x/1",
            repo="r/r",
            author="me",
            changed_at=at,
        )
        stored = place.write(card)
        assert stored == replace(card, version=1) == place.card("gh.pr.1") == place.tenant.cards.linked("https://x/1")
        assert place.write(replace(stored, state="closed")) == replace(stored, state="closed", version=2)
        assert place.tenant.cards.linked("https://x/2") is None

    @pytest.mark.parametrize("version", [0, 1, 7])
    def test_a_put_over_another_version_than_the_stored_one_is_contention(self, place: Place, version: int) -> None:
        current = place.write(place.write(Card(tenant_id=TENANT, card_id="a", title="first")))
        with pytest.raises(ContentionError):
            place.write(replace(current, version=version, title="lost"))
        assert place.card("a") == current

    def test_a_put_in_a_transaction_that_is_left_is_undone(self, place: Place) -> None:
        with place.tenant.transactions.begin() as transaction:
            place.tenant.cards.put(Card(tenant_id=TENANT, card_id="a"), transaction)
            assert place.tenant.cards.get("a", transaction).version == 1
        with pytest.raises(CardNotFoundError):
            place.card("a")

    @MONGO_ONLY
    @pytest.mark.promise("O08")
    def test_fields_of_a_newer_version_survive_a_write_and_older_cards_have_defaults(self, place: Place) -> None:
        assert place.database is not None
        place.ingest(labeled("bug", "d-1"))
        cards = place.database["board_cards"]
        cards.update_one({"card_id": "gh.issue.7001"}, {"$set": {"mood": "calm"}, "$unset": {"body": 1}})
        place.ingest(labeled("pump", "d-2"))
        (found,) = cards.find({"tenant_id": TENANT})
        assert (found["mood"], found["labels"], place.card().body) == ("calm", ["bug", "pump"], "")

    @MONGO_ONLY
    def test_a_card_that_cannot_be_read_is_named_and_nothing_is_written(self, place: Place) -> None:
        assert place.database is not None
        place.ingest(labeled("bug", "d-1"))
        place.database["board_cards"].update_one({"card_id": "gh.issue.7001"}, {"$set": {"labels": "bug"}})
        with pytest.raises(DefinitiveError, match=r"gh\.issue\.7001.*labels"):
            place.ingest(labeled("pump", "d-2"))
        assert [event.event_id for event in place.events()] == ["d-1"]

    @MONGO_ONLY
    def test_no_read_of_cards_scans_the_collection(self, place: Place) -> None:
        assert place.database is not None
        for number in range(200):
            place.ingest(
                delivery(issue_payload(id=number + 1, html_url=f"https://x/{number}"), delivery_id=f"d-{number}")
            )
        place.database.command("profile", 2)
        place.tenant.cards.linked("https://x/7")
        place.tenant.cards.standing(["gh.issue.7", "gh.issue.8"])
        place.tenant.cards.get("gh.issue.7")
        place.database.command("profile", 0)
        query = {"ns": f"{place.database.name}.board_cards", "op": "query"}
        profile = [
            (found["planSummary"], found["docsExamined"]) for found in place.database["system.profile"].find(query)
        ]
        assert len(profile) == 3
        assert all("COLLSCAN" not in plan and examined <= 2 for plan, examined in profile), profile
