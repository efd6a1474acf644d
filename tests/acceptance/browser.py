"""A real Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tornado.websocket import websocket_connect

from outbox_core.embedded import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tornado.websocket import WebSocketClientConnection

PROGRAM = "chromium"
READY_WITHIN = timedelta(seconds=30)
ANSWER_WITHIN_S = 20.0
LARGEST_ANSWER = 2**26
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def missing() -> str:
    """Return why no browser can be driven here, "" where one can."""
    return "" if shutil.which(PROGRAM) else f"there is no program {PROGRAM} on PATH"


class Browser:
    """One page of one browser; `complaints` is what its console was told as an error."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: WebSocketClientConnection) -> None:
        self._loop = loop
        self._socket = socket
        self._sent = 0
        self._session = ""
        self.complaints: list[str] = []
        page = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Log", "Page", "Runtime"):
            self.command(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go there."""
        self.command("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401 - what the page's script says
        """Return a JavaScript expression's value."""
        return self.command("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def look(self, *, width: int, height: int = 700, scheme: str = "light") -> None:
        """Be a reader with a screen of this size, who prefers "light" or "dark"."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, file: Path) -> None:
        """Keep what is seen."""
        file.write_bytes(base64.b64decode(self.command("Page.captureScreenshot")["data"]))

    def command(self, method: str, **params: object) -> Any:  # noqa: ANN401 - JSON
        """Send a command of the protocol, and return its answer."""
        return self._loop.run_until_complete(asyncio.wait_for(self._command(method, params), ANSWER_WITHIN_S))

    async def _command(self, method: str, params: dict[str, object]) -> Any:  # noqa: ANN401 - JSON
        self._sent += 1
        session = {"sessionId": self._session} if self._session else {}
        await self._socket.write_message(json.dumps({"id": self._sent, "method": method, "params": params, **session}))
        while (raw := await self._socket.read_message()) is not None:
            answer = json.loads(raw)
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)
        raise RuntimeError("the browser has gone")

    def _note(self, told: dict[str, Any]) -> None:
        entry = told.get("params", {}).get("entry", {})
        if told.get("method") == "Runtime.exceptionThrown" or entry.get("level") == "error":
            self.complaints.append(json.dumps(told["params"]))


@contextmanager
def running_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    profile, loop = folder / "profile", asyncio.new_event_loop()
    with Supervisor() as supervisor:
        argv = [PROGRAM, *_OPTIONS, f"--user-data-dir={profile}"]
        process = supervisor.spawn("chromium", argv, log=folder / "chromium.log")
        port_file = profile / "DevToolsActivePort"
        process.await_ready(lambda: port_file.exists() and len(port_file.read_text().split()) > 1, READY_WITHIN)
        port, path = port_file.read_text().split()

        async def connect() -> WebSocketClientConnection:
            return await websocket_connect(f"ws://127.0.0.1:{port}{path}", max_message_size=LARGEST_ANSWER)

        socket = loop.run_until_complete(connect())
        try:
            yield Browser(loop, socket)
        finally:
            socket.close()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
