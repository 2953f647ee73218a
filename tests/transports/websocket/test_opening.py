"""The server's side of the opening: trio-websocket reads the head that arrived, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from mcp_transports.http.h1.request import Request
from mcp_transports.websocket.opening import accept
from mcp_transports.websocket.server import WebSocketServerTransport

from .raw import KEY, TEXT, Listening, RawPeer, connected, frame
from .test_server import echo

HEAD = (
    "GET /?a=%20b HTTP/1.1\r\nHOST: 127.0.0.1\r\nX-Odd:\t two  blanks \r\nUpgrade: WebSocket\r\n"
    f"Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: soap\r\nSec-WebSocket-Protocol: mcp\r\n\r\n"
).encode()
SPLITS: dict[str, Sequence[bytes]] = {
    "in one piece": [HEAD],
    "in two": [HEAD[:100], HEAD[100:]],
    "byte by byte": [HEAD[at : at + 1] for at in range(len(HEAD))],
    "behind an empty line": [b"\r\n", HEAD],
}


@pytest.mark.parametrize("pieces", SPLITS.values(), ids=SPLITS.keys())
async def test_trio_websocket_reads_the_head_that_arrived(
    pieces: Sequence[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[bytes] = []

    async def accept_it(stream: trio.abc.Stream, head: bytes, subprotocol: str | None) -> None:
        shown.append(head)
        await accept(stream, head, subprotocol)

    monkeypatch.setattr("mcp_transports.websocket.server.accept", accept_it)
    transport = WebSocketServerTransport("ws://127.0.0.1:0/")
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(transport.serve, Listening(echo))
            async with connected(url) as peer:
                for piece in pieces:
                    await peer.send(piece)
                    await trio.testing.wait_all_tasks_blocked()
                status, headers = await peer.head()
                assert (status, headers["sec-websocket-protocol"]) == (101, "mcp")
                await peer.send(frame(TEXT, b"{}"))
                assert await peer.frame() == (TEXT, b"{}")
            nursery.cancel_scope.cancel()
    assert [each.lstrip(b"\r\n") for each in shown] == [HEAD]


async def test_a_request_that_follows_another_one_in_the_same_read_is_no_opening() -> None:
    requests: list[Request] = []

    def authenticate(request: Request) -> None:
        requests.append(request)

    transport = WebSocketServerTransport("ws://127.0.0.1:0/", authenticate=authenticate)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(transport.serve, Listening(echo))
            async with connected(url) as peer:
                await peer.send(b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + HEAD)
                assert (await peer.answer())[0] == 404
                status, _, body = await peer.answer()
                assert (status, b"travels alone" in body) == (400, True)
                await peer.send(HEAD)
                assert (await peer.head())[0] == 101
            nursery.cancel_scope.cancel()
    assert [each.head for each in requests] == [HEAD]


async def test_a_head_that_trio_websocket_refuses_is_answered_and_ends_the_opening() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    bad = HEAD.replace(b"Version: 13", b"Version: 12")
    with trio.fail_after(20), pytest.raises(trio.BrokenResourceError, match="not completed"):
        await accept(ours, bad, None)
    assert (await RawPeer(theirs).head())[0] == 426


@pytest.mark.parametrize("left", ["closed", "broken"])
async def test_a_peer_that_left_before_the_answer(left: str) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    if left == "closed":
        await theirs.aclose()
    else:

        async def break_it() -> None:
            raise trio.BrokenResourceError

        ours.send_stream.send_all_hook = break_it
    with trio.fail_after(20), pytest.raises(trio.BrokenResourceError, match="not completed"):
        await accept(ours, HEAD, "mcp")
