"""What a transaction of ours commits with, whatever the URL asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pymongo.read_preferences import Primary

from outbox_core.adapters.mongo.callers_session import transaction_options
from outbox_core.adapters.mongo.client import connect
from outbox_core.adapters.mongo.store import MongoStore
from outbox_core.domain.limits import Limits
from tests.harness.surroundings import CountingEntropy, MovableClock

if TYPE_CHECKING:
    from outbox_core.embedded import EmbeddedMongo

WEAKER = "w=1&journal=false&readConcernLevel=local&readPreference=secondaryPreferred"


@pytest.mark.promise("E12", "E37")
def test_a_transaction_commits_to_a_majority_and_reads_one_snapshot_of_the_primary_whatever_the_url_says(
    mongo_server: EmbeddedMongo, database_name: str
) -> None:
    """It takes nothing from its database's handle: what it is not told, it has from the client, and so from the URL."""
    database = connect(f"{mongo_server.url}&{WEAKER}", database_name, Limits())
    try:
        store = MongoStore(database, Limits(), MovableClock(), CountingEntropy()).tenant("acme")
        with store.transactions.begin() as transaction:
            options = transaction_options(transaction.session)
    finally:
        database.client.close()
    assert options.write_concern is not None
    assert options.write_concern.document == {"w": "majority", "j": True}
    assert options.read_concern is not None
    assert options.read_concern.level == "snapshot"
    assert options.read_preference == Primary()
