"""Contestants side by side: one that fails is out, with its reason, and the others are measured."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, interleaved
from benchmarks.contestant import Facts, Unavailable
from benchmarks.rounds import PROBES, Field

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Instant:
    """A deployment that runs a job when it is put in."""

    ledger: Path
    fails_at: int = 0
    loses: int = 0
    repeats: int = 0
    done: int = 0
    servers: list[int] = field(default_factory=list)
    clients: list[int] = field(default_factory=list)

    def enqueue(self, first: int, count: int) -> None:
        numbers = range(first, first + count)
        if self.fails_at in numbers:
            raise ConnectionError("the server went away")
        instead = {self.loses: self.repeats} if self.loses else {}
        with self.ledger.open("a") as page:
            page.writelines(f"{instead.get(number, number)} 1.0\n" for number in numbers)
        self.done += count

    def settled(self) -> int:
        return self.done


@dataclass
class Queue:
    """A contestant without servers."""

    name: str
    fails_at: int = 0
    loses: int = 0
    repeats: int = 0
    missing: str = ""
    ended: int = 0

    def prepare(self, cache: Path) -> Facts:
        assert cache.is_dir()
        if self.missing:
            raise Unavailable(self.missing)
        return Facts(version="1", durability="none", batching="all")

    @contextmanager
    def deploy(self, folder: Path, cache: Path, processes: int) -> Iterator[Instant]:
        assert (cache.is_dir(), processes) == (True, 2)
        try:
            yield Instant(folder / "ledger" / "1", self.fails_at, self.loses, self.repeats)
        finally:
            self.ended += 1


def bench(folder: Path, *names: str) -> Bench:
    return Bench(quick=True, rounds=3, cache=folder, scratch=folder, contestants=names)


def test_who_cannot_take_part_or_fails_is_out_and_the_others_are_measured(tmp_path: Path) -> None:
    probes = sum(PROBES)
    steady, absent, dying = (
        Queue("steady"),
        Queue("absent", missing="no Node here"),
        Queue("dying", fails_at=probes + 1),
    )
    run = bench(tmp_path, "steady", "absent")
    with Field(run, [absent, dying, steady], 2) as contestants:
        contestants.round_robin(0.001, 500, {"steady": 100})
        contestants.check()
        assert contestants.failed == {"absent": "no Node here", "dying": "ConnectionError: the server went away"}
        assert [found.jobs for found in contestants.running["steady"].rounds] == [100] * 3
        assert (dying.ended, steady.ended) == (1, 0)
    assert (absent.ended, dying.ended, steady.ended) == (0, 1, 1)
    # Who is no contestant of this run, but a case's own, is not told of as one.
    assert run.facts == {"steady": {"version": "1", "durability": "none", "batching": "all", "notes": ""}}
    assert run.failures == {"absent": "no Node here"}
    assert not list(tmp_path.iterdir())


def test_who_loses_a_job_or_runs_one_twice_is_out(tmp_path: Path) -> None:
    loser = Queue("loser", loses=7, repeats=8)
    with Field(bench(tmp_path, "loser"), [loser], 2) as contestants:
        contestants.round_robin(0, 500, {"loser": 50})
        contestants.check()
        assert contestants.failed == {"loser": "RuntimeError: 1 jobs never ran and 1 ran more than once"}
        assert not contestants.running


def test_work_is_done_in_turn_as_often_as_the_run_has_rounds(tmp_path: Path) -> None:
    done: list[str] = []

    def step(name: str) -> int:
        done.append(name)
        return len(done)

    found = interleaved(bench(tmp_path), [("a", lambda: step("a")), ("b", lambda: step("b"))])
    assert done == ["a", "b"] * 3
    assert found == {"a": [1, 3, 5], "b": [2, 4, 6]}
