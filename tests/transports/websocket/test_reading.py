"""A WebSocket knows what its peer has read: a pong says so. And it does not outlast its peer's Close frame."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from mcp_actors import Client, ConnectionLost, Limits, Server
from mcp_actors.abc import Frame
from tests.actors.peers import Dials, Serves
from tests.messages import INITIALIZED, LEGACY, call, initialize, initialize_result, result

from .raw import PING, PONG, TEXT, closing, frame
from .test_channel import pair


async def test_a_pong_says_what_was_read(autojump_clock: object) -> None:
    async with pair() as (channel, peer), trio.open_nursery() as nursery:
        read: list[bool] = []

        async def wait() -> None:
            read.append(await channel.wait_until_read())

        async def receive() -> None:
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()

        nursery.start_soon(receive)
        await channel.send(Frame(b"{}"))
        nursery.start_soon(wait)
        assert [await peer.frame(), await peer.frame()] == [(TEXT, b"{}"), (PING, (1).to_bytes(8))]
        # None of these answers that ping.
        for payload in (b"", b"1", bytes(8), (2).to_bytes(8), (1).to_bytes(9)):
            await peer.send(frame(PONG, payload))
        await trio.testing.wait_all_tasks_blocked()
        assert read == []
        await peer.send(frame(PONG, (1).to_bytes(8)))
        await trio.testing.wait_all_tasks_blocked()
        assert read == [True]
        nursery.start_soon(wait)
        assert await peer.frame() == (PING, (2).to_bytes(8))
        # Nobody waits for the pong of a peer that has closed.
        await peer.send(closing(1000))
        await trio.testing.wait_all_tasks_blocked()
        assert read == [True, True]


def hanging(ended: list[str], **limits: float) -> Server:
    server = Server("hanging", limits=Limits(**limits))

    @server.tool
    async def hang() -> str:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("hang")
        return ""

    return server


def encoded(message: object) -> bytes:
    return json.dumps(message).encode()


async def test_calls_in_flight_do_not_keep_a_websocket_open_whose_peer_has_closed(
    autojump_clock: object,
) -> None:
    ended: list[str] = []
    async with pair() as (channel, peer), trio.open_nursery() as nursery:
        nursery.start_soon(hanging(ended).serve, Serves(channel))
        await peer.send(frame(TEXT, encoded(initialize())))
        assert (await peer.frame())[0] == TEXT
        await peer.send(frame(TEXT, encoded(INITIALIZED)) + frame(TEXT, encoded(call(1, "hang"))))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await peer.send(closing(1000))
        assert (await peer.closed_with())[0] == 1000
        assert await peer.ended()
        assert trio.current_time() - began <= 1
        assert ended == ["hang"]


async def test_a_client_with_calls_in_flight_closes_a_websocket_that_says_nothing_any_more(
    autojump_clock: object,
) -> None:
    async with pair(client=True) as (channel, peer), trio.open_nursery() as nursery:

        async def answer() -> None:
            asked = json.loads((await peer.frame())[1])
            answer = result(asked, initialize_result(LEGACY, {"tools": {}}))
            await peer.send(frame(TEXT, encoded(answer), masked=False))

        nursery.start_soon(answer)
        async with Client(Dials([channel]), era="legacy") as client:
            nursery.start_soon(lost, client)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
        assert trio.current_time() - began <= 1


async def lost(client: Client) -> None:
    with pytest.raises(ConnectionLost):
        await client.call_tool("hang", {})
