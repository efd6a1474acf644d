"""The lines by which the README brings an application in, run as they stand, on a real replica set."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.database import Database

    from outbox_core.embedded import EmbeddedMongo

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")

WORK = """
from shop.orders import outbox
from outbox_core.bots import load_bots
load_bots(outbox.settings.bots)
outbox.drain_tenant("acme")
outbox.run_slice("acme")
"""


class Shop:
    """The application of the README in a folder of its own, and its database."""

    def __init__(self, folder: Path, mongo: EmbeddedMongo, database: Database[dict[str, Any]]) -> None:
        self.database = database
        self._folder = folder
        self._environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("OUTBOX_")},
            "OUTBOX_MONGO_URL": mongo.url,
            "OUTBOX_MONGO_DB": database.name,
            "OUTBOX_BROKER_URL": "redis://127.0.0.1:1/0",
            "OUTBOX_BOTS": "shop.bots",
            "PYTHONPATH": str(ROOT),
        }
        for block in re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE):
            name = block.splitlines()[0].removeprefix("# ")
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(block, "utf-8")

    def python(self, source: str) -> str:
        return self._run("-c", source)

    def module(self, name: str) -> str:
        return self._run("-m", name)

    def command(self, words: str) -> str:
        main = "from outbox_core.cli import main; main()"
        return self._run("-c", main, *words.split()[1:])

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def shop(tmp_path: Path, mongo_server: EmbeddedMongo, database_name: str) -> Iterator[Shop]:
    with MongoClient[dict[str, Any]](mongo_server.url, tz_aware=True) as client:
        yield Shop(tmp_path, mongo_server, client[database_name])
        client.drop_database(database_name)


@pytest.mark.promise("E02")
def test_the_ten_lines_take_an_order_to_its_receipt(shop: Shop) -> None:
    shop.module("shop.rules")
    shop.python("from shop.orders import place_order; place_order('17')")
    said = shop.python(WORK)
    (row,) = shop.database["trigger_effects"].find()
    assert said == f"receipt.txt for 17, idempotency key {row['_id']}\n"
    assert (row["state"], row["outcome"], row["sub_id"]) == ("done", "delivered", "receipts")
    assert [order["_id"] for order in shop.database["orders"].find()] == ["17"]
    assert shop.python(WORK) == ""


@pytest.mark.promise("E02")
def test_an_order_that_is_refused_leaves_neither_a_write_nor_an_event(shop: Shop) -> None:
    shop.python("import shop.rules")
    twice = "from shop.orders import place_order\nplace_order('17')\ntry:\n    place_order('17')\n"
    shop.python(twice + "except Exception as error:\n    assert type(error).__name__ == 'DuplicateKeyError', error\n")
    events = [event for event in shop.database["board_events"].find() if not event.get("void")]
    assert [event["subject"] for event in events] == ["17"]


def test_the_command_makes_the_same_rule(shop: Shop) -> None:
    shop.python("import shop.rules")
    (shown,) = re.findall(r"`(outbox subscriptions add [^`]+)`", README)
    shop.python("from shop.orders import outbox; outbox.tenant('acme').subscriptions.remove('receipts')")
    assert "receipts matches events" in shop.command(shown)
    shop.python("from shop.orders import place_order; place_order('18')")
    assert "receipt.txt for 18" in shop.python(WORK)


def test_an_application_that_owns_tasks_keeps_its_own_and_ours_runs_beside_it(shop: Shop, tmp_path: Path) -> None:
    """The tree and the commands as they stand, each asked what it would run instead of running it."""
    app = tmp_path / "app"
    for folder in ("lib", "outbox"):
        (app / folder).mkdir(parents=True)
    shutil.copytree(tmp_path / "shop", app / "lib" / "shop")
    (app / "tasks.py").write_text("from celery import Celery\napp = Celery('mine')\n")
    del shop
    (block,) = re.findall(r"^```\n(cd app .*?)^```$", README, re.DOTALL | re.MULTILINE)
    asked = "import tasks, sys; print(tasks.app.main, *sorted(set(sys.modules) & {'shop.bots'}))"
    said = []
    for line in block.splitlines():
        command = line.partition("#")[0].strip()
        assert re.search(r"(celery -A tasks worker|outbox dev --bots shop\.bots)$", command), command
        # The current folder comes first, as with celery.
        started = re.sub(r"(celery|outbox dev) .*$", f'{sys.executable} -c "import shop.bots; {asked}"', command)
        clean = {name: text for name, text in os.environ.items() if not name.startswith("OUTBOX_")}
        done = subprocess.run(
            ["/bin/sh", "-c", started], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert said == [["mine", "shop.bots"], ["outbox", "shop.bots"], ["outbox", "shop.bots"]]


def test_rules_are_said_again_at_each_deployment_and_checked_against_a_bot_that_is_known(shop: Shop) -> None:
    shop.python("import shop.rules")
    (first,) = shop.database["trigger_subscriptions"].find()
    shop.python("import shop.bots, shop.rules")
    assert list(shop.database["trigger_subscriptions"].find()) == [first]
    said = shop.python(
        "import shop.bots\n"
        "from shop.orders import outbox\n"
        "from outbox_core import InvalidInputError\n"
        "try:\n"
        "    outbox.subscribe('acme', 'second', 'send-receipt', vars={'templat': 'x'}, args_var='order')\n"
        "except InvalidInputError as error:\n"
        "    print(error)\n"
    )
    assert said.startswith("bot 'send-receipt' takes (run, order, template): ")
    assert said.count("\n") == 1
    assert shop.database["trigger_subscriptions"].count_documents({}) == 1


def test_an_application_that_imports_ours_keeps_its_own_celery_app(shop: Shop) -> None:
    said = shop.python(
        "from celery import Celery, current_app, shared_task\n"
        "app = Celery('shop')\n"
        "@shared_task(name='shop.hello')\n"
        "def hello(): ...\n"
        "from tasks import outbox\n"
        "print(current_app.main, hello.app.main, type(outbox).__name__)\n"
    )
    assert said == "shop shop Outbox\n"


def test_terms_that_are_one_text_are_refused_rather_than_taken_for_their_letters(shop: Shop) -> None:
    said = shop.python(
        "import shop.rules\n"
        "from shop.orders import outbox\n"
        "from outbox_core.domain.errors import InvalidInputError\n"
        "for terms in ('order', ['order', 7]):\n"
        "    try:\n"
        "        outbox.subscribe('acme', 'second', 'send-receipt', types=terms)\n"
        "    except InvalidInputError as error:\n"
        "        print(error)\n"
    )
    assert said.splitlines() == [
        "match: types takes a list of texts, not 'order'",
        "match: types takes a list of texts, not ('order', 7)",
    ]
    assert shop.database["trigger_subscriptions"].count_documents({}) == 1


@pytest.mark.promise("L22")
def test_the_cache_of_the_readme_registers_itself_and_stops_when_its_process_ends(shop: Shop) -> None:
    shop.module("shop.rules")
    shop.module("shop.cache")
    (row,) = shop.database["lifecycle_consumer_cursors"].find()
    assert (row["consumer_id"], row["start"], row["tenant_id"]) == ("card-cache", "latest", "acme")
