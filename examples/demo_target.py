"""The world that the demo's bots talk to: a small HTTP server that fails, refuses, or is not up yet, by path."""

from __future__ import annotations

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Target:
    """Answers /flaky with 503 the first time that it sees an Idempotency-Key, /gone with 410, and /later when `open_up`
    was called; /never stays down.
    """

    def __init__(self) -> None:
        self.posts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._up = False
        target = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(target.status(self.path))

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer(target.posted(self.path, self.headers.get("Idempotency-Key", "")))

            def _answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's parameter
                """Say nothing: the demo prints what came of it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def open_up(self) -> None:
        """From now on /later is up."""
        self._up = True

    def status(self, path: str) -> int:
        return {"/gone": 410, "/never": 503, "/later": 200 if self._up else 503}.get(path, 200)

    def posted(self, path: str, key: str) -> int:
        with self._lock:
            self.posts[path, key] += 1
            first = self.posts[path, key] == 1
        return 503 if path == "/flaky" and first else self.status(path)
