"""A folder with a server that is served with ``--reload``, in memory, and changed by the tests."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from mcp_actors import Client
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.reload import Reloading
from mcp_actors.cli.target import load_server

__all__ = ["SERVER", "Project"]

LIMIT = 30  # seconds: nothing here takes a tenth of it

SERVER = """
import helper
from mcp_actors import Server

server = Server("project", version=str(helper.NUMBER))

@server.tool
async def number() -> int:
    return helper.NUMBER
"""


class Project:
    """A folder with ``main.py``, which has a server, and ``helper.py``, which has its number."""

    def __init__(self, folder: Path, helper: str = "helper") -> None:
        self.folder = folder
        self.helper = f"{helper}.py"
        self.said: list[str] = []
        self._heard = trio.Event()
        self.write("main.py", SERVER.replace("helper", helper))
        self.write(self.helper, "NUMBER = 1\n")

    def write(self, name: str, text: str) -> None:
        """Writes a file in place."""
        (self.folder / name).write_text(text)

    def put(self, name: str, text: str) -> None:
        """Puts a new file in the place of another one, as most editors do."""
        new = self.folder / f".{name}.new"
        new.write_text(text)
        os.replace(new, self.folder / name)

    @asynccontextmanager
    async def served(
        self, *folders: str, target: str | None = None, bound: float = LIMIT
    ) -> AsyncIterator[tuple[Client, Reloading]]:
        """Serves it, with a client that has a session."""
        path = str(self.folder / "main.py") if target is None else target
        token = trio.lowlevel.current_trio_token()

        def tell(text: str) -> None:
            trio.from_thread.run_sync(self._tell, text, trio_token=token)

        first = await trio.to_thread.run_sync(load_server, path, [])
        reloading = Reloading(
            path, [], first, folders, lambda server: server.info.version, bound=bound, tell=tell
        )
        transport: Any = client_transport("memory:")
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                await nursery.start(reloading.server.serve, transport)
                async with Client(transport) as client:
                    yield client, reloading
                reloading.server.stop()

    def _tell(self, text: str) -> None:
        self.said.append(text)
        self._heard.set()

    async def hears(self, text: str) -> str:
        """Waits until a line with ``text`` is said, after all that was waited for before, and returns it."""
        while True:
            while self.said:
                said = self.said.pop(0)
                if text in said:
                    return said
            self._heard = trio.Event()
            await self._heard.wait()


async def number_of(client: Client) -> Any:
    return (await client.call_tool("number")).structured_content


@contextmanager
def modules_kept() -> Iterator[None]:
    """Takes back what importing changes in this process, and lets go what waits for the event ``held``."""
    held = threading.Event()
    sys.modules["held"] = held  # type: ignore[assignment]
    modules, path, writes = dict(sys.modules), list(sys.path), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        held.set()
        for thread in threading.enumerate():
            if thread.name == "mcp-actors import":
                thread.join()
        for name in sys.modules.keys() - modules.keys():
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith("/tmp"):
                del sys.modules[name]
        sys.path[:] = path
        sys.dont_write_bytecode = writes
