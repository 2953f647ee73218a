"""Two processes behind a proxy that deals out connections in turn are one server to a modern client."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import trio

from mcp_actors import Client
from mcp_actors.types import ElicitFormParams, ElicitResult
from mcp_transports.http.client import HttpClientTransport

SERVER = Path(__file__).with_name("shared_load.py")
START_LIMIT = 30.0


@asynccontextmanager
async def process() -> AsyncIterator[int]:
    """The port that a process of the server listens on."""
    command = [sys.executable, "-m", "mcp_actors", "serve", str(SERVER), "--listen", "http://127.0.0.1:0/mcp"]
    child = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert child.stderr is not None
        said = b""
        with trio.fail_after(START_LIMIT):
            while (found := re.search(rb"at http://127\.0\.0\.1:(\d+)/mcp\n", said)) is None:
                piece = await child.stderr.receive_some()
                assert piece, f"it ended: {said.decode()}"
                said += piece
        yield int(found[1])
    finally:
        child.terminate()
        with trio.CancelScope(shield=True), trio.fail_after(START_LIMIT):
            await child.wait()


@asynccontextmanager
async def round_robin(*ports: int) -> AsyncIterator[int]:
    """A proxy that gives each new connection to the next of ``ports``."""
    dealt = 0

    async def carry(client: trio.SocketStream) -> None:
        nonlocal dealt
        port = ports[dealt % len(ports)]
        dealt += 1
        async with client, await trio.open_tcp_stream("127.0.0.1", port) as server:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, client, server, nursery.cancel_scope)
                nursery.start_soon(pump, server, client, nursery.cancel_scope)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, carry, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def pump(source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
    try:
        async for piece in source:
            await sink.send_all(piece)
    except trio.BrokenResourceError:
        pass
    both.cancel()


async def answer(question: object) -> ElicitResult:
    assert isinstance(question, ElicitFormParams)
    return ElicitResult(action="accept", content={"name": question.message.partition(" ")[0]})


async def test_any_process_answers_any_request() -> None:
    # Without kept connections each request may be dealt to another process.
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with (
        process() as one,
        process() as other,
        round_robin(one, other) as port,
        httpx2.AsyncClient(limits=limits) as http,
    ):
        transport = HttpClientTransport(f"http://127.0.0.1:{port}/mcp", client=http)
        async with Client(transport, era="modern", elicitation=answer) as client:
            told = {(await client.call_tool("whoami")).structured_content for _ in range(4)}
            assert len(told) == 2
            for _ in range(3):
                result = await client.call_tool("introduce")
                assert not result.is_error
                assert result.content[0].text.startswith("First Last at ")
