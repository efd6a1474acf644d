"""Embedded servers come up, keep their data, say what is wrong, and leave no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import pytest
from pymongo import MongoClient

from outbox_core.adapters.mongo.replica_set import await_primary
from outbox_core.domain.errors import OutboxError, TransientError
from outbox_core.embedded import (
    EmbeddedMongo,
    EmbeddedRedis,
    EmbeddedServerError,
    Supervisor,
    find_mongod,
    find_redis,
    programs,
    server,
)
from outbox_core.embedded.watchdog import _Child
from outbox_core.embedded.watchdog import main as watchdog_main
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
LONG = timedelta(minutes=5)
SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
# Prints only once TERM is ignored.
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)",
]


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def client(mongo: EmbeddedMongo) -> MongoClient[dict[str, Any]]:
    return MongoClient(mongo.url, serverSelectionTimeoutMS=10_000)


def ask_redis(redis: EmbeddedRedis, command: str) -> str:
    with socket.create_connection(("127.0.0.1", redis.port), timeout=5) as connection:
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(4096).decode()


def hang_up(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # The end of the test closes it.
        while True:
            listener.accept()[0].close()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


# --- mongod ---------------------------------------------------------------------------------------


def test_mongod_runs_transactions_and_a_second_start_finds_its_data_and_its_port(tmp_path: Path) -> None:
    mongo = EmbeddedMongo(tmp_path)
    with mongo:
        pid, url = mongo.pid, mongo.url
        with client(mongo) as db, db.start_session() as session:
            session.with_transaction(lambda s: db.shop.orders.insert_one({"_id": "kept"}, session=s))
    assert not alive(pid)
    assert not mongo.running

    again = EmbeddedMongo(tmp_path)
    with again, client(again) as db:
        assert again.url == url
        assert db.shop.orders.find_one() == {"_id": "kept"}


def test_mongod_comes_back_with_its_data_after_a_kill(tmp_path: Path) -> None:
    with EmbeddedMongo(tmp_path) as mongo:
        port = mongo.port
        with client(mongo) as db:
            db.shop.orders.insert_one({"_id": "kept"})
        mongo.kill()
        mongo.start()
        assert mongo.port == port
        with client(mongo) as db:
            assert db.shop.orders.find_one() == {"_id": "kept"}


def test_mongod_moves_to_another_port_with_its_data_when_its_own_is_taken(tmp_path: Path) -> None:
    with EmbeddedMongo(tmp_path) as mongo:
        port = mongo.port
        with client(mongo) as db:
            db.shop.orders.insert_one({"_id": "kept"})
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        # It hangs up on callers; on one that keeps them waiting, mongod waits for half a minute.
        threading.Thread(target=hang_up, args=(thief,), daemon=True).start()
        with EmbeddedMongo(tmp_path) as moved, client(moved) as db:
            assert moved.port != port
            assert db.shop.orders.find_one() == {"_id": "kept"}


def test_a_port_lost_between_choosing_and_binding_costs_only_another_try(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = [taken_port]
    choose = EmbeddedMongo._choose_port
    monkeypatch.setattr(EmbeddedMongo, "_choose_port", lambda self: choices.pop() if choices else choose(self))
    with EmbeddedMongo(tmp_path) as mongo:
        assert not choices
        assert mongo.port != taken_port


def test_a_port_that_stays_taken_is_one_clear_error_and_leaves_no_process(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedRedis, "_choose_port", lambda _self: taken_port)
    redis = EmbeddedRedis(tmp_path)
    with pytest.raises(EmbeddedServerError, match="no free port"):
        redis.start()
    assert not redis.running


def test_another_server_on_the_port_is_left_alone(mongo_server: EmbeddedMongo) -> None:
    with pytest.raises(TransientError, match="no primary"):
        await_primary(
            "127.0.0.1",
            mongo_server.port,
            replica_set="outbox",
            within=timedelta(seconds=0.2),
            pid=os.getpid(),
            alive=lambda: True,
        )


@pytest.mark.parametrize("kind", [EmbeddedMongo, EmbeddedRedis])
def test_a_folder_in_use_is_one_clear_error(
    kind: type[EmbeddedMongo | EmbeddedRedis], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_FOLDER_FREE_WITHIN", timedelta(seconds=0.1))
    with kind(tmp_path) as first:
        second = kind(tmp_path)
        with pytest.raises(EmbeddedServerError, match="in use by another running server"):
            second.start()
        assert first.running
        assert not second.running


def test_data_held_by_a_mongod_of_somebody_else_is_one_clear_error(tmp_path: Path) -> None:
    with EmbeddedMongo(tmp_path / "theirs"):
        (tmp_path / "ours").mkdir()
        (tmp_path / "ours" / "data").symlink_to(tmp_path / "theirs" / "data")
        with pytest.raises(EmbeddedServerError, match="ended with 100: its folder is in use"):
            EmbeddedMongo(tmp_path / "ours").start()


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServerError, match="cannot use"):
        EmbeddedRedis(tmp_path / "file" / "redis").start()


def test_starting_twice_is_starting_once_and_stopping_twice_stopping_once(tmp_path: Path) -> None:
    redis = EmbeddedRedis(tmp_path)
    redis.start()
    pid = redis.pid
    redis.start()
    assert redis.pid == pid
    redis.stop()
    redis.stop()
    with pytest.raises(EmbeddedServerError, match="not started"):
        _ = redis.pid


# --- redis ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("persistence", "found"), [(False, "$-1\r\n"), (True, "$1\r\nv\r\n")])
def test_redis_keeps_its_data_over_a_restart_only_with_persistence(
    persistence: bool,  # noqa: FBT001 - a parameter of the test
    found: str,
    tmp_path: Path,
) -> None:
    with EmbeddedRedis(tmp_path, persistence=persistence) as redis:
        url = redis.url
        assert ask_redis(redis, "SET k v") == "+OK\r\n"
        redis.restart()
        assert redis.url == url
        assert ask_redis(redis, "GET k") == found


# --- programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("find", "names"), [(find_mongod, "mongod"), (find_redis, "valkey-server or redis-server")])
def test_a_missing_program_is_one_line_that_says_what_to_install(
    find: Callable[[], Path], names: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "_wheel_folder", lambda _package: None)
    with pytest.raises(OutboxError) as caught:
        find()
    assert f"no {names} found" in str(caught.value)
    assert "effect-outbox[embedded]" in str(caught.value)
    assert "\n" not in str(caught.value)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    loader = "mongod: error while loading shared libraries: libcurl.so.4: cannot open shared object file"
    program = script(tmp_path / "mongod", f"echo '{loader}' >&2; exit 127")
    with pytest.raises(EmbeddedServerError, match=r"needs libcurl\.so\.4, which is not installed"):
        programs.check_mongod(program)


def test_an_old_mongod_is_refused_with_its_version(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=r"MongoDB 5\.0; 6\.0 or newer"):
        programs.check_mongod(script(tmp_path / "mongod", "echo 'db version v5.0.31'"))


def test_a_program_that_crashes_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="does not run here"):
        programs.check_mongod(script(tmp_path / "mongod", "kill -ILL $$"))


def test_a_program_on_path_comes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = script(tmp_path / "mongod", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_mongod() == program


def test_a_program_without_its_run_bit_gets_it(tmp_path: Path) -> None:
    program = script(tmp_path / "mongod", "exit 0")
    program.chmod(0o644)
    assert programs.runnable(program, tmp_path / "folder") == program
    assert os.access(program, os.X_OK)


def test_a_program_in_a_read_only_place_is_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = script(tmp_path / "mongod", "exit 0")
    program.chmod(0o644)

    def read_only(self: Path, mode: int) -> None:
        if self == program:
            raise PermissionError(13, "read-only")
        os.chmod(self, mode)  # noqa: PTH101 - the method is what is replaced

    monkeypatch.setattr(Path, "chmod", read_only)
    copy = programs.runnable(program, tmp_path / "folder")
    assert copy == tmp_path / "folder" / "bin" / "mongod"
    assert subprocess.run([copy], check=False).returncode == 0
    written = copy.stat().st_mtime_ns
    assert programs.runnable(program, tmp_path / "folder") == copy
    assert copy.stat().st_mtime_ns == written


# --- the supervisor -------------------------------------------------------------------------------


def test_children_stop_in_reverse_order_and_their_exit_codes_are_told(tmp_path: Path) -> None:
    order = tmp_path / "order"
    with Supervisor() as supervisor:
        for name in ("first", "second"):
            code = (
                "import signal, sys, time\n"
                "def end(*_):\n"
                f"    open({str(order)!r}, 'a').write('{name} ')\n"
                "    sys.exit(3)\n"
                "signal.signal(15, end)\n"
                "print('ready', flush=True)\n"
                "time.sleep(300)\n"
            )
            log = tmp_path / f"{name}.log"
            child = supervisor.spawn(name, [sys.executable, "-S", "-c", code], log=log)
            child.await_ready(lambda log=log: b"ready" in log.read_bytes(), LONG)  # type: ignore[misc]
        processes = supervisor.processes
    assert order.read_text() == "second first "
    assert [process.poll() for process in processes] == [3, 3]


def test_a_child_that_died_is_reported_and_can_be_forgotten(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        stays = supervisor.spawn("stays", SLEEPER, log=tmp_path / "log")
        dies = supervisor.spawn("dies", SLEEPER, log=tmp_path / "log")
        assert supervisor.dead() == ()
        os.kill(dies.pid, signal.SIGKILL)
        assert dies.ended_within(LONG)
        assert supervisor.dead() == (dies,)
        assert dies.poll() == -signal.SIGKILL
        supervisor.forget(dies)
        assert supervisor.processes == (stays,)
        with pytest.raises(EmbeddedServerError, match="stays still runs"):
            supervisor.forget(stays)


def test_a_child_that_ends_before_it_is_ready_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        child = supervisor.spawn("w", [sys.executable, "-S", "-c", "raise SystemExit('bad port')"], log=tmp_path / "l")
        with pytest.raises(EmbeddedServerError, match=r"w ended with 1 before it was ready.*bad port"):
            child.await_ready(lambda: False, LONG)


def test_a_child_that_is_never_ready_is_a_clear_error(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        child = supervisor.spawn("w", SLEEPER, log=tmp_path / "l")
        with pytest.raises(EmbeddedServerError, match=r"w was not ready within 0\.1 s"):
            child.await_ready(lambda: False, timedelta(seconds=0.1))


def test_a_program_that_does_not_exist_is_a_clear_error(tmp_path: Path) -> None:
    with Supervisor() as supervisor, pytest.raises(EmbeddedServerError, match="no program no-such-program"):
        supervisor.spawn("w", ["no-such-program"], log=tmp_path / "l")


def test_a_child_that_ignores_term_is_killed_with_what_it_started(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(15, signal.SIG_IGN)\n"
        f"print(subprocess.Popen({SLEEPER!r}).pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    log = tmp_path / "log"
    with Supervisor() as supervisor:
        child = supervisor.spawn("deaf", [sys.executable, "-c", code], log=log, stop_grace=timedelta(seconds=0.1))
        child.await_ready(lambda: log.read_bytes().endswith(b"\n"), LONG)
        grandchild = int(log.read_text())
        assert alive(grandchild)
    assert child.poll() == -signal.SIGKILL
    wait_until(lambda: not alive(grandchild))


def test_the_program_inherits_no_stream_of_the_watchdog(tmp_path: Path) -> None:
    """Else the watchdog would wait for the end of the very children it must end."""
    code = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd')), flush=True)"
    log = tmp_path / "log"
    with Supervisor() as supervisor:
        child = supervisor.spawn("fds", [sys.executable, "-S", "-c", code], log=log)
        assert child.ended_within(LONG)
    assert log.read_text() == "[0, 1, 2, 3]\n"  # 3 is the listing itself.


def test_a_watchdog_that_was_killed_is_noticed_by_the_next_spawn(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        supervisor.spawn("w", SLEEPER, log=tmp_path / "l")
        watchdog = supervisor._watchdog
        assert watchdog is not None
        watchdog.kill()
        watchdog.wait()
        with pytest.raises(EmbeddedServerError, match="watchdog was killed"):
            supervisor.spawn("w", SLEEPER, log=tmp_path / "l")


def test_without_pidfd_the_watchdog_goes_by_process_id() -> None:
    """As on macOS, and on Linux before 5.3."""
    popen = subprocess.Popen(SLEEPER, start_new_session=True)
    child = _Child(popen.pid, grace_s=1, pidfd=None)
    assert not child.ended_within(0.05)
    child.terminate()
    assert popen.wait(10) == -signal.SIGTERM
    assert child.ended_within(0)
    child.terminate()
    child.kill_group()


def test_the_watchdog_outlives_a_line_that_it_does_not_know(tmp_path: Path) -> None:
    popen = subprocess.Popen(SLEEPER, start_new_session=True)
    stream = tmp_path / "stream"
    stream.write_text(f"nonsense\n\nadd {popen.pid} 1000\ngone 1\n")
    with stream.open("rb") as lines:
        subprocess.run(
            [sys.executable, "-m", "outbox_core.embedded.watchdog", "watch"], stdin=lines, check=True, cwd=ROOT
        )
    assert popen.wait(10) == -signal.SIGTERM


def test_the_watchdog_explains_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert watchdog_main([]) == 2
    assert "usage" in capsys.readouterr().err


# --- death of the parent --------------------------------------------------------------------------


class Parent:
    """A small program that starts children and says their process ids."""

    def __init__(self, body: str, folder: Path) -> None:
        code = (
            "import os, signal, sys, time\n"
            "from datetime import timedelta\n"
            "from pathlib import Path\n"
            "from outbox_core.embedded import EmbeddedMongo, EmbeddedRedis, Supervisor\n"
            "folder = Path(sys.argv[1])\n"
            "supervisor = Supervisor()\n"
            "def say(*pids): print(*pids, supervisor._watchdog.pid, flush=True)\n"
        ) + textwrap.dedent(body)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, folder],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def pids(self) -> list[int]:
        assert self.process.stdout is not None
        pids = [int(word) for word in self.process.stdout.readline().split()]
        assert pids
        return pids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


SERVERS = """
    with supervisor:
        mongo = EmbeddedMongo(folder / "mongo", supervisor=supervisor)
        redis = EmbeddedRedis(folder / "redis", supervisor=supervisor)
        mongo.start()
        redis.start()
        say(mongo.pid, redis.pid)
        time.sleep(300)
"""


def test_a_parent_killed_with_9_leaves_no_process_and_the_folder_free(tmp_path: Path) -> None:
    with Parent(SERVERS, tmp_path) as parent:
        pids = parent.pids()
        assert len(pids) == 3
        assert all(map(alive, pids))
        parent.process.kill()
        # At once: the start waits for the end of what the killed parent has left.
        with EmbeddedRedis(tmp_path / "redis"), EmbeddedMongo(tmp_path / "mongo"):
            pass
        wait_until(lambda: not any(map(alive, pids)), what=f"{pids} end")


def test_ctrl_c_reaches_the_parent_alone_which_stops_all(tmp_path: Path) -> None:
    with Parent(SERVERS, tmp_path) as parent:
        pids = parent.pids()
        os.killpg(parent.process.pid, signal.SIGINT)
        assert parent.process.wait(30) != 0
        # No waiting: the parent has waited for each.
        assert not any(map(alive, pids))
    log = (tmp_path / "mongo" / "mongod.log").read_text()
    assert '"error":"Terminated"' in log
    assert '"error":"Interrupt"' not in log


def test_a_child_that_ignores_term_is_killed_after_a_kill_9_of_the_parent(tmp_path: Path) -> None:
    body = f"""
        log = folder / "log"
        child = supervisor.spawn("deaf", {STUBBORN!r}, log=log, stop_grace=timedelta(seconds=0.2))
        child.await_ready(lambda: b"deaf" in log.read_bytes(), timedelta(minutes=1))
        say(child.pid)
        time.sleep(300)
    """
    with Parent(body, tmp_path) as parent:
        pids = parent.pids()
        parent.process.kill()
        wait_until(lambda: not any(map(alive, pids)), what=f"{pids} end")


def test_a_parent_that_dies_the_moment_its_child_is_forked_leaves_no_process(tmp_path: Path) -> None:
    """The child has announced itself to nobody yet, and the parent never will."""
    body = f"""
        first = supervisor.spawn("first", {SLEEPER!r}, log=folder / "log")
        child = supervisor.spawn("child", {SLEEPER!r}, log=folder / "log")
        os.write(1, f"{{first.pid}} {{child.pid}} {{supervisor._watchdog.pid}}\\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with Parent(body, tmp_path) as parent:
        pids = parent.pids()
        wait_until(lambda: not any(map(alive, pids)), what=f"{pids} end")


def test_a_parent_that_ends_without_stopping_anything_leaves_no_process(tmp_path: Path) -> None:
    body = f"""
        say(supervisor.spawn("child", {SLEEPER!r}, log=folder / "log").pid)
    """
    with Parent(body, tmp_path) as parent:
        pids = parent.pids()
        wait_until(lambda: not any(map(alive, pids)), what=f"{pids} end")
