"""Which addresses a webhook may be posted to: public ones, and what a setting allows."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outbox_core.domain.errors import DefinitiveError
from outbox_core.webhook.verdict import NotDeliveredError

if TYPE_CHECKING:
    from collections.abc import Iterable

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NOT_PUBLIC_EITHER = (
    ipaddress.ip_network("192.0.0.0/24"),  # Of protocols, and a cloud's metadata.
    ipaddress.ip_network("168.63.129.16/32"),  # A cloud's own services, under a public number.
    ipaddress.ip_network("64:ff9b:1::/48"),  # Translated to whatever the local network chose.
)
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Hosts by name, and networks, that may be reached though they are not public."""

    hosts: frozenset[str]
    networks: tuple[_Network, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> Allowed:
        """Take the setting apart: what reads as a network is one, the rest are names of hosts."""
        hosts, networks = set[str](), list[_Network]()
        for name in names:
            try:
                networks.append(ipaddress.ip_network(name, strict=False))
            except ValueError:
                hosts.add(name.casefold())
        return cls(frozenset(hosts), tuple(networks))

    def permits(self, host: str, address: str) -> bool:
        """Say whether this address of this host may be connected to."""
        if host.casefold() in self.hosts:
            return True
        ip = ipaddress.ip_address(address)
        return all(
            _is_public(one) or any(one.version == network.version and one in network for network in self.networks)
            for one in _meant(ip)
        )


def addresses_of(host: str, port: int, allowed: Allowed) -> list[str]:
    """Resolve a host, once; return those of its addresses that may be connected to, as numbers.

    Raises NotDeliveredError where it does not resolve, DefinitiveError where none of its addresses is permitted.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotDeliveredError(f"{host} does not resolve: {error}") from None
    numbers = list(dict.fromkeys(str(place[4][0]) for place in found))
    permitted = [number for number in numbers if allowed.permits(host, number)]
    if not permitted:
        raise DefinitiveError(
            f"{host} is at {', '.join(numbers[:3])}, which is not public; to allow it, name the host or its network in "
            "OUTBOX_WEBHOOK_ALLOW_PRIVATE"
        )
    return permitted


def _is_public(ip: _Address) -> bool:
    return (
        ip.is_global
        and not ip.is_multicast
        and not any(ip.version == network.version and ip in network for network in _NOT_PUBLIC_EITHER)
    )


def _meant(ip: _Address) -> list[_Address]:
    """Return the address, or what a packet to it may reach: the IPv4 one that an IPv6 form carries."""
    if isinstance(ip, ipaddress.IPv4Address):
        return [ip]
    if ip.ipv4_mapped is not None:
        return [ip.ipv4_mapped]
    if ip in _TRANSLATED:
        return [ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)]
    inside = [ip.sixtofour] if ip.sixtofour is not None else list(ip.teredo or ())
    return [ip, *inside]
