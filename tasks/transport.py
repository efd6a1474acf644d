"""A Redis transport that outlives its broker and what stands in its queues, under kombu's own names.

When the broker dies while a worker holds unacked messages, kombu's channel restores them through a new pool, which it
builds from a connection whose client is already None. The AttributeError ends the worker's main process. Said as what
it is, a lost connection, the same moment makes the worker reconnect. Naming a transport class in the settings instead
of replacing the alias would break Flower's broker pages.

A line in a queue that is not even an envelope would likewise end the process that takes it; here it is dropped.
"""

from __future__ import annotations

import logging
from typing import Any

import redis
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as upstream
from kombu.transport.virtual import Message as UpstreamMessage

_logger = logging.getLogger(__name__)


class Message(UpstreamMessage):
    """kombu's message, which says what is wrong of headers and properties that are none in the way that is dropped."""

    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:  # noqa: ANN401 - kombu's own
        for name in ("headers", "properties"):
            if not isinstance(payload[name], dict):
                raise TypeError(f"{name}: {type(payload[name]).__name__}")
        super().__init__(payload, channel, **options)  # type: ignore[no-untyped-call]  # kombu's


class _Sturdy:
    """Mixed into kombu's channels."""

    Message = Message  # kombu's way of choosing one
    connection: Any

    def _brpop_read(self, **options: Any) -> bool:  # noqa: ANN401 - kombu's own
        try:
            read: bool = super()._brpop_read(**options)  # type: ignore[misc]
        except (KeyError, TypeError, ValueError) as error:
            _logger.warning("a line in a queue is no message and was dropped: %s", type(error).__name__)
            return True
        return read

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - kombu's signature
        if self.connection is None or self.connection.client is None:
            raise redis.exceptions.ConnectionError("the broker's connection was closed meanwhile")
        parameters: dict[str, Any] = super()._connparams(asynchronous=asynchronous)  # type: ignore[misc]
        return parameters


class Channel(_Sturdy, upstream.Channel):
    """kombu's channel, which reports a closed connection as lost."""


class SentinelChannel(_Sturdy, upstream.SentinelChannel):
    """The same behind Sentinel."""


class Transport(upstream.Transport):
    """kombu's transport with that channel."""

    Channel = Channel  # type: ignore[mutable-override]  # kombu's way of choosing one


class SentinelTransport(upstream.SentinelTransport):
    """The same behind Sentinel."""

    Channel = SentinelChannel  # type: ignore[mutable-override]  # as above


def register() -> None:
    """Put these transports in the place of kombu's, for this process; a repeat changes nothing."""
    for alias in ("redis", "rediss"):
        TRANSPORT_ALIASES[alias] = f"{__name__}:Transport"
    TRANSPORT_ALIASES["sentinel"] = f"{__name__}:SentinelTransport"
