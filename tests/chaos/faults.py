"""Throwing each kind of fault, and healing it; each returns what exactly it struck, in one line."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import redis

from tests.acceptance.stack import children
from tests.chaos.plan import MOST_SHIFT_S
from tests.chaos.world import shifted
from tests.cluster import failpoints
from tests.cluster.proxy import Side
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.chaos.plan import Fault
    from tests.chaos.world import World

_T = TypeVar("_T")
_ROWS = "insert of rows"
"""Only into the collection of effects: what a drain writes before its cursor moves."""

_WRITES = ("insert", _ROWS, "update", "findAndModify", "commitTransaction")
_READS = ("find", "aggregate")
_ANSWERED = ("insert", "update", "findAndModify", "commitTransaction", *_READS)
_REFUSALS = (189, 91, 11602, 10107, 8, 262)
"""PrimarySteppedDown, ShutdownInProgress, InterruptedDueToReplStateChange, NotWritablePrimary, UnknownError, and
ExceededTimeLimit."""

_CONCERN_ERRORS = (64, 91, 189)
_STRUCK_TIMES = 5


def kill_worker(world: World, fault: Fault) -> str:
    seat = world.seats[fault.lane]
    with seat.lock:
        child = world.caught(seat, fault.draw)
        world.vacate(seat)
        time.sleep(fault.lasts.total_seconds())
        world.take(seat)
    return f"{fault.lane}, {child} with it"


def kill_child(world: World, fault: Fault) -> str:
    seat = world.seats[fault.lane]
    with seat.lock:
        child = world.caught(seat, fault.draw)
        world.kill_child(child.pid)
        time.sleep(fault.lasts.total_seconds())
    return f"{child} of {fault.lane}"


def kill_watcher(world: World, fault: Fault) -> str:
    seat = world.seats[fault.lane]
    with seat.lock:
        caught = world.caught(seat, fault.draw)
        world.vacate(seat)
        time.sleep(fault.lasts.total_seconds())
        world.take(seat)
    return str(caught)


def pause_watcher(world: World, fault: Fault) -> str:
    """Its lease is over before it goes on."""
    seat = world.seats[fault.lane]
    with seat.lock:
        caught = world.caught(seat, fault.draw)
        _pause(world, [caught.pid], fault)
    return str(caught)


def pause_worker(world: World, fault: Fault) -> str:
    seat = world.seats[fault.lane]
    with world.pausing, seat.lock:
        child = world.caught(seat, fault.draw, "slow")
        _pause(world, [seat.alive.pid, *children(seat.alive)], fault)
    return f"{fault.lane}, {child} with it"


def pause_child(world: World, fault: Fault) -> str:
    seat = world.seats[fault.lane]
    with seat.lock:
        child = world.caught(seat, fault.draw, "slow")
        _pause(world, [child.pid], fault)
    return f"{child} of {fault.lane}"


def _pause(world: World, pids: list[int], fault: Fault) -> None:
    struck = world.pause(pids)
    try:
        time.sleep(fault.lasts.total_seconds())
    finally:
        world.wake(struck)


def shift_clock(world: World, fault: Fault) -> str:
    """Another process takes the seat, with a clock that is wrong; it stays so until somebody strikes it again."""
    seat = world.seats[fault.lane]
    seconds = (2 * fault.draw - 1) * MOST_SHIFT_S
    with seat.lock:
        world.vacate(seat)
        seat.variables = shifted(seconds)
        world.take(seat)
        time.sleep(fault.lasts.total_seconds())
    return f"{fault.lane} by {seconds:+.0f} s"


def kill_seat(world: World, fault: Fault) -> str:
    seat = world.seats[fault.lane]
    with seat.lock:
        world.vacate(seat)
        time.sleep(fault.lasts.total_seconds())
        world.take(seat)
    return fault.lane


def kill_broker(world: World, fault: Fault) -> str:
    # What a worker has taken and not acknowledged is what broke one upstream: a tick of later is that.
    held = world.hold_a_message()
    world.broker.kill()
    time.sleep(fault.lasts.total_seconds())
    world.broker.start()
    return f"empty when it came back; {held} messages were held"


def flush_broker(world: World, fault: Fault) -> str:
    with world.broker_client() as client:
        queued = sum(int(client.llen(queue)) for queue in ("drain", "effects", "lifecycle", "maintenance"))
        client.flushall()
    time.sleep(fault.lasts.total_seconds())
    return f"{queued} messages gone"


def hang_broker(world: World, fault: Fault) -> str:
    os.kill(world.broker.pid, signal.SIGSTOP)
    try:
        time.sleep(fault.lasts.total_seconds())
    finally:
        os.kill(world.broker.pid, signal.SIGCONT)
    return "stopped"


def read_only_broker(world: World, fault: Fault) -> str:
    with world.broker_client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            time.sleep(fault.lasts.total_seconds())
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")
    return "the replica of nobody"


def cut_broker(world: World, fault: Fault) -> str:
    with world.broker_client() as client, suppress(redis.ConnectionError):
        cut = client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(fault.lasts.total_seconds())
        return f"{cut} connections"
    return "all connections"


def step_down(world: World, fault: Fault) -> str:
    former = world.mongo.step_down()
    world.mongo.await_primary(other_than=former)
    time.sleep(fault.lasts.total_seconds())
    return f"member {world.mongo.members.index(former)}"


def kill_primary(world: World, fault: Fault) -> str:
    return _kill_member(world, fault, "primary")


def kill_secondary(world: World, fault: Fault) -> str:
    return _kill_member(world, fault, "secondary")


def _kill_member(world: World, fault: Fault, role: str) -> str:
    if role == "primary":
        member = world.mongo.kill_primary()
    else:
        others = world.mongo.secondaries()
        member = others[int(fault.draw * len(others))]
        member.kill()
    try:
        time.sleep(fault.lasts.total_seconds())
    finally:
        world.mongo.restart(member)
        world.mongo.await_all_healthy()
    return f"member {world.mongo.members.index(member)}, a {role}"


def cut_database(world: World, fault: Fault) -> str:
    proxy, lasts = world.mongo.primary().proxy, fault.lasts.total_seconds()
    way, choice = divmod(fault.draw * 4, 1)
    match int(way):
        case 0:
            count = proxy.cut_now()
            time.sleep(lasts)
            return f"{count} connections"
        case 1:
            with proxy.turning_away():
                time.sleep(lasts)
            return "everybody turned away"
        case 2:
            with proxy.hanging():
                time.sleep(lasts)
            return "nothing passed on"
        case _:
            command = _pick(_ANSWERED, choice)
            passed = int(choice * 40)
            with proxy.cutting(command, Side.REPLY, times=_STRUCK_TIMES, passed=passed) as cut:
                time.sleep(lasts)
            return f"{len(cut.struck)} answers to {command} after {passed} bytes"


def write_error(world: World, fault: Fault) -> str:
    command, code = _pick(_WRITES, fault.draw), _pick(_REFUSALS, fault.draw * 7 % 1)
    return _fail(world, fault, [command], failpoints.refused(code), f"{command} refused with {code}")


def network_error(world: World, fault: Fault) -> str:
    command = _pick((*_WRITES, *_READS), fault.draw)
    return _fail(world, fault, [command], failpoints.NETWORK_ERROR, f"{command} cut off")


def write_concern_error(world: World, fault: Fault) -> str:
    command, code = _pick(_WRITES, fault.draw), _pick(_CONCERN_ERRORS, fault.draw * 7 % 1)
    return _fail(world, fault, [command], failpoints.write_concern_error(code), f"{command} answered with {code}")


def slow_database(world: World, fault: Fault) -> str:
    command = _pick((*_WRITES, *_READS), fault.draw)
    longer_ms = int(world.stack.outbox.settings.limits.op_timeout.total_seconds() * 1500)
    return _fail(world, fault, [command], failpoints.blocked(longer_ms), f"{command} held for {longer_ms} ms")


def _fail(world: World, fault: Fault, commands: Sequence[str], data: dict[str, object], said: str) -> str:
    primary = world.mongo.primary()
    times: int | None = _STRUCK_TIMES
    if commands == [_ROWS]:
        # Each time: the driver asks again for as long as an operation may take.
        times = None
        commands, data = ["insert"], {**data, "namespace": f"{world.stack.outbox.settings.mongo_db}.trigger_effects"}
    with failpoints.failing(primary.client, commands, data, times=times):
        time.sleep(fault.lasts.total_seconds())
    return f"{said}, {'each time' if times is None else f'up to {times} times'}"


def _pick(among: Sequence[_T], draw: float) -> _T:
    return among[int(draw * len(among))]


def heal(world: World) -> None:
    """Bring back all that faults have left, as an operator would: whoever was struck is there again, and well."""
    for member in world.mongo.members:
        world.mongo.restart(member)
        failpoints.turn_off(member.client, "failCommand")
    world.mongo.await_all_healthy()
    world.broker.start()
    wait_until(lambda: all(seat.process is not None for seat in world.seats.values()), 60, "everybody is back")


THROW: dict[str, Callable[[World, Fault], str]] = {
    "kill-worker": kill_worker,
    "kill-child": kill_child,
    "pause-worker": pause_worker,
    "pause-child": pause_child,
    "shift-worker": shift_clock,
    "kill-beat": kill_seat,
    "shift-beat": shift_clock,
    "kill-producer": kill_seat,
    "kill-watcher": kill_watcher,
    "pause-watcher": pause_watcher,
    "kill-broker": kill_broker,
    "flush-broker": flush_broker,
    "hang-broker": hang_broker,
    "read-only-broker": read_only_broker,
    "cut-broker": cut_broker,
    "step-down": step_down,
    "kill-primary": kill_primary,
    "kill-secondary": kill_secondary,
    "cut-database": cut_database,
    "write-error": write_error,
    "network-error": network_error,
    "write-concern-error": write_concern_error,
    "slow-database": slow_database,
}
