"""Who writes while faults are thrown: each append is asked again, under the same id, until it is answered."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from outbox_core.domain.errors import TransientError
from outbox_core.domain.forge_delivery import Ignored
from outbox_core.domain.subscription import BOARD_MODE
from tests.chaos.journal import HOSTED_BY_WORKERS
from tests.deliveries import EXAMPLES, deliveries_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pymongo.client_session import ClientSession

    from outbox_core.bootstrap import Outbox

SHOPS = ("shop-a", "shop-b")
BOARD = "board"
SHOTS = "shots"
FORGE = "forge"
LIFE = "life"
"""Its cards are deleted and restored, which its consumers observe."""

TENANTS = (*SHOPS, BOARD, SHOTS, FORGE, LIFE)

ORDERS = "chaos_orders"
"""What applications write beside an event, in one transaction with it: a document by the event's id."""

JOURNAL = "journal"
COLUMNS = ("todo", "doing", "done")
CARDS = tuple(f"card-{number}" for number in range(4))
LABEL = "deploy"
_PAUSE_S = 0.05
_MUCH = 150


class Journal:
    """One file, outside of the store, of what was asked and what was answered; several processes write to it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL

    def note(self, said: str, tenant: str, event_id: str, how: str) -> None:
        """Write one line at once; `said` is asked, answered or nothing."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, (json.dumps([said, tenant, event_id, how]) + "\n").encode())
        finally:
            os.close(descriptor)

    def read(self) -> dict[str, Told]:
        """Return what was said, by tenant."""
        told: dict[str, Told] = defaultdict(Told)
        lines = self._path.read_text("utf-8").splitlines() if self._path.exists() else []
        for line in lines:
            said, tenant, event_id, how = json.loads(line)
            told[tenant].note(said, event_id, how)
        return told


@dataclass(slots=True)
class Told:
    """The events of one tenant: asked for, answered, and answered with nothing to tell."""

    asked: dict[str, str] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    nothing: set[str] = field(default_factory=set)

    def note(self, said: str, event_id: str, how: str) -> None:
        match said:
            case "asked":
                self.asked[event_id] = how
            case "answered":
                self.answered.add(event_id)
            case _:
                self.nothing.add(event_id)


def prepare(outbox: Outbox) -> None:
    """Make the boards, their cards, the rules and the workers' consumers, before any fault."""
    for tenant in (BOARD, SHOTS, LIFE):
        outbox.boards(tenant).create_board("main", COLUMNS)
        for card in CARDS:
            outbox.boards(tenant).create_card("main", card, card_id=card)
    outbox.boards(BOARD).bind("main", "mirror", "elsewhere")
    for consumer_id in HOSTED_BY_WORKERS:
        outbox.consumers(LIFE).register(consumer_id, start="beginning")
    for shop in SHOPS:
        outbox.subscribe(shop, "plain", "plain", types=["order"])
        outbox.subscribe(shop, "counted", "counted", types=["order"])
        outbox.subscribe(shop, "shaky", "shaky", types=["shaky"])
        outbox.subscribe(shop, "later", "later", types=["later"])
        lease = outbox.settings.limits.effect_lease.total_seconds()
        outbox.subscribe(shop, "slow", "slow", types=["slow"], vars={"seconds": 1.3 * lease})
    outbox.subscribe(BOARD, "promote", "plain", mode=BOARD_MODE, types=["card"])
    outbox.subscribe(SHOTS, "shot", "plain", types=["card"], labels=[LABEL], consume_labels=[LABEL], sources=["board"])
    outbox.subscribe(FORGE, "any", "plain")


class Producer:
    """One writer; `name` makes its event ids its own."""

    def __init__(self, outbox: Outbox, journal: Journal, name: str, seed: str) -> None:
        settings = outbox.settings
        self._outbox = outbox
        self._journal = journal
        self._name = name
        self._dice = random.Random(seed)  # noqa: S311 - a load, no secret
        self._count = 0
        self._client: MongoClient[dict[str, Any]] = MongoClient(
            settings.mongo_url.get_secret_value(), appname="outbox", timeoutMS=5_000, retryWrites=True
        )
        self._orders = self._client[settings.mongo_db][ORDERS]
        self._deliveries = [one for one in deliveries_of(EXAMPLES) if one["payload"].get("action") != "deleted"]
        self.repeats = 0
        self.longest_s = 0.0
        self._give_up = threading.Event()

    def run(self, stop: threading.Event, pace_s: float) -> None:
        """Write until told to stop; return when the last write is answered, or `give_up` was called."""
        while not stop.is_set():
            if not self._is_much_live():
                self._dice.choice(_WAYS)(self)
            stop.wait(pace_s * self._dice.uniform(0.2, 1.8))
        self._client.close()

    def _is_much_live(self) -> bool:
        """Say whether so much is waiting that it shows nothing to add more: a machine is as quick as it is."""
        live = {"state": {"$in": ["pending", "claimed"]}}
        try:
            return self._orders.database["trigger_effects"].count_documents(live, limit=_MUCH) == _MUCH
        except PyMongoError:
            return False

    def begin_slowly(self) -> None:
        """Write an event whose bot outlasts its lease, so that there is one to be struck from the start."""
        tenant, (event_id,) = self._dice.choice(SHOPS), self._ids()
        call = partial(self._outbox.append, tenant, type="slow", event_id=event_id)
        self._until_answered(tenant, "append", [event_id], call)

    def probe(self) -> None:
        """Write a few orders for each shop, and take a card away, so that there is work for everybody."""
        for shop in SHOPS:
            ids = self._ids(2)
            events = [{"type": "order", "event_id": event_id} for event_id in ids]
            self._until_answered(shop, "probe", ids, lambda: self._outbox.append_many(shop, events))  # noqa: B023
        self._delete()
        self._restore()

    def give_up(self) -> None:
        """Ask no more for what is not answered."""
        self._give_up.set()

    def _ids(self, count: int = 1) -> list[str]:
        self._count += count
        return [f"{self._name}-{number}" for number in range(self._count - count, self._count)]

    def _until_answered(self, tenant: str, how: str, ids: Iterable[str], call: Callable[[], object]) -> None:
        for event_id in ids:
            self._journal.note("asked", tenant, event_id, how)
        while True:
            begun = time.monotonic()
            try:
                said = "nothing" if call() is _NOTHING else "answered"
            except (TransientError, PyMongoError):
                self.repeats += 1
                if self._give_up.wait(_PAUSE_S):
                    return
                continue
            finally:
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
            for event_id in ids:
                self._journal.note(said, tenant, event_id, how)
            return

    def _append(self) -> None:
        tenant, (event_id,) = self._dice.choice(SHOPS), self._ids()
        kind = self._dice.choices(("order", "shaky", "later", "slow"), (80, 30, 20, 1))[0]
        self._until_answered(
            tenant, "append", [event_id], lambda: self._outbox.append(tenant, type=kind, event_id=event_id)
        )

    def _append_many(self) -> None:
        tenant, ids = self._dice.choice(SHOPS), self._ids(3)
        events = [{"type": "order", "event_id": event_id} for event_id in ids]
        self._until_answered(tenant, "append_many", ids, lambda: self._outbox.append_many(tenant, events))

    def _in_transaction(self) -> None:
        tenant, (event_id,) = self._dice.choice(SHOPS), self._ids()

        def body(transaction: Any) -> None:  # noqa: ANN401 - holds the driver's own session
            orders = transaction.database[ORDERS]
            orders.update_one(
                {"_id": event_id}, {"$set": {"tenant_id": tenant}}, upsert=True, session=transaction.session
            )
            transaction.append(type="order", event_id=event_id)

        self._until_answered(tenant, "transaction", [event_id], lambda: self._outbox.run_in_transaction(tenant, body))

    def _own_session(self) -> None:
        tenant, (event_id,) = self._dice.choice(SHOPS), self._ids()

        def body(session: ClientSession) -> None:
            self._orders.update_one({"_id": event_id}, {"$set": {"tenant_id": tenant}}, upsert=True, session=session)
            self._outbox.append(tenant, type="order", event_id=event_id, session=session)

        def call() -> None:
            with self._client.start_session() as session:
                session.with_transaction(body, ReadConcern("snapshot"), WriteConcern("majority"))

        self._until_answered(tenant, "session", [event_id], call)

    def _move(self) -> None:
        (event_id,), card, column = self._ids(), self._dice.choice(CARDS), self._dice.choice(COLUMNS)
        boards = self._outbox.boards(BOARD)
        self._until_answered(
            BOARD, "move", [event_id], lambda: boards.move_card(card, column, event_id=event_id).seqs or _NOTHING
        )

    def _label(self) -> None:
        (event_id,), card = self._ids(), self._dice.choice(CARDS)
        boards = self._outbox.boards(SHOTS)
        self._until_answered(
            SHOTS, "label", [event_id], lambda: boards.label_card(card, add=[LABEL], event_id=event_id).seqs or _NOTHING
        )

    def _delete(self) -> None:
        (event_id,), card = self._ids(), self._dice.choice(CARDS)
        boards = self._outbox.boards(LIFE)
        self._until_answered(
            LIFE, "delete", [event_id], lambda: boards.delete_card(card, event_id=event_id).seqs or _NOTHING
        )

    def _restore(self) -> None:
        (event_id,), card = self._ids(), self._dice.choice(CARDS)
        boards = self._outbox.boards(LIFE)
        self._until_answered(
            LIFE, "restore", [event_id], lambda: boards.restore_card(card, event_id=event_id).seqs or _NOTHING
        )

    def _ingest(self) -> None:
        (event_id,), delivery = self._ids(), self._dice.choice(self._deliveries)
        headers = {"X-GitHub-Event": delivery["event"], "X-GitHub-Delivery": event_id}
        body = json.dumps(delivery["payload"]).encode()

        def call() -> object:
            taken = self._outbox.ingest_github(FORGE, headers, body)
            return _NOTHING if isinstance(taken, Ignored) else taken

        self._until_answered(FORGE, "ingest", [event_id], call)


_NOTHING = object()
"""The answer to a change that changed nothing, of which no event tells."""

_WAYS: tuple[Callable[[Producer], None], ...] = (
    Producer._append,
    Producer._append,
    Producer._append_many,
    Producer._in_transaction,
    Producer._own_session,
    Producer._move,
    Producer._label,
    Producer._delete,
    Producer._restore,
    Producer._ingest,
)
