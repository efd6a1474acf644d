"""Bad input at the command line: one clear line, an exit code that is not 0, and nothing written."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pymongo import MongoClient

from outbox_core.adapters.mongo.client import connect
from outbox_core.cli import outbox
from outbox_core.embedded import EmbeddedMongo, Supervisor, find_mongod
from outbox_core.embedded.programs import runnable
from outbox_core.embedded.server import port_is_open
from tests.deliveries import issue_payload
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pymongo.database import Database

pytestmark = pytest.mark.promise("O06")

SECRET = "a-secret-of-the-test"  # noqa: S105 - see its name


def line(event: str = "issues", delivery: str = "d", **beside: object) -> str:
    return json.dumps({"event": event, "delivery": delivery, "payload": issue_payload(), **beside})


def signed(body: str, secret: str) -> str:
    signature = "sha256=" + hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()
    return json.dumps({"event": "issues", "delivery": "d", "body": body, "signature": signature})


@pytest.fixture
def database(
    mongo_server: EmbeddedMongo, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database[dict[str, Any]]]:
    """A database with its schema, which the environment names."""
    monkeypatch.setenv("OUTBOX_MONGO_URL", mongo_server.url)
    monkeypatch.setenv("OUTBOX_MONGO_DB", database_name)
    assert run("schema")[0] == 0
    with MongoClient[dict[str, Any]](mongo_server.url) as client:
        yield client[database_name]
        client.drop_database(database_name)


def run(*words: str, given: str | None = None) -> tuple[int, str, list[str]]:
    """Run the command here; return its exit code, its stdout and the lines of its stderr."""
    result = CliRunner().invoke(outbox, words, input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, [text for text in result.stderr.splitlines() if text]


def written(database: Database[dict[str, Any]]) -> dict[str, int]:
    """Count what the tenant's collections hold."""
    counts = {name: database[name].count_documents({}) for name in database.list_collection_names()}
    return {name: count for name, count in counts.items() if count and name != "schema_versions"}


def refused(words: list[str], code: int, *said: str, given: str | None = None) -> None:
    found, out, err = run(*words, given=given)
    assert (found, out) == (code, ""), err
    told = [text for text in err if text.startswith("outbox: ")]
    assert told, err
    for text in said:
        assert text in told[0]
    assert "Traceback" not in "\n".join(err)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ('{"event": "issues"', "line 3: not JSON"),
        ('{"event": "issues", "payload": {}}', "line 3: $.delivery: Field required"),
        (
            line(payload={"action": "opened"}),
            "line 3: this issues delivery is not as GitHub sends it: $.issue: Field required",
        ),
        (line(payload=issue_payload(id="7")), "$.issue.id: "),
        (line(event="isues"), "line 3: GitHub has no event 'isues'; did you mean issues?"),
        (line(payload=issue_payload(body="x" * 20 * 1024 * 1024)), "bytes, the limit is"),
    ],
    ids=["cut short", "no delivery id", "no issue", "wrong type", "unknown kind", "20 MB"],
)
def test_a_file_with_one_bad_delivery_is_refused_whole(
    database: Database[dict[str, Any]], tmp_path: Path, bad: str, said: str
) -> None:
    file = tmp_path / "deliveries.jsonl"
    file.write_text("\n".join([line(delivery="a"), line(delivery="b"), bad, line(delivery="c")]))
    refused(["ingest", str(file), "--tenant", "t"], 2, said)
    assert written(database) == {}


def test_invalid_json_on_line_17_takes_nothing_and_keep_going_takes_the_good_lines(
    database: Database[dict[str, Any]],
) -> None:
    lines = [line(delivery=f"d{number}") for number in range(1, 21)]
    lines[16] = "{not json"
    text = "\n".join(lines)
    refused(["ingest", "-", "--tenant", "t"], 2, "line 17: not JSON", given=text)
    assert written(database) == {}
    code, out, err = run("ingest", "-", "--tenant", "t", "--keep-going", "--json", given=text)
    assert code == 1
    counts = json.loads(out)
    assert (counts["taken"], counts["refused"]) == (19, 1)
    assert "line 17" in counts["errors"][0]
    assert len(err) == 1
    assert written(database)["board_events"] == 19


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (signed(json.dumps(issue_payload()), "another secret"), "the signature does not fit the body"),
        (line(), "a secret is set, and this line has no body"),
    ],
    ids=["bad signature", "no signature"],
)
def test_a_delivery_that_is_not_signed_with_the_secret_is_refused(
    database: Database[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    said: str,
) -> None:
    monkeypatch.setenv("OUTBOX_GITHUB_SECRET", SECRET)
    refused(["ingest", "-", "--tenant", "t"], 2, said, given=text)
    assert written(database) == {}
    code, _, err = run("ingest", "-", "--tenant", "t", given=signed(json.dumps(issue_payload()), SECRET))
    assert (code, err) == (0, [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["r", "--bot", "print-it", "--source", "board", "--type", "isues"], "can never fire: no type 'isues'"),
        (["r", "--bot", "print-it", "--source", "github"], "no source is called 'github'"),
        (["r", "--bot", "print-it", "--repo", "a/b", "--match-repo", "c/d"], "repos does not hold it"),
        (["r", "--bot", "print-it", "--mode", "bord"], "mode 'bord' is not known here; use direct or board"),
        (["r", "--bot", "print-it", "--label", "go", "--consume-label", "go"], "consume_labels needs sources [board]"),
        (["r", "--bot", "print-it", "--consume-label", "go"], "not among the labels that the rule matches"),
        (["r", "--bot", "print-itt"], "no bot is called 'print-itt' here; known are call-back, file-it"),
        (["r", "--bot", "print-it", "--var", "novalue"], "use NAME=VALUE"),
        (["r", "--bot", "print-it", "--var", "a=1", "--var", "a=2"], "a: given more than once"),
        (["r", "--bot", "call-back"], "takes (run, url): with these vars and args_var, missing"),
        (["r", "--bot", "call-back", "--var", "url=x", "--var", "uri=x"], "unexpected keyword argument 'uri'"),
        (["r", "--bot", "call-back", "--var", "url=x", "--args-var", "order"], "unexpected keyword argument 'order'"),
        (["r", "--bot", "print-it", "--args-var", "run"], "multiple values for argument 'run'"),
        (["r r", "--bot", "print-it"], "is not an id"),
    ],
)
def test_a_rule_that_could_not_work_is_refused(
    database: Database[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    said: str,
) -> None:
    monkeypatch.setenv("OUTBOX_BOTS", "examples.bots")
    refused(["subscriptions", "add", "--tenant", "t", *words], 2, said)
    assert database["trigger_subscriptions"].count_documents({}) == 0


def test_an_unknown_bot_is_taken_where_a_worker_elsewhere_knows_it(database: Database[dict[str, Any]]) -> None:
    code, out, err = run("subscriptions", "add", "--tenant", "t", "r", "--bot", "theirs", "--allow-unknown-bot")
    assert (code, out, err) == (0, "r matches events from number 1 on\n", [])
    assert database["trigger_subscriptions"].count_documents({"sub_id": "r"}) == 1
    same = ["subscriptions", "add", "--tenant", "t", "r", "--bot", "theirs", "--allow-unknown-bot"]
    assert run(*same) == (0, "r unchanged: matches events from number 1 on\n", [])
    refused([*same, "--type", "issues"], 2, "already, with other content: types are [], not ['issues']; remove it")
    assert database["trigger_subscriptions"].count_documents({"match.types": "issues"}) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["subscriptions", "disable", "none"], "no subscription 'none'"),
        (["subscriptions", "enable", "none"], "no subscription 'none'"),
        (["subscriptions", "remove", "none"], "no subscription 'none'"),
        (["effects", "show", "none"], "none"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_exist_is_said_with_exit_code_1(
    database: Database[dict[str, Any]], words: list[str], said: str
) -> None:
    refused([*words, "--tenant", "t"], 1, said)
    refused([*words, "--tenant", "t", "--json"], 1, said)
    assert set(written(database)) <= {"trigger_cursors"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OUTBOX_MONGO_URL", "http://127.0.0.1/", "OUTBOX_MONGO_URL: must begin with mongodb://"),
        ("OUTBOX_MONGO_URL", "mongodb://127.0.0.1:port/", "OUTBOX_MONGO_URL: Port"),
        ("OUTBOX_MONGO_URL", "mongodb://127.0.0.1/?retryWrite=true", "OUTBOX_MONGO_URL: 'retryWrite' is no option"),
        ("OUTBOX_MONGO_URL", "mongodb://127.0.0.1/?w=majority&wtimeoutMS=soon", "OUTBOX_MONGO_URL: "),
        ("OUTBOX_BROKER_URL", "amqp://127.0.0.1/", "OUTBOX_BROKER_URL: must be a Redis address"),
        ("OUTBOX_GAP_GRACE", "5s", "OP_TIMEOUT (10s) must be shorter than GAP_GRACE (5s)"),
        ("OUTBOX_GAP_GRACE", "soon", "OUTBOX_GAP_GRACE: 'soon' is not a duration"),
        ("OUTBOX_GAP_GRAZE", "1s", "OUTBOX_GAP_GRAZE is no setting; did you mean OUTBOX_GAP_GRACE?"),
    ],
)
@pytest.mark.parametrize("command", ["stats", "ingest"])
def test_a_wrong_setting_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, command: str, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    words = {"stats": ["stats", "--tenant", "t"], "ingest": ["ingest", "-", "--tenant", "t"]}[command]
    refused(words, 2, said, given=line())


@pytest.mark.parametrize(
    "words", [["schema"], ["stats", "--tenant", "t"], ["ingest", "-", "--tenant", "t"]], ids=" ".join
)
def test_no_server_at_all_is_said_within_the_operation_time_out(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("OUTBOX_MONGO_URL", f"mongodb://127.0.0.1:{free_port()}/")
    monkeypatch.setenv("OUTBOX_OP_TIMEOUT", "300ms")
    refused(words, 3, "MongoDB cannot be reached", "refused", "OUTBOX_MONGO_URL names it", given=line())


def test_the_variable_of_an_address_that_was_never_given_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTBOX_MONGO_URL", raising=False)
    monkeypatch.setenv("OUTBOX_OP_TIMEOUT", "300ms")
    # Nobody may count on the default's port being free here.
    address = f"mongodb://127.0.0.1:{free_port()}/"
    monkeypatch.setattr("outbox_core.bootstrap.connect", lambda _, name, limits: connect(address, name, limits))
    refused(["stats", "--tenant", "t"], 3, "OUTBOX_MONGO_URL is not set")


@pytest.mark.parametrize("words", [["schema"], ["dev", "--folder"]], ids=" ".join)
def test_a_mongodb_that_is_no_replica_set_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    port = free_port()
    (tmp_path / "data").mkdir()
    program = runnable(find_mongod(), tmp_path)
    options = ["--dbpath", str(tmp_path / "data"), "--port", str(port), "--bind_ip", "127.0.0.1", "--nounixsocket"]
    with Supervisor() as supervisor:
        supervisor.spawn("mongod", [program, *options, "--wiredTigerCacheSizeGB", "0.25"], log=tmp_path / "log")
        wait_until(lambda: port_is_open(port), timeout=30, what="mongod listens")
        monkeypatch.setenv("OUTBOX_MONGO_URL", f"mongodb://127.0.0.1:{port}/")
        folder = [str(tmp_path / "dev")] if words[0] == "dev" else []
        refused([*words, *folder], 2, "replica set", given=line())


def test_a_database_without_its_schema_is_not_written_to(
    mongo_server: EmbeddedMongo, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_MONGO_URL", mongo_server.url)
    monkeypatch.setenv("OUTBOX_MONGO_DB", database_name)
    for words in (
        ["ingest", "-"],
        ["stats"],
        ["effects", "list"],
        ["effects", "show", "e"],
        *(
            ["subscriptions", name, *rest]
            for name, *rest in (["list"], ["disable", "r"], ["enable", "r"], ["remove", "r"])
        ),
        ["subscriptions", "add", "r", "--bot", "b", "--allow-unknown-bot"],
    ):
        refused([*words, "--tenant", "t"], 2, "run `outbox schema` first", given=line())
    assert run("schema", "--check")[0] == 1
    with MongoClient[dict[str, Any]](mongo_server.url) as client:
        assert written(client[database_name]) == {}


class TestDev:
    """`outbox dev` before it runs."""

    def test_a_port_that_is_taken_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: Database[dict[str, Any]]
    ) -> None:
        del database  # Named by the environment: no server of its own is started.
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            monkeypatch.setenv("OUTBOX_BROKER_URL", f"redis://127.0.0.1:{port}/0")
            refused(["dev", "--folder", str(tmp_path / "dev"), "--flower-port", str(port)], 1, f"port {port} is taken")

    def test_a_missing_program_is_said_with_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_core.embedded.programs._wheel_folder", lambda _: None)
        monkeypatch.setenv("PATH", str(tmp_path))
        refused(["dev", "--folder", str(tmp_path / "dev")], 1, "no mongod found", "effect-outbox[embedded]")

    def test_a_broker_that_is_not_there_is_said_without_its_password(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        database: Database[dict[str, Any]],
    ) -> None:
        del database
        monkeypatch.setenv("OUTBOX_BROKER_URL", f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0")
        code, out, err = run("dev", "--folder", str(tmp_path / "dev"))
        assert (code, out) == (3, "")
        assert "the broker cannot be reached" in err[-1]
        assert SECRET not in "\n".join(err)

    @pytest.mark.parametrize(
        ("words", "name", "value", "said"),
        [
            (["--bots", "no.such.module"], "OUTBOX_BOTS", "", "OUTBOX_BOTS: there is no module no.such.module"),
            ([], "OUTBOX_EFFECT_LEASE", "5s", "EFFECT_LEASE (5s) must exceed 12s plus OP_TIMEOUT (10s)"),
        ],
        ids=["bots", "limit"],
    )
    def test_nothing_is_started_on_a_wrong_setting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], name: str, value: str, said: str
    ) -> None:
        monkeypatch.setenv(name, value)
        refused(["dev", "--folder", str(tmp_path / "dev"), *words], 2, said)
        assert not (tmp_path / "dev").exists()

    @pytest.mark.parametrize("file", ["tasks.py", "tasks/__init__.py", "beat_schedule.py"])
    @pytest.mark.parametrize("by", ["current folder", "PYTHONPATH"])
    def test_a_module_that_hides_ours_is_said_by_its_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, file: str
    ) -> None:
        theirs, start = tmp_path / "theirs" / file, tmp_path / "start"
        theirs.parent.mkdir(parents=True)
        theirs.write_text("")
        start.mkdir()
        if by == "PYTHONPATH":
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(start), str(tmp_path / "theirs")]))
        monkeypatch.chdir(start if by == "PYTHONPATH" else tmp_path / "theirs")
        name = file.removesuffix("/__init__.py").removesuffix(".py")
        refused(["dev"], 1, f"{theirs} hides the module `{name}` of the outbox: start from another folder")
        assert list(start.iterdir()) == []

    def test_a_folder_without_code_hides_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "tasks").mkdir()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("outbox_core.embedded.programs._wheel_folder", lambda _: None)
        monkeypatch.setenv("PATH", str(tmp_path))
        refused(["dev"], 1, "no mongod found")

    @pytest.mark.parametrize("variable", ["OUTBOX_MONGO_URL", "OUTBOX_BROKER_URL"])
    def test_a_server_of_the_shell_that_is_not_there_is_said_by_its_variable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: Database[dict[str, Any]], variable: str
    ) -> None:
        del database
        scheme = "mongodb" if variable == "OUTBOX_MONGO_URL" else "redis"
        with socket.socket() as there:
            there.bind(("127.0.0.1", 0))
            there.listen()
            monkeypatch.setenv("OUTBOX_OP_TIMEOUT", "300ms")
            monkeypatch.setenv("OUTBOX_BROKER_URL", f"redis://127.0.0.1:{there.getsockname()[1]}/0")
            monkeypatch.setenv(variable, f"{scheme}://127.0.0.1:{free_port()}/")
            refused(["dev", "--folder", str(tmp_path / "dev")], 3, f"`unset {variable}` to get a private server")

    def test_a_folder_that_cannot_be_made_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        refused(["dev", "--folder", str(tmp_path / "file" / "dev")], 1, "cannot be used")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
