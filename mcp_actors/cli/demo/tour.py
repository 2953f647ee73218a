"""The tour of the demo: each capability of the engine once, against a real server, with a line of what came of it.

One `Server` object in this process is served over HTTP, WebSocket, TCP, a Unix socket and in memory, and another one by
a child process over stdio (`stage`). Each outcome is checked before its line is shown. A title has 13 characters at
most and a line 65, so that both fit a row of a terminal with 80 columns, and the tour a screen of 24 rows.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors import Client, Server
from mcp_actors.abc.discovery import client_transport, server_transport
from mcp_actors.auth import BearerToken
from mcp_actors.cli.demo import servers
from mcp_actors.cli.demo.load import WrongAnswer
from mcp_actors.cli.demo.servers import Forecast, Sighting
from mcp_actors.client import Progress
from mcp_actors.errors import RpcError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.supervision.platform import join_words
from mcp_actors.types import (
    CallToolResult,
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    PromptReference,
    TextContent,
    TextResourceContents,
)

__all__ = ["TOUR", "DemoStage", "Demonstration", "Shown", "stage", "take_tour"]


@attrs.frozen
class DemoStage:
    """The server of the tour, and where it is reached."""

    server: Server
    sighting: Sighting
    urls: dict[str, str]
    """By the name of the binding."""
    child: Client
    """A client of such a server in a process of its own, over stdio."""

    @property
    def url(self) -> str:
        """The URL of Streamable HTTP."""
        return self.urls["HTTP"]


@asynccontextmanager
async def stage() -> AsyncIterator[DemoStage]:
    """Serves the server of the tour for the length of the block, and starts another one in a child process."""
    sighting = Sighting()
    server = servers.server_that_tells(sighting)
    listen = {
        "HTTP": "http://127.0.0.1:0/mcp",
        "WebSocket": "ws://127.0.0.1:0/ws",
        "TCP": "tcp://127.0.0.1:0",
    }
    command = join_words(
        [sys.executable, "-P", "-m", "mcp_actors", "serve", f"{servers.__name__}:tour_server"]
    )
    # What its functions raise on purpose is in its log, which is not for the terminal.
    over_stdio = Client(client_transport(f"stdio:{command}", stderr=None, env="inherit"))
    with tempfile.TemporaryDirectory(prefix="mcp-actors-") as folder:
        if sys.platform != "win32":
            listen["Unix socket"] = f"unix:{os.path.join(folder, 'tour.sock')}"
        async with trio.open_nursery() as nursery:
            urls = await nursery.start(server.serve, *listen.values())
            async with over_stdio as child:
                yield DemoStage(server, sighting, dict(zip(listen, urls, strict=True)), child)
            nursery.cancel_scope.cancel()


_WITHIN = 30.0  # seconds for one demonstration, which takes a fraction of one
_CANCEL_AFTER = 0.05  # seconds a held call is waited for
_KEY = "key-of-ada"


@attrs.frozen
class Shown:
    """The outcome of one demonstration.

    Args:
        title: The capability.
        text: A line of real output, or why it failed.
        failed: Whether it did.
    """

    title: str
    text: str
    failed: bool = False


@attrs.frozen
class Demonstration:
    """One capability: ``show`` tries it, and returns a line of what it saw or raises."""

    title: str
    show: Callable[[DemoStage], Awaitable[str]]


async def take_tour(stage: DemoStage, show: Callable[[Shown], None]) -> None:
    """Calls ``show`` with what came of each demonstration of `TOUR`, in their order. None ends the tour."""
    for each in TOUR:
        show(await _shown(each, stage))


async def _shown(demonstration: Demonstration, stage: DemoStage) -> Shown:
    try:
        with trio.fail_after(_WITHIN):
            return Shown(demonstration.title, await demonstration.show(stage))
    except Exception as error:
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        return Shown(demonstration.title, f"failed: {type(error).__name__}: {error}", failed=True)


def _require(right: bool, seen: object) -> None:
    if not right:
        raise WrongAnswer(f"this came instead: {seen!r}")


def _text(result: CallToolResult) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, TextContent))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


async def _typed_tools(stage: DemoStage) -> str:
    async with Client(stage.url) as client:
        answer = await client.call_tool("forecast", {"city": "Berlin", "days": 2}, returns=Forecast)
        _require(answer == Forecast("Berlin", [21, 22]), answer)
        return f"a call returned {answer}"


async def _arguments(stage: DemoStage) -> str:
    async with Client(stage.url) as client:
        result = await client.call_tool("forecast", {"city": "Berlin", "days": "two"})
        said = _text(result)
        _require(bool(result.is_error) and "days" in said, result)
        return f"for days='two' the model reads {said.rpartition('days: ')[2]!r}"


async def _failures(stage: DemoStage) -> str:
    result = await stage.child.call_tool("leave")
    _require(bool(result.is_error) and "SystemExit: 3" in _text(result), result)
    after = await stage.child.call_tool("who")
    _require(_text(after) == "nobody", after)
    return f"the model reads {_text(result)!r}; the next call is answered"


async def _progress(stage: DemoStage) -> str:
    reports: list[str] = []

    def note(report: Progress) -> None:
        reports.append(f"{report.progress:g}/{report.total:g} {report.message}")

    async with Client(stage.url) as client:
        result = await client.call_tool("pack", {"items": ["map", "hat", "tea"]}, on_progress=note)
        _require(reports == ["1/3 map", "2/3 hat", "3/3 tea"], reports)
        return f"{', '.join(reports)}, and then the answer: {_text(result)!r}"


async def _cancellation(stage: DemoStage) -> str:
    scope = trio.CancelScope()

    def begun(_report: Progress) -> None:
        scope.deadline = trio.current_time() + _CANCEL_AFTER

    async with Client(stage.url) as client:
        with scope:
            await client.call_tool("hold", on_progress=begun)
        _require(scope.cancelled_caught, "an answer")
        await stage.sighting.cancelled.wait()
    after = stage.sighting.cancelled_at - scope.deadline
    return f"{_ms(after)} after its caller left, the tool saw trio.Cancelled"


async def _person(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada", "nights": 2})


async def _model(question: CreateMessageParams) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(text="Welcome"), model="none")


async def _questions(stage: DemoStage) -> str:
    for era in ("legacy", "modern"):
        answering: dict[str, Any] = {"elicitation": _person, "sampling": _model, "roots": ["file:///trip"]}
        async with Client(stage.url, era=era, **answering) as client:
            text = _text(await client.call_tool("book"))
            _require(text == "Ada, 2 nights; Welcome; file:///trip", text)
    return f"asked person, model, host: {text}"


async def _resources(stage: DemoStage) -> str:
    uri = "weather://Bern/now"
    async with Client(stage.url) as client, client.listen(uris=(uri,)) as listener:
        before = await _read(client, uri)
        await client.call_tool("rain", {"city": "Bern"})
        began = trio.current_time()
        event = await anext(listener)
        after = await _read(client, event.uri or "")
        _require((before, after) == ("Bern: sunny", "Bern: rainy"), (before, after))
        waited = trio.current_time() - began
        return f"a subscriber read {after!r} {_ms(waited)} after it changed"


async def _read(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    return content.text if isinstance(content, TextResourceContents) else ""


async def _prompts(stage: DemoStage) -> str:
    async with Client(stage.url) as client:
        completion = await client.complete(PromptReference(name="plan"), "city", "Ber")
        _require(completion.values == ["Berlin", "Bergen", "Bern"], completion)
        prompt = await client.get_prompt("plan", {"city": "Lima"})
        (message,) = prompt.messages
        said = message.content.text if isinstance(message.content, TextContent) else ""
        _require(said == "Plan three days in Lima.", prompt)
        return f"Ber completes to {', '.join(completion.values)}; {said!r}"


async def _log_messages(stage: DemoStage) -> str:
    lines: list[str] = []

    def note(level: Any, data: Any, logger: str | None) -> None:
        lines.append(f"{level}: {data}")

    async with Client(stage.url, on_log=note) as client:
        await client.call_tool("pack", {"items": ["map", "hat"]})
        _require(lines == ["info: map is packed", "info: hat is packed"], lines)
        return f"while it worked: {', '.join(map(repr, lines))}"


async def _tasks(stage: DemoStage) -> str:
    async with Client(stage.url) as client:
        handle = await client.start_tool("study", {"city": "Berlin"})
        status = (await handle.status()).status
    _require(handle.id is not None and status == "working", (handle, status))
    stage.sighting.left.set()
    async with Client(stage.url) as other:
        text = _text(await other.task(handle.id or "").result(cap=_WITHIN))
        _require(text == "Berlin is warm", text)
        return f"its client left; another one got {text!r} by the id"


async def _authorization(stage: DemoStage) -> str:
    refusal = importlib.import_module("mcp_transports.http.server").Refusal

    def authenticate(request: Any) -> Any:
        known = request.headers.get("authorization") == f"Bearer {_KEY}"
        return "ada" if known else refusal(401, "a key is needed")

    async with trio.open_nursery() as nursery:
        guarded = server_transport("http://127.0.0.1:0/mcp", authenticate=authenticate)
        (url,) = await nursery.start(servers.tour_server().serve, guarded)
        try:
            async with Client(url):
                raise WrongAnswer("somebody without a key was let in")
        except RpcError as error:
            _require(error.message == "a key is needed", error)
        async with Client(url, auth=BearerToken(_KEY)) as client:
            name = _text(await client.call_tool("who"))
            _require(name == "ada", name)
        nursery.cancel_scope.cancel()
    return f"without a key: 'a key is needed'; with it the tool knew {name!r}"


async def _revisions(stage: DemoStage) -> str:
    async def ask(version: str) -> None:
        async with Client(stage.url, era=version) as client:
            text = _text(await client.call_tool("who"))
            _require((text, client.version) == ("nobody", version), (text, client.version))

    async with trio.open_nursery() as nursery:
        for version in stage.server.versions:
            nursery.start_soon(ask, version)
    versions = stage.server.versions
    return f"{len(versions)} at once at one URL, from {versions[0]} to {versions[-1]}"


async def _bindings(stage: DemoStage) -> str:
    targets: dict[str, Server | str] = {"memory": stage.server, **stage.urls}
    answered = []
    for name, target in targets.items():
        async with Client(target) as client:
            _require(_text(await client.call_tool("who")) == "nobody", name)
            answered.append(name)
    _require(_text(await stage.child.call_tool("who")) == "nobody", "stdio")
    return f"answers over stdio, {', '.join(answered)}"


async def _gateway(stage: DemoStage) -> str:
    reports: list[str | None] = []
    servers = {"west": stage.urls["WebSocket"], "south": stage.urls["TCP"]}
    gateway = Gateway([Upstream(name=name, target=url) for name, url in servers.items()])
    async with Client(gateway) as client:
        names = {tool.name async for tool in client.tools()}
        _require({"west_who", "south_pack"} <= names, names)
        await client.call_tool(
            "south_pack", {"items": ["map", "hat"]}, on_progress=lambda report: reports.append(report.message)
        )
        _require(reports == ["map", "hat"], reports)
        return f"{len(names)} tools of two servers; one reported {' and '.join(map(str, reports))} through it"


async def _actor_tree(stage: DemoStage) -> str:
    began = trio.Event()
    async with Client(stage.urls["TCP"]) as client, trio.open_nursery() as nursery:
        call = client.call_tool
        nursery.start_soon(lambda: call("hold", on_progress=lambda report: began.set()))
        await began.wait()
        # What the gateway before has asked may still be there: its end travels over sockets of its own.
        running = [each for session in stage.server.tree().sessions for each in session.calls]
        (held,) = (each for each in running if each.target == "hold")
        nursery.cancel_scope.cancel()
    return f"server.tree() has {held.method} of {held.target!r}, {held.state} for {_ms(held.age)}"


TOUR = (
    Demonstration("typed tools", _typed_tools),
    Demonstration("arguments", _arguments),
    Demonstration("failures", _failures),
    Demonstration("progress", _progress),
    Demonstration("log messages", _log_messages),
    Demonstration("cancellation", _cancellation),
    Demonstration("questions", _questions),
    Demonstration("resources", _resources),
    Demonstration("prompts", _prompts),
    Demonstration("tasks", _tasks),
    Demonstration("authorization", _authorization),
    Demonstration("revisions", _revisions),
    Demonstration("bindings", _bindings),
    Demonstration("gateway", _gateway),
    Demonstration("actor tree", _actor_tree),
)
"""The capabilities, in the order in which they are shown."""
