"""Filters and updates that MongoDB gets: none is made without the claim that its edge needs."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from outbox_core.adapters.mongo.edges import Values, edge_filter, edge_update
from outbox_core.domain.effect_lifecycle import EDGES, Edge, Fence
from outbox_core.domain.errors import InvariantError


@pytest.mark.promise("E26")
@pytest.mark.parametrize("edge", [edge for edge in EDGES if edge.fence is Fence.HOLD], ids=lambda edge: edge.name)
def test_no_fenced_write_is_made_without_a_claim_id(edge: Edge) -> None:
    """An empty one would match every row that is claimed, or none."""
    with pytest.raises(InvariantError, match=edge.name):
        edge_filter(edge, "acme", ["a"])
    assert edge_filter(edge, "acme", ["a"], "mine")["claim_id"] == "mine"


@pytest.mark.promise("E26")
@pytest.mark.parametrize("edge", [edge for edge in EDGES if edge.fence is Fence.MINT], ids=lambda edge: edge.name)
def test_no_claim_is_made_without_a_fresh_claim_id(edge: Edge) -> None:
    with pytest.raises(InvariantError, match=edge.name):
        edge_update(edge, Values())


@pytest.mark.promise("E31")
@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.name)
def test_every_time_that_an_edge_writes_is_the_servers(edge: Edge) -> None:
    """A time of this process's own would let a worker whose clock is an hour off steal leases, or lose its own."""
    update = edge_update(edge, Values(claim_id="mine", worker="w", duration=timedelta(seconds=60), error="e"))
    assert "$$NOW" in str(update)
    assert not [value for value in leaves(update) if isinstance(value, datetime)]


def leaves(value: object) -> list[object]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if inner is None else [leaf for one in inner for leaf in leaves(one)]
