"""A row that the server itself refuses: it must not be taken for one that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.errors import RowsRefusedError
from tests.harness.examples import materialize, new_effect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.on_mongo import MongoHarness


@pytest.fixture
def refuses_bad_bots(mongo_harness: MongoHarness) -> Iterator[None]:
    """The collection's validator, as an operator may tighten it, refuses rows of one bot."""
    database = mongo_harness.database
    (found,) = database.list_collections(filter={"name": "trigger_effects"})
    before = found["options"]["validator"]
    database.command("collMod", "trigger_effects", validator={"$and": [before, {"bot_id": {"$ne": "bad"}}]})
    yield
    database.command("collMod", "trigger_effects", validator=before)


@pytest.mark.promise("E12", "E15")
@pytest.mark.usefixtures("refuses_bad_bots")
def test_a_row_that_the_server_refuses_is_told_by_its_key_and_its_neighbours_are_there(
    mongo_harness: MongoHarness,
) -> None:
    """Were it taken for a row that exists, the cursor would move over its event, and the effect were lost."""
    now = mongo_harness.now()
    (existing,) = materialize(mongo_harness.acme, 1, now=now)
    bad, good = new_effect(2, bot_id="bad"), new_effect(3)
    with pytest.raises(RowsRefusedError) as caught:
        mongo_harness.acme.effects.materialize([new_effect(1), bad, good], now)
    assert caught.value.reasons.keys() == {bad.effect_id}
    assert {row["_id"] for row in mongo_harness.raw("trigger_effects")} == {existing, good.effect_id}
