"""A Redis transport that outlives its broker, put in the place of kombu's under kombu's own names.

When the broker dies while a worker holds unacked messages, kombu's channel restores them through a new pool, which it
builds from a connection whose client is already None. The AttributeError ends the worker's main process. Said as what
it is, a lost connection, the same moment makes the worker reconnect. Naming a transport class in the settings instead
of replacing the alias would break Flower's broker pages.
"""

from __future__ import annotations

from typing import Any

import redis
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as upstream


class _LostIsNotAFault:
    """Mixed into kombu's channels."""

    connection: Any

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - kombu's signature
        if self.connection is None or self.connection.client is None:
            raise redis.exceptions.ConnectionError("the broker's connection was closed meanwhile")
        parameters: dict[str, Any] = super()._connparams(asynchronous=asynchronous)  # type: ignore[misc]
        return parameters


class Channel(_LostIsNotAFault, upstream.Channel):
    """kombu's channel, which reports a closed connection as lost."""


class SentinelChannel(_LostIsNotAFault, upstream.SentinelChannel):
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
