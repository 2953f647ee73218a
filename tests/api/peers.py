"""What scripted peers of both eras say, so that each test shows only what it is about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors import Client
from mcp_actors.testing import RawServer, ScriptedPeer, raw_server

MCP = "io.modelcontextprotocol/"
VERSION = MCP + "protocolVersion"
CAPABILITIES = MCP + "clientCapabilities"
CLIENT_INFO = MCP + "clientInfo"
SERVER_INFO = MCP + "serverInfo"
LOG_LEVEL = MCP + "logLevel"
SUBSCRIPTION_ID = MCP + "subscriptionId"

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
EVERY = (*LEGACY, MODERN)


# -- as a client ---------------------------------------------------------------------------------------------------


def meta(capabilities: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The metadata of a modern request."""
    return {VERSION: MODERN, CAPABILITIES: capabilities or {}, **more}


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


# -- as a server ---------------------------------------------------------------------------------------------------

EVERYTHING = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "logging": {},
    "completions": {},
}


async def reply(peer: ScriptedPeer, request: dict[str, Any], result: Any) -> None:
    await peer.send({"jsonrpc": "2.0", "id": request["id"], "result": result})


async def fail(
    peer: ScriptedPeer, request: dict[str, Any], code: int, data: Any = None, message: str = "no"
) -> None:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    await peer.send({"jsonrpc": "2.0", "id": request["id"], "error": error})


async def notify(peer: ScriptedPeer, method: str, **params: Any) -> None:
    await peer.send({"jsonrpc": "2.0", "method": method, "params": params})


async def tell(peer: ScriptedPeer, subscription: Any, method: str, **params: Any) -> None:
    """A notification of one subscription."""
    await notify(peer, method, **params, _meta={SUBSCRIPTION_ID: subscription})


async def greet(peer: ScriptedPeer, version: str = MODERN, **more: Any) -> dict[str, Any]:
    """Plays a server of ``version`` until the client is content; returns the request that began it."""
    request: dict[str, Any] = await peer.receive()
    if version == MODERN:
        assert request["method"] == "server/discover"
        await reply(
            peer,
            request,
            {
                "resultType": "complete",
                "supportedVersions": [MODERN],
                "capabilities": EVERYTHING,
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": {SERVER_INFO: {"name": "scripted", "version": "1"}},
                **more,
            },
        )
        return request
    first = request
    if request["method"] == "server/discover":
        await fail(peer, request, -32601)
        request = await peer.receive()
    assert request["method"] == "initialize"
    await reply(
        peer,
        request,
        {
            "protocolVersion": version,
            "capabilities": EVERYTHING,
            "serverInfo": {"name": "scripted", "version": "1"},
            **more,
        },
    )
    assert (await peer.receive())["method"] == "notifications/initialized"
    return first


async def play_initialize(peer: ScriptedPeer, version: str = "2025-11-25") -> dict[str, Any]:
    """Plays a server of ``version`` that is not probed first; returns the request."""
    request: dict[str, Any] = await peer.receive()
    assert request["method"] == "initialize"
    await reply(
        peer,
        request,
        {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}},
    )
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
