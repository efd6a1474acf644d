"""Two workers that read the same due row before either has written: which of them has it, on the real store."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.examples import claim, ids_of, materialize

if TYPE_CHECKING:
    from outbox_core.domain.effect import Claim
    from tests.harness.on_mongo import MongoHarness

LEASE = timedelta(seconds=60)


def claim_that_a_rival_forestalls(harness: MongoHarness, monkeypatch: pytest.MonkeyPatch) -> tuple[Claim, Claim]:
    """Claim; between the look and the write a rival looks and writes. Return what each has got."""
    slow, quick = harness.acme, harness.store.tenant("acme")
    effects: Any = slow.effects
    look = effects._candidates
    rivals: list[Claim] = []

    def look_and_stall(limit: int) -> Any:  # noqa: ANN401 - what the look returns
        found = look(limit)
        rivals.append(claim(quick, limit, LEASE, "rival"))
        return found

    monkeypatch.setattr(effects, "_candidates", look_and_stall)
    mine = claim(slow, 10, LEASE, "slow")
    (rivals_claim,) = rivals
    return mine, rivals_claim


@pytest.mark.promise("E25")
def test_of_two_claims_that_read_one_due_row_the_first_to_write_has_it(
    mongo_harness: MongoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = materialize(mongo_harness.acme, 3, now=mongo_harness.now())
    mine, rivals = claim_that_a_rival_forestalls(mongo_harness, monkeypatch)
    assert (ids_of(mine), ids_of(rivals)) == ([], ids)
    # Which tells the slow one to stand aside of the head of the line the next time.
    assert (mine.lost, rivals.lost) == (3, 0)
    assert {row["claim_id"] for row in mongo_harness.raw("trigger_effects")} == {rivals.claim_id}


@pytest.mark.promise("E25", "E28")
def test_of_two_claims_that_read_one_row_whose_lease_is_over_the_first_to_write_has_it(
    mongo_harness: MongoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is the same before and after: only the lease, asked again at the write, tells that it is taken."""
    (effect_id,) = materialize(mongo_harness.acme, 1, now=mongo_harness.now())
    claim(mongo_harness.acme, 1, LEASE, "dead")
    mongo_harness.advance(LEASE + timedelta(seconds=1))
    mine, rivals = claim_that_a_rival_forestalls(mongo_harness, monkeypatch)
    assert (ids_of(mine), ids_of(rivals)) == ([], [effect_id])
    row = mongo_harness.row(effect_id)
    assert (row["claim_id"], row["claimed_by"], row["claims"], row["attempts"]) == (rivals.claim_id, "rival", 2, 1)
