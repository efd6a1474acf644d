"""Which consumer ids are the same after a restart, and which would not be."""

from __future__ import annotations

import uuid

import pytest

from outbox_core.domain.consumer import require_consumer_id
from outbox_core.domain.errors import InvalidInputError

HOST, PROCESS_ID = "web-1.example.com", 4321


def required(consumer_id: object, host: str = HOST, process_id: int = PROCESS_ID) -> str:
    return require_consumer_id(consumer_id, host=host, process_id=process_id)


@pytest.mark.promise("L22")
@pytest.mark.parametrize(
    "consumer_id",
    [
        "board-cache",
        "face-cache",
        "dashboard-2",
        "deadbeef-role",
        "feed",
        "cafe",
        "decade",
        "a",
        "api.v2_cache",
        "search-index-2026",
        "eu-west-1-dashboard",
        "k8s-bridge",
        "remote-node-bridge-role-3",
        "web-cache",
        "my-web-10-cache",
        "bridge-432",
        "sha256-verifier",
        "x" * 64,
    ],
)
def test_a_name_that_says_a_role_passes(consumer_id: str) -> None:
    assert required(consumer_id) == consumer_id


@pytest.mark.promise("L22")
@pytest.mark.parametrize(
    ("consumer_id", "why"),
    [
        ("web-1.example.com", "host"),
        ("WEB-1.Example.com", "host"),
        ("cache-web-1", "host"),
        ("web-1_cache", "host"),
        ("cache.web-1.example.com", "host"),
        ("cache-4321", "process id"),
        ("pid4321", "process id"),
        ("cache-pid4321-x", "process id"),
        ("550e8400-e29b-41d4-a716-446655440000", "random"),
        ("cache-550e8400e29b41d4a716446655440000", "random"),
        ("3F2504E0", "random"),
        ("3fa85f64717c", "random"),
        ("dashboard-7d9f8b6c5d-x2x4z", "random"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "random"),
        ("cache-1732999999", "random"),
        ("run20261130", "random"),
        (f"cache-{uuid.UUID(int=2**127 + 12345).hex}", "random"),
        ("cache.9f86d081", "random"),
    ],
)
def test_a_hosts_name_a_process_id_and_what_is_random_are_refused_and_told_why(consumer_id: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why) as refused:
        required(consumer_id)
    assert "board-cache" in str(refused.value)


@pytest.mark.promise("L22")
def test_drawn_ids_are_refused() -> None:
    drawn = [uuid.UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) for number in range(1, 501)]
    for one in drawn:
        for text in (str(one), one.hex[:12], f"cache-{one.hex}"):
            # Of twelve drawn characters one in a hundred thousand has no digit.
            with pytest.raises(InvalidInputError):
                required(text)


@pytest.mark.promise("L22")
def test_what_every_machine_is_called_and_a_containers_process_id_tell_nothing() -> None:
    assert required("localhost-cache", host="localhost") == "localhost-cache"
    assert required("dashboard-2", process_id=2) == "dashboard-2"
    assert required("cache", host="") == "cache"
    with pytest.raises(InvalidInputError, match="host"):
        required("board-cache", host="board")


@pytest.mark.promise("L22")
@pytest.mark.parametrize("consumer_id", ["", None, 17, "has space", "a|b", "x" * 65, "ümlaut"])
def test_what_is_no_id_at_all_is_refused_first(consumer_id: object) -> None:
    with pytest.raises(InvalidInputError, match="consumer id"):
        required(consumer_id)
