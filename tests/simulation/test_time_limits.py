"""Time that is too long, on both stores: of a bot, of a batch, of a renewal, of a dead connection (E32)."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.run_slice import run_slice
from outbox_core.domain.board import Binding, Board, Card
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import BotOverstayedError
from outbox_core.domain.identity import join_key, projection_key
from outbox_core.ports.slots import Lane
from tests.harness.base import ACME
from tests.harness.examples import subscription
from tests.harness.faults import FaultyStore, transient_at, with_calls
from tests.simulation.play import append, drain_whole, run_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outbox_core.domain.bot import Run
    from outbox_core.domain.projector import Projection
    from tests.harness.base import Harness


class InterruptAtOnce:
    """Ends what it is told to end before it has begun, and keeps the limits that it was given."""

    def __init__(self, *, ends: bool = True) -> None:
        self.limits: list[timedelta] = []
        self._ends = ends

    @contextmanager
    def limit(self, duration: timedelta) -> Iterator[None]:
        self.limits.append(duration)
        if self._ends:
            raise BotOverstayedError(duration)
        yield


def owed(harness: Harness, *event_ids: str) -> list[str]:
    add_subscription(harness.acme, subscription("s"))
    append(harness.acme, harness.runtime(), *event_ids)
    drain_whole(harness.acme, harness.runtime())
    harness.change("tenant_slots", ACME, slice=[])
    return [join_key(ACME, event_id, "s") for event_id in event_ids]


@pytest.mark.promise("E32")
@pytest.mark.parametrize(
    ("bot", "limit_s"),
    [
        ({}, 60),
        ({"time_limit": timedelta(seconds=5)}, 5),
        ({"transactional": True}, 45),
        ({"transactional": True, "time_limit": timedelta(seconds=5)}, 5),
    ],
)
def test_each_bot_has_its_own_limit_else_the_deployments_and_a_try_that_overstays_is_spent(
    harness: Harness, bot: dict[str, Any], limit_s: int
) -> None:
    (effect_id,) = owed(harness, "a")
    interrupt = InterruptAtOnce()
    bots = {"bot": Bot(bot_id="bot", function=lambda run: None, **bot)}  # noqa: ARG005 - a bot's signature
    runtime = replace(harness.runtime(bots), interrupt=interrupt)
    run_slice(harness.acme, runtime)
    assert interrupt.limits == [timedelta(seconds=limit_s)]
    row = harness.row(effect_id)
    assert (row["state"], row["attempts"]) == ("pending", 1)
    assert row["last_error"] == f"overstayed its limit of {limit_s}s"
    for _ in range(4):
        harness.advance(timedelta(minutes=10))
        run_slice(harness.acme, runtime)
    row = harness.row(effect_id)
    assert (row["state"], row["attempts"], len(interrupt.limits)) == ("failed", 5, 5)


@pytest.mark.promise("E32")
def test_a_projector_has_the_deployments_limit_and_is_ended_as_a_bot_is(harness: Harness) -> None:
    seen: list[Projection] = []
    with harness.acme.transactions.begin() as transaction:
        harness.acme.cards.put(Card(tenant_id=ACME, card_id="c1"), transaction)
        binding = Binding(kind="mirror", target="there")
        harness.acme.boards.put(Board(tenant_id=ACME, board_id="b1", binding=binding), transaction)
        transaction.commit()
    moved = {"source": "board", "subject": "c1", "board": "b1", "from_state": "todo", "state": "doing"}
    append(harness.acme, harness.runtime(), "m", **moved)
    drain_whole(harness.acme, harness.runtime())
    projectors = {"mirror": seen.append}
    run_slice(harness.acme, replace(harness.runtime(projectors=projectors), interrupt=InterruptAtOnce()))
    row = harness.row(projection_key(ACME, "m"))
    assert (row["state"], row["attempts"]) == ("pending", 1)
    assert row["last_error"] == "overstayed its limit of 60s"
    harness.advance(timedelta(minutes=10))
    unhurried = InterruptAtOnce(ends=False)
    run_whole(harness.acme, replace(harness.runtime(projectors=projectors), interrupt=unhurried))
    assert unhurried.limits == [timedelta(seconds=60)]
    assert [projection.attempt for projection in seen] == [2]


@pytest.mark.promise("E32")
@pytest.mark.parametrize("stops", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_no_verdict_on_a_bot(harness: Harness, stops: type[BaseException]) -> None:
    (effect_id,) = owed(harness, "a")

    def bot(_: Run) -> None:
        raise stops

    with pytest.raises(stops):
        run_slice(harness.acme, harness.runtime({"bot": bot}))
    row = harness.row(effect_id)
    assert (row["state"], row["attempts"]) == ("claimed", 0)
    harness.advance(timedelta(seconds=61))
    run_whole(harness.acme, harness.runtime({"bot": lambda run: None}))  # noqa: ARG005
    row = harness.row(effect_id)
    assert (row["state"], row["attempts"], row["claims"]) == ("done", 1, 2)


@pytest.mark.promise("E32", "E41")
@pytest.mark.scenario(6)
def test_a_batch_that_takes_longer_than_its_lease_runs_nothing_twice_and_spends_no_attempt(harness: Harness) -> None:
    """A lease of 30 s, ten rows of 4 s each, and another worker that looks all the time."""
    runs: Counter[str] = Counter()
    rows = owed(harness, *(f"e{number}" for number in range(10)))

    def bot(run: Run) -> None:
        runs[run.effect_id] += 1
        harness.advance(timedelta(seconds=4))

    limits: dict[str, Any] = {"effect_lease": timedelta(seconds=30), "op_timeout": timedelta(seconds=5)}
    one = harness.runtime({"bot": bot}, worker="one", **limits)
    two = harness.runtime({"bot": bot}, worker="two", **limits)
    for _ in range(20):
        run_slice(harness.acme, one)
        run_slice(harness.acme, two)
        harness.change("tenant_slots", ACME, slice=[])
    assert runs == dict.fromkeys(rows, 1)
    assert {(row["state"], row["attempts"]) for row in harness.raw("trigger_effects", tenant_id=ACME)} == {("done", 0)}


@pytest.mark.promise("E32", "E26")
@pytest.mark.scenario(30)
def test_a_bot_that_no_heart_beats_for_is_fenced_out_and_repeated_at_most_once(harness: Harness) -> None:
    """It blocks its process for twice the lease; no renewal comes through, another worker takes the row meanwhile."""
    (effect_id,) = owed(harness, "a")
    ran: list[str] = []
    store = FaultyStore(harness.store, transient_at("effects.renew", times=100))
    second = harness.runtime({"bot": lambda run: ran.append(f"second, attempt {run.attempt}")}, worker="two")

    def blocked(run: Run) -> None:
        ran.append(f"first, attempt {run.attempt}")
        harness.advance(timedelta(seconds=121))
        run_whole(harness.acme, second)

    report = run_slice(store.tenant(ACME), harness.runtime({"bot": blocked}, worker="one"))
    assert report is not None
    assert (report.settled, report.fenced_out) == (0, 1)
    assert ran == ["first, attempt 1", "second, attempt 2"]
    row = harness.row(effect_id)
    assert (row["state"], row["claimed_by"], row["attempts"]) == ("done", "two", 1)
    harness.advance(timedelta(minutes=10))
    run_whole(harness.acme, second)
    assert len(ran) == 2


@pytest.mark.promise("E32", "E29")
@pytest.mark.scenario(31)
def test_a_row_whose_worker_vanishes_in_its_last_try_parks_and_blocks_nothing_behind_it(harness: Harness) -> None:
    doomed, behind = owed(harness, "a", "b")
    harness.change("trigger_effects", doomed, attempts=4)
    ran: list[str] = []
    dying = harness.acme.effects.claim_due(1, worker="dead", lease=harness.limits.effect_lease)
    assert [effect.effect_id for effect in dying.effects] == [doomed]
    runtime = harness.runtime({"bot": lambda run: ran.append(run.effect_id)})
    run_whole(harness.acme, runtime)
    assert ran == [behind]
    harness.advance(timedelta(seconds=61))
    run_whole(harness.acme, runtime)
    assert ran == [behind]
    row = harness.row(doomed)
    assert (row["state"], row["attempts"]) == ("failed", 5)
    assert "without coming back" in row["last_error"]


@pytest.mark.promise("E42")
def test_a_row_that_comes_as_every_slice_has_made_its_last_claim_waits_for_no_sweep(harness: Harness) -> None:
    """All slots are held, by a slice that will claim no more and by others; so whoever makes the row is refused one."""
    owed(harness, "a")
    ran: list[str] = []
    runtime = harness.runtime({"bot": lambda run: ran.append(run.event.event_id)})
    tokens = [harness.acme.slots.take(Lane.SLICE, timedelta(seconds=30)) for _ in range(runtime.limits.tenant_slots)]
    assert None not in tokens

    def give_back(lane: Lane, token: str) -> bool:
        """Another event is drained as the slice is about to give its slot back."""
        append(harness.acme, runtime, "b")
        drain_whole(harness.acme, runtime)
        return harness.acme.slots.give_back(lane, token)

    harness.hints.sent.clear()
    run_slice(with_calls(harness.acme, "slots", give_back=give_back), runtime, tokens[0])
    assert ran == ["a"]
    offered = [token for kind, _, token in harness.hints.sent if kind == "slice"]
    assert len(offered) == 1
    run_slice(harness.acme, runtime, offered[0])
    assert ran == ["a", "b"]
    # Where slots were free nobody was refused, and nothing is looked for.
    calm = FaultyStore(harness.store)
    harness.change("tenant_slots", ACME, slice=[])
    run_slice(calm.tenant(ACME), runtime)
    assert "effects.is_due" not in calm.calls
