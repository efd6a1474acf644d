"""One POST to a checked address: no redirect, no proxy, no second look-up of the name, a bound on time and on reading.

The name is resolved once and the connection goes to an address that was checked; Host, and the name that TLS verifies,
are still the host's. So a name that is moved to a private address between check and connection is of no use.
"""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpcore
import httpx

from outbox_core.domain.errors import DefinitiveError
from outbox_core.webhook.addresses import Allowed, addresses_of
from outbox_core.webhook.verdict import Answer, NotDeliveredError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping

MOST_READ_BYTES = 64 * 1024
MOST_URL_CHARS = 2_000
_EXCERPT_CHARS = 200
_WRITE_BYTES = 16 * 1024
_LAST_PORT = 65_535
_PORTS = {"http": 80, "https": 443}

_NO_ANSWER = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to post. `origin` is what errors may say of it: a path or a query can hold a token."""

    scheme: str
    host: str
    port: int
    target: bytes
    origin: str
    allowed: Allowed

    @classmethod
    def of(cls, url: str, allow_private: Iterable[str]) -> Target:
        """Read an address; raise DefinitiveError, without repeating it, where it is none to post to."""
        try:
            read = httpx.URL(url)
        except (httpx.InvalidURL, UnicodeError):
            raise DefinitiveError("url is no address; use for example https://example.com/hooks") from None
        if read.scheme not in _PORTS or not read.host or len(url) > MOST_URL_CHARS:
            raise DefinitiveError("url must be an http or https address with a host, of up to 2,000 characters")
        if read.userinfo:
            raise DefinitiveError("url must hold no user or password: a rule is no place for a secret")
        port = _PORTS[read.scheme] if read.port is None else read.port
        if not 0 < port <= _LAST_PORT:
            raise DefinitiveError("url names a port that there is not")
        host = read.raw_host.decode("ascii")
        shown = f"[{host}]" if ":" in host else host
        origin = f"{read.scheme}://{shown}" + ("" if read.port is None else f":{port}")
        return cls(read.scheme, host, port, read.raw_path, origin, Allowed.of(allow_private))


def send(target: Target, headers: Mapping[str, str], body: bytes, *, connect_s: float, total_s: float) -> Answer:
    """Post once; return the answer, of whatever status.

    Raises NotDeliveredError where there was none within `total_s` seconds (`connect_s` for each connection), and
    DefinitiveError where the address is refused.
    """
    backend = _CheckedBackend(target.allowed, connect_s, time.monotonic() + total_s)
    url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.target)
    try:
        with (
            httpcore.ConnectionPool(ssl_context=_ssl_context(), network_backend=backend) as pool,
            pool.stream("POST", url, headers=list(headers.items()), content=body) as response,
        ):
            excerpt = "" if 200 <= response.status < 300 else _excerpt(response)  # noqa: PLR2004 - success, as HTTP has it
            named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            return Answer(target.origin, response.status, named, excerpt)
    except _NO_ANSWER as error:
        why = " ".join(str(error).split())[:_EXCERPT_CHARS]
        raise NotDeliveredError(f"{target.origin}: {type(error).__name__}{': ' + why if why else ''}") from None


def _excerpt(response: httpcore.Response) -> str:
    """Return the beginning of a body as one printable line; what cannot be read of it does not matter."""
    read = b""
    with contextlib.suppress(*_NO_ANSWER):
        for chunk in response.iter_stream():
            read += chunk
            if len(read) >= MOST_READ_BYTES:
                break
    text = " ".join(read[:MOST_READ_BYTES].decode(errors="replace").split())
    return "".join(one if one.isprintable() else "?" for one in text[:_EXCERPT_CHARS])


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    """Reading the certificates takes longer than a request; SSL_CERT_FILE and SSL_CERT_DIR add a deployment's own."""
    return httpx.create_ssl_context()


class _CheckedBackend(httpcore.NetworkBackend):
    """Connects to checked addresses alone, and ends everything at one deadline (of the monotonic clock)."""

    def __init__(self, allowed: Allowed, connect_s: float, deadline: float) -> None:
        self._inner = httpcore.SyncBackend()
        self._allowed = allowed
        self._connect_s = connect_s
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first permitted address that answers."""
        del timeout
        failed: Exception | None = None
        for address in addresses_of(host, port, self._allowed):
            left = min(self._connect_s, _left(self._deadline, httpcore.ConnectTimeout))
            try:
                stream = self._inner.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
            else:
                return _TimedStream(stream, self._deadline)
        raise failed or httpcore.ConnectError("no address")


class _TimedStream(httpcore.NetworkStream):
    """A stream whose every wait ends at the deadline: a peer that drips a byte a second gains nothing."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: float) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read what comes first, or time out."""
        del timeout
        return self._inner.read(max_bytes, _left(self._deadline, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all, piece by piece, or time out."""
        del timeout
        for start in range(0, len(buffer), _WRITE_BYTES):
            left = _left(self._deadline, httpcore.WriteTimeout)
            self._inner.write(buffer[start : start + _WRITE_BYTES], left)

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Shake hands, or time out; the name that is verified is the host's."""
        del timeout
        left = _left(self._deadline, httpcore.ConnectTimeout)
        return _TimedStream(self._inner.start_tls(ssl_context, server_hostname, left), self._deadline)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - the library's own form
        """Tell of the connection."""
        return self._inner.get_extra_info(info)


def _left(deadline: float, timed_out: type[httpcore.TimeoutException]) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise timed_out("out of time")
    return left
