"""The server's own fail points, turned off again whatever happens."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pymongo import MongoClient

NETWORK_ERROR: dict[str, Any] = {"closeConnection": True}
"""The connection closes before the command is looked at."""


@dataclass(slots=True)
class Placed:
    """A fail point that was turned on; `hits` tells, once it is off again, how often it struck."""

    hits: int = 0


def write_concern_error(code: int) -> dict[str, Any]:
    """The write happens; its answer says that it may be undone: 64 a time-out, 91 a shutdown, 189 a step-down."""
    return {"writeConcernError": {"code": code, "errmsg": "placed by a test"}}


def refused(code: int) -> dict[str, Any]:
    """The command is refused unseen, with this code and without a label."""
    return {"errorCode": code}


def blocked(milliseconds: int) -> dict[str, Any]:
    """The command waits so long before it begins."""
    return {"blockConnection": True, "blockTimeMS": milliseconds}


@contextmanager
def failing(
    client: MongoClient[Any],
    commands: Sequence[str],
    data: dict[str, Any],
    *,
    times: int | None = 1,
    skip: int = 0,
    app_name: str | None = "outbox",
) -> Iterator[Placed]:
    """Let commands of an application fail at the server that `client` asks: so many times, or always (None).

    `skip` lets so many go by first, and then all fail. On a replica set give the primary's own client
    (`Member.client`): a fail point belongs to a process, and must be turned off at the one where it was turned on.
    """
    settings = {"failCommands": list(commands), **data, **({} if app_name is None else {"appName": app_name})}
    mode: str | dict[str, int] = "alwaysOn" if times is None else {"times": times}
    if skip:
        mode = {"skip": skip}
    with fail_point(client, "failCommand", mode, settings) as placed:
        yield placed


@contextmanager
def fail_point(
    client: MongoClient[Any],
    name: str,
    mode: str | dict[str, int] = "alwaysOn",
    data: dict[str, Any] | None = None,
) -> Iterator[Placed]:
    """Turn a fail point on at the server that `client` asks; a server that was killed meanwhile has lost it."""
    placed = Placed()
    before = client.admin.command(
        {"configureFailPoint": name, "mode": mode, **({} if data is None else {"data": data})}
    )["count"]
    try:
        yield placed
    finally:
        placed.hits = turn_off(client, name) - before


def turn_off(client: MongoClient[Any], name: str) -> int:
    """Turn a fail point off; return how often it ever struck, 0 where its server is gone, and the point with it."""
    for last in (False, False, True):
        try:
            return int(client.admin.command("configureFailPoint", name, mode="off")["count"])
        except PyMongoError:
            # A connection that died with a step-down says so once; a server that is gone says so each time.
            if last and _answers(client):
                raise
    return 0


def _answers(client: MongoClient[Any]) -> bool:
    try:
        client.admin.command("ping")
    except PyMongoError:
        return False
    return True
