"""What of MongoDB is decided before any server answers: options, error classes, and a commit that is asked again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.read_preferences import Primary

from outbox_core.adapters.mongo.client import connect
from outbox_core.adapters.mongo.errors import as_outbox_error
from outbox_core.adapters.mongo.transactions import MongoTransaction
from outbox_core.domain.errors import TransientError, UnclearCommitError, UnstorableRowError
from outbox_core.domain.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.database import Database

WEAKER = "w=1&journal=false&readConcernLevel=local&readPreference=secondaryPreferred&retryWrites=false&timeoutMS=0"


@pytest.fixture
def weaker() -> Iterator[Database[dict[str, Any]]]:
    """A handle whose URL asks for less than correctness needs; nobody listens there, and nobody is asked."""
    database = connect(f"mongodb://127.0.0.1:1/?{WEAKER}", "nowhere", Limits())
    yield database
    database.client.close()


@pytest.mark.promise("E12", "E43")
def test_what_correctness_hangs_on_is_not_taken_from_the_url(weaker: Database[dict[str, Any]]) -> None:
    assert weaker["board_events"].write_concern.document == {"w": "majority", "j": True}
    assert weaker["board_events"].read_concern.document == {"level": "majority"}
    assert weaker["board_events"].read_preference == Primary()
    assert weaker.client.options.retry_writes is True
    assert weaker.client.options.timeout == Limits().op_timeout.total_seconds()


@pytest.mark.promise("E12", "E15")
@pytest.mark.parametrize(
    ("code", "definitive"),
    [(121, True), (10334, True), (17419, True), (None, False), (50, False), (189, False), (11600, False), (8, False)],
)
def test_only_what_the_server_refuses_for_good_is_definitive(code: int | None, definitive: bool) -> None:  # noqa: FBT001 - a case
    error = as_outbox_error(OperationFailure("placed by a test", code))
    assert isinstance(error, UnstorableRowError if definitive else TransientError)


class Unanswered:
    """A session whose commit loses its answer some times."""

    in_transaction = True

    def __init__(self, times: int) -> None:
        self.asked = 0
        self._times = times

    def commit_transaction(self) -> None:
        self.asked += 1
        if self.asked <= self._times:
            raise AutoReconnect("gone", {"errorLabels": ["UnknownTransactionCommitResult"]})


@pytest.mark.promise("E37")
def test_a_commit_whose_answer_is_lost_is_asked_for_again_and_at_last_said_to_be_unclear() -> None:
    """It may have happened: to run its body again would repeat what it wrote."""
    database: Any = None
    once: Any = Unanswered(2)
    MongoTransaction(database, once, Limits()).commit()
    assert once.asked == 3
    never: Any = Unanswered(1_000)
    with pytest.raises(UnclearCommitError):
        MongoTransaction(database, never, Limits(op_timeout=timedelta(milliseconds=100))).commit()
    assert never.asked > 1
