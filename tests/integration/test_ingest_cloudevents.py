"""CloudEvents come into a real log, by file and by HTTP request, once each; what is wrong writes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from pydantic import SecretStr

from outbox_core.bootstrap import Outbox
from outbox_core.cli import outbox as command
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.event import Event
from outbox_core.domain.limits import Limits
from outbox_core.domain.subscription import Match, Subscription
from outbox_core.settings import Settings
from tests.deliveries import issue_payload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from outbox_core.embedded import EmbeddedMongo


@pytest.fixture
def outbox(mongo_server: EmbeddedMongo, database_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outbox]:
    """An outbox on a database with its schema, which the environment names too."""
    monkeypatch.setenv("OUTBOX_MONGO_URL", mongo_server.url)
    monkeypatch.setenv("OUTBOX_MONGO_DB", database_name)
    outbox = Outbox.from_settings(Settings(mongo_url=SecretStr(mongo_server.url), mongo_db=database_name))
    outbox.ensure_schema()
    yield outbox
    outbox.close()


def ce(id: object = "1", **more: Any) -> dict[str, Any]:  # noqa: A002, ANN401 - the attribute's own name
    return {"specversion": "1.0", "id": id, "source": "/shop", "type": "order.placed", **more}


def ingest(given: str, *words: str) -> tuple[int, str, list[str]]:
    result = CliRunner().invoke(
        command, ["ingest", "-", "--tenant", "acme", "--format", "cloudevents", *words], input=given
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr.splitlines()


def events(outbox: Outbox) -> list[Event]:
    return [entry for entry in outbox.tenant("acme").log.read_after(0, 1_000) if isinstance(entry, Event)]


@pytest.mark.promise("O06")
def test_a_file_of_the_other_form_is_refused_in_a_line_that_says_so(outbox: Outbox) -> None:
    code, _, err = ingest(json.dumps(ce()), "--format", "github")
    assert (code, err[0]) == (2, "outbox: line 1: this is a CloudEvent; --format cloudevents takes those")
    code, _, err = ingest(json.dumps({"event": "issues", "delivery": "d", "payload": {}}))
    assert (code, err[0].startswith("outbox: line 1: ")) == (2, True)
    assert "a CloudEvent has" in err[0]
    assert events(outbox) == []


@pytest.mark.promise("E46")
@pytest.mark.parametrize("form", ["lines", "array", "spread"])
def test_a_file_in_each_form_is_taken_once_however_often_it_is_given(outbox: Outbox, form: str) -> None:
    many = [ce(number, data={"number": number}) | {"id": f"o-{number}"} for number in range(250)]
    text = {
        "lines": "\n".join(map(json.dumps, many)),
        "array": json.dumps(many),
        "spread": json.dumps(many[0], indent=2),
    }[form]
    count = 1 if form == "spread" else 250
    code, out, err = ingest(text, "--json")
    assert (code, err) == (0, [])
    assert json.loads(out) == {"taken": count, "known": 0, "ignored": {}, "refused": 0, "errors": []}
    assert json.loads(ingest(text, "--json")[1])["known"] == count
    taken = events(outbox)
    assert [event.data["data"]["number"] for event in taken] == list(range(count))
    assert len(taken) == count


@pytest.mark.promise("E46")
def test_an_event_that_stands_twice_in_a_file_is_taken_once_and_counted_so(outbox: Outbox) -> None:
    code, out, _ = ingest("\n".join(map(json.dumps, [ce("a"), ce("b"), ce("a"), ce("a", source="/other")])), "--json")
    assert (code, json.loads(out)["taken"], json.loads(out)["known"]) == (0, 3, 1)
    assert len(events(outbox)) == 3


def test_it_is_matched_by_its_type_and_its_extensions_and_owes_its_effect(outbox: Outbox) -> None:
    rule = Subscription(
        tenant_id="acme",
        sub_id="r",
        bot_id="b",
        match=Match(sources=("cloudevents",), types=("order.placed",), labels=("urgent",)),
    )
    outbox.tenant("acme").subscriptions.add(rule)
    assert ingest("\n".join(map(json.dumps, [ce("a"), ce("b", labels="urgent,x")])))[0] == 0
    outbox.drain_tenant("acme")
    assert [row["seq"] for row in outbox.tenant("acme").effects.list()] == [2]


BAD = [
    (json.dumps({"id": "1"}), "source, type, specversion missing"),
    (json.dumps(ce(specversion="0.3")), "'specversion' must be '1.0'"),
    (json.dumps(ce(7)), "id is no text"),
    (json.dumps(ce(time="now")), "time is no RFC 3339 time"),
    (json.dumps(ce(Upper="x")), "'Upper' is no name of an attribute"),
    (json.dumps(ce(list=[1])), "list is neither text, integer nor boolean"),
    (json.dumps(ce(data=1, data_base64="AA==")), "both data and data_base64"),
    (json.dumps(ce(data="x" * 300_000)), "the limit is 262144"),
    ("[]", "a CloudEvent is one JSON object"),
    ("{", "not JSON"),
    ('{"a": NaN}', "not JSON"),
    ("x" * 11_000_000, "11,000,001 bytes, the limit is 10,485,760"),
]


@pytest.mark.promise("O06")
@pytest.mark.parametrize(("bad", "said"), BAD, ids=[said for _, said in BAD])
def test_a_file_with_one_bad_event_is_refused_whole_by_its_line(outbox: Outbox, bad: str, said: str) -> None:
    text = "\n".join([json.dumps(ce("a")), "", bad, json.dumps(ce("b"))])
    code, out, err = ingest(text)
    assert (code, out) == (2, "")
    assert err[0].startswith("outbox: line 3: ")
    assert said in err[0]
    assert err[1:] == ["outbox: nothing was taken; mend the file, or give --keep-going to take its good lines"]
    assert events(outbox) == []
    code, out, err = ingest(text, "--keep-going", "--json")
    assert (code, json.loads(out)["taken"], json.loads(out)["refused"], len(err)) == (1, 2, 1, 1)
    assert [event.data["id"] for event in events(outbox)] == ["a", "b"]


@pytest.mark.promise("O06")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps([ce("a"), {"id": "1"}]), "event 2: source, type, specversion missing"),
        ("[" + json.dumps(ce("a")), "the batch: not JSON"),
        (
            json.dumps({"event": "issues", "delivery": "d", "payload": {}}),
            "line 1: id, source, type, specversion missing",
        ),
    ],
)
def test_a_batch_with_one_bad_event_and_another_format_are_refused_whole(outbox: Outbox, text: str, said: str) -> None:
    code, out, err = ingest(text)
    assert (code, out) == (2, "")
    assert err[0].startswith(f"outbox: {said}")
    assert events(outbox) == []


@pytest.mark.promise("O06")
def test_an_unknown_format_is_refused_with_those_there_are(outbox: Outbox) -> None:
    result = CliRunner().invoke(command, ["ingest", "-", "--tenant", "acme", "--format", "avro"], input="")
    assert result.exit_code == 2
    assert "'avro' is not one of 'github', 'cloudevents'" in result.stderr
    assert events(outbox) == []


class TestHttp:
    """Requests as the library of other people's senders makes them."""

    @pytest.mark.promise("E46")
    def test_both_modes_and_a_batch_are_taken_and_a_repeat_is_the_same_event(self, outbox: Outbox) -> None:
        sent = CloudEvent({"id": "1", "source": "/shop", "type": "order.placed", "subject": "order-1"}, {"a": 1})
        structured, in_binary = to_structured_event(sent), to_binary_event(sent)
        first = outbox.ingest_cloudevent("acme", structured.headers, structured.body)
        again = outbox.ingest_cloudevent("acme", in_binary.headers, in_binary.body)
        assert (first.seq, first.duplicate, again.seq, again.duplicate) == (1, False, 1, True)
        batch = json.dumps([ce("1"), ce("2"), ce("3")]).encode()
        taken = outbox.ingest_cloudevents("acme", {"Content-Type": "application/cloudevents-batch+json"}, batch)
        assert [one.duplicate for one in taken] == [True, False, False]
        assert [event.data["id"] for event in events(outbox)] == ["1", "2", "3"]
        assert events(outbox)[0].attributes.subject == "order-1"

    @pytest.mark.promise("O06")
    def test_a_wrong_one_writes_nothing(self, outbox: Outbox) -> None:
        with pytest.raises(InvalidInputError, match="event 2: id missing"):
            outbox.ingest_cloudevents(
                "acme",
                {"Content-Type": "application/cloudevents-batch+json"},
                json.dumps([ce("1"), {name: value for name, value in ce().items() if name != "id"}]).encode(),
            )
        with pytest.raises(InvalidInputError, match="neither a Content-Type"):
            outbox.ingest_cloudevent("acme", {"Content-Type": "text/html"}, b"<p>")
        assert events(outbox) == []

    @pytest.mark.promise("E09", "O06")
    def test_the_deployment_s_own_limit_counts(self, mongo_server: EmbeddedMongo, outbox: Outbox) -> None:
        database = outbox.settings.mongo_db
        small = Outbox.from_settings(
            Settings(mongo_url=SecretStr(mongo_server.url), mongo_db=database, limits=Limits(max_event_bytes=1_000))
        )
        with pytest.raises(InvalidInputError, match="the limit is 1000"):
            small.ingest_cloudevent(
                "acme", {"Content-Type": "application/cloudevents+json"}, json.dumps(ce(data="x" * 1_000)).encode()
            )
        small.close()
        assert events(outbox) == []


@pytest.mark.parametrize(("form", "words"), [("cloudevents", []), ("cloudevents", ["--json"]), ("github", [])])
def test_a_long_file_shows_its_progress_on_a_terminal_and_nowhere_else(
    outbox: Outbox, tmp_path: Path, form: str, words: list[str]
) -> None:
    """Run as people run it, its stderr being a pseudo-terminal."""
    file = tmp_path / "many.jsonl"
    file.write_text("\n".join(json.dumps(one(form, number)) for number in range(200)))
    code, shown, out = on_a_terminal(file, "--format", form, *words)
    assert code == 0, shown
    assert (b"taking" in shown, b"100%" in shown) == (not words, not words)
    assert b"taking" not in out
    assert b"checking" not in shown
    assert len(events(outbox)) == 200


def test_a_file_that_is_long_to_check_shows_that_too(outbox: Outbox, tmp_path: Path) -> None:
    """Large events, and of few enough that taking them is quick."""
    file = tmp_path / "large.jsonl"
    file.write_text("\n".join(json.dumps(ce(f"o-{number}", data="x" * 200_000)) for number in range(90)))
    code, shown, _ = on_a_terminal(file, "--format", "cloudevents")
    assert code == 0, shown
    assert (b"checking" in shown, b"100%" in shown, b"taking" in shown) == (True, True, False)
    assert len(events(outbox)) == 90


def one(form: str, number: int) -> dict[str, Any]:
    if form == "github":
        return {"event": "issues", "delivery": f"d-{number}", "payload": issue_payload("closed")}
    return ce(f"o-{number}")


def on_a_terminal(file: Path, *words: str) -> tuple[int, bytes, bytes]:
    """Ingest a file as people do, stderr being a terminal; return the exit code, what that showed, and stdout."""
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", "from outbox_core.cli import main; main()", "ingest", str(file)]
    done = subprocess.Popen(
        [*program, "--tenant", "acme", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"},
    )
    os.close(theirs)
    shown = read_to_its_end(ours)
    out, _ = done.communicate(timeout=60)
    os.close(ours)
    return done.returncode, shown, out


def read_to_its_end(terminal: int) -> bytes:
    """What a program showed until it closed its side, at which Linux raises."""
    shown = b""
    with contextlib.suppress(OSError):
        while read := os.read(terminal, 4_096):
            shown += read
    return shown
