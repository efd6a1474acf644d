"""Inserting documents so that success means durable, and a duplicate is told from a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pymongo.errors import BulkWriteError

from outbox_core.adapters.mongo.errors import as_outbox_error, is_contention, translated
from outbox_core.domain.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo.client_session import ClientSession
    from pymongo.collection import Collection


@dataclass(frozen=True, slots=True)
class Rejection:
    """One document that was not inserted: its place in the input, the server's code and the index it met."""

    index: int
    code: int
    key: tuple[str, ...]
    reason: str


def insert_all(
    collection: Collection[dict[str, Any]],
    documents: Sequence[dict[str, Any]],
    session: ClientSession | None = None,
) -> list[Rejection]:
    """Insert documents, unordered; return those that the server rejected one by one.

    Returns only where every other document is durable: a write-concern error, an answer that does not add up, or any
    error but the per-document ones raises TransientError. insert_one is never used: it drops the write-concern
    error that stands beside a duplicate.
    """
    with translated():
        try:
            collection.insert_many(documents, ordered=session is not None, session=session)
        except BulkWriteError as error:
            if is_contention(error):
                raise
            return _rejections(error, len(documents), in_transaction=session is not None)
    return []


def _rejections(error: BulkWriteError, sent: int, *, in_transaction: bool) -> list[Rejection]:
    details = error.details
    errors = details.get("writeErrors", [])
    if details.get("writeConcernErrors"):
        raise TransientError("the rows were written, but not to a majority") from error
    if not errors or (not in_transaction and details.get("nInserted", 0) + len(errors) != sent):
        raise as_outbox_error(error) from error
    return [
        Rejection(
            item["index"], item.get("code", 0), tuple(item.get("keyPattern", ())), str(item.get("errmsg", ""))[:300]
        )
        for item in errors
    ]
