"""The transport's cure, and the fault upstream that it is there for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
from kombu.connection import Connection
from kombu.transport import redis as upstream

from tasks import transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.embedded import EmbeddedRedis


# kombu is typed in part alone.
connect: Any = Connection


def closed_channel(url: str, transport_class: type) -> Any:  # noqa: ANN401 - kombu's
    """A channel that outlives its connection, as a consumer's does when the broker dies under it."""
    connection = connect(url, transport=transport_class)
    channel = connection.channel()
    connection.release()
    return channel


def abandoned_channel(url: str, transport_class: type) -> Any:  # noqa: ANN401 - kombu's
    """A channel whose own closing failed, since giving its messages back met the dead broker: it keeps its transport,
    which has lost the connection."""
    connection = connect(url, transport=transport_class)
    channel = connection.channel()

    def close() -> None:
        raise ConnectionResetError

    channel.close = close
    connection.collect()
    assert channel.connection is not None
    assert channel.connection.client is None
    return channel


@pytest.mark.promise("C03")
@pytest.mark.scenario(36)
@pytest.mark.parametrize("channel_of", [closed_channel, abandoned_channel])
def test_upstream_still_takes_a_closed_connection_for_a_fault_of_the_program(
    channel_of: Callable[[str, type], Any], redis_server: EmbeddedRedis
) -> None:
    """Where this fails, kombu has mended it: tasks/transport.py can go."""
    channel = channel_of(redis_server.url, upstream.Transport)
    with pytest.raises(AttributeError):
        channel._connparams()


@pytest.mark.promise("C03")
@pytest.mark.scenario(36)
@pytest.mark.parametrize("channel_of", [closed_channel, abandoned_channel])
def test_our_channel_reports_a_closed_connection_as_lost_which_makes_a_worker_reconnect(
    channel_of: Callable[[str, type], Any], redis_server: EmbeddedRedis
) -> None:
    channel = channel_of(redis_server.url, transport.Transport)
    with pytest.raises(redis.exceptions.ConnectionError) as caught:
        channel._connparams()
    assert isinstance(caught.value, transport.Transport.connection_errors)


def test_every_redis_address_gets_our_transport() -> None:
    transport.register()
    for scheme, expected in (
        ("redis", transport.Transport),
        ("rediss", transport.Transport),
        ("sentinel", transport.SentinelTransport),
    ):
        assert connect(f"{scheme}://127.0.0.1:1/0").get_transport_cls() is expected
