"""What a client says outside the body too, where its channel carries that, and how it learns what tools want told."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import Client, HeaderMismatch
from mcp_actors.abc import ClientTransport, FrameChannel
from mcp_actors.errors import LocalProtocolError, SubscriptionLost
from mcp_actors.testing import ScriptedPeer, raw_server
from mcp_actors.testing.recording import PassingChannel
from tests.scripted_peers import LEGACY, MODERN, VERSION, fail, greet, notify, reply

MISMATCH = -32020


class MirroringChannel(PassingChannel):
    """Any channel, as one of a binding that carries metadata."""

    mirrors = True


class MirroringTransport:
    def __init__(self, inner: ClientTransport) -> None:
        self.inner = inner

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with self.inner.connect() as channel:
            yield MirroringChannel(channel)


class Listening(ScriptedPeer):
    """A peer that keeps the metadata of what it is sent: (message, metadata)."""

    def __init__(self, channel: FrameChannel) -> None:
        super().__init__(channel)
        self.heard: list[tuple[dict[str, Any], dict[str, str] | None]] = []

    async def receive(self) -> Any:
        frame = await self.channel.receive()
        message = json.loads(frame.data)
        self.heard.append((message, None if frame.metadata is None else dict(frame.metadata)))
        return message

    def told(self, method: str) -> list[dict[str, str] | None]:
        """The metadata of each message of this method."""
        return [metadata for message, metadata in self.heard if message.get("method") == method]


@asynccontextmanager
async def met(
    version: str, answer: Callable[[dict[str, Any]], Any], *, mirrors: bool = True, **options: Any
) -> AsyncIterator[tuple[Client, Listening]]:
    """A client of a server of ``version``, over a channel that mirrors; an answer that is a number is an error code."""
    async with raw_server() as server, trio.open_nursery() as nursery:
        peers: list[Listening] = []

        async def play() -> None:
            peers.append(peer := Listening((await server.accept()).channel))
            await greet(peer, version)
            with suppress(trio.EndOfChannel):
                while True:
                    request = await peer.receive()
                    if "method" in request and "id" in request:
                        result = answer(request)
                        await (fail if isinstance(result, int) else reply)(peer, request, result)

        nursery.start_soon(play)
        transport = MirroringTransport(server.transport) if mirrors else server.transport
        async with Client(transport, era=version, **options) as client:
            yield client, peers[0]
        nursery.cancel_scope.cancel()


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def region(header: Any = "Region", type: str = "string") -> dict[str, Any]:
    return {"type": type, "x-mcp-header": header}


class Tools:
    """A server whose tools want parameters mirrored; ``pages`` may be changed, calls are refused ``refusing`` times."""

    def __init__(self, *pages: Sequence[dict[str, Any]], ttl: int = 0, refusing: int = 0) -> None:
        self.pages: list[Sequence[dict[str, Any]]] = list(pages)
        self.ttl = ttl
        self.refusing = refusing
        self.listed = self.called = 0

    def __call__(self, request: dict[str, Any]) -> Any:
        if request["method"] == "tools/list":
            self.listed += 1
            number = int(request["params"].get("cursor", 0))
            result = {"resultType": "complete", "tools": self.pages[number], "ttlMs": self.ttl}
            return result | ({"nextCursor": str(number + 1)} if number + 1 < len(self.pages) else {})
        if request["method"] == "tools/call":
            self.called += 1
            if self.called <= self.refusing:
                return MISMATCH
        return {"resultType": "complete", "content": [], "contents": [], "messages": []}


def params_in(metadata: dict[str, str] | None) -> dict[str, str]:
    assert metadata is not None
    return {name: value for name, value in metadata.items() if name.startswith("mcp-param-")}


# -- every request -----------------------------------------------------------------------------------------------------


async def test_each_modern_request_is_mirrored() -> None:
    async with met(MODERN, Tools([])) as (client, peer):
        await client.list_tools()
        await client.call_tool("my-hyphenated-tool")
        await client.read_resource("file:///a%20b?c=1")
        await client.get_prompt("Grüße")
        await client.request("acme/thing", {"name": "no name of ours"})
        await client.ping()
        for message, metadata in peer.heard:
            assert metadata is not None
            assert metadata["mcp-protocol-version"] == MODERN == message["params"]["_meta"][VERSION]
            assert metadata["mcp-method"] == message["method"]
        assert [None if metadata is None else metadata.get("mcp-name") for _, metadata in peer.heard] == [
            None,
            None,
            "my-hyphenated-tool",
            "file:///a%20b?c=1",
            "=?base64?R3LDvMOfZQ==?=",
            None,
            None,
        ]


async def test_a_listen_request_is_mirrored_too() -> None:
    async with met(MODERN, lambda request: -32603) as (client, peer):
        with pytest.raises(SubscriptionLost):
            async with client.listen(tools=True):
                pass
        (told,) = peer.told("subscriptions/listen")
        assert told == {"mcp-protocol-version": MODERN, "mcp-method": "subscriptions/listen"}


async def test_a_channel_that_does_not_mirror_is_given_nothing() -> None:
    tools = Tools([tool("good", p=region()), tool("bad", p=region(""))])
    async with met(MODERN, tools, mirrors=False) as (client, peer):
        assert [each.name for each in (await client.list_tools()).tools] == ["good", "bad"]
        await client.call_tool("good", {"p": "x"})
        await client.call_tool("bad", {"p": "x"})
        assert {metadata is None for _, metadata in peer.heard} == {True}


@pytest.mark.parametrize("version", LEGACY)
async def test_a_session_tells_its_version_after_the_handshake(version: str) -> None:
    tools = Tools([tool("bad", p=region(""))])
    async with met(version, tools, roots=["file:///x"]) as (client, peer):
        assert [each.name for each in (await client.list_tools()).tools] == ["bad"]
        await client.call_tool("bad", {"p": "x"})
        await peer.send({"jsonrpc": "2.0", "id": "ours", "method": "roots/list"})
        await client.roots_changed()
        await trio.testing.wait_all_tasks_blocked()
        first, *others = [metadata for _, metadata in peer.heard]
        assert first is None
        expected = {"mcp-protocol-version": version} if version >= "2025-06-18" else None
        assert [metadata == expected for metadata in others] == [True] * 5
        assert any(message.get("id") == "ours" for message, _ in peer.heard)


# -- tools -------------------------------------------------------------------------------------------------------------


async def test_parameters_of_listed_tools_are_mirrored() -> None:
    properties = {
        "region": region(),
        "n": region("N", "integer"),
        "b": region("B", "boolean"),
        "nil": region("Nil", "boolean"),
        "deep": {"type": "object", "properties": {"er": region("Deeper")}},
        "query": {"type": "string"},
    }
    arguments = {"region": " x\n", "n": 42, "b": False, "nil": None, "deep": {"er": ""}, "query": "q"}
    async with met(MODERN, Tools([tool("t", **properties)])) as (client, peer):
        await client.list_tools()
        await client.call_tool("t", arguments)
        await client.call_tool("t", {"region": "only"})
        await client.call_tool("t")
        await client.request("tools/call", {"name": "t", "arguments": {"n": 1}})
        assert [params_in(each) for each in peer.told("tools/call")] == [
            {
                "mcp-param-region": "=?base64?IHgK?=",
                "mcp-param-n": "42",
                "mcp-param-b": "false",
                "mcp-param-deeper": "",
            },
            {"mcp-param-region": "only"},
            {},
            {"mcp-param-n": "1"},
        ]
        calls = [message for message, _ in peer.heard if message["method"] == "tools/call"]
        assert calls[0]["params"]["arguments"] == arguments


async def test_tools_of_every_page_and_of_remembered_lists_are_known() -> None:
    tools = Tools([tool("a", p=region("A"))], [tool("b", p=region("B"))], ttl=60_000)
    async with met(MODERN, tools) as (client, peer):
        assert [each.name async for each in client.tools()] == ["a", "b"]
        assert [each.name async for each in client.tools()] == ["a", "b"]
        await client.call_tool("a", {"p": "1"})
        await client.call_tool("b", {"p": "2"})
        assert [params_in(each) for each in peer.told("tools/call")] == [
            {"mcp-param-a": "1"},
            {"mcp-param-b": "2"},
        ]
        assert tools.listed == 2


@pytest.mark.parametrize("ttl", [0, 60_000])
async def test_tools_that_no_header_can_be_made_of_are_left_out(ttl: int) -> None:
    bad = {
        "empty": {"p": region("")},
        "object": {"p": region(type="object")},
        "twice": {"p": region("X"), "q": region("x")},
        "control": {"p": region("Region\t1")},
        "items": {"p": {"type": "array", "items": region()}},
    }
    tools = Tools([tool("valid", p=region()), *(tool(name, **p) for name, p in bad.items())], ttl=ttl)
    async with met(MODERN, tools) as (client, peer):
        with capture_logs() as logs:
            for _ in range(2):
                assert [each.name for each in (await client.list_tools()).tools] == ["valid"]
            assert [each.name async for each in client.tools()] == ["valid"]
        warned = [each["tool"] for each in logs if each["log_level"] == "warning"]
        assert warned == list(bad)
        for name in bad:
            with pytest.raises(LocalProtocolError, match=name):
                await client.call_tool(name, {"p": "x"})
        assert not tools.called
        await client.call_tool("valid", {"p": "x"})
        # What was repaired can be used.
        tools.pages = [[tool("empty", p=region())]]
        await notify(peer, "notifications/tools/list_changed")
        await trio.testing.wait_all_tasks_blocked()
        await client.list_tools()
        await client.call_tool("empty", {"p": "y"})
        assert params_in(peer.told("tools/call")[-1]) == {"mcp-param-region": "y"}


async def test_an_unknown_tool_is_called_without_and_looked_up_when_its_server_complains() -> None:
    tools = Tools([tool("other")], [tool("t", p=region())], refusing=1)
    async with met(MODERN, tools) as (client, peer):
        await client.call_tool("t", {"p": "x"})
        assert [params_in(each) for each in peer.told("tools/call")] == [{}, {"mcp-param-region": "x"}]
        assert tools.listed == 2
        assert len({message["id"] for message, _ in peer.heard}) == len(peer.heard)
        await client.call_tool("t", {"p": "y"})
        assert tools.listed == 2


async def test_what_was_remembered_may_be_out_of_date() -> None:
    tools = Tools([tool("t", p=region("Old"))], ttl=60_000)
    async with met(MODERN, tools) as (client, peer):
        await client.list_tools()
        tools.pages, tools.refusing = [[tool("t", p=region("New"))]], 1
        await client.call_tool("t", {"p": "x"})
        assert [params_in(each) for each in peer.told("tools/call")] == [
            {"mcp-param-old": "x"},
            {"mcp-param-new": "x"},
        ]


async def test_an_annotation_that_is_gone_is_no_longer_obeyed() -> None:
    tools = Tools([tool("t", p=region())])
    async with met(MODERN, tools) as (client, peer):
        await client.list_tools()
        tools.pages = [[tool("t", p={"type": "string"})]]
        await client.list_tools()
        await client.call_tool("t", {"p": "x"})
        assert params_in(peer.told("tools/call")[0]) == {}


@pytest.mark.parametrize(("size", "most"), [(0, 100), (1_000_000, 68)])
async def test_a_list_without_an_end_is_read_within_bounds(size: int, most: int) -> None:
    large = {**tool("other"), "description": "x" * size}
    tools = Tools(*[[large]] * 200, refusing=1)
    async with met(MODERN, tools) as (client, _):
        await client.call_tool("t")
        assert tools.called == 2
        assert most - 2 <= tools.listed <= most


async def test_a_server_that_goes_on_complaining_is_believed() -> None:
    tools = Tools([tool("t", p=region())], refusing=99)
    async with met(MODERN, tools) as (client, _):
        with pytest.raises(HeaderMismatch):
            await client.call_tool("t", {"p": "x"})
        assert (tools.listed, tools.called) == (1, 2)


async def test_other_requests_are_not_repeated() -> None:
    asked: list[str] = []

    def refuse(request: dict[str, Any]) -> int:
        asked.append(request["method"])
        return -32603 if request["method"] == "tools/list" else MISMATCH

    async with met(MODERN, refuse) as (client, _):
        with pytest.raises(HeaderMismatch):
            await client.get_prompt("p")
        with pytest.raises(HeaderMismatch):
            await client.call_tool("t")
        # The list that was to help was refused as well: the complaint about the call is what the caller sees.
        assert asked == ["prompts/get", "tools/call", "tools/list"]


async def test_a_channel_that_does_not_mirror_has_nothing_to_repair() -> None:
    tools = Tools([], refusing=1)
    async with met(MODERN, tools, mirrors=False) as (client, _):
        with pytest.raises(HeaderMismatch):
            await client.call_tool("t")
        assert (tools.listed, tools.called) == (0, 1)


async def test_calls_that_fail_together_list_the_tools_once() -> None:
    tools = Tools([tool("t", p=region())], refusing=20)
    async with met(MODERN, tools) as (client, peer):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(client.call_tool, "t", {"p": str(number)})
        assert tools.listed == 1
        again = [params_in(each)["mcp-param-region"] for each in peer.told("tools/call")[20:]]
        assert sorted(again, key=int) == [str(number) for number in range(20)]


@pytest.mark.parametrize(("is_circle", "listed"), [(False, 100), (True, 2)])
async def test_a_list_without_end_ends(is_circle: bool, listed: int) -> None:
    numbers = itertools.count()

    def answer(request: dict[str, Any]) -> Any:
        if request["method"] == "tools/call":
            return MISMATCH
        cursor = "again" if is_circle else str(next(numbers))
        return {"resultType": "complete", "tools": [], "nextCursor": cursor}

    async with met(MODERN, answer) as (client, peer):
        with pytest.raises(HeaderMismatch):
            await client.call_tool("t")
        assert len(peer.told("tools/list")) == listed


async def test_a_change_of_the_tools_makes_the_client_forget() -> None:
    tools = Tools([tool("t", p=region())])
    async with met(MODERN, tools) as (client, peer):
        await client.list_tools()
        await notify(peer, "notifications/tools/list_changed")
        await trio.testing.wait_all_tasks_blocked()
        await client.call_tool("t", {"p": "x"})
        assert params_in(peer.told("tools/call")[0]) == {}


async def test_another_log_level_makes_it_forget_nothing() -> None:
    async with met(MODERN, Tools([tool("t", p=region())])) as (client, peer):
        await client.list_tools()
        await client.set_log_level("error")
        await client.call_tool("t", {"p": "x"})
        assert params_in(peer.told("tools/call")[0]) == {"mcp-param-region": "x"}


async def test_what_no_header_can_tell_is_not_sent() -> None:
    tools = Tools([tool("t", n=region("N", "integer"))])
    async with met(MODERN, tools) as (client, _):
        await client.list_tools()
        with pytest.raises(LocalProtocolError, match="n is sent in a header"):
            await client.call_tool("t", {"n": 2**53})
        with pytest.raises(LocalProtocolError):
            await client.request("a\r\nb")
        assert not tools.called
