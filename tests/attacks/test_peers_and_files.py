"""Hostile peers of gateways and extensions, hostile recordings, and a server that is replaced under load."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import Client, Context, McpError, RpcError, Server
from mcp_actors.abc import Frame
from mcp_actors.cli.reload.replacement import ReplaceableServer
from mcp_actors.errors import LocalProtocolError
from mcp_actors.extensions import ClientExtension, ServerExtension
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.testing import RecordedServer, Recording, play_to_server, raw_client, raw_server
from mcp_actors.types import ClientCapabilities
from mcp_transports.memory import MemoryTransport
from tests import messages
from tests.messages import LEGACY, MODERN

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
        b'{"recording": ' + b"[" * 100_000 + b"\n",
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


# -- extensions of hostile peers ---------------------------------------------------------------------------------------

ID = "com.example/odd"
DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
ODD_SETTINGS: tuple[Any, ...] = (
    None,
    True,
    5,
    1.5,
    "x",
    [],
    [ID],
    {},
    {"a": None},
    {"x" * 1000: 1},
    DEEP,
    {ID: {ID: {}}},
)


def make_odd(settings: Any = None) -> Server:
    extension = ServerExtension(ID, settings={} if settings is None else settings)

    @extension.method("odd/ask")
    async def ask(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"declared": sorted(ctx.extensions)}

    server = Server("odd", extensions=[extension])

    @server.tool
    async def plain() -> str:
        return "plain"

    return server


@pytest.mark.parametrize("version", [LEGACY, MODERN])
@pytest.mark.parametrize("settings", ODD_SETTINGS, ids=range(len(ODD_SETTINGS)))
async def test_odd_capabilities_of_a_client_cost_no_tool(settings: Any, version: str) -> None:
    with capture_logs() as logs:
        async with raw_client(make_odd()) as peer:
            capabilities = {
                "extensions": {ID: settings, "": settings, "\x1b[2J": {}},
                "experimental": settings,
            }
            if version == LEGACY:
                await peer.send(messages.initialize(0, LEGACY, capabilities))
                await peer.receive()
                await peer.send(messages.INITIALIZED)
                for number, method in enumerate(("odd/ask", "odd/none"), 1):
                    await peer.send(messages.request(number, method))
                    await peer.receive()
                await peer.send(messages.call(9, "plain"))
            else:
                for number, method in enumerate(("odd/ask", "odd/none"), 1):
                    await peer.send(messages.modern_request(number, method, capabilities=capabilities))
                    await peer.receive()
                await peer.send(messages.modern_call(9, "plain"))
            answer = await peer.receive()
            if "error" in answer:  # an initialize that was refused has no session: another one may come
                await peer.send(messages.initialize(10, LEGACY))
                assert "result" in await peer.receive()
            else:
                assert answer["result"]["content"][0]["text"] == "plain"
    assert [each for each in logs if each["log_level"] == "error"] == []


RESULTS: tuple[Any, ...] = (
    None,
    5,
    "x",
    [],
    {"resultType": 5},
    {"resultType": "odd"},
    {"resultType": "input_required"},
    {"resultType": "input_required", "inputRequests": 5},
    {"resultType": "input_required", "inputRequests": {"a": {"method": "odd/ask"}}},
    {"resultType": "complete", "content": 5},
    {"resultType": "complete", "content": [{"type": "odd"}]},
    {"resultType": "complete", "content": [], "_meta": 5},
    {"resultType": "complete", "content": [], "_meta": {"x" * 10_000: DEEP}},
    {"resultType": "complete", "content": [], "_meta": {f"k{number}": number for number in range(5000)}},
    {"resultType": "complete", "content": [], "structuredContent": DEEP, "isError": "yes"},
    {"resultType": "task", "task": {"taskId": 5}},
    {"resultType": "task", "taskId": "x" * 100_000, "status": "odd"},
    {"resultType": ID + "/result"},
)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("answered", RESULTS, ids=range(len(RESULTS)))
async def test_an_odd_result_of_a_server_costs_its_call_alone(
    answered: Any, era: str, autojump_clock: trio.testing.MockClock
) -> None:
    extension = ClientExtension(ID, settings={})

    async def serve(there: Any) -> None:
        peer = await there.accept()
        while True:
            try:
                asked = await peer.receive()
            except (trio.EndOfChannel, trio.BrokenResourceError):
                return
            if "id" not in asked or "method" not in asked:
                continue
            capabilities = {"extensions": {ID: DEEP, "": 5}, "tools": {}}
            if asked["method"] == "initialize":
                found: Any = messages.initialize_result(capabilities={"tools": {}})
                found["capabilities"]["extensions"] = {ID: {}}
            elif asked["method"] == "server/discover":
                found = messages.discover_result(capabilities={**capabilities, "extensions": {ID: {}}})
            elif asked["params"].get("name") == "odd":
                found = answered
            else:
                found = {"resultType": "complete", **messages.TEXT}
            await peer.send({"jsonrpc": "2.0", "id": asked["id"], "result": found})

    with capture_logs() as logs:
        async with raw_server() as there, trio.open_nursery() as nursery:
            nursery.start_soon(serve, there)
            async with Client(there.transport, era=era, extensions=[extension]) as client:
                with trio.move_on_after(400):
                    try:
                        await client.call_tool("odd")
                    except McpError:
                        pass
                assert (await client.call_tool("good")).text == "done"
            nursery.cancel_scope.cancel()
    assert [each for each in logs if each["log_level"] == "error"] == []


# -- a server that is replaced under load ------------------------------------------------------------------------------


class Half:
    """Makes servers that are only half there: each in another way."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __call__(self) -> Server:
        @asynccontextmanager
        async def lifespan(server: Server) -> AsyncIterator[None]:
            if self.way == "lifespan raises":
                raise OSError("no database")
            if self.way == "lifespan exits":
                raise SystemExit(3)
            if self.way == "lifespan yields twice":
                yield
            yield

        extension = ServerExtension("com.example/half", settings={})

        @extension.serving
        @asynccontextmanager
        async def lives(serving: Any) -> AsyncIterator[None]:
            if self.way == "extension raises":
                raise KeyError("half")
            yield

        server = Server("half", lifespan=lifespan, extensions=[extension])

        @server.tool
        async def which() -> str:
            return "half"

        if self.way == "registration raises":
            server.add_tool(which)
        return server


HALF = ("lifespan raises", "lifespan exits", "extension raises", "registration raises")


def counted(number: int) -> Server:
    server = Server("numbered", version=str(number))

    @server.tool
    async def which() -> str:
        await trio.sleep(0.3)
        return str(number)

    @server.resource("numbered://it")
    async def it() -> str:
        return str(number)

    return server


@pytest.mark.parametrize("way", HALF)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_that_is_half_there_takes_no_place_under_load(
    way: str, era: str, autojump_clock: trio.testing.MockClock
) -> None:
    server, answers, asked = ReplaceableServer(counted(1)), list[str](), 0
    with capture_logs():
        async with Client(server, era=era) as client:

            async def call() -> None:
                answers.append((await client.call_tool("which")).text)

            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    for _ in range(3):
                        nursery.start_soon(call)
                        asked += 1
                    with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever it is that they raise
                        await server.replace(Half(way)())
                    await trio.sleep(0.1)
                await server.replace(counted(2))
                nursery.start_soon(call)
            assert (await client.read_resource("numbered://it")).text == "2"
    assert (len(answers), set(answers)) == (asked + 1, {"1", "2"})


@pytest.mark.parametrize("seed", range(5))
async def test_replaced_all_the_time_every_call_is_answered_once(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    chance, server, answers = random.Random(seed), ReplaceableServer(counted(0)), list[str]()

    async def session(era: str) -> None:
        async with Client(transport, era=era) as client:
            for _ in range(20):
                with trio.move_on_after(chance.choice((0.1, 5.0))):
                    answers.append((await client.call_tool("which")).text)

    transport = MemoryTransport()
    async with trio.open_nursery() as serving:
        await serving.start(server.serve, transport)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(session, "legacy")
                nursery.start_soon(session, "modern")
            for number in range(1, 15):
                await trio.sleep(chance.random())
                await server.replace(counted(number))
        async with Client(transport) as client:
            assert (await client.call_tool("which")).text == "14"
        assert sum(each.in_flight for each in server.tree().sessions) == 0
        with pytest.raises(LocalProtocolError):
            await server.replace(server)
        serving.cancel_scope.cancel()
    assert len(answers) > 40
