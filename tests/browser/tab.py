"""A tab of a real browser that a test works in as a person would: it opens a page, writes into fields and clicks."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from .chromium import HOMES, OPTIONS

__all__ = ["Tab"]

ANNOUNCED = re.compile(rb"DevTools listening on (ws://\S+)")


class Refused(AssertionError):
    """What the browser did not do, such as to look into a frame that has become another one meanwhile."""


class Tab:
    """A tab, over the browser's own protocol for developers (Chrome DevTools Protocol)."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection
        self._session: dict[str, str] = {}
        self._sent = 0
        self._events: list[str] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, browser: str) -> AsyncIterator[Tab]:
        """Starts a browser with one tab; nothing of it is left at the end of the ``async with``."""
        with TemporaryDirectory(prefix="tab-", ignore_cleanup_errors=True) as home:
            options = ["--remote-debugging-port=0", f"--user-data-dir={home}/profile"]
            process = await trio.lowlevel.open_process(
                [browser, *OPTIONS, *options, "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **dict.fromkeys(HOMES, home)},
                start_new_session=True,
            )
            try:
                async with open_websocket_url(await _announced(process)) as connection:
                    tab = cls(connection)
                    await tab._attach()
                    yield tab
            finally:
                with suppress(ProcessLookupError):  # it ended by itself
                    os.killpg(process.pid, signal.SIGKILL)
                with trio.CancelScope(shield=True):
                    await process.wait()

    async def visit(self, url: str) -> None:
        """Opens a page, and waits until it is loaded, wherever it redirected to.

        The event that tells it may also be about the empty page, which a busy machine loads late.
        """
        await self._call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")
        self._events.clear()

    async def show_as(self, *, width: int, colours: str) -> None:
        """Lays pages out as in a window of ``width`` pixels, for a person who prefers ``light`` or ``dark``."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self._call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": colours}]
        await self._call("Emulation.setEmulatedMedia", features=features)

    async def click(self, selector: str) -> None:
        """Clicks at what leads to another page, and waits until that one is loaded."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
        await self.loaded()

    async def write(self, selector: str, text: str) -> None:
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    async def loaded(self) -> None:
        """Waits until the page is loaded that something else than these methods leads to."""
        while "Page.loadEventFired" not in self._events:
            self._events.append(json.loads(await self._connection.get_message())["method"])
        self._events.clear()

    async def evaluate(self, script: str, *, depth: int = 0) -> Any:
        """Evaluates a script in the page, or in the document that lies ``depth`` frames deep in it."""
        place = {}
        if depth:
            frame = (await self._call("Page.getFrameTree"))["frameTree"]
            for _ in range(depth):
                if not frame.get("childFrames"):
                    return None
                frame = frame["childFrames"][0]
            world = await self._call("Page.createIsolatedWorld", frameId=frame["frame"]["id"])
            place = {"contextId": world["executionContextId"]}
        answer = await self._call("Runtime.evaluate", expression=script, **place)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, condition: str, *, depth: int = 0) -> None:
        """Waits until a condition holds in the page, or in a frame of it, which may load another page meanwhile."""
        while True:
            with suppress(Refused):
                if await self.evaluate(condition, depth=depth):
                    return
            await trio.lowlevel.checkpoint()

    async def picture(self) -> bytes:
        """Returns what the window shows, as PNG."""
        taken = await self._call("Page.captureScreenshot", format="png")
        return base64.b64decode(taken["data"])

    async def _attach(self) -> None:
        targets = (await self._call("Target.getTargets"))["targetInfos"]
        (page,) = [target["targetId"] for target in targets if target["type"] == "page"]
        attached = await self._call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        await self._call("Page.enable")

    async def _call(self, method: str, **params: object) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params, **self._session}
        await self._connection.send_message(json.dumps(message))
        while True:
            received = json.loads(await self._connection.get_message())
            if received.get("id") == self._sent:
                if "error" in received:
                    raise Refused(received["error"])
                return dict(received["result"])
            self._events.append(received["method"])


async def _announced(process: trio.Process) -> str:
    """Where the browser can be told what to do."""
    assert process.stderr is not None
    written = b""
    async for chunk in process.stderr:
        written += chunk
        found = ANNOUNCED.search(written)
        if found and written[found.end() :]:  # the line has come whole
            return found[1].decode()
    raise AssertionError(f"the browser ended: {written[-3000:]!r}")
