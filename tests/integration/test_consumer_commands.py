"""`outbox consumers` and `outbox dead` on a real database: what they print, for people and for programs."""

from __future__ import annotations

import json
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pymongo import MongoClient

from outbox_core import InvalidInputError, LifecycleConsumer, Observation, Observer, Outbox
from outbox_core.cli import outbox
from outbox_core.domain.consumer import Start
from outbox_core.domain.errors import ConsumerNotFoundError
from tests.harness.on_mongo import MongoHarness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

    from outbox_core.embedded import EmbeddedMongo

LONG = timedelta(hours=1)


class Deployed:
    """A database that the environment names, with four cards."""

    def __init__(self, opened: Outbox, harness: MongoHarness) -> None:
        self.outbox = opened
        self.harness = harness
        self.consumers = opened.consumers("acme")
        opened.boards("acme").create_board("bugs", ["todo"])
        for number in range(1, 5):
            opened.boards("acme").create_card("bugs", "A card", card_id=f"c{number}")

    def delete(self, *card_ids: str) -> None:
        for card_id in card_ids:
            self.outbox.boards("acme").delete_card(card_id)

    def poll(self, fails: str = "", times: int = 1) -> None:
        """Poll consumer `cache`, an hour between two polls; it fails at one card."""

        def observe(told: Observation) -> None:
            if told.event.task_id == fails:
                raise ValueError("this text is kept nowhere")

        consumer = LifecycleConsumer(
            self.outbox, "acme", Observer(consumer_id="cache", function=observe, start=Start.BEGINNING)
        )
        for _ in range(times):
            consumer.poll_once()
            self.harness.advance(LONG)


@pytest.fixture
def deployed(mongo_server: EmbeddedMongo, database_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    monkeypatch.setenv("OUTBOX_MONGO_URL", mongo_server.url)
    monkeypatch.setenv("OUTBOX_MONGO_DB", database_name)
    monkeypatch.setenv("COLUMNS", "200")
    opened = Outbox.from_settings()
    opened.ensure_schema()
    with MongoClient[dict[str, Any]](mongo_server.url) as client:
        yield Deployed(opened, MongoHarness(client[database_name]))
    opened.close()


def run(*words: str) -> Result:
    return CliRunner().invoke(outbox, words)


def text(*words: str) -> str:
    result = run(*words, "--tenant", "acme")
    assert result.exit_code == 0, result.stderr
    return result.stdout


def document(*words: str) -> Any:  # noqa: ANN401 - JSON
    result = run(*words, "--tenant", "acme", "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_a_consumer_is_registered_watched_and_retired_in_words_that_say_where_it_stands(deployed: Deployed) -> None:
    assert text("consumers", "lag") == "tenant acme has no lifecycle events yet\nconsumer  lag  waiting since\n"
    said = text("consumers", "register", "cache", "--start", "beginning", "--by", "ann")
    assert said == "cache is registered, and begins at the first event\n"
    again = run("consumers", "register", "cache", "--start", "latest", "--tenant", "acme")
    assert (again.exit_code, again.stderr) == (
        0,
        "it was registered before, with start beginning: that is left as it is\n",
    )
    said = text("consumers", "register", "mailer", "--start", "latest")
    assert said == "mailer is registered, and begins by reconciling with the live cards\n"
    deployed.delete("c1", "c2")
    deployed.poll()
    assert text("consumers", "lag").splitlines()[0] == "head 2, 2 events kept from 1 on: mailer has no cursor yet"
    cache, mailer = document("consumers", "list")["consumers"]
    assert (cache["state"], cache["cursor"], cache["lag"], cache["lease_owner"]) == ("active", 2, 0, None)
    assert (mailer["state"], mailer["cursor"], mailer["lag"]) == ("to begin", None, 2)
    assert mailer["waiting_since"].endswith("Z")
    assert text("consumers", "retire", "mailer", "--by", "ann", "--why", "unused") == "mailer is retired\n"
    assert text("consumers", "retire", "mailer") == "nothing to do: mailer is retired already\n"
    lag = document("consumers", "lag")
    assert (lag["head"], lag["floor"], lag["acknowledged_by_all"], lag["held_by"]) == (2, 1, 2, [])
    assert lag["why"] == "no consumer waits for it, only its age keeps it"
    assert [one["consumer_id"] for one in document("consumers", "list")["consumers"]] == ["cache"]
    assert [one["state"] for one in document("consumers", "list", "--all")["consumers"]] == ["active", "retired"]
    said = text("consumers", "register", "mailer", "--start", "latest")
    assert said == "mailer is registered, and reconciles first\n"
    said = text("consumers", "register", "cache", "--start", "beginning")
    assert said == "cache is registered, and goes on after event 2\n"


@pytest.mark.promise("L22")
def test_an_id_that_a_restart_would_change_is_refused_in_one_line_and_nothing_is_written(deployed: Deployed) -> None:
    for wrong in ("worker-9f8e7d6c5b4a3210", f"cache-{os.getpid()}", socket.gethostname(), "cache 1", ""):
        result = run("consumers", "register", "--tenant", "acme", "--start", "latest", wrong)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1
        with pytest.raises(InvalidInputError):
            deployed.consumers.register(wrong, start="latest")
    assert deployed.consumers.all() == []


def test_what_is_not_there_is_said_in_one_line_with_exit_code_1(deployed: Deployed) -> None:
    text("consumers", "register", "cache", "--start", "beginning")
    for words in (
        ("consumers", "show", "nosuch"),
        ("consumers", "retire", "nosuch"),
        ("consumers", "reconcile", "nosuch"),
        ("consumers", "pause", "cache", "nosuch"),
        ("consumers", "resume", "nosuch"),
    ):
        result = run(*words, "--tenant", "acme")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == "outbox: tenant acme has no consumer 'nosuch'\n"
    assert deployed.consumers.get("cache").paused_at is None, "nothing is done by halves"
    with pytest.raises(ConsumerNotFoundError):
        deployed.consumers.pause("nosuch")
    for command in ("show", "replay", "resolve"):
        result = run("dead", command, "cache", "nosuch", "--tenant", "acme")
        assert (result.exit_code, result.stderr) == (1, "outbox: consumer 'cache' has no dead letter 'nosuch'\n")


def test_a_consumer_that_must_reconcile_and_cannot_says_so_and_is_let_go_on_by_skip(deployed: Deployed) -> None:
    text("consumers", "register", "cache", "--start", "beginning")
    deployed.delete("c1")
    assert text("consumers", "pause") == "paused: cache\n"
    assert text("consumers", "pause", "cache") == "nothing to do: none was to be paused\n"
    deployed.poll()
    assert document("consumers", "show", "cache")["consumer"]["state"] == "paused"
    assert text("consumers", "resume", "cache") == "resumed: cache\n"
    assert text("consumers", "reconcile", "cache", "--by", "ann") == "cache reconciles at its next poll\n"
    deployed.poll()
    assert "must reconcile: it was told to" in text("consumers", "list")
    shown = document("consumers", "show", "cache")["consumer"]
    assert (shown["state"], shown["stopped_for"]) == ("stopped", "it was told to")
    said = text("consumers", "reconcile", "cache", "--skip", "--by", "ann", "--why", "nothing of it matters")
    assert said == "cache goes on after event 1; what came before is skipped\n"
    assert document("consumers", "show", "cache")["consumer"]["state"] == "active"


@pytest.mark.promise("L10", "L11")
def test_a_dead_letter_is_listed_shown_replayed_and_resolved(deployed: Deployed) -> None:
    text("consumers", "register", "cache", "--start", "beginning")
    deployed.delete("c1", "c2", "c3")
    deployed.poll(fails="c1")
    shown = text("consumers", "show", "cache")
    assert "failing.failure_class" in shown
    assert "datetime" not in shown
    assert "ValueError, try 1: task-deleted:c1:" in text("consumers", "list")
    deployed.poll(fails="c1", times=10)
    deployed.poll(fails="c2", times=10)
    letters = document("dead", "list")["letters"]
    assert [(one["sequence"], one["state"], one["attempts"]) for one in letters] == [(1, "unresolved", 10)]
    assert "kept nowhere" not in json.dumps(document("dead", "show", "cache", letters[0]["event_id"]))
    (event_id,) = [one["event_id"] for one in letters]
    letter = document("dead", "show", "cache", event_id)["letter"]
    assert (letter["event"]["task_id"], letter["event"]["prior_column"]) == ("c1", "todo")
    first, again = [text("dead", "replay", "cache", event_id, "--by", "ann", "--why", "mended") for _ in range(2)]
    assert first == f"cache is to observe {event_id} again\n"
    assert again == f"nothing to do: cache is to observe {event_id} again already\n"
    deployed.poll(fails="c1")
    assert document("dead", "list", "--state", "unresolved")["letters"][0]["replays"] == 1
    text("dead", "replay", "cache", event_id)
    deployed.poll()
    assert document("dead", "list", "--state", "unresolved") == {"letters": [], "next_after": None}
    assert text("dead", "replay", "cache", event_id) == f"nothing to do: {event_id} of cache is resolved already\n"
    assert text("dead", "resolve", "cache", event_id) == f"nothing to do: {event_id} of cache is resolved already\n"
    assert document("dead", "show", "cache", event_id)["letter"]["settled_why"] == "observed"
