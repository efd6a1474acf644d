"""Makes a fresh mongod a replica set of one, and waits until it takes writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from outbox_core.domain.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

_POLL_S = 0.01
_CALL_TIMEOUT_MS = 2_000


def await_primary(
    host: str,
    port: int,
    *,
    replica_set: str,
    within: timedelta,
    pid: int,
    alive: Callable[[], bool],
) -> None:
    """Initiate the set if it is new, correct its address if that changed, wait for the primary.

    Every step looks before it acts, so a repeat call, or one after a crash in the middle, goes on
    from what is there. The set must have this one member only.

    Args:
        host: where the member listens, as the set's configuration shall name it.
        port: likewise.
        replica_set: the name that the server was started with.
        within: how long the whole may take.
        pid: the server's process id; another server that answers there is left alone.
        alive: whether the server's process still runs.

    Raises:
        TransientError: there is no primary in time, or the process ended.
    """
    deadline = time.monotonic() + within.total_seconds()
    last: str = "no answer"
    client: MongoClient[dict[str, Any]] = MongoClient(
        host,
        port,
        directConnection=True,
        serverSelectionTimeoutMS=_CALL_TIMEOUT_MS,
        connectTimeoutMS=_CALL_TIMEOUT_MS,
        socketTimeoutMS=_CALL_TIMEOUT_MS,
    )
    with client:
        while alive() and time.monotonic() < deadline:
            try:
                if _advance(client, f"{host}:{port}", replica_set, pid):
                    return
            except PyMongoError as error:
                # Connections are cut, and commands refused, while the member changes its state.
                last = str(error)
            time.sleep(_POLL_S)
    raise TransientError(f"the replica set {replica_set} has no primary at {host}:{port}: {last}")


def _advance(client: MongoClient[dict[str, Any]], address: str, replica_set: str, pid: int) -> bool:
    """Do the next step towards a primary; returns whether there is one."""
    if client.admin.command("serverStatus")["pid"] != pid:
        return False  # It took the port first; ours is about to end.
    hello = client.admin.command("hello")
    if hello.get("isWritablePrimary"):
        return True
    if not hello.get("isreplicaset"):
        return False  # A member of a valid set: its election is under way.
    # No valid configuration: none stored, or one that does not name this address.
    stored = client.local["system.replset"].find_one()
    if stored is None:
        member = {"_id": 0, "host": address}
        client.admin.command("replSetInitiate", {"_id": replica_set, "members": [member]})
    elif [member["host"] for member in stored["members"]] != [address]:
        stored["members"] = stored["members"][:1]
        stored["members"][0]["host"] = address
        stored["version"] += 1
        client.admin.command("replSetReconfig", stored, force=True)
    return False
