"""The twin and MongoDB take the same random steps, and are compared, answer and document, after each.

Times are compared as they lie to the server's now, to half of ten seconds: every duration here is a multiple of that.
The real time that passes on MongoDB between two steps passes on the twin as well. OUTBOX_LOCKSTEP_EXAMPLES sets how
many sequences are tried, at random; without it a few fixed ones are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from outbox_core.domain.consumer import Consumer
from outbox_core.domain.effect import Claim
from outbox_core.domain.errors import EventConflictError, OutboxError
from outbox_core.domain.limits import Limits
from outbox_core.ports.event_log import Allocation, Head
from tests.harness.on_mongo import MongoHarness
from tests.harness.twin import TwinHarness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.harness.base import Document, Harness
    from tests.harness.on_mongo import MongoDatabases

UNIT = timedelta(seconds=10)
_IDENTITIES = {"deleted_at", "last_deleted_at"}
"""Times that are the same on both stores: an event's id says them too."""


class Lying:
    """How far a time lies from now; equal to what lies less than half a unit from it."""

    def __init__(self, ahead: timedelta) -> None:
        self._ahead = ahead

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lying) and abs(self._ahead - other._ahead) < UNIT / 2

    __hash__ = None  # type: ignore[assignment] # What is near to two others that are not equal has none.

    def __repr__(self) -> str:
        return f"now {self._ahead.total_seconds():+.3f} s"


class StepEntropy:
    """Tokens that tell their step, so that both stores draw the same ones."""

    def __init__(self) -> None:
        self.step = 0
        self._drawn = 0

    def begin(self, step: int) -> None:
        self.step, self._drawn = step, 0

    def token(self) -> str:
        self._drawn += 1
        return f"step{self.step}.{self._drawn}"

    def jitter(self) -> float:
        return 1.0


class TwoStores(RuleBasedStateMachine):
    """A machine whose steps are each made on both stores; these `collections` must then be equal."""

    def __init__(self, databases: MongoDatabases, collections: Sequence[str]) -> None:
        super().__init__()
        # What is put off by half a unit would be one or none, as it happens.
        limits = Limits(consumer_poll=UNIT)
        self.twin = TwinHarness(limits, entropy=StepEntropy())
        self.mongo = MongoHarness(databases.empty(), limits, entropy=StepEntropy())
        self.steps = 0
        self._synchronized = self.mongo.now()
        self._collections = collections

    def both(self, step: Callable[[Harness], Any]) -> tuple[Any, Any]:
        """Take a step on both stores; fail where an answer or a document differs."""
        self.steps += 1
        # What is stamped in different steps has different times, as on a real server.
        before, self._synchronized = self._synchronized, self.mongo.now()
        self.twin.advance(max(self._synchronized - before, timedelta(milliseconds=1)))
        answers = []
        for one in (self.twin, self.mongo):
            entropy = one.entropy
            assert isinstance(entropy, StepEntropy)
            entropy.begin(self.steps)
            try:
                answers.append(step(one))
            except OutboxError as error:
                answers.append(error)
        twin_now, mongo_now = self.twin.now(), self.mongo.now()
        assert comparable(answers[0], twin_now) == comparable(answers[1], mongo_now)
        for name in self._collections:
            on_twin, on_mongo = self.twin.raw(name), self.mongo.raw(name)
            shaped = self.shape(name, on_twin, twin_now), self.shape(name, on_mongo, mongo_now)
            assert shaped[0] == shaped[1], f"{name}: {shaped}"
        return answers[0], answers[1]

    def shape(self, collection: str, documents: list[Document], now: datetime) -> Any:  # noqa: ANN401 - any document
        """Return what must be equal of the documents of a collection."""
        del collection
        return comparable(documents, now)


def comparable(value: Any, now: datetime) -> Any:  # noqa: ANN401, PLR0911 - any answer; one line a type
    """Return what must be equal of an answer or a document."""
    match value:
        case datetime():
            return Lying(value - now)
        case EventConflictError():
            return (type(value), value.duplicates, value.taken)
        case OutboxError():
            return type(value)
        case str() if value.startswith("malformed: "):
            return "malformed"
        case Claim():
            return comparable((value.claim_id, value.worker, value.effects, value.more, value.parked), now)
        case Consumer() if value.stopped_for.startswith("its row does not decode"):
            return ("it does not decode", value.consumer_id, value.cursor, value.retired_at is None)
        case Allocation() | Head():
            return comparable({field.name: getattr(value, field.name) for field in fields(value)}, now)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return comparable({field.name: getattr(value, field.name) for field in fields(value)}, now)
        case Mapping():
            return {key: item if key in _IDENTITIES else comparable(item, now) for key, item in value.items()}
        case list() | tuple():
            return [comparable(item, now) for item in value]
        case _:
            return value


def run_in_lockstep(machine: type[TwoStores], examples: int) -> None:
    """Try sequences of a machine's steps; so many `examples` where nobody says how many."""
    wanted = int(os.environ.get("OUTBOX_LOCKSTEP_EXAMPLES", "0"))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=wanted or examples,
            stateful_step_count=30,
            derandomize=not wanted,
            database=None,
            deadline=None,
            # Shrinking a failure would outlast the test's time; it prints the steps that led there.
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )
