"""A server and clients of every binding, in a process that looks like macOS, and a child that does. Prints JSON."""

from __future__ import annotations

import sys

from tests.macos.like_macos import Counts, MacSocket, counts, imported_from_elsewhere, pretend
from tests.windows.pretended import sources

SERVES = sys.argv[1] == "serve"
pretend(["asyncio", "ssl", "subprocess", "trio"] if SERVES else imported_from_elsewhere())

import importlib  # noqa: E402
import json  # noqa: E402
from typing import Any  # noqa: E402
from urllib.parse import quote  # noqa: E402

import trio  # noqa: E402

import mcp_actors  # noqa: E402
from mcp_actors import Client, Server  # noqa: E402
from mcp_transports import _poller  # noqa: E402
from mcp_transports._poller import PortablePoller  # noqa: E402

URLS = [
    "tcp://127.0.0.1:0",
    "unix:{folder}/s",
    "http://127.0.0.1:0/mcp",
    "ws://127.0.0.1:0/",
    "http+unix://{quoted}%2Fh/mcp",
]
# More than the kernel's buffers hold, and little enough for one piece.
LARGE, SMALL = 1_000_000, 1_000


def make_server() -> Server:
    server = Server("macos")

    @server.tool()
    def double(text: str) -> str:
        return text + text

    @server.tool()
    async def counted(context: mcp_actors.Context, number: int) -> int:
        for each in range(number):
            await context.progress(each + 1)
            await trio.lowlevel.checkpoint()
        return number

    return server


async def ask(target: str) -> list[Any]:
    """Calls that are small, large, many at a time, with progress, and one that is cancelled."""
    reports: list[float] = []
    async with Client(target) as client:
        answers = [
            len((await client.call_tool("double", {"text": "x" * size})).content[0].text)  # type: ignore[union-attr]
            for size in (SMALL, LARGE)
        ]

        async def call() -> None:
            await client.call_tool("double", {"text": "x" * SMALL})
            answers.append(1)

        async with trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(call)
        with trio.move_on_after(0):
            await client.call_tool("double", {"text": "x"})
        await client.call_tool(
            "counted", {"number": 20}, on_progress=lambda each: reports.append(each.progress)
        )
        return [*answers[:2], len(answers), reports == [each + 1 for each in range(20)]]


def import_everything() -> dict[str, str]:
    """Returns why modules cannot be imported, by their names."""
    failures = {}
    for name in sources():
        if not name.endswith("__main__"):
            try:
                importlib.import_module(name)
            except BaseException as error:
                failures[name] = f"{type(error).__name__}: {error}"
    return failures


async def lose_peers(at: str) -> None:
    """Connects and goes away until the listener has met every kind of connection whose peer is gone."""
    host, port = at.split("//")[1].split("/")[0].split(":")
    MacSocket.gone_peers = 4
    while MacSocket.gone_peers:
        before = MacSocket.gone_peers
        stream = await trio.open_tcp_stream(host, int(port))
        while True:
            if MacSocket.gone_peers != before:
                break
            await trio.sleep(0.001)
        await stream.aclose()


async def main(folder: str) -> None:
    found: dict[str, Any] = {"failures": import_everything()}
    poller = _poller.open_poller()
    found["platform"] = [_poller.sys.platform, type(poller) is PortablePoller]
    poller.close()
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            server = make_server()
            places = await nursery.start(
                server.serve, *(each.format(folder=folder, quoted=quote(folder, safe="")) for each in URLS)
            )
            for at in places:
                if "unix" not in at:
                    await lose_peers(at)
                found[at.partition(":")[0]] = await ask(at)
            found["stdio"] = await ask(f"stdio:{sys.executable} -m tests.macos.everything serve")
            nursery.cancel_scope.cancel()
    found["counts"] = {name: getattr(counts, name) for name in vars(Counts) if not name.startswith("_")}
    print(json.dumps(found))


if __name__ == "__main__":
    if SERVES:
        make_server().run("stdio:")
    else:
        trio.run(main, sys.argv[1])
