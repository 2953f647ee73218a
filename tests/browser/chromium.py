"""Lets a real browser open the page beside this file, from an origin of choice, and hands back what it reports."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

__all__ = ["LIMIT", "Site", "find_browser", "visit"]

LIMIT = 150.0  # seconds for one visit; it takes about one
NAMES = ("chromium", "chromium-browser", "google-chrome")
PAGE = Path(__file__).parent / "page.html"
# Whatever it would leave behind it leaves in a directory that goes.
HOMES = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")

# It talks to this machine only, whatever a name, a proxy or an update would like. --no-sandbox: for root, and the
# pages are ours.
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-breakpad",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP *.example.com 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Site:
    """Where the page is: every path but ``/report`` is the page, to which that one is for telling what happened."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reports_in, self.reports = trio.open_memory_channel[dict[str, Any]](16)

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Site]:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        site = cls(listener.socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, site.answer, [listener])
            yield site
            nursery.cancel_scope.cancel()

    async def answer(self, stream: trio.SocketStream) -> None:
        """One request a connection."""
        async with stream:
            try:
                head, body = await self._read(stream)
            except trio.BrokenResourceError:
                return  # opened in case, and not used
            if head.startswith("POST /report "):
                await self.reports_in.send(json.loads(body))
            page = PAGE.read_bytes() if head.startswith("GET ") else b""
            lines = ("HTTP/1.1 200 OK", "Content-Type: text/html", f"Content-Length: {len(page)}")
            text = "".join(f"{line}\r\n" for line in (*lines, "Connection: close", ""))
            try:
                await stream.send_all(text.encode() + page)
            except trio.BrokenResourceError:
                return  # the browser was ended, its report is here

    async def _read(self, stream: trio.SocketStream) -> tuple[str, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += await self._some(stream)
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        while len(body) < int(fields.get("content-length", "0")):
            body += await self._some(stream)
        return lines[0], body

    async def _some(self, stream: trio.SocketStream) -> bytes:
        data = await stream.receive_some()
        if not data:
            raise trio.BrokenResourceError("the browser hung up")
        return bytes(data)


async def visit(browser: str, site: Site, name: str, query: str) -> dict[str, Any]:
    """What the page reports when it is opened at ``http://NAME:PORT`` with this query.

    Nothing of the browser is left. Raises `AssertionError` with what it wrote when no report comes within `LIMIT`.
    """
    url = f"http://{name}:{site.port}/page.html?{query}&report=yes"
    # Not below pytest's directories: the path of its socket would be too long. What dies slowly may still write.
    with TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as home:
        log = Path(home) / "log"
        with log.open("wb") as output:
            process = await trio.lowlevel.open_process(
                [browser, *OPTIONS, f"--user-data-dir={home}/profile", url],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **dict.fromkeys(HOMES, home)},
                start_new_session=True,
            )
        try:
            report = await _told(process, site)
        finally:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await process.wait()
        written = log.read_text(errors="replace")[-3000:]
    assert report is not None, f"no report from {url}; the browser wrote:\n{written}"
    return report


async def _told(process: trio.Process, site: Site) -> dict[str, Any] | None:
    """The next report, if it comes in time and before the browser ends."""
    report = None
    with trio.move_on_after(LIMIT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_gone, process, nursery.cancel_scope)
            report = await site.reports.receive()
            nursery.cancel_scope.cancel()
    return report


async def _until_gone(process: trio.Process, waiting: trio.CancelScope) -> None:
    await process.wait()
    waiting.cancel()
