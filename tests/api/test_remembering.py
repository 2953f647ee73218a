"""What a process remembers of the servers it has met: the era of a URL, and that it may have been wrong."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client
from mcp_actors._client.supervisor import EraCache
from mcp_actors._eras.client_negotiation import versions_for
from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import LATEST_MODERN
from mcp_actors.abc.discovery import register_transport
from mcp_actors.errors import ConnectFailed
from mcp_actors.testing import RawServer, raw_server

from .peers import MODERN, fail, greet, play_initialize


def published(scheme: str, server: RawServer) -> str:
    register_transport(scheme, lambda url: server.transport)
    return f"{scheme}:here"


async def first_words(server: RawServer, url: str, version: str) -> str:
    """What a client that connects to ``url`` says first; the server is one of ``version``."""
    async with trio.open_nursery() as nursery:
        said: list[str] = []

        async def play() -> None:
            peer = await server.accept()
            said.append((await greet(peer, version))["method"])

        nursery.start_soon(play)
        async with Client(url) as client:
            assert client.version == version
    return said[0]


@pytest.mark.parametrize(
    ("version", "second"),
    [(MODERN, "server/discover"), ("2025-11-25", "initialize"), ("2024-11-05", "initialize")],
)
async def test_the_second_client_of_a_url_does_not_probe(
    version: str, second: str, autojump_clock: MockClock
) -> None:
    async with raw_server() as server:
        url = published(f"again{version[:4]}", server)
        assert await first_words(server, url, version) == "server/discover"
        assert await first_words(server, url, version) == second


async def test_a_remembered_session_is_asked_for_the_newest_version_again(autojump_clock: MockClock) -> None:
    """The server may have been upgraded: what is remembered is the era."""
    async with raw_server() as server:
        url = published("upgraded", server)
        await first_words(server, url, "2024-11-05")
        async with trio.open_nursery() as nursery:

            async def play() -> None:
                request = await play_initialize(await server.accept(), "2025-11-25")
                assert request["params"]["protocolVersion"] == "2025-11-25"

            nursery.start_soon(play)
            async with Client(url) as client:
                assert client.version == "2025-11-25"


@pytest.mark.parametrize("refusal", [-32601, -32600, -32022])
async def test_a_wrong_memory_of_sessions_is_corrected(refusal: int, autojump_clock: MockClock) -> None:
    async with raw_server() as server:
        url = published(f"modernised{-refusal}", server)
        await first_words(server, url, "2025-11-25")
        async with trio.open_nursery() as nursery:

            async def play() -> None:
                peer = await server.accept()
                request = await peer.receive()
                assert request["method"] == "initialize"
                await fail(peer, request, refusal, {"supported": [MODERN], "requested": "2025-11-25"})
                await greet(peer, MODERN)

            nursery.start_soon(play)
            async with Client(url) as client:
                assert client.era == "modern"
        assert await first_words(server, url, MODERN) == "server/discover"


async def test_a_wrong_memory_of_no_sessions_is_corrected(autojump_clock: MockClock) -> None:
    async with raw_server() as server:
        url = published("downgraded", server)
        await first_words(server, url, MODERN)
        assert await first_words(server, url, "2025-06-18") == "server/discover"
        assert await first_words(server, url, "2025-06-18") == "initialize"


async def test_a_pinned_client_teaches_the_others_nothing(autojump_clock: MockClock) -> None:
    async with raw_server() as server:
        url = published("pinned", server)
        async with trio.open_nursery() as nursery:

            async def play() -> None:
                await play_initialize(await server.accept())

            nursery.start_soon(play)
            async with Client(url, era="legacy") as client:
                assert client.era == "legacy"
        assert await first_words(server, url, MODERN) == "server/discover"


async def test_nobody_there(autojump_clock: MockClock) -> None:
    with pytest.raises(ConnectFailed):
        async with Client("memory:nobody-serves-this"):
            raise AssertionError("never reached")


def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    cache = EraCache(max_entries=2)
    first, second = versions_for("legacy")[-1], MODERN
    cache.put("a:", LEGACY[first])
    cache.put("b:", LATEST_MODERN)
    cache.put("a:", LATEST_MODERN)
    cache.put("c:", LEGACY[first])
    known = {url: era and era.version for url in ("a:", "b:", "c:") for era in [cache.get(url)]}
    assert known == {"a:": second, "b:": None, "c:": first}
