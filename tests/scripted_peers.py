"""What scripted peers of both eras say, so that each test shows only what it is about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors import Client
from mcp_actors.testing import RawServer, ScriptedPeer, raw_server
from tests.messages import CAPABILITIES as CAPABILITIES
from tests.messages import CLIENT_INFO as CLIENT_INFO
from tests.messages import LEGACY_VERSIONS as LEGACY
from tests.messages import LOG_LEVEL as LOG_LEVEL
from tests.messages import MODERN as MODERN
from tests.messages import SERVER_INFO as SERVER_INFO
from tests.messages import SUBSCRIPTION_ID as SUBSCRIPTION_ID
from tests.messages import VERSION as VERSION
from tests.messages import discover_result, error, initialize_result, notification, result
from tests.messages import modern_meta as meta

EVERY = (*LEGACY, MODERN)


# -- as a client ---------------------------------------------------------------------------------------------------


async def modern(
    peer: ScriptedPeer,
    id: int | str,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    capabilities: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Sends a modern request and returns the message that answers it."""
    return await peer.request(id, method, {**(params or {}), "_meta": meta(capabilities, **more)})


async def begin(peer: ScriptedPeer, version: str, capabilities: dict[str, Any] | None = None) -> None:
    """A session of ``version``; nothing to do for the stateless one."""
    if version != MODERN:
        answer = await peer.initialize(version, capabilities)
        assert answer["protocolVersion"] == version


async def ask(
    peer: ScriptedPeer, version: str, id: int | str, method: str, params: dict[str, Any] | None = None
) -> Any:
    """One request in the form of ``version``, after `begin`; the message that answers it."""
    if version == MODERN:
        return await modern(peer, id, method, params)
    return await peer.request(id, method, params)


async def call(peer: ScriptedPeer, version: str, id: int | str, name: str, **arguments: Any) -> Any:
    """Calls a tool; the message that answers it."""
    return await ask(peer, version, id, "tools/call", {"name": name, "arguments": arguments})


def without_meta(result: dict[str, Any]) -> dict[str, Any]:
    """A modern result without what is stamped on every one of them."""
    return {key: value for key, value in result.items() if key not in ("_meta", "resultType")}


async def nothing_comes(peer: ScriptedPeer) -> None:
    """Waits for a long time, in which no message may come."""
    with trio.move_on_after(100) as waited:
        message = await peer.receive()
        raise AssertionError(f"unexpected: {message}")
    assert waited.cancelled_caught


# -- as a server ---------------------------------------------------------------------------------------------------

EVERYTHING = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "logging": {},
    "completions": {},
}


async def reply(peer: ScriptedPeer, request: dict[str, Any], value: Any) -> None:
    await peer.send(result(request, value))


async def fail(
    peer: ScriptedPeer, request: dict[str, Any], code: int, data: Any = None, message: str = "no"
) -> None:
    await peer.send(error(request, code, message, data))


async def notify(peer: ScriptedPeer, method: str, **params: Any) -> None:
    await peer.send(notification(method, **params))


async def tell(peer: ScriptedPeer, subscription: Any, method: str, **params: Any) -> None:
    """A notification of one subscription."""
    await notify(peer, method, **params, _meta={SUBSCRIPTION_ID: subscription})


async def greet(peer: ScriptedPeer, version: str = MODERN, **more: Any) -> dict[str, Any]:
    """Plays a server of ``version`` until the client is content; returns the request that began it."""
    request: dict[str, Any] = await peer.receive()
    if version == MODERN:
        assert request["method"] == "server/discover"
        scripted = {SERVER_INFO: {"name": "scripted", "version": "1"}}
        await reply(peer, request, discover_result(EVERYTHING, **{"_meta": scripted, **more}))
        return request
    first = request
    if request["method"] == "server/discover":
        await fail(peer, request, -32601)
        request = await peer.receive()
    assert request["method"] == "initialize"
    named = {"serverInfo": {"name": "scripted", "version": "1"}, **more}
    await reply(peer, request, initialize_result(version, EVERYTHING, **named))
    assert (await peer.receive())["method"] == "notifications/initialized"
    return first


async def play_initialize(peer: ScriptedPeer, version: str = "2025-11-25") -> dict[str, Any]:
    """Plays a server of ``version`` that is not probed first; returns the request."""
    request: dict[str, Any] = await peer.receive()
    assert request["method"] == "initialize"
    await reply(peer, request, initialize_result(version))
    assert (await peer.receive())["method"] == "notifications/initialized"
    return request


@asynccontextmanager
async def scripted(version: str, **options: Any) -> AsyncIterator[tuple[Client, ScriptedPeer]]:
    """A client that has met a scripted server of ``version``, and that server."""
    async with raw_server() as server, trio.open_nursery() as nursery:
        peers: list[ScriptedPeer] = []

        async def play() -> None:
            peers.append(await server.accept())
            await greet(peers[0], version)

        nursery.start_soon(play)
        async with Client(server.transport, era=version, **options) as client:
            yield client, peers[0]


@asynccontextmanager
async def entered(
    server: RawServer, **options: Any
) -> AsyncIterator[tuple[trio.MemoryReceiveChannel[Any], Any]]:
    """Enters a client in the background: yields a channel that brings the `Client` or what entering raised."""
    sent, outcome = trio.open_memory_channel[Any](1)
    done = trio.Event()

    async def enter() -> None:
        try:
            async with Client(server.transport, **options) as client:
                sent.send_nowait(client)
                await done.wait()
        except Exception as error:
            sent.send_nowait(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enter)
        yield outcome, nursery
        done.set()
