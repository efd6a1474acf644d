"""A replica set of three real servers that a test may disturb.

Drivers connect to the addresses in the set's configuration, whatever address they were given first. So that is where
the proxies stand: member n is configured under its proxy's address, listens on a port of its own, and finds itself in
the configuration by asking the proxy. The members talk to each other through the proxies, too; faults are placed on
the product's connections alone, which are told by the name of their application.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from outbox_core.embedded import EmbeddedMongo, Process, Supervisor
from outbox_core.embedded.server import HOST, START_WITHIN, port_is_open
from tests.cluster.failpoints import fail_point, turn_off
from tests.cluster.proxy import Proxy, ProxyThread
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

NAME = "three"
ELECTION_TIMEOUT_MS = 1_500
_SETTINGS = {
    "electionTimeoutMillis": ELECTION_TIMEOUT_MS,
    "heartbeatIntervalMillis": 300,
    "heartbeatTimeoutSecs": 2,
    "catchUpTimeoutMillis": 2_000,
}
_FETCH_NOTHING = "stopReplProducer"
_CALL_TIMEOUT_MS = 3_000
_ELECTED_WITHIN = 40.0
_HEALTHY_WITHIN = 60.0
_STEPPED_DOWN_FOR_S = 3
_CATCH_UP_S = 2
_NOBODY_CAUGHT_UP = 262
_STEP_DOWN_WITHIN_S = 20


class Member(EmbeddedMongo):
    """One server of a set. `client` asks it alone, past its proxy, in whatever state it is."""

    def __init__(self, folder: Path, supervisor: Supervisor, thread: ProxyThread) -> None:
        super().__init__(folder, replica_set=NAME, extra_parameters={"enableTestCommands": "1"}, supervisor=supervisor)
        self.proxy = Proxy(thread, lambda: self.port)
        self._client: MongoClient[dict[str, Any]] | None = None

    @property
    def client(self) -> MongoClient[dict[str, Any]]:
        """Ask this server alone, past its proxy."""
        if self._client is None:
            self._client = MongoClient(
                HOST,
                self.port,
                directConnection=True,
                appname="test",
                serverSelectionTimeoutMS=_CALL_TIMEOUT_MS,
                connectTimeoutMS=_CALL_TIMEOUT_MS,
                socketTimeoutMS=10 * _CALL_TIMEOUT_MS,
                heartbeatFrequencyMS=500,
                tz_aware=True,
            )
        return self._client

    def hello(self) -> dict[str, Any]:
        """Return what the server says of itself, nothing where it does not answer."""
        if not self.running:
            return {}
        try:
            return self.client.admin.command("hello")
        except PyMongoError:
            return {}

    @property
    def is_primary(self) -> bool:
        """Whether it takes writes, as it believes itself."""
        return bool(self.hello().get("isWritablePrimary"))

    def rollbacks(self) -> int:
        """Return a number that grows each time this server rolls writes back."""
        return int(self.client.admin.command("replSetGetRBID")["rbid"])

    def end(self) -> None:
        """Kill it at once; its proxy stays."""
        if self._client is not None:
            self._client.close()
        self.kill()

    def _await_ready(self, process: Process) -> None:
        # No primary is waited for: that takes a majority of the members.
        process.await_ready(lambda: port_is_open(self.port), START_WITHIN)


class ReplicaSet:
    """Three members, each behind its proxy. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends = ExitStack()
        self.members: tuple[Member, ...] = ()

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            supervisor = ends.enter_context(Supervisor())
            thread = ends.enter_context(ProxyThread())
            self.members = tuple(Member(self._folder / f"member-{n}", supervisor, thread) for n in range(3))
            ends.callback(self._end)
            for member in self.members:
                member.start()
            self._initiate()
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def _end(self) -> None:
        for member in self.members:
            member.end()
        for member in self.members:
            member.proxy.close()

    def _initiate(self) -> None:
        members = [{"_id": n, "host": member.proxy.address} for n, member in enumerate(self.members)]
        configuration = {"_id": NAME, "members": members, "settings": _SETTINGS}
        self.members[0].client.admin.command("replSetInitiate", configuration)
        self.await_all_healthy()

    @property
    def url(self) -> str:
        """The connection string, with every member."""
        return f"mongodb://{','.join(member.proxy.address for member in self.members)}/?replicaSet={NAME}"

    def primary(self) -> Member:
        """Return the primary of the newest term, waiting for one."""
        return self.await_primary()

    def secondaries(self) -> list[Member]:
        """Return the running members that are no primary."""
        primary = self.primary()
        return [member for member in self.members if member is not primary and member.running]

    def await_primary(self, *, other_than: Member | None = None, within: float = _ELECTED_WITHIN) -> Member:
        """Wait until one of the running members takes writes; return the one of the newest term."""
        found: list[Member] = []

        def elected() -> bool:
            said = {member: member.hello() for member in self.members if member is not other_than}
            writable = [member for member, hello in said.items() if hello.get("isWritablePrimary")]
            # One that was cut off may not know yet that there is a newer one.
            found[:] = sorted(writable, key=lambda member: str(said[member].get("electionId")))
            return bool(found)

        wait_until(elected, within, "a primary")
        return found[-1]

    def await_all_healthy(self, within: float = _HEALTHY_WITHIN) -> None:
        """Wait until all three run, one of them is the primary, and the others hold all that it does."""
        wait_until(self._is_healthy, within, "three healthy members")

    def _is_healthy(self) -> bool:
        if not all(member.running for member in self.members):
            return False
        primaries = [member for member in self.members if member.is_primary]
        if len(primaries) != 1:
            return False
        states = sorted(str(member.hello().get("secondary")) for member in self.members)
        return states == ["False", "True", "True"] and _is_held_by(3, primaries[0])

    def heal(self) -> None:
        """Start again what was killed, and wait until all is well."""
        for member in self.members:
            member.start()
        self.await_all_healthy()

    def step_down(self, *, hand_over: bool = True) -> Member:
        """Let the primary step down; return it. Another one may not be there yet: see `await_primary`.

        With `hand_over` the next one is elected within moments, as at an orderly shutdown; without it the others find
        out by themselves that they have none.
        """
        primary = self.primary()
        command = {
            "replSetStepDown": _STEPPED_DOWN_FOR_S,
            "secondaryCatchUpPeriodSecs": _CATCH_UP_S,
            "force": not hand_over,
        }

        def asked() -> bool:
            # The answer may be cut off by the step-down itself.
            with suppress(AutoReconnect):
                try:
                    primary.client.admin.command(command)
                except OperationFailure as error:
                    if error.code != _NOBODY_CAUGHT_UP:
                        raise
                    return False
            return True

        wait_until(asked, _STEP_DOWN_WITHIN_S, "a member that has caught up and may take over")
        return primary

    def kill_primary(self) -> Member:
        """Kill the primary with -9; return it. `restart` brings it back with what it had."""
        primary = self.primary()
        primary.kill()
        return primary

    def restart(self, member: Member) -> None:
        """Start a member that was killed; nothing happens if it runs."""
        member.start()

    @contextmanager
    def unreplicated(self) -> Iterator[Member]:
        """Let the secondaries fetch nothing: what the primary writes inside is on no majority. Yields the primary."""
        primary = self.primary()
        with ExitStack() as points:
            for member in self.secondaries():
                points.enter_context(fail_point(member.client, _FETCH_NOTHING))
            wait_until(lambda: not _is_held_by("majority", primary), what="the secondaries to stop fetching")
            yield primary

    def replicate(self) -> None:
        """Let the secondaries fetch again, before `unreplicated` is left: a new primary needs that."""
        for member in self.members:
            if member.running:
                turn_off(member.client, _FETCH_NOTHING)


def _is_held_by(members: int | str, primary: Member) -> bool:
    """Write something; return whether so many members have it within moments."""
    command = {
        "insert": "marks",
        "documents": [{"at": time.time()}],
        "writeConcern": {"w": members, "wtimeout": 700},
    }
    try:
        return "writeConcernError" not in primary.client["cluster"].command(command)
    except PyMongoError:
        return False
