"""Each cell of the table of what a gateway passes on, in memory and partly over HTTP."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Context, Server
from mcp_actors.client import Progress
from mcp_actors.errors import (
    MissingCapability,
    ResourceNotFound,
    RpcError,
    ToolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.types import (
    BlobResourceContents,
    CallToolResult,
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    Implementation,
    PromptReference,
    SamplingCapability,
    TextContent,
    TextResourceContents,
    Tool,
    ToolChoice,
)
from tests.pages import ROOT, with_table

from .upstreams import Behind
from .worlds import World

# -- The table of what a gateway passes on: features by pairs of eras ------------------------------------
#
# ``python -m tests.gateway.test_what_is_passed_on`` writes it into ``docs/how-to/gateway.md`` again.
# Each cell is a test: ``test_what_is_passed_on.py``.

PAGE = ROOT / "docs" / "how-to" / "gateway.md"

LL, LM, ML, MM = PAIRS = [
    (client, server) for client in ("legacy", "modern") for server in ("legacy", "modern")
]
_NAMES = {"legacy": "session", "modern": "stateless"}
KEPT = ""
"""The cell of what is kept as it is; any other cell says what cannot be."""


@attrs.frozen
class Feature:
    """A row: its title, and what is not kept, by pair of client's and server's era."""

    title: str
    lost: dict[tuple[str, str], str] = attrs.field(factory=dict)

    def cell(self, pair: tuple[str, str]) -> str:
        return self.lost.get(pair, KEPT)


_NO_STATELESS_NOTICE = (
    "The stateless revisions have no such notification: a server asks when it needs to know."
)
_NO_END = "A stateless server tells no end of a visit; the client is asked again, or gets the result."
_CALLS_AGAIN = "A stateless client is told no end of a visit: its retry waits for it."
_OBJECTS = "Revisions with sessions have objects only: another value is put into one, under `result`."
_URL_ERROR = "The stateless revisions have no such error: their servers ask by an input-required result."
_NO_TASKS = "A stateless server lists no tool as one for tasks: the call of a session is plain, and waits for the task."
_REFUSED = "The server refuses such a client, which is sent the refusal (-32021)."
_NO_HINTS = "Revisions with sessions have no caching hints."
_NOT_CACHED = (
    "A server with sessions says nothing of it: the client is told to keep nothing (`ttlMs` 0, `private`)."
)

FEATURES = {
    "results": Feature("arguments, and results with members that no revision knows"),
    "structured": Feature("structured content that is an object"),
    "any_json": Feature(
        "structured content that is any JSON value", {LL: _OBJECTS, LM: _OBJECTS, ML: _OBJECTS}
    ),
    "prompts": Feature("prompts, with their arguments"),
    "resources": Feature("resources, as text and as bytes"),
    "completion": Feature("completion of arguments"),
    "hints": Feature("caching hints of what is read", {LL: _NO_HINTS, LM: _NO_HINTS, ML: _NOT_CACHED}),
    "tool_errors": Feature("results that are errors of a tool"),
    "errors": Feature("errors with their code, message and data"),
    "own_codes": Feature(
        "codes that only one era has",
        {
            LM: "The code is that of the server's revision: what it was before is not known.",
            ML: "The code is that of the client's revision (-32602 in place of -32002).",
        },
    ),
    "lost": Feature("the end of the server in the middle of a call, as an error of the gateway's own (502)"),
    "timeout": Feature("the silence of a server, as an error of the gateway's own (504)"),
    "cancellation": Feature("cancellation by the client"),
    "progress": Feature("progress with its total and message"),
    "clocks": Feature("each report of progress as a sign of life, at the gateway and at the client"),
    "meta": Feature("`_meta` of requests and results, without what belongs to one hop"),
    "trace": Feature("the context of a trace"),
    "capabilities": Feature("the capabilities of the client, and the extensions that it declares"),
    "logs": Feature("log messages of the wanted level, to the client that wants them"),
    "form": Feature("elicitation by a form"),
    "url": Feature("elicitation by a URL"),
    "url_end": Feature(
        "the end of a visit to a URL, by a notification", {LM: _NO_END, ML: _CALLS_AGAIN, MM: _CALLS_AGAIN}
    ),
    "url_error": Feature(
        "the error -32042, which asks for visits",
        {LM: _URL_ERROR, MM: _URL_ERROR, ML: "The client is asked by an input-required result instead."},
    ),
    "sampling": Feature("sampling, with tools and context"),
    "roots": Feature("roots"),
    "roots_changed": Feature(
        "the notification that the roots have changed",
        {LM: _NO_STATELESS_NOTICE, ML: _NO_STATELESS_NOTICE, MM: _NO_STATELESS_NOTICE},
    ),
    "refusal": Feature("that the person declines"),
    "undeclared": Feature("the refusal of a question that the client cannot be asked"),
    "rounds": Feature("several questions after another"),
    "own_methods": Feature("methods of extensions, which the upstream's settings name"),
    "own_notifications": Feature(
        "notifications beyond the protocol, during a call",
        {
            LM: "A connection in memory, by stdio or a socket that is shared does not tell whose they are; "
            "over HTTP they are kept.",
            MM: "A connection in memory, by stdio or a socket that is shared does not tell whose they are; "
            "over HTTP they are kept.",
        },
    ),
}
FEATURES |= {
    "tasks": Feature(
        "calls that become tasks, in the dialect of the client, with their questions", {LM: _NO_TASKS}
    ),
    "task_cancel": Feature("the end of a task by the client", {LM: _NO_TASKS}),
    "task_only": Feature("tools that run as tasks only, for clients without tasks", {MM: _REFUSED}),
}
CELLS = [(name, pair) for name in FEATURES for pair in PAIRS]


def table() -> str:
    """The table in Markdown, with what is not kept below it."""
    reasons = list(dict.fromkeys(reason for each in FEATURES.values() for reason in each.lost.values()))
    heads = [f"{_NAMES[client]} → {_NAMES[server]}" for client, server in PAIRS]
    lines = [f"| client → server | {' | '.join(heads)} |", "|---" * (len(PAIRS) + 1) + "|"]
    for each in FEATURES.values():
        cells = [each.cell(pair) for pair in PAIRS]
        shown = ["kept" if cell == KEPT else f"- <sup>{reasons.index(cell) + 1}</sup>" for cell in cells]
        lines.append(f"| {each.title} | {' | '.join(shown)} |")
    notes = [f"- <sup>{number}</sup> {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines) + "\n\n" + "\n".join(notes) + "\n"


# -- Each cell of the table, in memory and partly over HTTP ----------------------------------------------

Test = Callable[[World, bool], Awaitable[None]]
TESTS: dict[str, Test] = {}
# Those whose way over HTTP is another one: on the stream of a request, and not on a connection.
ALSO_OVER_HTTP = (
    "cancellation",
    "progress",
    "logs",
    "form",
    "sampling",
    "roots",
    "own_notifications",
    "url_end",
)
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def shows(function: Test) -> Test:
    TESTS[function.__name__.removeprefix("shows_")] = function
    return function


@pytest.mark.parametrize(
    ("feature", "pair"), CELLS, ids=lambda each: each if isinstance(each, str) else "-".join(each)
)
async def test_it_is_passed_on_as_the_table_says(
    feature: str, pair: tuple[str, str], autojump_clock: MockClock
) -> None:
    with trio.fail_after(100):
        await TESTS[feature](World(client=pair[0], server=pair[1]), FEATURES[feature].cell(pair) == KEPT)


@pytest.mark.parametrize(
    ("feature", "pair"),
    [each for each in CELLS if each[0] in ALSO_OVER_HTTP],
    ids=lambda each: each if isinstance(each, str) else "-".join(each),
)
async def test_it_is_passed_on_over_http(feature: str, pair: tuple[str, str]) -> None:
    kept = FEATURES[feature].cell(pair) == KEPT or feature == "own_notifications"
    with trio.fail_after(20):
        await TESTS[feature](World(client=pair[0], server=pair[1], binding="http"), kept)


@pytest.mark.parametrize(("client_era", "server_era"), [("legacy", "modern"), ("modern", "legacy")])
async def test_a_program_is_asked_through_over_stdio(client_era: str, server_era: str) -> None:
    async def sampling(question: CreateMessageParams) -> CreateMessageResult:
        return CreateMessageResult("assistant", TextContent("from the model"), "a model")

    program = [sys.executable, "-m", "mcp_actors.examples.everything"]
    gateway = Gateway([Upstream(name="x", target=program, era=server_era)])
    with trio.fail_after(20):
        async with Client(gateway, era=client_era, sampling=sampling) as client:
            result = await client.call_tool("x_test_sampling", {"prompt": "Hello"})
    assert "from the model" in result.text


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text()
    assert page == with_table(page, "passed on", table()), (
        "run: python -m tests.gateway.test_what_is_passed_on"
    )


def server_with(function: Callable[..., Any]) -> Server:
    server = Server("behind")
    # A thread would make time jump while it works.
    server.add_tool(function, name="tool", inline=not inspect.iscoroutinefunction(function))
    return server


async def call(client: Client, **arguments: Any) -> dict[str, Any]:
    return await client.request("tools/call", {"name": "x_tool", "arguments": arguments})


# -- results and errors ----------------------------------------------------------------------------------------------


@shows
async def shows_results(world: World, kept: bool) -> None:
    def tool(text: str) -> CallToolResult:
        block = TextContent(text, extra={"ofBlock": 1})
        return CallToolResult([block], extra={"ofVendor": {"a": [1]}})

    async with world.connected(server_with(tool)) as client:
        result = await call(client, text="ä")
    assert result["content"] == [{"type": "text", "text": "ä", "ofBlock": 1}]
    assert result["ofVendor"] == {"a": [1]}


@shows
async def shows_structured(world: World, kept: bool) -> None:
    def tool() -> dict[str, int]:
        return {"n": 1}

    async with world.connected(server_with(tool)) as client:
        assert (await call(client))["structuredContent"] == {"n": 1}


@shows
async def shows_any_json(world: World, kept: bool) -> None:
    def tool() -> CallToolResult:
        return CallToolResult([TextContent("[1]")], structured_content=[1])

    async with world.connected(server_with(tool)) as client:
        result = await call(client)
    assert result["structuredContent"] == ([1] if kept else {"result": [1]})
    assert result["content"][0]["text"] == "[1]"


@shows
async def shows_prompts(world: World, kept: bool) -> None:
    server = Server("behind")

    @server.prompt
    async def greet(name: str) -> str:
        """Greets."""
        return f"Hello {name}"

    async with world.connected(server) as client:
        result = await client.get_prompt("x_greet", {"name": "Ann"})
    (message,) = result.messages
    assert (message.role, message.content) == ("user", TextContent("Hello Ann"))
    assert result.description == "Greets."


@shows
async def shows_resources(world: World, kept: bool) -> None:
    server = Server("behind")

    @server.resource("data://text", mime_type="text/x-test")
    async def text() -> str:
        return "ä"

    @server.resource("data://bytes/{name}")
    async def data(name: str) -> bytes:
        return name.encode()

    async with world.connected(server) as client:
        assert [each.uri async for each in client.resources()] == ["data://text"]
        (read,) = (await client.read_resource("data://text")).contents
        assert isinstance(read, TextResourceContents)
        assert (read.text, read.mime_type) == ("ä", "text/x-test")
        (read,) = (await client.read_resource("data://bytes/ab")).contents
        assert isinstance(read, BlobResourceContents)
        assert read.blob == "YWI="
        with pytest.raises(ResourceNotFound):
            await client.read_resource("data://none")


@shows
async def shows_completion(world: World, kept: bool) -> None:
    server = Server("behind")

    @server.prompt
    async def greet(name: str, title: str) -> str:
        """Greets."""
        return name

    @server.completion(prompt="greet", argument="name")
    async def names(value: str, context: dict[str, str]) -> list[str]:
        return [each + context.get("title", "") for each in ("ann", "anton", "bea") if each.startswith(value)]

    async with world.connected(server) as client:
        result = await client.complete(PromptReference("x_greet"), "name", "an", context={"title": "!"})
    assert result.values == ["ann!", "anton!"]


@shows
async def shows_hints(world: World, kept: bool) -> None:
    server = Server("behind", ttl_ms=5000, cache_scope="public")

    @server.resource("data://text")
    async def text() -> str:
        return "ä"

    async with world.connected(server) as client:
        result = await client.request("resources/read", {"uri": "data://text"})
    hints = result.get("ttlMs"), result.get("cacheScope")
    if world.client == "legacy":
        assert hints == (None, None)
    else:
        assert hints == ((5000, "public") if kept else (0, "private"))


@shows
async def shows_tool_errors(world: World, kept: bool) -> None:
    def tool() -> str:
        raise ToolError("no such city")

    async with world.connected(server_with(tool)) as client:
        result = await call(client)
    assert (result["isError"], result["content"][0]["text"]) == (True, "no such city")


@shows
async def shows_errors(world: World, kept: bool) -> None:
    def tool() -> str:
        raise RpcError(4321, "of its own", {"why": [1, None]})

    async with world.connected(server_with(tool)) as client:
        with pytest.raises(RpcError) as failed:
            await call(client)
    assert (failed.value.code, failed.value.message) == (4321, "of its own")
    assert failed.value.data == {"why": [1, None]}


@shows
async def shows_own_codes(world: World, kept: bool) -> None:
    def tool() -> str:
        raise ResourceNotFound("a:b")

    async with world.connected(server_with(tool)) as client:
        with pytest.raises(RpcError) as failed:
            await call(client)
    assert failed.value.code == (-32002 if world.both == ("legacy", "legacy") else -32602)
    assert failed.value.data == {"uri": "a:b"}


@shows
async def shows_lost(world: World, kept: bool) -> None:
    began = trio.Event()

    async def tool() -> None:
        began.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        behind = Behind(nursery, server_with(tool))
        await behind.come()

        async def go() -> None:
            await began.wait()
            behind.go()

        async with world.connected(behind) as client:
            nursery.start_soon(go)
            with pytest.raises(UpstreamUnavailable, match="'x' is not available: the connection was lost"):
                await call(client)


@shows
async def shows_timeout(world: World, kept: bool) -> None:
    async def tool() -> None:
        await trio.sleep_forever()

    async with world.connected(server_with(tool), settings={"timeout": 5}) as client:
        with pytest.raises(UpstreamTimeout, match=r"'x': no answer and no progress for 5 s"):
            await call(client)


@shows
async def shows_cancellation(world: World, kept: bool) -> None:
    began, cancelled = trio.Event(), trio.Event()

    async def tool() -> None:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with world.connected(server_with(tool)) as client, trio.open_nursery() as nursery:
        nursery.start_soon(call, client)
        await began.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(60):
            await cancelled.wait()


# -- what comes with a call ------------------------------------------------------------------------------------------


@shows
async def shows_progress(world: World, kept: bool) -> None:
    async def tool(ctx: Context) -> str:
        await ctx.progress(1, 4, "a quarter")
        await ctx.progress(2.5)
        return "done"

    seen: list[Progress] = []
    async with world.connected(server_with(tool)) as client:
        await client.call_tool("x_tool", on_progress=seen.append)
    assert seen == [Progress(1, 4, "a quarter"), Progress(2.5)]


@shows
async def shows_clocks(world: World, kept: bool) -> None:
    async def tool(ctx: Context) -> str:
        for number in range(1, 6):
            await trio.sleep(4)
            await ctx.progress(number)
        return "done"

    # The call takes longer than either side waits without a report.
    async with world.connected(server_with(tool), settings={"timeout": 12}, timeout=12) as client:
        result = await client.call_tool("x_tool", on_progress=lambda progress: None)
    assert result.text == "done"


@shows
async def shows_meta(world: World, kept: bool) -> None:
    seen: list[dict[str, Any]] = []

    def tool(ctx: Context) -> CallToolResult:
        seen.append(ctx.meta)
        return CallToolResult([], meta={"com.example/of-server": 2})

    async with world.connected(server_with(tool), info=Implementation("the client", "1")) as client:
        result = await client.call_tool("x_tool", meta={"com.example/of-client": {"a": 1}})
    assert seen[0]["com.example/of-client"] == {"a": 1}
    assert "the client" not in str(seen), "the server is connected to the gateway, and not to the client"
    assert result.meta is not None
    assert result.meta["com.example/of-server"] == 2
    assert "behind" not in str(result.meta), "the client is connected to the gateway"


@shows
async def shows_trace(world: World, kept: bool) -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "a=1", "baggage": "user=1"}
    seen: list[dict[str, str]] = []

    def tool(ctx: Context) -> str:
        seen.append(ctx.trace)
        return ""

    async with world.connected(server_with(tool)) as client:
        await client.call_tool("x_tool", meta=trace)
    assert seen == [trace]


@shows
async def shows_capabilities(world: World, kept: bool) -> None:
    seen: list[dict[str, Any]] = []

    def tool(ctx: Context) -> str:
        seen.append(ctx.peer.raw_capabilities)
        return ""

    async def sampling(question: CreateMessageParams) -> CreateMessageResult:
        raise AssertionError

    options: dict[str, Any] = {"sampling": sampling, "sampling_tools": True, "roots": []}
    async with world.connected(
        server_with(tool), extensions={"com.example/shown": {"b": 2}}, **options
    ) as client:
        await call(client)
    (declared,) = seen
    assert declared["sampling"] == {"tools": {}}
    assert "roots" in declared
    assert "elicitation" not in declared
    assert declared["extensions"]["com.example/shown"] == {"b": 2}


@shows
async def shows_logs(world: World, kept: bool) -> None:
    async def tool(ctx: Context, who: str) -> str:
        await ctx.log("debug", f"debug of {who}")
        await ctx.log("warning", {"who": who}, "its logger")
        return who

    seen: dict[str, list[tuple[Any, ...]]] = {"a": [], "b": []}
    server = server_with(tool)
    async with world.connected(
        server, on_log=lambda *each: seen["a"].append(each), log_level="warning"
    ) as one:
        # The second client of the same gateway wants everything, and the third one nothing.
        gateway = one._options.target
        async with (
            Client(
                gateway, era=world.client, on_log=lambda *each: seen["b"].append(each), log_level="debug"
            ) as two,
            Client(gateway, era=world.client) as three,
            trio.open_nursery() as nursery,
        ):
            for client, who in ((one, "a"), (two, "b"), (three, "c")):
                nursery.start_soon(partial(call, client, who=who))
    assert seen["a"] == [("warning", {"who": "a"}, "its logger")]
    assert seen["b"] == [("debug", "debug of b", None), ("warning", {"who": "b"}, "its logger")]


# -- questions -------------------------------------------------------------------------------------------------------


@shows
async def shows_form(world: World, kept: bool) -> None:
    async def tool(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", FORM)
        return str(answer.content)

    asked: list[Any] = []

    async def person(question: Any) -> ElicitResult:
        asked.append(question)
        return ElicitResult("accept", {"name": "Ann"})

    async with world.connected(server_with(tool), elicitation=person) as client:
        assert (await client.call_tool("x_tool")).text == "{'name': 'Ann'}"
    assert [(each.message, each.requested_schema) for each in asked] == [("Who?", FORM)]


@shows
async def shows_url(world: World, kept: bool) -> None:
    async def tool(ctx: Context) -> str:
        return (await ctx.elicit_url("Pay", "https://example.com/pay")).action

    asked: list[Any] = []

    async def person(question: Any) -> ElicitResult:
        asked.append(question)
        return ElicitResult("accept")

    async with world.connected(server_with(tool), elicitation=person) as client:
        assert (await client.call_tool("x_tool")).text == "accept"
    assert [(each.message, each.url) for each in asked] == [("Pay", "https://example.com/pay")]
    assert (asked[0].elicitation_id is None) == (world.client == "modern")


@shows
async def shows_url_end(world: World, kept: bool) -> None:
    ids: list[str] = []
    seen: list[Any] = []
    told = trio.Event()

    async def tool(ctx: Context) -> str:
        await ctx.elicit_url("Pay", lambda id: ids.append(id) or "https://example.com/")
        return "paid"

    async def person(question: Any) -> ElicitResult:
        return ElicitResult("accept")

    def notified(method: str, params: dict[str, Any]) -> None:
        seen.append((method, params))
        told.set()

    server = server_with(tool)
    async with world.connected(server, elicitation=person, on_notification=notified) as client:
        assert (await client.call_tool("x_tool")).text == "paid"
        server.elicitation_complete(ids[0])
        if kept:
            await told.wait()
    assert seen == ([("notifications/elicitation/complete", {"elicitationId": ids[0]})] if kept else [])


@shows
async def shows_url_error(world: World, kept: bool) -> None:
    calls: list[int] = []
    visits = [{"mode": "url", "elicitationId": "e1", "url": "https://example.com/", "message": "Log in"}]

    def tool() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise RpcError(-32042, "log in first", {"elicitations": visits})
        return "done"

    asked: list[Any] = []

    async def person(question: Any) -> ElicitResult:
        asked.append(question)
        return ElicitResult("accept")

    async with world.connected(server_with(tool), elicitation=person) as client:
        if world.server == "modern":
            with pytest.raises(RpcError, match="log in first") as failed:
                await client.call_tool("x_tool")
            assert failed.value.code == -32603
        else:
            assert (await client.call_tool("x_tool")).text == "done"
            assert [type(each) for each in asked] == [ElicitUrlParams]


@shows
async def shows_sampling(world: World, kept: bool) -> None:
    async def tool(ctx: Context) -> str:
        tools = [Tool("lookup", {"type": "object"})]
        answer = await ctx.sample(
            "Hello", max_tokens=7, tools=tools, tool_choice=ToolChoice("none"), include_context="thisServer"
        )
        assert isinstance(answer.content, TextContent)
        return f"{answer.content.text} of {answer.model}"

    asked: list[CreateMessageParams] = []

    async def sampling(question: CreateMessageParams) -> CreateMessageResult:
        asked.append(question)
        return CreateMessageResult("assistant", TextContent("Hi"), "a model")

    declared = ClientCapabilities(sampling=SamplingCapability(tools={}, context={}))
    options: dict[str, Any] = {"sampling": sampling, "sampling_tools": True, "capabilities": declared}
    async with world.connected(server_with(tool), **options) as client:
        assert (await client.call_tool("x_tool")).text == "Hi of a model"
    (question,) = asked
    assert question.tools is not None
    assert question.tools[0].name == "lookup"
    assert (question.max_tokens, question.include_context) == (7, "thisServer")


@shows
async def shows_roots(world: World, kept: bool) -> None:
    async def tool(ctx: Context) -> list[str]:
        return [each.uri for each in await ctx.list_roots()]

    async with world.connected(server_with(tool), roots=["file:///a", "file:///b"]) as client:
        result = await client.call_tool("x_tool")
    assert result.text == '["file:///a","file:///b"]'


@shows
async def shows_roots_changed(world: World, kept: bool) -> None:
    changed = trio.Event()
    server = server_with(lambda: "")

    @server.notification("notifications/roots/list_changed")
    async def roots_changed() -> None:
        changed.set()

    async with world.connected(server, roots=["file:///a"]) as client:
        await call(client)
        await client.roots_changed()
        if kept:
            await changed.wait()
        else:
            await call(client)
    assert changed.is_set() == kept


@shows
async def shows_refusal(world: World, kept: bool) -> None:
    async def tool(ctx: Context) -> str:
        return (await ctx.elicit("Who?", FORM)).action

    async def person(question: Any) -> ElicitResult:
        return ElicitResult("decline")

    async with world.connected(server_with(tool), elicitation=person) as client:
        assert (await client.call_tool("x_tool")).text == "decline"


@shows
async def shows_undeclared(world: World, kept: bool) -> None:
    failures: list[str] = []

    async def tool(ctx: Context) -> str:
        try:
            await ctx.elicit("Who?", FORM)
        except MissingCapability as error:
            failures.append(str(error.data))
            raise
        return "never"

    async def sampling(question: CreateMessageParams) -> CreateMessageResult:
        raise AssertionError

    # It can be asked for something, and not for this.
    async with world.connected(server_with(tool), sampling=sampling) as client:
        with pytest.raises(RpcError, match="must declare the capability elicitation") as failed:
            await client.call_tool("x_tool")
    assert failed.value.code == (-32021 if world.client == "modern" else -32602)
    assert failures == ["{'requiredCapabilities': {'elicitation': {'form': {}}}}"]


@shows
async def shows_rounds(world: World, kept: bool) -> None:
    async def tool(ctx: Context) -> str:
        names = [(await ctx.elicit(f"{number}?", FORM)).content for number in range(3)]
        return str([each and each["name"] for each in names])

    async def person(question: Any) -> ElicitResult:
        assert isinstance(question, ElicitFormParams)
        return ElicitResult("accept", {"name": question.message})

    async with world.connected(server_with(tool), elicitation=person) as client:
        assert (await client.call_tool("x_tool")).text == "['0?', '1?', '2?']"


# -- beyond the protocol ---------------------------------------------------------------------------------------------


@shows
async def shows_own_methods(world: World, kept: bool) -> None:
    server = Server("behind")

    @server.method("com.example/sum")
    async def add(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        if "fail" in params:
            raise RpcError(77, "as asked", [1])
        return {"sum": sum(params["of"])}

    settings = {"methods": ["com.example/sum"]}
    async with world.connected(server, settings=settings) as client:
        assert (await client.request("com.example/sum", {"of": [1, 2]}))["sum"] == 3
        with pytest.raises(RpcError, match="as asked") as failed:
            await client.request("com.example/sum", {"fail": True})
    assert (failed.value.code, failed.value.data) == (77, [1])


@shows
async def shows_own_notifications(world: World, kept: bool) -> None:
    async def tool(ctx: Context) -> str:
        await ctx.notify("com.example/said", {"what": "hello"})
        return "done"

    seen: list[tuple[str, Any]] = []
    async with world.connected(server_with(tool), on_notification=lambda *each: seen.append(each)) as client:
        await call(client)
    assert seen == ([("com.example/said", {"what": "hello"})] if kept else [])


# -- tasks -----------------------------------------------------------------------------------------------------------


def server_with_task(function: Callable[..., Any], kind: Any = "optional") -> Server:
    server = Server("behind")
    server.add_tool(function, name="tool", task=kind)
    return server


@shows
async def shows_tasks(world: World, kept: bool) -> None:
    async def tool(ctx: Context) -> str:
        await ctx.progress(1, 2, "half")
        answer = await ctx.elicit("Who?", FORM)
        return str(answer.content)

    async def person(question: Any) -> ElicitResult:
        return ElicitResult("accept", {"name": "Ann"})

    async with world.connected(server_with_task(tool), elicitation=person) as client:
        assert [each.name async for each in client.tools()] == ["x_tool"]
        task = await client.start_tool("x_tool")
        assert (task.id is not None) == kept
        assert (await task.result()).text == "{'name': 'Ann'}"


@shows
async def shows_task_cancel(world: World, kept: bool) -> None:
    began, cancelled = trio.Event(), trio.Event()

    async def tool() -> str:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with world.connected(server_with_task(tool)) as client:
        assert [each.name async for each in client.tools()] == ["x_tool"]
        if kept:
            task = await client.start_tool("x_tool")
            await began.wait()
            await task.cancel()
        else:
            with trio.move_on_after(5):
                await client.start_tool("x_tool")
        await cancelled.wait()


@shows
async def shows_task_only(world: World, kept: bool) -> None:
    async def tool() -> str:
        return "done"

    async with world.connected(server_with_task(tool, "required"), tasks=False) as client:
        if kept:
            assert (await call(client))["content"][0]["text"] == "done"
        else:
            with pytest.raises(MissingCapability, match="extensions"):
                await call(client)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), "passed on", table()))
