"""A whole outbox over a harness's store, and the judge of what came through one of its entrances."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from outbox_core.adapters.mongo.schema import STEPS
from outbox_core.application.add_subscription import add_subscription
from outbox_core.bootstrap import Opened, Outbox
from outbox_core.domain.errors import OutboxError
from outbox_core.ports.hints import NoHints
from outbox_core.settings import Settings
from tests.fuzz.hostile import require_one_clear_line
from tests.fuzz.profile import tried
from tests.harness.base import ACME, OTHER
from tests.harness.examples import subscription
from tests.simulation.play import append, cursor_of, drain_whole, run_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outbox_core.domain.bot import Run
    from tests.harness.base import Document, Harness

COLLECTIONS = sorted({one.name for step in STEPS for one in step.collections} | {"schema_versions"})
"""Every collection that the schema has, so that a new one cannot be forgotten."""

_PACE = {"tenant_slots", "ticks", "schema_versions"}


class Door:
    """The public outbox over one harness, with a rule that matches everything, and what its bot was given."""

    def __init__(self, harness: Harness, *, secret: str | None = None) -> None:
        self.harness = harness
        self.seen: list[Any] = []
        settings = Settings().model_copy(
            update={"limits": harness.limits, "github_secret": None if secret is None else SecretStr(secret)}
        )
        self.runtime = harness.runtime({"bot": self._bot})
        self.outbox = Outbox(settings, hints=NoHints(), offers=NoHints(), stopping=lambda: False)
        self.outbox._opened = Opened(harness.store, self.runtime, lambda: None)
        for store in (harness.acme, harness.other):
            add_subscription(store, subscription("all", tenant=store.tenant_id))
        append(harness.other, self.runtime, "theirs")

    def _bot(self, run: Run) -> None:
        self.seen.append((run.tenant, run.event.event_id, deepcopy(run.event.data)))

    def everything(self) -> dict[str, list[Document]]:
        """Return what is stored, but for slots and ticks."""
        return {name: self.harness.raw(name) for name in COLLECTIONS if name not in _PACE}

    def take(self, what: str, act: Callable[[Outbox], object], *, secrets: Sequence[str] = ()) -> object:
        """Give something in: it is refused in one clear line and leaves no trace, or it works out to its rows.

        Returns what came of it; an OutboxError where it was refused. Whatever else is raised is a fault.
        """
        before = self.everything()
        try:
            taken = act(self.outbox)
        except OutboxError as error:
            taken = error
        if not isinstance(taken, OutboxError):
            tried[f"{what}: taken"] += 1
            self.work_out()
            return taken
        assert type(taken).__name__ in REFUSALS, f"{type(taken).__name__}: {taken}"
        require_one_clear_line(taken, *secrets)
        assert self.everything() == before, "it was refused, and yet something was written"
        tried[f"{what}: refused"] += 1
        return taken

    def work_out(self) -> None:
        """Drain and run all there is: every event has its row done, or is in the journal as skipped."""
        for store in (self.harness.acme, self.harness.other):
            drain_whole(store, self.runtime)
            run_whole(store, self.runtime)
        for tenant in (ACME, OTHER):
            events = self.harness.raw("board_events", tenant_id=tenant)
            rows = self.harness.raw("trigger_effects", tenant_id=tenant)
            skipped = {
                one["seq"] for entry in self.harness.journal() for one in entry["skips"] if entry["tenant_id"] == tenant
            }
            assert [row for row in rows if row["state"] != "done"] == []
            owed = {event["event_id"] for event in events if event["seq"] not in skipped}
            assert {row["event_id"] for row in rows} == owed
            assert cursor_of(self.harness, tenant) == max((event["seq"] for event in events), default=0)
        assert {tenant for tenant, _, _ in self.seen} <= {ACME, OTHER}
        assert (OTHER, "theirs", {}) in self.seen


REFUSALS = frozenset(
    {
        "InvalidInputError",
        "EventTooLargeError",
        "CardNotFoundError",
        "BoardNotFoundError",
        "SubscriptionNotFoundError",
    }
)
"""What a caller is told where he gave something that cannot be taken."""


def same_on_both(twin: Door, mongo: Door, what: str, act: Callable[[Outbox], object]) -> object:
    """Give the same to both stores: they take the same, and store the same of it."""
    taken, there = twin.take(what, act), mongo.take(what, act)
    assert isinstance(taken, OutboxError) == isinstance(there, OutboxError), f"twin: {taken!r}; MongoDB: {there!r}"
    assert _told(twin) == _told(mongo)
    return taken


def _told(door: Door) -> list[dict[str, Any]]:
    """Return the events as they are stored, without what each store stamps."""
    stamped = {"recorded_at"}
    events = door.harness.raw("board_events")
    return [{name: value for name, value in event.items() if name not in stamped} for event in events]
