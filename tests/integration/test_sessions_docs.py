"""The example of docs/sessions.md, run as it stands against a real replica set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

if TYPE_CHECKING:
    from outbox_core.embedded import EmbeddedMongo

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "sessions.md").read_text("utf-8")

PROGRAM = """
import checkout
from pymongo import MongoClient
checkout.outbox.ensure_schema()
with MongoClient({url!r}) as client:
    checkout.check_out(client, "17")
    checkout.check_out_with_retries(client, "18")
print(checkout.outbox.drain_tenant("acme").reached_seq)
"""


@pytest.mark.promise("E02")
def test_both_ways_of_the_guide_place_an_order_and_its_event(
    mongo_server: EmbeddedMongo, database_name: str, tmp_path: Path
) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    shop = f"{database_name}_shop"
    (tmp_path / "checkout.py").write_text(block.replace('client["shop"]', f'client["{shop}"]'), "utf-8")
    environment = {name: text for name, text in os.environ.items() if not name.startswith("OUTBOX_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(url=mongo_server.url)],
        cwd=tmp_path,
        env={
            **environment,
            "PYTHONPATH": str(ROOT),
            "OUTBOX_MONGO_URL": mongo_server.url,
            "OUTBOX_MONGO_DB": database_name,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    with MongoClient[dict[str, Any]](mongo_server.url) as client:
        assert [order["_id"] for order in client[shop]["orders"].find()] == ["17", "18"]
        events = client[database_name]["board_events"].find().sort("seq", 1)
        assert [event["subject"] for event in events] == ["17", "18"]
        client.drop_database(shop)
        client.drop_database(database_name)
