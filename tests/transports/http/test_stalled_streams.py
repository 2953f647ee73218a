"""A client whose network stalled comes back once, and has everything: what it missed, and an answer of any size."""

from __future__ import annotations

import json
import os
import socket

import pytest
import trio

from mcp_actors import Context
from mcp_transports.http.sse import SseDecoder
from tests.transports.http.raw import RawPeer
from tests.transports.http.site import Events, Site, bare, call, site

KIB, MIB = 1024, 1024 * 1024
ANSWER = 5 * MIB
SEVERAL = int(os.environ.get("MCP_STALLED_CLIENTS", "4"))


async def stalled_peer(here: Site, message: object, session: str) -> tuple[RawPeer, str]:
    """POSTs and reads the first event only, through a window so small that the server soon holds the rest."""
    narrow = trio.socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await narrow.connect(("127.0.0.1", int(here.url.split(":")[2].partition("/")[0])))
    peer = RawPeer(trio.SocketStream(narrow))
    body = json.dumps(message).encode()
    named = {"host": "localhost", "content-type": "application/json", **bare(session)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    await peer.send(f"POST /mcp HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
    first = await anext(Events(peer))
    assert first.id is not None
    return peer, first.id


async def comes_back(here: Site, session: str, last_event_id: str) -> tuple[int, int]:
    """How many reports, and how long an answer, the first return brings."""
    reports = 0
    async with here.stream("GET", None, session, **{"last-event-id": last_event_id}) as events:
        events._decoder = SseDecoder(20 * MIB)
        async for event in events:
            if event.is_message:
                message = json.loads(event.data)
                if "result" in message:
                    return reports, len(message["result"]["content"][0]["text"])
                reports += 1
    raise AssertionError(f"the stream ended without an answer, after {reports} reports")


@pytest.mark.parametrize(
    ("size", "reports"),
    [(30 * KIB, 100), (300 * KIB, 10), (30 * KIB, 500), (150, 5000)],
    ids=["held here", "in few pieces", "more than is held", "in many pieces"],
)
@pytest.mark.parametrize("clients", [1, pytest.param(SEVERAL, marks=pytest.mark.long)])
async def test_the_first_return_to_a_stalled_stream_has_everything(
    size: int, reports: int, clients: int
) -> None:
    async with site() as here:
        told_all = trio.Event()

        @here.server.tool
        async def report(ctx: Context) -> str:
            for number in range(reports):
                await ctx.progress(number + 1, message="x" * size)
            told_all.set()
            return "y" * ANSWER

        async def one() -> None:
            session = await here.open()
            peer, first = await stalled_peer(here, call(1, "report"), session)
            with trio.move_on_after(0.2):  # as long as it takes to fill what lies between the two
                await told_all.wait()
            before = 0 if first.endswith("-1") else 1
            told, length = await comes_back(here, session, first)
            assert (told + before, length) == (reports, ANSWER)
            await peer.aclose()

        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(one)
