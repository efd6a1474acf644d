"""The one byte by which a worker's children hear that it was told to stop."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Forked in a process of its own: this one has threads.
PROGRAM = """
import json, os
from tasks.app import StopFlag

def in_a_child(flag, tell):
    to_child, told = os.pipe()
    answer, from_child = os.pipe()
    if os.fork() == 0:
        before = flag.is_set()
        os.write(from_child, b"1")
        os.read(to_child, 1)
        os.write(from_child, json.dumps([before, flag.is_set()]).encode())
        os._exit(0)
    os.read(answer, 1)
    tell(flag)
    os.write(told, b"1")
    os.wait()
    return json.loads(os.read(answer, 100))

of_one_task = StopFlag()
of_one_task.set_for_this_task()
during = of_one_task.is_set()
of_one_task.start_task()
print(json.dumps({
    "the worker's": in_a_child(StopFlag(), StopFlag.set),
    "nobody's": in_a_child(StopFlag(), StopFlag.is_set),
    "the parent's own task": in_a_child(StopFlag(), StopFlag.set_for_this_task),
    "a task's": [during, of_one_task.is_set()],
}))
"""


@pytest.mark.promise("C05")
def test_a_child_hears_of_its_workers_stop_that_came_after_the_fork_and_a_tasks_own_stop_ends_with_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "the worker's": [False, True],
        "nobody's": [False, False],
        "the parent's own task": [False, False],
        "a task's": [True, False],
    }
