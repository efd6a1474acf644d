"""The machine that the figures are of."""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from contextlib import suppress
from pathlib import Path

import psutil


def describe(folder: Path) -> dict[str, str]:
    """Return what a reader must know of this machine; `folder` is where the servers keep their data."""
    memory = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0]
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "disk": f"{_file_system(folder)}; one fsync {_fsync_ms(folder):.2f} ms (median of 50)",
        "load when it began": f"{load:.1f}",
    }


def _processor() -> str:
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
        if found:
            return found.group(1)
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    where = folder.resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if where.is_relative_to(one.mountpoint)]
    return max(mounts, key=lambda one: len(one.mountpoint)).fstype if mounts else "unknown"


def _fsync_ms(folder: Path) -> float:
    """Return what one small durable write costs here: who batches less pays it more often."""
    path, took = folder / "fsync-probe", []
    with path.open("wb") as probe:
        for _ in range(50):
            begun = time.perf_counter()
            probe.write(b"x" * 512)
            probe.flush()
            os.fsync(probe.fileno())
            took.append((time.perf_counter() - begun) * 1000)
    path.unlink()
    return statistics.median(took)
