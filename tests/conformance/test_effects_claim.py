"""What ports.effect_outbox promises of claims and leases, on both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain import effect_lifecycle as lifecycle
from tests.harness.examples import by_edge, claim, done, ids_of, materialize, new_effect

if TYPE_CHECKING:
    from outbox_core.domain.effect import Claim
    from tests.harness.base import Harness

LEASE = timedelta(seconds=60)
OVER = timedelta(seconds=61)


@pytest.mark.promise("E25", "E26")
def test_of_eight_claimers_and_a_thousand_rows_no_row_is_claimed_twice(harness: Harness) -> None:
    written = materialize(harness.acme, 1_000, now=harness.now())

    def claimer(number: int) -> list[Claim]:
        claims, store = [], harness.other_process().tenant("acme")
        misses = 0
        while misses < 3:
            one = claim(store, 40, LEASE, f"worker-{number}")
            claims.append(one)
            # A claimer whose candidates all went to others gets none, and asks again.
            misses = 0 if one.effects else misses + 1
        return claims

    with ThreadPoolExecutor(8) as pool:
        claims = [one for claims in pool.map(claimer, range(8)) for one in claims]
    taken = [effect_id for one in claims for effect_id in ids_of(one)]
    assert sorted(taken) == sorted(written)
    assert len({one.claim_id for one in claims}) == len(claims)
    holders = {effect_id: one.claim_id for one in claims for effect_id in ids_of(one)}
    rows = harness.raw("trigger_effects")
    assert {row["_id"]: row["claim_id"] for row in rows} == holders
    assert {(row["state"], row["claims"], row["attempts"]) for row in rows} == {("claimed", 1, 0)}


@pytest.mark.promise("E25")
@pytest.mark.scenario(10)
def test_a_live_lease_excludes(harness: Harness) -> None:
    """Scenario 10: hint and sweep race for an effect that was due a minute ago; it runs once."""
    materialize(harness.acme, 1, now=harness.now() - timedelta(minutes=1))
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: claim(harness.acme, 10, LEASE), range(8)))
    assert sorted(len(one.effects) for one in claims) == [0] * 7 + [1]
    harness.advance(LEASE - timedelta(seconds=10))
    assert ids_of(claim(harness.acme, 10, LEASE)) == []


def test_a_claim_says_what_it_took_until_when_and_at_what_time(harness: Harness) -> None:
    (effect_id,) = materialize(harness.acme, 1, now=harness.now())
    before, local = harness.now(), harness.clock.monotonic()
    held = claim(harness.acme, 10, LEASE, "worker-7")
    assert before <= held.claimed_at <= harness.now()
    assert local + 60 <= held.lease_ends <= harness.clock.monotonic() + 60
    (effect,) = held.effects
    assert (effect.effect_id, effect.owner, effect.tenant_id) == (effect_id, "acme", "acme")
    assert (effect.attempts, effect.claims, effect.due_at) == (0, 1, effect.created_at)
    row = harness.row(effect_id)
    assert (row["claim_id"], row["claimed_by"], row["state"]) == (held.claim_id, "worker-7", "claimed")
    assert row["due_at"] == effect.due_at
    assert (held.more, held.parked) == (False, 0)


@pytest.mark.promise("E28", "E26")
@pytest.mark.scenario(29)
def test_a_lease_that_ran_out_is_reclaimed_with_one_attempt_more_whoever_asks(harness: Harness) -> None:
    """Scenario 29: a worker is replaced by one of the same name; the old one's rows do not look alive."""
    materialize(harness.acme, 1, now=harness.now())
    first = claim(harness.acme, 10, LEASE, "worker-1")
    harness.advance(OVER)
    second = claim(harness.acme, 10, LEASE, "worker-1")
    (effect,) = second.effects
    assert second.claim_id != first.claim_id
    assert (effect.attempts, effect.claims) == (1, 2)
    assert harness.acme.effects.settle(first, {effect.effect_id: done()}).fenced_out == {effect.effect_id}


@pytest.mark.promise("E28")
def test_rows_whose_lease_ran_out_are_claimed_one_by_one(harness: Harness) -> None:
    written = materialize(harness.acme, 3, now=harness.now())
    claim(harness.acme, 10, LEASE)
    harness.advance(OVER)
    claims = [claim(harness.acme, 10, LEASE) for _ in range(4)]
    assert [len(one.effects) for one in claims] == [1, 1, 1, 0]
    assert sorted(effect_id for one in claims for effect_id in ids_of(one)) == sorted(written)
    assert [one.more for one in claims[:2]] == [True, True]
    assert {row["runs_alone"] for row in harness.raw("trigger_effects")} == {True}


@pytest.mark.promise("E28")
def test_a_row_that_runs_alone_does_so_after_its_release_and_shares_again_after_a_retry(harness: Harness) -> None:
    written = materialize(harness.acme, 3, now=harness.now())
    claim(harness.acme, 1, LEASE)
    harness.advance(OVER)
    materialize(harness.acme, 2, now=harness.now() - timedelta(hours=1), first=10)
    shared = claim(harness.acme, 10, LEASE)
    assert written[0] not in ids_of(shared)
    alone = claim(harness.acme, 10, LEASE)
    assert ids_of(alone) == [written[0]]
    assert harness.acme.effects.release(alone, [written[0]]) == 1
    again = claim(harness.acme, 10, LEASE)
    assert ids_of(again) == [written[0]]
    harness.acme.effects.settle(again, {written[0]: by_edge(lifecycle.RETRY)})
    assert harness.row(written[0])["runs_alone"] is False
    materialize(harness.acme, 1, now=harness.now(), first=20)
    assert len(claim(harness.acme, 10, LEASE).effects) == 2


@pytest.mark.promise("E28")
def test_a_row_that_runs_alone_is_left_out_of_a_batch_that_it_does_not_lead(harness: Harness) -> None:
    written = materialize(harness.acme, 3, now=harness.now())
    harness.change("trigger_effects", written[1], runs_alone=True)
    first = claim(harness.acme, 10, LEASE)
    assert (ids_of(first), first.more) == ([written[0], written[2]], True)
    assert ids_of(claim(harness.acme, 10, LEASE)) == [written[1]]


@pytest.mark.parametrize("name", ["$state", "$$NOW", "{}"])
def test_a_workers_name_is_kept_as_it_is(harness: Harness, name: str) -> None:
    (effect_id,) = materialize(harness.acme, 1, now=harness.now())
    claim(harness.acme, 1, LEASE, worker=name)
    assert harness.row(effect_id)["claimed_by"] == name


@pytest.mark.promise("E30")
def test_pending_and_lease_over_rows_are_taken_in_one_due_order(harness: Harness) -> None:
    start = harness.now()
    for number in range(1, 7):
        materialize(harness.acme, 1, now=start - timedelta(minutes=10 - number), first=number)
    stuck = claim(harness.acme, 2, LEASE)
    harness.acme.effects.release(claim(harness.acme, 1, LEASE), ["acme|e3|sub"])
    assert ids_of(stuck) == ["acme|e1|sub", "acme|e2|sub"]
    harness.advance(OVER)
    fresh = harness.now() + timedelta(seconds=30)
    materialize(harness.acme, 1, now=fresh, first=9)
    harness.advance(timedelta(seconds=31))
    order = [ids_of(claim(harness.acme, 10, LEASE)) for _ in range(4)]
    numbers = [[effect_id.split("|")[1] for effect_id in ids] for ids in order]
    assert numbers == [["e3", "e4", "e5", "e6", "e9"], ["e1"], ["e2"], []]


@pytest.mark.promise("E30")
def test_neither_kind_starves_under_a_steady_stream_of_the_other(harness: Harness) -> None:
    (stuck,) = materialize(harness.acme, 1, now=harness.now())
    claim(harness.acme, 1, LEASE)
    harness.advance(OVER)
    taken = []
    for round_number in range(1, 4):
        materialize(harness.acme, 5, now=harness.now(), first=100 * round_number)
        harness.advance(timedelta(seconds=1))
        taken += ids_of(claim(harness.acme, 5, LEASE))
    assert stuck in taken
    assert len(taken) > 5


def test_no_more_is_claimed_than_asked_for_and_the_oldest_first(harness: Harness) -> None:
    for number in range(1, 6):
        materialize(harness.acme, 1, now=harness.now() - timedelta(minutes=10 * number), first=number)
    first = claim(harness.acme, 2, LEASE)
    assert (ids_of(first), first.more) == (["acme|e5|sub", "acme|e4|sub"], True)
    rest = claim(harness.acme, 10, LEASE)
    assert (ids_of(rest), rest.more) == (["acme|e3|sub", "acme|e2|sub", "acme|e1|sub"], False)


def stand_in_line(harness: Harness, count: int) -> list[str]:
    """Materialize rows of one due time whose ids stand in the order of their birth."""
    effects = [new_effect(number, event_id=f"e{number:03d}") for number in range(count)]
    harness.acme.effects.materialize(effects, harness.now())
    return [effect.effect_id for effect in effects]


@pytest.mark.promise("E30")
def test_a_claim_in_a_crowd_takes_the_oldest_eighth_and_a_sample_that_others_draw_differently(harness: Harness) -> None:
    written = stand_in_line(harness, 200)
    first, second = (claim(harness.acme, 40, LEASE, crowded=True) for _ in range(2))
    places = [written.index(effect_id) for effect_id in ids_of(first)]
    assert (len(places), places[:5]) == (40, [0, 1, 2, 3, 4])
    assert (places == sorted(places), places != list(range(40)), max(places) < 160) == (True, True, True)
    left = [effect_id for effect_id in written if effect_id not in ids_of(first)]
    assert ids_of(second)[:5] == left[:5]
    assert [left.index(effect_id) for effect_id in ids_of(second)] != places
    assert (first.more, second.more, first.lost, second.lost) == (True, True, 0, 0)


@pytest.mark.promise("E30")
def test_where_few_rows_are_due_a_claim_in_a_crowd_keeps_their_order(harness: Harness) -> None:
    written = stand_in_line(harness, 159)
    assert ids_of(claim(harness.acme, 40, LEASE, crowded=True)) == written[:40]
    assert ids_of(claim(harness.acme, 1, LEASE, crowded=True)) == written[40:41]


@pytest.mark.promise("E30", "E40")
def test_neither_a_retry_nor_a_lease_that_is_over_waits_for_ever_in_a_crowd(harness: Harness) -> None:
    """A steady stream keeps the line as long as it is; each claim takes its head, so every row comes to stand there."""
    (stuck,) = materialize(harness.acme, 1, now=harness.now())
    claim(harness.acme, 1, LEASE)
    harness.advance(OVER)
    (retry,) = materialize(harness.acme, 1, now=harness.now(), first=2)
    held = claim(harness.acme, 1, LEASE)
    while ids_of(held) != [retry]:
        harness.acme.effects.release(held, ids_of(held))
        harness.change("trigger_effects", stuck, not_before=harness.now() + timedelta(seconds=1))
        held = claim(harness.acme, 1, LEASE)
    harness.acme.effects.settle(held, {retry: by_edge(lifecycle.RETRY, timedelta(seconds=1))})
    materialize(harness.acme, 40, now=harness.now() - timedelta(minutes=1), first=100)
    harness.advance(timedelta(seconds=2))
    taken: list[str] = []
    for round_number in range(2, 40):
        materialize(harness.acme, 16, now=harness.now(), first=100 * round_number)
        taken += ids_of(claim(harness.acme, 8, LEASE, crowded=True))
        if {stuck, retry} <= set(taken):
            break
    assert {stuck, retry} <= set(taken)


@pytest.mark.promise("E28")
def test_in_a_crowd_too_a_row_whose_lease_is_over_is_claimed_by_itself_and_shares_no_batch(harness: Harness) -> None:
    written = materialize(harness.acme, 3, now=harness.now())
    claim(harness.acme, 3, LEASE)
    harness.advance(OVER)
    fresh = materialize(harness.acme, 60, now=harness.now(), first=10)
    harness.change("trigger_effects", fresh[0], not_before=harness.now() - timedelta(hours=1))
    assert not set(ids_of(claim(harness.acme, 8, LEASE, crowded=True))) & set(written)
    for _ in written:
        alone = claim(harness.acme, 8, LEASE, crowded=True)
        assert (len(alone.effects), set(ids_of(alone)) <= set(written), alone.more) == (1, True, True)


@pytest.mark.parametrize(("due", "more"), [(3, False), (4, True)])
def test_a_claim_says_exactly_whether_others_are_due(harness: Harness, due: int, more: bool) -> None:  # noqa: FBT001 - a case
    materialize(harness.acme, due, now=harness.now())
    held = claim(harness.acme, 3, LEASE)
    assert (len(held.effects), held.more) == (3, more)


def test_a_row_that_is_not_due_yet_is_left(harness: Harness) -> None:
    materialize(harness.acme, 1, now=harness.now() + timedelta(minutes=1))
    nothing = claim(harness.acme, 10, LEASE)
    assert (nothing.effects, nothing.more, nothing.parked) == ((), False, 0)
    harness.advance(OVER)
    assert len(claim(harness.acme, 10, LEASE).effects) == 1


@pytest.mark.promise("E31")
@pytest.mark.scenario(7)
@pytest.mark.parametrize("skew", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "behind"])
def test_a_worker_whose_clock_is_an_hour_off_neither_steals_nor_keeps_a_lease(
    harness: Harness, skew: timedelta
) -> None:
    """Scenario 7: worker B's clock is ahead of A's lease."""
    materialize(harness.acme, 2, now=harness.now())
    skewed = harness.other_process(skew).tenant("acme")
    mine = claim(harness.acme, 1, LEASE)
    theirs = claim(skewed, 10, LEASE)
    assert len(theirs.effects) == 1
    assert not set(ids_of(mine)) & set(ids_of(theirs))
    assert ids_of(claim(skewed, 10, LEASE)) == []
    harness.advance(LEASE - timedelta(seconds=10))
    assert ids_of(claim(skewed, 10, LEASE)) == []
    assert ids_of(claim(harness.acme, 10, LEASE)) == []
    harness.advance(timedelta(seconds=11))
    assert len(claim(harness.acme, 1, LEASE).effects) == 1
    assert len(claim(skewed, 1, LEASE).effects) == 1


@pytest.mark.promise("E31")
def test_a_worker_with_a_longer_lease_is_honoured(harness: Harness) -> None:
    materialize(harness.acme, 1, now=harness.now())
    long = claim(harness.acme, 1, timedelta(minutes=10))
    harness.advance(timedelta(minutes=5))
    assert ids_of(claim(harness.acme, 10, LEASE)) == []
    assert harness.acme.effects.settle(long, {ids_of(long)[0]: done()}).owned == set(ids_of(long))


@pytest.mark.promise("E32")
def test_a_renewed_lease_holds_and_is_never_shortened(harness: Harness) -> None:
    written = materialize(harness.acme, 2, now=harness.now())
    held = claim(harness.acme, 10, LEASE)
    for _ in range(3):
        harness.advance(timedelta(seconds=40))
        assert harness.acme.effects.renew(held, written[:1], LEASE) == 1
    assert ids_of(claim(harness.acme, 10, LEASE)) == written[1:]
    ends = harness.row(written[0])["not_before"]
    assert harness.acme.effects.renew(held, written[:1], timedelta(seconds=1)) == 1
    assert harness.row(written[0])["not_before"] == ends
    assert harness.acme.effects.renew(held, [], LEASE) == 0


@pytest.mark.promise("E26")
def test_only_the_claim_that_holds_a_row_renews_and_releases_it(harness: Harness) -> None:
    written = materialize(harness.acme, 1, now=harness.now())
    stale = claim(harness.acme, 10, LEASE)
    harness.advance(OVER)
    holder = claim(harness.acme, 10, LEASE)
    before = harness.row(written[0])
    assert harness.acme.effects.renew(stale, written, timedelta(hours=1)) == 0
    assert harness.acme.effects.release(stale, written) == 0
    assert harness.row(written[0]) == before
    assert (harness.row(written[0])["claim_id"], harness.row(written[0])["state"]) == (holder.claim_id, "claimed")


@pytest.mark.promise("E41")
@pytest.mark.scenario(58)
def test_released_rows_keep_their_place_in_line_and_their_attempts(harness: Harness) -> None:
    """Scenario 58: a slice claims 200 rows, runs 5 and releases the rest."""
    start = harness.now() - timedelta(hours=1)
    for number in range(200):
        harness.acme.effects.materialize([new_effect(number)], start + timedelta(seconds=number))
    held = claim(harness.acme, 200, LEASE)
    ran, rest = ids_of(held)[:5], ids_of(held)[5:]
    assert harness.acme.effects.settle(held, {effect_id: done() for effect_id in ran}).owned == set(ran)
    assert harness.acme.effects.release(held, rest) == 195
    materialize(harness.acme, 3, now=start + timedelta(seconds=7, milliseconds=500), first=500)
    again = claim(harness.acme, 200, LEASE)
    numbers = [effect.seq for effect in again.effects]
    assert numbers == [5, 6, 7, 500, 501, 502, *range(8, 200)]
    assert {effect.attempts for effect in again.effects} == {0}
    assert {effect.claims for effect in again.effects if effect.seq < 500} == {2}


@pytest.mark.promise("E29")
@pytest.mark.scenario(31)
def test_a_row_reclaimed_past_its_budget_parks_and_blocks_nothing(harness: Harness) -> None:
    """Scenario 31: the connection dies with the attempts at the limit while leased."""
    written = materialize(harness.acme, 1, now=harness.now())
    for _ in range(harness.limits.max_effect_attempts):
        claim(harness.acme, 10, LEASE)
        harness.advance(OVER)
    materialize(harness.acme, 1, now=harness.now(), first=9)
    last = claim(harness.acme, 10, LEASE)
    (effect,) = last.effects
    assert (effect.effect_id, effect.attempts) == (written[0], harness.limits.max_effect_attempts)
    assert harness.acme.effects.settle(last, {written[0]: by_edge(lifecycle.PARK_HUNG)}).owned == set(written)
    assert (harness.row(written[0])["state"], harness.row(written[0])["attempts"]) == ("failed", effect.attempts)
    assert ids_of(claim(harness.acme, 10, LEASE)) == ["acme|e9|sub"]


# --- malformed rows ---


@pytest.mark.promise("E45")
@pytest.mark.parametrize("time", [None, "soon", 7, {"at": 1}, "missing"], ids=repr)
@pytest.mark.parametrize("state", ["pending", "claimed"])
def test_a_row_that_could_never_be_due_parks_once_nothing_else_is(harness: Harness, time: object, state: str) -> None:
    materialize(harness.acme, 2, now=harness.now())
    broken = harness.row("acme|e1|sub")
    broken["state"] = state
    if time == "missing":
        del broken["not_before"]
    else:
        broken["not_before"] = time
    harness.put_raw("trigger_effects", broken)
    assert ids_of(claim(harness.acme, 10, LEASE)) == ["acme|e2|sub"]
    empty = claim(harness.acme, 10, LEASE)
    assert (empty.effects, empty.parked) == ((), 1)
    row = harness.row("acme|e1|sub")
    assert (row["state"], "not_before" in row["last_error"]) == ("failed", True)
    assert claim(harness.acme, 10, LEASE).parked == 0


@pytest.mark.promise("E45")
@pytest.mark.parametrize(
    "broken",
    [
        {"seq": "one"},
        {"seq": None},
        {"attempts": "three"},
        {"attempts": -1},
        {"attributes": None},
        {"attributes": {"source": "app"}},
        {"attributes": "text"},
        {"event_id": None},
        {"created_at": "yesterday"},
        {"waiting_since": 5},
        {"trace": {"a": 1}},
        {"kind": 5},
        {"sub_id": ["x"]},
    ],
    ids=str,
)
def test_a_due_row_that_does_not_decode_parks_and_its_batch_goes_on(
    harness: Harness, broken: dict[str, object]
) -> None:
    """Scenario 14: that row parks, the rest proceed."""
    materialize(harness.acme, 3, now=harness.now())
    harness.change("trigger_effects", "acme|e2|sub", **broken)
    held = claim(harness.acme, 10, LEASE)
    assert (ids_of(held), held.parked) == (["acme|e1|sub", "acme|e3|sub"], 1)
    row = harness.row("acme|e2|sub")
    assert row["state"] == "failed"
    assert next(iter(broken)) in row["last_error"] or "key" in row["last_error"]


@pytest.mark.promise("E45")
@pytest.mark.scenario(27)
def test_pages_full_of_broken_rows_hide_no_later_one(harness: Harness) -> None:
    """Scenario 27: a full page of rows that cannot be rescued; later ones are still found."""
    old = harness.now() - timedelta(hours=1)
    broken = materialize(harness.acme, 9, now=old)
    for effect_id in broken[:6]:
        harness.change("trigger_effects", effect_id, attributes=None)
    for effect_id in broken[6:]:
        harness.change("trigger_effects", effect_id, not_before=None)
    (good,) = materialize(harness.acme, 1, now=harness.now(), first=50)
    claims = [claim(harness.acme, 3, LEASE) for _ in range(4)]
    assert [ids_of(one) for one in claims] == [[], [], [good], []]
    assert [one.parked for one in claims] == [3, 3, 0, 3]
    assert claims[0].more is True
    assert harness.acme.effects.counts() == {"failed": 9, "claimed": 1}


@pytest.mark.promise("E45", "E37")
def test_a_malformed_count_of_claims_does_not_stop_a_claim(harness: Harness) -> None:
    """It may hide an earlier claim, and so a run that finished: it is not taken for a first one."""
    materialize(harness.acme, 2, now=harness.now())
    harness.change("trigger_effects", "acme|e1|sub", claims="many")
    held = claim(harness.acme, 10, LEASE)
    assert [effect.claims for effect in held.effects] == [2, 1]


@pytest.mark.promise("E12", "E45")
@pytest.mark.parametrize("forged", [{"event_id": "e9"}, {"sub_id": "another"}, {"event_id": "e1|sub", "sub_id": "x"}])
def test_a_row_whose_fields_do_not_yield_its_key_parks_as_malformed(
    harness: Harness, forged: dict[str, object]
) -> None:
    materialize(harness.acme, 2, now=harness.now())
    harness.change("trigger_effects", "acme|e1|sub", **forged)
    held = claim(harness.acme, 10, LEASE)
    assert (ids_of(held), held.parked) == (["acme|e2|sub"], 1)
    assert harness.row("acme|e1|sub")["state"] == "failed"


@pytest.mark.promise("E24")
def test_a_row_under_another_tenants_key_names_its_owner(harness: Harness) -> None:
    materialize(harness.acme, 1, now=harness.now())
    forged = {**harness.row("acme|e1|sub"), "_id": "other|e1|sub"}
    harness.put_raw("trigger_effects", forged)
    held = claim(harness.acme, 10, LEASE)
    assert {(effect.effect_id, effect.owner, effect.tenant_id) for effect in held.effects} == {
        ("acme|e1|sub", "acme", "acme"),
        ("other|e1|sub", "other", "acme"),
    }
    refused = harness.acme.effects.settle(held, {"other|e1|sub": by_edge(lifecycle.REFUSE, error="another tenant's")})
    assert refused.owned == {"other|e1|sub"}
    assert (harness.row("other|e1|sub")["state"], harness.row("other|e1|sub")["last_error"]) == (
        "failed",
        "another tenant's",
    )


@pytest.mark.promise("E21", "O08")
def test_a_row_of_an_older_version_is_a_launch_with_defaults_and_keeps_what_is_not_known(harness: Harness) -> None:
    materialize(harness.acme, 1, now=harness.now())
    row = harness.row("acme|e1|sub")
    kept = {
        name: row[name]
        for name in ("_id", "tenant_id", "seq", "event_id", "state", "attributes", "sub_id", "not_before", "created_at")
    }
    harness.put_raw("trigger_effects", {**kept, "of_a_later_version": {"x": [1]}})
    held = claim(harness.acme, 10, LEASE)
    (effect,) = held.effects
    assert (effect.kind, effect.attempts, effect.claims, effect.trace) == ("launch", 0, 2, {})
    assert effect.waiting_since is None
    harness.acme.effects.release(held, [effect.effect_id])
    again = claim(harness.acme, 10, LEASE)
    assert ids_of(again) == [effect.effect_id]
    harness.acme.effects.settle(again, {effect.effect_id: done()})
    assert harness.row("acme|e1|sub")["of_a_later_version"] == {"x": [1]}


@pytest.mark.promise("O08", "E41")
def test_a_row_that_an_older_version_claimed_is_reclaimed_and_released_without_losing_its_due_time(
    harness: Harness,
) -> None:
    materialize(harness.acme, 1, now=harness.now())
    row = harness.row("acme|e1|sub")
    del row["due_at"]
    harness.put_raw("trigger_effects", {**row, "state": "claimed", "claim_id": "old"})
    held = claim(harness.acme, 10, LEASE)
    assert ids_of(held) == ["acme|e1|sub"]
    assert harness.acme.effects.release(held, ids_of(held)) == 1
    assert claim(harness.acme, 10, LEASE).parked == 0
    harness.advance(OVER)
    assert ids_of(claim(harness.acme, 10, LEASE)) == ["acme|e1|sub"]
