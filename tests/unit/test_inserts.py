"""What an insert's answer must hold before its rows count as durable."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import AutoReconnect, BulkWriteError

from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.domain.errors import ContentionError, TransientError

DOCUMENTS: list[dict[str, Any]] = [{"_id": name} for name in "abc"]
DUPLICATE = {"index": 1, "code": 11000, "keyPattern": {"_id": 1}, "errmsg": "duplicate"}


class Answering:
    """A collection whose insert raises what a test says."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def insert_many(self, *_: object, **__: object) -> None:
        raise self._error


def insert(error: Exception, session: Any = None) -> list[int]:  # noqa: ANN401 - a session, or none
    collection: Any = Answering(error)
    return [rejection.index for rejection in insert_all(collection, DOCUMENTS, session)]


@pytest.mark.promise("E12")
def test_a_duplicate_is_told_where_all_others_are_there() -> None:
    assert insert(BulkWriteError({"writeErrors": [DUPLICATE], "nInserted": 2, "writeConcernErrors": []})) == [1]


@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    "answer",
    [
        {"writeErrors": [DUPLICATE], "nInserted": 1},
        {"writeErrors": [DUPLICATE]},
        {"writeErrors": [], "nInserted": 3},
        {"writeErrors": [DUPLICATE], "nInserted": 2, "writeConcernErrors": [{"code": 64}]},
        {"nInserted": 3, "writeConcernErrors": [{"code": 189}]},
    ],
)
def test_an_answer_that_does_not_add_up_or_reached_no_majority_is_no_success(answer: dict[str, Any]) -> None:
    with pytest.raises(TransientError):
        insert(BulkWriteError(answer))


@pytest.mark.promise("E12")
def test_no_answer_is_no_success() -> None:
    with pytest.raises(TransientError):
        insert(AutoReconnect("gone"))


@pytest.mark.promise("E02")
def test_contention_in_a_transaction_is_no_rejection_of_a_document() -> None:
    """A rejection would be taken for an event that can never be stored."""
    conflict = {"index": 1, "code": 112, "errmsg": "write conflict"}
    labels = {"errorLabels": ["TransientTransactionError"]}
    with pytest.raises(ContentionError):
        insert(BulkWriteError({"writeErrors": [conflict], "nInserted": 1, **labels}), session=object())
