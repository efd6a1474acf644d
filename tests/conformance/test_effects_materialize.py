"""What ports.effect_outbox promises of new rows and of looking at rows, on both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.effect import LAUNCH
from outbox_core.domain.errors import EffectNotFoundError, UnstorableRowError
from tests.harness.examples import (
    attributes,
    claim,
    dead_event,
    done,
    ids_of,
    materialize,
    new_effect,
    run_record,
)

if TYPE_CHECKING:
    from outbox_core.domain.event import Attributes
    from tests.harness.base import Harness

LEASE = timedelta(seconds=60)


@pytest.mark.promise("E12", "E21")
def test_a_row_is_born_pending_due_at_once_and_with_its_kind(harness: Harness) -> None:
    now = harness.now()
    effect = new_effect(3, attributes=attributes(labels=("Bug",), state="open"), trace={"t": "1"})
    assert harness.acme.effects.materialize([effect], now) == {"acme|e3|sub"}
    row = harness.acme.effects.get("acme|e3|sub")
    expected = {
        "_id": "acme|e3|sub",
        "tenant_id": "acme",
        "seq": 3,
        "event_id": "e3",
        "kind": LAUNCH,
        "state": "pending",
        "sub_id": "sub",
        "bot_id": "bot",
        "attempts": 0,
        "claims": 0,
        "not_before": now,
        "due_at": now,
        "runs_alone": False,
        "trace": {"t": "1"},
        "created_at": now,
        "updated_at": now,
        "run": None,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["attributes"]["snapshot"]["labels"] == ["Bug"]


@pytest.mark.promise("E08")
def test_a_dead_event_is_born_failed_with_its_error_and_never_due(harness: Harness) -> None:
    effect = dead_event("acme|broken")
    assert harness.acme.effects.materialize([effect], harness.now()) == {"acme|#event|acme|broken"}
    row = harness.acme.effects.get(effect.effect_id)
    assert (row["state"], row["kind"], row["last_error"]) == ("failed", "dead_event", "does not decode")
    assert harness.acme.effects.next_due() is None
    assert ids_of(claim(harness.acme, 10, LEASE)) == []


@pytest.mark.promise("E12")
@pytest.mark.scenario(21)
def test_two_drains_that_insert_the_same_keys_collapse_and_the_batch_goes_on(harness: Harness) -> None:
    """Scenario 21: the loser's duplicate key is success."""
    effects = [new_effect(number) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: harness.acme.effects.materialize(effects, harness.now()), range(8)))
    new = [effect_id for answer in answers for effect_id in answer]
    assert sorted(new) == sorted(effect.effect_id for effect in effects)
    more = [new_effect(number) for number in range(38, 43)]
    assert harness.acme.effects.materialize(more, harness.now()) == {f"acme|e{number}|sub" for number in (40, 41, 42)}


@pytest.mark.promise("E12")
def test_a_row_that_is_claimed_done_or_failed_is_left_exactly_as_it_is(harness: Harness) -> None:
    materialize(harness.acme, 3, now=harness.now())
    held = claim(harness.acme, 2, LEASE)
    harness.acme.effects.settle(held, {ids_of(held)[0]: done()})
    before = harness.raw("trigger_effects")
    harness.advance(timedelta(seconds=1))
    before = harness.raw("trigger_effects")
    again = [new_effect(number, bot_id="another") for number in (1, 2, 3)]
    assert harness.acme.effects.materialize(again, harness.now()) == frozenset()
    assert harness.raw("trigger_effects") == before


@pytest.mark.promise("E47")
def test_more_rows_than_one_command_takes_are_all_written(harness: Harness) -> None:
    effects = [new_effect(number) for number in range(2_500)]
    assert len(harness.acme.effects.materialize(effects, harness.now())) == 2_500
    assert harness.acme.effects.materialize(effects, harness.now()) == frozenset()
    assert harness.acme.effects.counts() == {"pending": 2_500}


@pytest.mark.promise("E15")
@pytest.mark.parametrize(
    "seen",
    [attributes(labels=("x" * 9_000,)), attributes(state="\ud800")],
    ids=["over its bound", "not encodable"],
)
def test_a_row_that_could_not_be_written_is_told_before_any_write(harness: Harness, seen: Attributes) -> None:
    harness.acme.effects.check(new_effect(attributes=attributes(labels=("x" * 7_000,))))
    with pytest.raises(UnstorableRowError):
        harness.acme.effects.check(new_effect(attributes=seen))
    assert harness.raw("trigger_effects") == []


def test_nothing_to_materialize_is_nothing(harness: Harness) -> None:
    assert harness.acme.effects.materialize([], harness.now()) == frozenset()


def test_the_newest_rows_come_first_page_by_page_whatever_their_numbers_are(harness: Harness) -> None:
    look = harness.acme.effects
    materialize(harness.acme, 12, now=harness.now())
    materialize(harness.acme, 12, now=harness.now(), sub_id="zub")
    harness.change("trigger_effects", "acme|e7|sub", seq=None)
    expected = [f"acme|e{seq}|{sub}" for seq in range(12, 0, -1) for sub in ("sub", "zub") if (seq, sub) != (7, "sub")]
    expected.append("acme|e7|sub")
    assert [row["_id"] for row in look.newest()] == expected
    paged: list[str] = []
    while page := look.newest(after=paged[-1] if paged else "", limit=5):
        paged += [row["_id"] for row in page]
    assert paged == expected
    assert [row["_id"] for row in look.newest(sub_id="zub", limit=2)] == ["acme|e12|zub", "acme|e11|zub"]
    assert look.newest(state="done") == []
    with pytest.raises(EffectNotFoundError, match="begin without it"):
        look.newest(after="acme|gone|sub")


def test_looking_at_rows(harness: Harness) -> None:
    materialize(harness.acme, 3, now=harness.now())
    materialize(harness.acme, 2, now=harness.now(), sub_id="zub")
    held = claim(harness.acme, 1, LEASE)
    run = run_record(harness.now(), result={"n": 1})
    harness.acme.effects.settle(held, {ids_of(held)[0]: done(run)})
    look = harness.acme.effects
    everything = [row["_id"] for row in look.list()]
    assert everything == sorted(everything)
    assert len(everything) == 5
    assert [row["_id"] for row in look.list(limit=2)] == everything[:2]
    assert [row["_id"] for row in look.list(after=everything[1], limit=2)] == everything[2:4]
    assert {row["sub_id"] for row in look.list(sub_id="zub")} == {"zub"}
    assert [row["_id"] for row in look.list(state="done")] == ids_of(held)
    assert look.list(state="done", sub_id="zub") == []
    assert look.counts() == {"pending": 4, "done:delivered": 1}
    assert look.get(ids_of(held)[0])["run"]["result"] == {"n": 1}
    with pytest.raises(EffectNotFoundError):
        look.get("acme|none|sub")


def test_when_the_next_row_is_due(harness: Harness) -> None:
    assert harness.acme.effects.next_due() is None
    now = harness.now()
    materialize(harness.acme, 1, now=now + timedelta(hours=1))
    materialize(harness.acme, 1, now=now, first=2)
    assert harness.acme.effects.next_due() == now
    claim(harness.acme, 1, LEASE)
    lease_end = harness.acme.effects.next_due()
    assert lease_end is not None
    assert timedelta(0) <= lease_end - now - LEASE < timedelta(seconds=10)
