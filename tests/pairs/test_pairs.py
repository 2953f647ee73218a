"""The table of all pairs: (our client, our server) x binding x revision x how it was agreed x feature."""

from __future__ import annotations

import base64
import ssl
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import httpx2
import pytest
import trio
import trustme

from mcp_actors import Client, Server
from mcp_actors.abc.discovery import server_transport
from mcp_actors.client import Progress
from mcp_actors.errors import CallTimeout, LocalProtocolError, McpError, ResourceNotFound, RpcError
from mcp_actors.types import (
    UNSET,
    AudioContent,
    CallToolResult,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    PromptReference,
    TextContent,
)
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.stdio import StdioClientTransport
from tests.pairs.server import CHANGING, make_server

pytestmark = [pytest.mark.slow, pytest.mark.long]

# -- the features: what a client sees of each, also where a revision lacks it ----------------------------------------

MIB = 1024 * 1024


@attrs.define
class Pair:
    """A client that is connected, and what is known of both sides."""

    client: Client
    version: str
    """The revision that was agreed."""
    served: str
    """The revision that the server takes it for: a request of the oldest one, by itself, looks like one of the next."""
    remembered: bool
    """Whether the server can ask and tell the client, and knows its name: not where sessions are left out."""
    kept: bool
    """Whether the server keeps state for the client: on a connection, or in a session."""
    over_http: bool
    logged: list[tuple[str, Any, str | None]]
    notified: list[tuple[str, Any]]

    def since(self, version: str) -> bool:
        """Whether what is served is as new as this revision; their names are dates."""
        return self.served >= version

    async def text(self, tool: str, **arguments: Any) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, text_of(result)
        return text_of(result)


def text_of(result: CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


async def answer_form(question: Any) -> ElicitResult:
    if isinstance(question, ElicitFormParams):
        return ElicitResult(action="accept", content={"name": "Ada", "age": 36})
    return ElicitResult(action="accept")


async def answer_model(question: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(text="Hi."), model="parrot")


ROOTS = ("file:///home/ada", "file:///tmp")


async def negotiation(pair: Pair) -> None:
    assert pair.client.version == pair.version
    assert (pair.client.server_info.name, pair.client.server_info.version) == ("pairs", "1.2")
    assert pair.client.instructions == "Be kind."
    name = "mcp-actors" if pair.remembered else None
    assert await pair.text("client") == f"{name} {pair.served}"


async def lists(pair: Pair) -> None:
    """Each list has several pages."""
    tools = {tool.name: tool async for tool in pair.client.tools()}
    assert {"echo", "point", "ask_twice"} <= set(tools)
    assert tools["echo"].description == "Says it again."
    assert tools["echo"].input_schema["required"] == ["text"]
    assert (tools["point"].title == "A point") is pair.since("2025-06-18")
    assert (tools["point"].output_schema is not None) is pair.since("2025-06-18")
    uris = {resource.uri async for resource in pair.client.resources()}
    assert uris == {CHANGING, "pairs://bytes", *(f"pairs://page/{number}" for number in range(12))}
    templates = [template.uri_template async for template in pair.client.resource_templates()]
    assert templates == ["pairs://city/{name}/{part}"]
    assert [prompt.name async for prompt in pair.client.prompts()] == ["greet"]


async def calls(pair: Pair) -> None:
    for text in ("", "é漢\U0001f9ed", "line\nline\r\n", "\u2028", "x" * 100_000):
        assert await pair.text("echo", text=text) == text


async def large_messages(pair: Pair) -> None:
    text = "é" * MIB
    assert await pair.text("echo", text=text) == text


async def structured_results(pair: Pair) -> None:
    result = await pair.client.call_tool("point", {"x": 1, "y": 2.5})
    expected = {"x": 1, "y": 2.5} if pair.since("2025-06-18") else UNSET
    assert result.structured_content == expected
    assert "2.5" in text_of(result)


async def kinds_of_content(pair: Pair) -> None:
    """Sound is known since 2025-03-26 and a link since 2025-06-18; before, an author is told that they cannot go."""
    result = await pair.client.call_tool("blocks")
    kinds = [block.type for block in result.content]
    assert kinds[0] == "text"
    assert ("audio" in kinds) is pair.since("2025-03-26")
    assert ("resource_link" in kinds) is pair.since("2025-06-18")
    if pair.since("2025-03-26"):
        assert isinstance(result.content[1], AudioContent)
        assert result.content[1].data == "AAAA"


async def failures_of_tools(pair: Pair) -> None:
    told = await pair.client.call_tool("fail", {"kind": "told"})
    assert told.is_error
    assert text_of(told) == "no such city"
    raised = await pair.client.call_tool("fail", {"kind": "raised"})
    assert raised.is_error
    assert text_of(raised) == "fail: ZeroDivisionError: division by zero"
    unfit = await pair.client.call_tool("point", {"x": "one", "y": 2})
    assert unfit.is_error
    assert "x" in text_of(unfit)


async def errors(pair: Pair) -> None:
    with pytest.raises(RpcError, match="nothing_of_the_kind"):
        await pair.client.call_tool("nothing_of_the_kind")
    with pytest.raises(ResourceNotFound):
        await pair.client.read_resource("pairs://nothing")
    with pytest.raises(RpcError):
        await pair.client.get_prompt("nothing_of_the_kind")
    with pytest.raises(RpcError) as caught:
        await pair.client.request("example.org/unknown")
    assert caught.value.code == -32601


async def resources(pair: Pair) -> None:
    page = await pair.client.read_resource(CHANGING)
    assert [content.text for content in page.contents] == ["as ever"]
    raw = (await pair.client.read_resource("pairs://bytes")).contents[0]
    assert base64.b64decode(raw.blob) == bytes(range(256))
    city = (await pair.client.read_resource("pairs://city/K%C3%B6ln/north")).contents[0]
    assert city.text == "north of Köln"


async def prompts(pair: Pair) -> None:
    prompt = await pair.client.get_prompt("greet", {"name": "Ada"})
    (message,) = prompt.messages
    assert isinstance(message.content, TextContent)
    assert (message.role, message.content.text) == ("user", "Hello Ada")


async def completion(pair: Pair) -> None:
    found = await pair.client.complete(PromptReference(name="greet"), "name", "A")
    assert list(found.values) == ["Ada", "Alan"]


async def progress(pair: Pair) -> None:
    seen: list[Progress] = []
    await pair.client.call_tool("count", {"upto": 20}, on_progress=seen.append)
    # On a busy machine the engine may have spoken in between; what it says is never a whole number.
    whole = [report for report in seen if report.progress == round(report.progress)]
    assert [report.progress for report in whole] == list(range(1, 21))
    assert {report.total for report in whole} == {20}
    message = "step 20" if pair.since("2025-03-26") else None
    assert whole[-1].message == message


async def beats(pair: Pair) -> None:
    """While a tool says nothing the engine reports for it; what it reports grows."""
    seen: list[float] = []
    enough = trio.Event()

    def hear(report: Progress) -> None:
        seen.append(report.progress)
        if len(seen) == 2:
            enough.set()

    async with trio.open_nursery() as nursery:

        async def rest() -> None:
            result = await pair.client.call_tool("rest", on_progress=hear)
            assert text_of(result) == "rested"

        nursery.start_soon(rest)
        await enough.wait()
        await pair.text("wake")
    assert seen == sorted(set(seen))
    assert 0 < seen[0] < 0.001


async def notifications_of_our_own(pair: Pair) -> None:
    await pair.client.notify("notifications/pairs/note", {"text": "hello"})
    await pair.text("noted", text="hello")
    while ("notifications/pairs/noted", {"text": "hello"}) not in pair.notified:
        await trio.lowlevel.checkpoint()


async def state_of_a_session(pair: Pair) -> None:
    first, second = [await pair.text("remember", text=text) for text in ("one", "two")]
    assert (first, second) == (("one", "one two") if pair.kept else ("nobody remembers",) * 2)


async def functions_in_threads(pair: Pair) -> None:
    """A function without async reports, and sees the request that brought the call, if it came by HTTP."""
    assert (await pair.text("arrived") != "not over HTTP") is pair.over_http


async def logs(pair: Pair) -> None:
    """A stateless client asks with each request, a session has a level; a server without sessions forgets it."""
    await pair.client.set_log_level("warning")
    pair.logged.clear()
    await pair.text("say", level="info", text="too quiet")
    await pair.text("say", level="error", text="heard")
    while not pair.logged or pair.logged[-1][0] != "error":
        await trio.lowlevel.checkpoint()
    assert pair.logged[-1] == ("error", {"text": "heard"}, "pairs")
    assert len(pair.logged) == (1 if pair.remembered else 2)


async def cancellation(pair: Pair) -> None:
    """Leaving the scope of one of two calls ends its handler and nothing else."""
    before, ended = (int(number) for number in (await pair.text("seen", waiting=0, cancelled=0)).split())
    doomed = trio.CancelScope()

    async def wait(scope: trio.CancelScope) -> None:
        with scope:
            await pair.client.call_tool("wait")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, trio.CancelScope())
        nursery.start_soon(wait, doomed)
        await pair.text("seen", waiting=before + 2, cancelled=0)
        doomed.cancel()
        assert await pair.text("seen", waiting=0, cancelled=ended + 1) == f"{before + 2} {ended + 1}"
        nursery.cancel_scope.cancel()
    await pair.text("seen", waiting=0, cancelled=ended + 2)


async def timeouts(pair: Pair) -> None:
    """A call whose time is over ends its handler, if it has come to that in its time."""
    begun, ended = (int(number) for number in (await pair.text("seen", waiting=0, cancelled=0)).split())
    limit = 0.05
    while (await pair.text("seen", waiting=0, cancelled=0)).split()[0] == str(begun):
        with pytest.raises(CallTimeout):
            await pair.client.call_tool("wait", timeout=limit)
        limit *= 2
    await pair.text("seen", waiting=0, cancelled=ended + 1)


async def calls_at_once(pair: Pair) -> None:
    async def echo(number: int) -> None:
        assert await pair.text("echo", text=f"number {number}") == f"number {number}"

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(echo, number)


async def _ask(pair: Pair, tool: str, *, known: bool, answer: str) -> None:
    """A question is answered, or the call says that it cannot be asked."""
    if known and pair.remembered:
        assert await pair.text(tool) == answer
        return
    try:
        result = await pair.client.call_tool(tool)
    except McpError:
        return
    assert result.is_error, f"{tool} was answered with {text_of(result)!r}"


async def forms(pair: Pair) -> None:
    await _ask(pair, "ask_form", known=pair.since("2025-06-18"), answer="accept Ada")


async def pages_to_visit(pair: Pair) -> None:
    await _ask(pair, "ask_url", known=pair.since("2025-11-25"), answer="accept")


async def sampling(pair: Pair) -> None:
    await _ask(pair, "ask_model", known=True, answer="parrot: Hi.")


async def roots(pair: Pair) -> None:
    await _ask(pair, "ask_roots", known=True, answer=" ".join(ROOTS))


async def questions_in_turn(pair: Pair) -> None:
    await _ask(pair, "ask_twice", known=pair.since("2025-06-18"), answer="Ada 2")


async def changes_of_a_resource(pair: Pair) -> None:
    if not pair.remembered:
        with pytest.raises(McpError):
            async with pair.client.listen(uris=(CHANGING,)):
                pass
        return
    async with pair.client.listen(uris=(CHANGING,)) as events:
        await pair.text("touch")
        event = await anext(events)
        assert (event.kind, event.uri) == ("resource_updated", CHANGING)


async def changes_of_lists(pair: Pair) -> None:
    if not pair.remembered:
        return
    async with pair.client.listen(tools=True, prompts=True, resources=True) as events:
        for kind in ("tools", "prompts", "resources"):
            await pair.text("grow", kind=kind)
            assert (await anext(events)).kind == kind


async def listening_again(pair: Pair) -> None:
    """A subscription that was left is entered again, at once."""
    if not pair.remembered:
        return
    for _ in range(3):
        async with pair.client.listen(uris=(CHANGING,)) as events:
            await pair.text("touch")
            assert (await anext(events)).uri == CHANGING


async def metadata(pair: Pair) -> None:
    result = await pair.client.call_tool("meta", meta={"example.org/pair": "both"})
    assert text_of(result) == "both"


async def methods_of_our_own(pair: Pair) -> None:
    assert (await pair.client.request("example.org/double", {"number": 21}))["doubled"] == 42


async def pings(pair: Pair) -> None:
    await pair.client.ping(timeout=10)
    assert pair.client.tree() is not None


async def mistakes_of_the_caller(pair: Pair) -> None:
    """What cannot be sent is refused here, and the connection goes on."""
    with pytest.raises(LocalProtocolError):
        await pair.client.set_log_level("loud")  # type: ignore[arg-type]
    assert await pair.text("echo", text="on") == "on"


Feature = Callable[[Pair], Awaitable[None]]

FEATURES: tuple[Feature, ...] = (
    negotiation,
    lists,
    calls,
    calls_at_once,
    large_messages,
    structured_results,
    kinds_of_content,
    failures_of_tools,
    errors,
    mistakes_of_the_caller,
    resources,
    prompts,
    completion,
    progress,
    beats,
    logs,
    cancellation,
    timeouts,
    forms,
    pages_to_visit,
    sampling,
    roots,
    questions_in_turn,
    changes_of_a_resource,
    changes_of_lists,
    listening_again,
    metadata,
    methods_of_our_own,
    notifications_of_our_own,
    state_of_a_session,
    functions_in_threads,
    pings,
)


# -- the bindings: how each serves the server, and what a client is given to reach it --------------------------------

ROOT = Path(__file__).parents[2]
MODERN = "2026-07-28"
EVERY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN)


@attrs.frozen
class Binding:
    """A row of the table of bindings."""

    name: str
    reached: Callable[[tuple[str, ...]], AbstractAsyncContextManager[Any]]
    """Serves a server of these revisions, and yields the target of a client."""
    versions: tuple[str, ...] = EVERY
    sessions: bool = True
    """Whether clients of the revisions that have sessions get one."""
    connection: bool = False
    """Whether it is one connection, of which the server knows in every revision."""
    over_http: bool = True
    """Whether an HTTP request brings the calls, or opened the connection."""


@asynccontextmanager
async def _in_process(versions: tuple[str, ...]) -> AsyncIterator[Server]:
    yield make_server(versions)


@asynccontextmanager
async def _stdio(versions: tuple[str, ...]) -> AsyncIterator[Any]:
    # On a busy machine a child may need longer to exit than a server usually has.
    yield StdioClientTransport([sys.executable, "-m", "tests.pairs.server", *versions], cwd=ROOT, grace=20)


@asynccontextmanager
async def _served(transport: Any, versions: tuple[str, ...]) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(make_server(versions).serve, transport)
        yield url
        nursery.cancel_scope.cancel()


def _at(url: str) -> Callable[[tuple[str, ...]], AbstractAsyncContextManager[Any]]:
    """A server and a client at a URL; ``{folder}`` becomes a new folder, as a URL has it."""

    @asynccontextmanager
    async def reached(versions: tuple[str, ...]) -> AsyncIterator[Any]:
        with tempfile.TemporaryDirectory() as folder:
            whole = url.format(folder=folder, quoted=quote(folder, safe=""))
            async with _served(server_transport(whole), versions) as target:
                yield target

    return reached


def _http(
    url: str = "http://127.0.0.1:0/mcp", path: str = "/mcp", **options: Any
) -> Callable[[tuple[str, ...]], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def reached(versions: tuple[str, ...]) -> AsyncIterator[Any]:
        async with _served(HttpServerTransport(url, **options), versions) as target:
            yield target.removesuffix("/mcp") + path

    return reached


@asynccontextmanager
async def _https(versions: tuple[str, ...]) -> AsyncIterator[Any]:
    """With a client object of the user's own, which knows the authority."""
    authority = trustme.CA()
    ours, theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    authority.configure_trust(theirs)
    transport = HttpServerTransport("https://127.0.0.1:0/mcp", ssl_context=ours)
    async with _served(transport, versions) as url, httpx2.AsyncClient(verify=theirs) as client:
        yield HttpClientTransport(url, client=client)


BINDINGS = (
    Binding("a server object", connection=True, over_http=False, reached=_in_process),
    Binding("stdio", connection=True, over_http=False, reached=_stdio),
    Binding("memory", connection=True, over_http=False, reached=_at("memory:pairs")),
    Binding("tcp", connection=True, over_http=False, reached=_at("tcp://127.0.0.1:0")),
    Binding("unix", connection=True, over_http=False, reached=_at("unix://{folder}/socket")),
    Binding("websocket", connection=True, reached=_at("ws://127.0.0.1:0/ws")),
    Binding("http", _http()),
    Binding("http, JSON only", _http(json_replies=True)),
    Binding("http without sessions", _http(sessions=False), sessions=False),
    Binding("http without stored events", _http(event_log=None)),
    Binding("http over a Unix socket", _at("http+unix://{quoted}%2Fsocket/mcp")),
    Binding("https", _https),
    Binding("http+sse", _http(path="/sse"), versions=EVERY[:-1]),
)


# -- the table -------------------------------------------------------------------------------------------------------

# Seconds for one feature; nothing here waits for longer than a moment on a machine that is not busy.
PATIENCE = 60

AGREEMENTS = ("told", "found out", "among all")
"""The client is told the revision, or finds it out from a server that has no other, or both have all of them."""


def options(agreement: str, version: str) -> tuple[str, tuple[str, ...]]:
    """Returns what the client is told, and which revisions the server has."""
    if agreement == "told":
        return version, (version,)
    if agreement == "found out":
        return "auto", (version,)
    return version, ()


PAIRS = [
    pytest.param(binding, version, agreement, id=f"{binding.name}-{version}-{agreement}")
    for binding in BINDINGS
    for version in binding.versions
    for agreement in AGREEMENTS
]


async def failure(feature: Feature, pair: Pair) -> str | None:
    """Runs one cell of the table and says what was wrong with it."""
    try:
        with trio.fail_after(PATIENCE):
            await feature(pair)
    except (Exception, pytest.fail.Exception) as error:  # the cells after this one are tried all the same
        last = "".join(traceback.format_exception(error)[-3:])
        return f"{feature.__name__}: {last}"
    return None


@pytest.mark.parametrize(("binding", "version", "agreement"), PAIRS)
async def test_every_feature_of_a_pair(binding: Binding, version: str, agreement: str) -> None:
    era, versions = options(agreement, version)
    logged: list[Any] = []
    notified: list[Any] = []
    remembered = binding.sessions or version == MODERN
    # Without a session only a header names the revision, which the oldest two do not have.
    alone = not remembered and agreement == "among all"
    served = max(version, "2025-03-26") if alone else version
    async with (
        binding.reached(versions or BINDINGS[0].versions) as target,
        Client(
            target,
            era=era,
            sampling=answer_model,
            elicitation=answer_form,
            roots=ROOTS,
            on_notification=lambda method, params: notified.append((method, params)),
            on_log=lambda level, data, logger: logged.append((level, data, logger)),
        ) as client,
    ):
        kept = binding.connection or (remembered and version != MODERN)
        pair = Pair(client, version, served, remembered, kept, binding.over_http, logged, notified)
        failures = [said for feature in FEATURES if (said := await failure(feature, pair))]
    assert not failures, "\n\n".join(failures)


def test_the_size_of_the_table() -> None:
    """No binding, revision or feature disappears unseen."""
    assert len(BINDINGS) == 13
    assert len(PAIRS) == 12 * 5 * 3 + 4 * 3
    assert len(PAIRS) * len(FEATURES) == 192 * 32
