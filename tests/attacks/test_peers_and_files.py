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

from mcp_actors import Client, Context, McpError, Server
from mcp_actors.abc import Frame
from mcp_actors.cli.reload.replacement import ReplaceableServer
from mcp_actors.errors import LocalProtocolError
from mcp_actors.extensions import ClientExtension, ServerExtension
from mcp_actors.testing import RecordedServer, Recording, play_to_server, raw_client, raw_server
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
