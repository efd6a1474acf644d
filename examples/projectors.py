"""Small projectors that do real work: OUTBOX_BOTS=examples.bots,examples.projectors makes a worker know them.

A projector is told of each move of a card on a board that is bound to its kind (`outbox boards bind`), at least once,
and moves of one card may arrive out of order. It says by raising what a bot says.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import httpx
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError

from examples.bots import LATER, TIMEOUT_S
from outbox_core import DefinitiveError, Projection, projector
from outbox_core.settings import load_settings


@projector("mirror")
def mirror(move: Projection) -> None:
    """Keeps another team's read model, one document a card; the target names its place, as DATABASE.COLLECTION.

    Each document carries the number of the event that wrote it, and only a higher one writes it again: a repeat changes
    nothing, and a move that arrives late does not take the card back.
    """
    database, _, collection = move.target.partition(".")
    if not database or not collection:
        raise DefinitiveError(f"the board is bound to {move.target!r}; bind it to DATABASE.COLLECTION")
    seen = move.event.attributes
    identity = f"{move.tenant}/{seen.subject}"
    columns = {"tenant": move.tenant, "board": move.board, "card": seen.subject, "column": seen.snapshot.state}
    try:
        _client(os.getpid())[database][collection].update_one(
            {"_id": identity, "seq": {"$lt": move.event.seq}},
            {
                "$set": {
                    **columns,
                    "title": move.event.data.get("title", ""),
                    "labels": list(seen.snapshot.labels),
                    "seq": move.event.seq,
                }
            },
            upsert=True,
        )
    except DuplicateKeyError:
        # The document is there and its number is no lower: it tells of this move already, or of a later one.
        return


@projector("post-move")
def post_move(move: Projection) -> None:
    """Posts the move to the target's address, each time under the same Idempotency-Key."""
    seen = move.event.attributes
    answer = httpx.post(
        move.target,
        json={
            "board": move.board,
            "card": seen.subject,
            "from": seen.snapshot.from_state,
            "to": seen.snapshot.state,
            "seq": move.event.seq,
            "reason": seen.reason,
        },
        headers={"Idempotency-Key": move.effect_id},
        timeout=TIMEOUT_S,
    )
    if answer.is_client_error and answer.status_code not in LATER:
        raise DefinitiveError(f"{move.target} refused it with {answer.status_code}")
    answer.raise_for_status()


@lru_cache(maxsize=1)
def _client(_pid: int) -> MongoClient[dict[str, Any]]:
    """One connection a process: it does not survive a fork. What it acknowledges, a majority holds."""
    return MongoClient(load_settings().mongo_url.get_secret_value(), w="majority", timeoutMS=TIMEOUT_S * 1_000)
