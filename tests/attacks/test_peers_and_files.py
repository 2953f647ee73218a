"""Hostile peers of gateways and extensions, hostile recordings, and a server that is replaced under load."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import Client, McpError, RpcError, Server
from mcp_actors.abc import Frame
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.testing import RecordedServer, Recording, play_to_server
from mcp_actors.types import ClientCapabilities
from mcp_transports.memory import MemoryTransport

# -- recordings that nobody recorded -----------------------------------------------------------------------------------

HEAD = b'{"recording": 1}\n'
OPENED = b'{"t": 0.0, "connection": 1, "event": "opened", "side": "client"}\n'
SENT = b'{"t": 0.0, "connection": 1, "event": "sent", "text": "{}"}\n'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]\n",
        b'{"recording": 2}\n',
        b'{"recording": "1"}\n',
        b'{"recording": [[[[',
        b'{"recording"}\n',
        b'{"recording"' + b"[" * 100_000 + b"\n",
        HEAD + b"null\n",
        HEAD + b"5\n",
        HEAD + b"[]\n",
        HEAD + b"{}\n",
        HEAD + b"\n",
        HEAD + b"[" * 100_000 + b"\n",
        HEAD + b'{"t": 0}\n',
        HEAD + b'{"t": "0", "connection": 1, "event": "opened", "side": "client"}\n',
        HEAD + b'{"t": 0, "connection": "1", "event": "opened", "side": "client"}\n',
        HEAD + b'{"t": 0, "connection": 1, "event": "opened", "side": "both"}\n',
        HEAD + b'{"t": 0, "connection": 1, "event": "opened"}\n',
        HEAD + b'{"t": 0, "connection": 1, "event": "exec", "side": "client"}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "text": 5}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "text": null}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "base64": "*"}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "base64": 5}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "text": "{}", "request": {}}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "text": "{}", "metadata": 5}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "text": "\\ud800"}\n',
    ],
)
def test_what_is_no_recording_is_refused_as_documented(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "tape").write_bytes(data)
    with pytest.raises(ValueError, match=r"."):
        Recording.load(tmp_path / "tape")


FRAMES = (
    "[" * 100_000,
    '{"id":' + "[" * 100_000,
    '{"id": 1e999, "result": {}}',
    '{"id": {}, "result": []}',
    '{"id": "\ud800"}',
    "1" * 10_000,
    '{"jsonrpc": "2.0", "id": true, "error": 5}',
    "NaN",
    '"' + "x" * 1_000_000 + '"',
)


@pytest.mark.parametrize("text", FRAMES, ids=range(len(FRAMES)))
@pytest.mark.parametrize("side", ["client", "server"])
async def test_frames_of_any_content_are_played_and_compared(
    text: str, side: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A peer may send these, and then they are in the recording."""
    frame = {"t": 0, "connection": 1, "event": "sent", "text": text.encode("utf-8", "replace").decode()}
    lines = [{"recording": 1}, {**json.loads(OPENED), "side": side}, frame, {**frame, "event": "received"}]
    (tmp_path / "tape").write_text("".join(json.dumps(each) + "\n" for each in lines))
    recording = Recording.load(tmp_path / "tape")
    data = frame["text"].encode()  # type: ignore[attr-defined]
    if side == "client":
        transport = MemoryTransport()

        async def echo(channel: Any, principal: Any = None) -> None:
            await channel.send(await channel.receive())

        async with trio.open_nursery() as nursery:
            await nursery.start(transport.serve, echo)
            report = await play_to_server(recording, transport)
            nursery.cancel_scope.cancel()
    else:
        recorded = RecordedServer(recording)
        async with recorded.connect() as channel:
            await channel.receive()
            await channel.send(Frame(data))
            await trio.testing.wait_all_tasks_blocked()
        (report,) = recorded.reports
    assert report.same, str(report)[:200]


# -- gateways in circles -----------------------------------------------------------------------------------------------


class Ways:
    """Places in memory or at a URL, so that gateways can name each other before they are served."""

    def __init__(self, nursery: trio.Nursery, over: str) -> None:
        self._nursery = nursery
        self._over = over
        self._places: dict[str, Any] = {}
        self.gateways: dict[str, Gateway] = {}

    def __call__(self, name: str) -> Any:
        return lambda: self._places[name]

    async def serve(self, name: str, *upstreams: str, **settings: Any) -> None:
        """Serves a gateway whose upstreams have these names."""
        gateway = Gateway([Upstream(name=each, target=self(each), **settings) for each in upstreams])

        @gateway.tool(name="own")
        async def own() -> str:
            """Is no upstream's."""
            return name

        await self._begin(name, gateway)
        self.gateways[name] = gateway

    async def server(self, name: str) -> None:
        """Serves a plain server with one tool."""
        server = Server(name)

        @server.tool
        async def last() -> str:
            return name

        await self._begin(name, server)

    async def _begin(self, name: str, server: Server) -> None:
        way: Any = MemoryTransport() if self._over == "memory" else "http://127.0.0.1:0/mcp"
        places = await self._nursery.start(server.serve, way)
        self._places[name] = way if self._over == "memory" else places[0]

    def place(self, name: str) -> Any:
        return self._places[name]


@asynccontextmanager
async def ways(over: str) -> AsyncIterator[Ways]:
    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            yield Ways(nursery, over)
            nursery.cancel_scope.cancel()


OVER = pytest.mark.parametrize("over", ["memory", "http"])
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


async def own_tool_answers(at: Ways, name: str, era: str) -> None:
    async with Client(at.place(name), era=era) as client:
        assert (await client.call_tool("own")).text == name


@OVER
@ERAS
async def test_a_gateway_of_itself_serves_its_own_tools(over: str, era: str) -> None:
    with capture_logs():
        async with ways(over) as at:
            await at.serve("a", "a", lazy=True, era=era)
            async with Client(at.place("a"), era=era) as client:
                for name in ("a_own", "a_a_own", "a_" * 60 + "own", "a_nobody"):
                    with trio.move_on_after(10):
                        try:
                            await client.call_tool(name)
                        except McpError:
                            pass
                assert (await client.call_tool("own")).text == "a"
                listed = [tool.name async for tool in client.tools()]
            assert "own" in listed
            assert len(listed) < 50


@OVER
@ERAS
@pytest.mark.parametrize("size", [2, 3, 5])
async def test_gateways_of_each_other_come_to_an_end(over: str, era: str, size: int) -> None:
    names = [f"g{number}" for number in range(size)]
    with capture_logs():
        async with ways(over) as at:
            for number, name in enumerate(names):
                await at.serve(name, names[(number + 1) % size], lazy=True, era=era)
            for name in names:
                async with Client(at.place(name), era=era) as client:
                    listed = [tool.name async for tool in client.tools()]
                    assert "own" in listed
                    assert len(listed) <= 4 * size
                    deep = "_".join([*(names * 20), "own"])
                    with pytest.raises(McpError):
                        await client.call_tool(deep)
            for name in names:
                await own_tool_answers(at, name, era)


@ERAS
@pytest.mark.parametrize("over", ["memory", "http"])
async def test_a_chain_of_twenty_reaches_its_end(over: str, era: str) -> None:
    with capture_logs():
        async with ways(over) as at:
            await at.server("s")
            before = "s"
            for number in range(20):
                await at.serve(f"g{number}", before, lazy=True, era=era, prefix="")
                before = f"g{number}"
            async with Client(at.place(before), era=era) as client:
                assert (await client.call_tool("last")).text == "s"
                assert (await client.call_tool("own")).text == before
                with pytest.raises(McpError):
                    await client.call_tool("nobody_has_it")
                with trio.move_on_after(0.01):
                    await client.call_tool("last")
                assert (await client.call_tool("last")).text == "s"


@ERAS
async def test_a_diamond_asks_its_last_server_once_for_each_call(era: str) -> None:
    with capture_logs():
        async with ways("memory") as at:
            await at.server("s")
            await at.serve("left", "s", era=era)
            await at.serve("right", "s", era=era)
            await at.serve("top", "left", "right", era=era)
            async with Client(at.place("top"), era=era) as client:
                assert (await client.call_tool("left_s_last")).text == "s"
                assert (await client.call_tool("right_s_last")).text == "s"
                listed = {tool.name async for tool in client.tools()}
            assert listed == {"own", "left_own", "right_own", "left_s_last", "right_s_last"}


GATEWAYS = "mcp-actors/gateways"


@pytest.mark.parametrize(
    "declared",
    [
        None,
        5,
        [],
        {"ids": None},
        {"ids": {}},
        {"ids": [None, 5, {}, [], "x" * 10_000]},
        {"ids": [f"made-up-{number}" for number in range(3000)]},
        {"ids": ["\u0000", "\x1b[2J"]},
    ],
    ids=lambda each: str(each)[:20],
)
@ERAS
async def test_ids_of_gateways_that_a_client_makes_up_refuse_nobody(declared: Any, era: str) -> None:
    with capture_logs():
        async with ways("memory") as at:
            await at.server("s")
            await at.serve("a", "s", era=era)
            capabilities = ClientCapabilities(experimental={GATEWAYS: declared})
            async with Client(at.place("a"), era=era, capabilities=capabilities) as client:
                assert (await client.call_tool("s_last")).text == "s"
            async with Client(at.place("a"), era=era) as client:
                assert (await client.call_tool("s_last")).text == "s"
            await at.server("t")
            upstream = at.gateways["a"].mount("t", at("t"), era=era)
            async with Client(at.place("a"), era=era) as client:
                assert (await client.call_tool(f"{upstream.name}_last")).text == "t"


@ERAS
async def test_a_gateway_of_itself_says_so(era: str) -> None:
    with capture_logs() as logs:
        async with ways("memory") as at:
            await at.serve("a", "a", era=era)
            async with Client(at.place("a"), era=era) as client:
                with pytest.raises(RpcError):
                    await client.call_tool("a_own")
    assert any("this gateway is an upstream of itself" in str(each) for each in logs)
