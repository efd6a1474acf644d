"""The example's board cache in a process of its own: killed, it catches up; browsers follow it without a cursor."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pymongo import MongoClient

from outbox_core.bootstrap import Outbox
from outbox_core.embedded import Supervisor
from tests.acceptance import browser
from tests.harness.on_mongo import MongoHarness
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.embedded import EmbeddedMongo, Process

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MISSES = int(os.environ.get("OUTBOX_TEST_MISSES", "30"))
"""How many deletions the killed cache misses; each is a transaction of its own, so that many take their time."""

READY_WITHIN = timedelta(seconds=30)
SEEN_WITHIN_S = 20.0


class Cache:
    """A tenant's cache process, its page, and the database that it must equal."""

    def __init__(self, folder: Path, supervisor: Supervisor, outbox: Outbox) -> None:
        self.outbox = outbox
        self.boards = outbox.boards("acme")
        self.folder = folder
        self._supervisor = supervisor
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Process | None = None

    def start(self) -> Process:
        words = ["--tenant", "acme", "--file", str(self.folder / "cache.sqlite"), "--port", str(self.port)]
        argv = [sys.executable, "-m", "examples.board_cache", *words]
        self.process = self._supervisor.spawn("cache", argv, log=self.folder / "cache.log", cwd=ROOT)
        self.process.await_ready(lambda: self.ids() is not None, READY_WITHIN)
        return self.process

    def ids(self) -> set[str] | None:
        """Return the cards that the cache holds, None where it does not answer."""
        try:
            answer = httpx.get(f"{self.url}/cards", trust_env=False, timeout=5)
        except httpx.TransportError:
            return None
        return {card["card_id"] for card in answer.json()["cards"]}

    def live(self) -> set[str]:
        """Return the live cards of the database."""
        store, found, after = self.outbox.tenant("acme"), set[str](), ""
        while page := store.cards.live(after=after):
            found |= {card.card_id for card in page}
            after = page[-1].card_id
        return found

    def await_equal(self, what: str) -> None:
        live = self.live()
        wait_until(lambda: self.ids() == live, SEEN_WITHIN_S, what)

    def put(self, *card_ids: str) -> None:
        for card_id in card_ids:
            self.boards.create_card("bugs", f"Title of <b>{card_id}</b>", card_id=card_id)


@pytest.fixture
def cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mongo_server: EmbeddedMongo, database_name: str
) -> Iterator[Cache]:
    """A cache that is not started yet, on a database with a board; it polls twice a second."""
    settings = {
        "OUTBOX_MONGO_URL": mongo_server.url,
        "OUTBOX_MONGO_DB": database_name,
        "OUTBOX_CONSUMER_POLL": "500ms",
        "OUTBOX_CONSUMER_IDLE_STEP": "10ms",
        "OUTBOX_CONSUMER_IDLE_CAP": "500ms",
        "OUTBOX_OP_TIMEOUT": "2s",
        "OUTBOX_CONSUMER_LEASE": "3500ms",
    }
    for name, text in settings.items():
        monkeypatch.setenv(name, text)
    outbox = Outbox.from_settings()
    outbox.ensure_schema()
    outbox.boards("acme").create_board("bugs", ["todo", "done"])
    with Supervisor() as supervisor:
        yield Cache(tmp_path, supervisor, outbox)
    outbox.close()


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read server-sent events as a browser does."""
    for first, second in pairwise(lines):
        if first.startswith("event: "):
            yield first.removeprefix("event: "), json.loads(second.removeprefix("data: "))


@pytest.mark.promise("L05", "L12", "L17", "L18")
def test_a_cache_killed_with_9_that_missed_many_changes_comes_back_and_equals_the_database(cache: Cache) -> None:
    names = [f"c{number:04d}" for number in range(MISSES)]
    cache.put(*names, "stays")
    first = cache.start()
    cache.await_equal("the first look at the board")
    cache.boards.delete_card("c0000")
    cache.await_equal("a deletion by another process")
    cache.boards.restore_card("c0000")
    cache.await_equal("its restore")
    first.kill()
    assert cache.ids() is None
    for name in names:
        cache.boards.delete_card(name)
    for name in names[::10]:
        cache.boards.restore_card(name)
    again = cache.start()
    cache.await_equal("what it missed")
    assert cache.ids() == {"stays", *names[::10]}
    consumers = cache.outbox.consumers("acme")
    wait_until(lambda: consumers.state().lags == {"board-cache": 0}, SEEN_WITHIN_S, "the last acknowledgement")
    # Every tenth deletion was undone: it is recorded, and not given; nothing was reconciled but the beginning.
    codes = [row.code.rpartition(":")[2] for row in cache.outbox.tenant("acme").audit.rows(limit=5_000)]
    assert codes.count("consumer-reconciled") == 1
    superseded = [
        row.detail["count"]
        for row in cache.outbox.tenant("acme").audit.rows(limit=5_000)
        if row.code.endswith("event-superseded")
    ]
    assert sum(map(int, superseded)) == len(names[::10])
    assert again.stop() == 0
    assert cache.outbox.consumers("acme").get("board-cache").lease_owner == ""


@pytest.mark.promise("L12", "L13", "L14")
def test_a_cache_whose_consumer_was_retired_while_it_was_away_reconciles_when_it_is_registered_again(
    cache: Cache, mongo_server: EmbeddedMongo
) -> None:
    cache.put(*(f"c{number}" for number in range(6)))
    first = cache.start()
    cache.await_equal("the first look at the board")
    first.kill()
    for name in ("c0", "c1", "c2"):
        cache.boards.delete_card(name)
    consumers = cache.outbox.consumers("acme")
    consumers.retire("board-cache", by="ann", why="it seemed to be gone for good")
    with MongoClient[dict[str, Any]](mongo_server.url) as client:
        MongoHarness(client[cache.outbox.settings.mongo_db]).advance(timedelta(days=31))
    cache.outbox.prune()
    assert cache.outbox.tenant("acme").stream.floor() == 4
    # A retired one is left retired by its own start; a person brings it back.
    process = cache.start()
    assert consumers.get("board-cache").retired_at is not None
    assert "c0" in (cache.ids() or ())
    consumers.register("board-cache", start="latest", by="ann")
    cache.await_equal("the reconciliation")
    cache.boards.delete_card("c3")
    cache.await_equal("what came after it")
    assert process.poll() is None


@pytest.mark.promise("L05")
def test_a_browsers_stream_begins_with_the_board_goes_on_with_changes_and_begins_anew_after_a_reconnect(
    cache: Cache,
) -> None:
    cache.put("a", "b")
    process = cache.start()
    cache.await_equal("the board")
    with httpx.Client(base_url=cache.url, trust_env=False, timeout=SEEN_WITHIN_S) as client:
        with client.stream("GET", "/events") as stream:
            told = events(stream.iter_lines())
            kind, board = next(told)
            assert (kind, [card["card_id"] for card in board["cards"]]) == ("board", ["a", "b"])
            cache.boards.delete_card("a")
            assert next(told) == ("deleted", {"kind": "deleted", "card_id": "a", "own": False})
            cache.boards.restore_card("a")
            kind, card = next(told)
            assert (kind, card["card_id"], card["state"]) == ("restored", "a", "todo")
            cache.outbox.consumers("acme").reconcile("board-cache", by="ann", why="to see it")
            kind, board = next(told)
            assert (kind, board["why"]) == ("reconciled", "it was told to")
        cache.boards.delete_card("b")
        cache.await_equal("a change that no browser saw")
        with client.stream("GET", "/events") as stream:
            told = events(stream.iter_lines())
            kind, board = next(told)
            assert (kind, [card["card_id"] for card in board["cards"]]) == ("board", ["a"])
            # The end of the server is the end of its streams, with no complaint.
            process.signal(signal.SIGTERM)
            assert list(told) == []
    wait_until(lambda: process.poll() is not None, SEEN_WITHIN_S, "it ended")
    assert process.poll() == 0
    log = process.log.read_text("utf-8")
    assert "Traceback" not in log
    assert "ERROR" not in log
    assert "Cannot send error response" not in log


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
@pytest.mark.promise("L05")
def test_a_real_browser_sees_deletions_and_restores_arrive_and_gets_over_a_restart(
    cache: Cache, tmp_path: Path
) -> None:
    cache.put(*(f"card-{number:02d}" for number in range(12)))
    first = cache.start()
    cache.await_equal("the board")
    with browser.running_browser(tmp_path) as page:
        page.look(width=1_000)
        page.open(cache.url)

        def shown(element: str) -> list[str]:
            texts: list[str] = page.evaluate(f"[...document.querySelectorAll('{element}')].map((it) => it.innerText)")
            return texts

        wait_until(lambda: len(shown("#cards > li")) == 12, SEEN_WITHIN_S, "the board in the page")
        # A title is text: what looks like markup in it is shown, and is none.
        assert "<b>card-00</b>" in shown("#cards > li")[0]
        assert page.evaluate("document.querySelectorAll('#cards b').length") == 0
        cache.boards.delete_card("card-03")
        wait_until(lambda: any("card-03" in line for line in shown("#log > li")), SEEN_WITHIN_S, "the deletion")
        assert len(shown("#cards > li")) == 11
        cache.boards.restore_card("card-03")
        wait_until(lambda: len(shown("#cards > li")) == 12, SEEN_WITHIN_S, "the restore")
        first.kill()
        wait_until(lambda: "lost" in shown("#state")[0], SEEN_WITHIN_S, "the page says so")
        cache.boards.delete_card("card-07")
        cache.start()
        cache.await_equal("what was missed")
        wait_until(lambda: len(shown("#cards > li")) == 11, SEEN_WITHIN_S, "the page comes back by itself")
        assert shown("#state") == ["connected"]
        assert any("came anew" in line for line in shown("#log > li"))
        for width, scheme in ((1_000, "light"), (1_000, "dark"), (360, "light")):
            page.look(width=width, scheme=scheme)
            page.screenshot(tmp_path / f"{scheme}-{width}.png")
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        refused = [said for said in page.complaints if "Content Security" in said or "exceptionDetails" in said]
        assert refused == []
