"""What a server's user builds with: middleware, custom methods, lifespan, context, lists that change."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, LocalProtocolError, RpcError, Server, SyncContext
from mcp_actors.abc import Frame
from mcp_actors.errors import CallTimeout, ConnectionLost
from mcp_actors.testing import raw_client, raw_server
from mcp_actors.types import CallToolResult, Icon, TextContent, ToolAnnotations
from tests.messages import LOG_LEVEL
from tests.scripted_peers import (
    EVERY,
    LEGACY,
    MODERN,
    ask,
    begin,
    call,
    meta,
    modern,
    nothing_comes,
    play_initialize,
)

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


# -- middleware ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EVERY)
async def test_middleware_goes_round_every_request_outermost_first(version: str) -> None:
    server = Server("s")
    seen: list[str] = []

    @server.tool
    async def t() -> str:
        """A tool."""
        seen.append("tool")
        return "done"

    @server.middleware
    async def outer(ctx: Context, call_next: Any) -> Any:
        seen.append(f"outer {ctx.method}")
        result = await call_next()
        seen.append("outer out")
        return result

    @server.middleware
    async def inner(ctx: Context, call_next: Any) -> Any:
        seen.append("inner")
        return await call_next()

    async with raw_client(server) as peer:
        await begin(peer, version)
        if version != MODERN:
            await peer.request("p", "ping")
        assert seen == []  # neither the handshake nor pings wait for anybody
        await call(peer, version, 1, "t")
        assert seen == ["outer tools/call", "inner", "tool", "outer out"]
        seen.clear()
        await ask(peer, version, 2, "tools/list")
        assert seen == ["outer tools/list", "inner", "outer out"]


async def test_middleware_may_answer_refuse_and_repair() -> None:
    server = Server("s")

    @server.tool(inline=True)
    def t(what: str) -> str:
        """A tool."""
        if what == "crash":
            raise KeyError("secret")
        return what

    @server.middleware
    async def policy(ctx: Context, call_next: Any) -> Any:
        what = ctx.params.get("arguments", {}).get("what")
        if what == "cached":
            return CallToolResult([TextContent("from the cache")])
        if what == "forbidden":
            raise RpcError(403, "forbidden")
        try:
            return await call_next()
        except KeyError:
            return CallToolResult([TextContent("repaired")], is_error=True)

    async with Client(server) as client:

        async def text(what: str) -> str:
            return str((await client.call_tool("t", {"what": what})).content[0].text)  # type: ignore[union-attr]

        assert await text("x") == "x"
        assert await text("cached") == "from the cache"
        assert await text("crash") == "repaired"
        with pytest.raises(RpcError) as refused:
            await text("forbidden")
        assert refused.value.code == 403


# -- custom methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EVERY)
async def test_methods_of_your_own(version: str) -> None:
    server = Server("s")

    @server.method("acme/add")
    async def add(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        await ctx.progress(1)
        if "a" not in params:
            raise RpcError(-32602, "a is missing")
        return {"sum": params["a"] + params["b"], "from": ctx.peer.version}

    async with Client(server, era=version) as client:
        result = await client.request("acme/add", {"a": 1, "b": 2})
        assert (result["sum"], result["from"]) == (3, version)
        with pytest.raises(RpcError, match="a is missing"):
            await client.request("acme/add")
        with pytest.raises(RpcError) as unknown:
            await client.request("acme/subtract")
        assert unknown.value.code == -32601


@pytest.mark.parametrize(
    "name", ["tools/call", "initialize", "server/discover", "ping", "subscriptions/listen"]
)
def test_methods_of_the_protocol_are_taken(name: str) -> None:
    async def answer(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {}

    with pytest.raises(LocalProtocolError):
        Server("s").method(name)(answer)


# -- lifespan and context ------------------------------------------------------------------------------------------


async def test_a_lifespan_is_entered_once_for_each_serving() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[dict[str, int]]:
        events.append(f"enter {server.name}")
        yield {"answer": 42}
        await trio.lowlevel.checkpoint()
        events.append("leave")

    server = Server("s", lifespan=lifespan)

    @server.tool
    async def t(ctx: Context) -> int:
        """The answer."""
        return int(ctx.state["answer"])

    for _ in range(2):
        events.clear()
        async with Client(server) as client:
            for _ in range(2):
                assert (await client.call_tool("t")).structured_content == 42
            assert events == ["enter s"]
        assert events == ["enter s", "leave"]


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_context_variables_of_calls_never_mix(version: str, inline: bool) -> None:
    server = Server("s")
    limiter = trio.Event()

    if inline:

        @server.tool(inline=True)
        def who(name: str) -> str:
            """Says who it was before."""
            before = WHO.get()
            WHO.set(name)
            return f"{before} {WHO.get()}"
    else:

        @server.tool
        async def who(name: str) -> str:
            """Says who it was before."""
            before = WHO.get()
            WHO.set(name)
            await limiter.wait()
            return f"{before} {WHO.get()}"

    async with Client(server, era=version) as client, trio.open_nursery() as nursery:
        said: dict[str, str] = {}

        async def ask_for(name: str) -> None:
            said[name] = (await client.call_tool("who", {"name": name})).content[0].text  # type: ignore[union-attr]

        for name in ("anna", "bert", "carla"):
            nursery.start_soon(ask_for, name)
        await wait_all_tasks_blocked()
        limiter.set()
        await wait_all_tasks_blocked()
        assert said == {name: f"nobody {name}" for name in ("anna", "bert", "carla")}


async def test_each_call_has_its_own_trace_and_metadata() -> None:
    server = Server("s")

    @server.tool
    async def t(ctx: Context) -> dict[str, Any]:
        """What came along."""
        return {
            "trace": ctx.trace,
            "acme": ctx.meta.get("acme/x"),
            "method": ctx.method,
            "id": ctx.request_id,
        }

    trace = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=1",
        "baggage": "k=v",
    }
    for version in EVERY:
        async with Client(server, era=version) as client:
            found = (await client.call_tool("t", meta={**trace, "acme/x": [1]})).content[0].text  # type: ignore[union-attr]
            assert '"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"' in found
            assert '"acme":[1]' in found
            found = (await client.call_tool("t", meta={"traceparent": 5})).content[0].text  # type: ignore[union-attr]
            assert '"trace":{}' in found  # what is no text is no trace, and no reason to refuse


async def test_the_operators_logger_knows_session_and_request() -> None:
    server = Server("s")

    @server.tool
    async def t(ctx: Context) -> None:
        """Logs."""
        ctx.logger.warning("hello", extra=1)

    with structlog.testing.capture_logs() as logs:
        async with raw_client(server) as peer:
            await call(peer, MODERN, "id-7", "t")
    (entry,) = [log for log in logs if log["event"] == "hello"]
    assert (entry["request"], entry["method"], entry["extra"]) == ("id-7", "tools/call", 1)
    assert entry["session"].startswith("s#")


async def test_progress_grows_or_is_not_sent() -> None:
    server = Server("s")

    @server.tool
    async def t(ctx: Context) -> str:
        """Reports."""
        for value in (1, 1, 0, 2.5, float("-inf"), 2, 3):
            await ctx.progress(value)
        return "done"

    for version in EVERY:
        reports: list[float] = []
        async with Client(server, era=version) as client:
            await client.call_tool("t", on_progress=lambda p, seen=reports: seen.append(p.progress))  # type: ignore[misc]
        assert reports == [1, 2.5, 3]


async def test_nothing_is_sent_about_a_call_that_is_over(autojump_clock: MockClock) -> None:
    server = Server("s")
    kept: list[Context] = []

    @server.tool
    async def t(ctx: Context) -> str:
        """Lets its context escape."""
        kept.append(ctx)
        return "done"

    async with raw_client(server) as peer:
        params = {"progressToken": 1, LOG_LEVEL: "debug"}
        await modern(peer, 1, "tools/call", {"name": "t"}, **params)
        await kept[0].progress(1)
        await kept[0].log("error", "late")
        with trio.move_on_after(60) as waited:
            await peer.receive()
        assert waited.cancelled_caught


# -- lists ---------------------------------------------------------------------------------------------------------


def numbered(count: int, page_size: int) -> Server:
    server = Server("s", page_size=page_size)
    for number in range(count):
        server.add_tool(lambda: None, name=f"t{number}")
        server.add_prompt(lambda: "p", name=f"p{number}")
        server.add_resource(f"x://{number}", lambda: "r", name=f"r{number}")
        server.add_resource(f"y://{number}/{{a}}", lambda a: "r", name=f"y{number}")
    return server


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("count", [10, 25])
async def test_every_entry_of_every_list_once_and_in_order(version: str, count: int) -> None:
    """How pages are cut and what a cursor means is the affair of ``server/test_prompts.py``."""
    async with Client(numbered(count, 10), era=version) as client:
        expected = range(count)
        assert [tool.name async for tool in client.tools()] == [f"t{n}" for n in expected]
        assert [prompt.name async for prompt in client.prompts()] == [f"p{n}" for n in expected]
        assert [resource.uri async for resource in client.resources()] == [f"x://{n}" for n in expected]
        templates = [template.uri_template async for template in client.resource_templates()]
        assert templates == [f"y://{n}/{{a}}" for n in expected]
        first, again = await client.list_tools(), await client.list_tools()
        assert first == again
        assert (first.next_cursor is None) == (count <= 10)


async def test_a_tool_that_is_taken_away_finishes_what_it_began() -> None:
    server = Server("s")
    limiter = trio.Event()

    @server.tool
    async def slow() -> str:
        """Takes a while."""
        await limiter.wait()
        return "done"

    async with Client(server) as client, trio.open_nursery() as nursery:
        results: list[Any] = []

        async def run() -> None:
            results.append(await client.call_tool("slow"))

        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        server.remove_tool("slow")
        limiter.set()
        await wait_all_tasks_blocked()
        assert results[0].content == [TextContent("done")]
        with pytest.raises(RpcError) as gone:
            await client.call_tool("slow")
        assert gone.value.code == -32602


# -- Mistakes that registration can know of: each is refused with the program's own line and the way out ---


def values(limit: int) -> Iterator[int]:
    yield from range(limit)


async def later_values(limit: int) -> AsyncIterator[int]:
    for each in range(limit):
        yield each


def with_ctx(city, ctx):  # type: ignore[no-untyped-def]
    return city


def completes(value: str, ctx=None):  # type: ignore[no-untyped-def]
    return []


class Shelf:
    def books(self, author: str) -> str:
        return author


async def needs_await(ctx: SyncContext) -> None:
    ctx.progress(1)


def plain() -> str:
    return ""


async def of_one(ctx: Context) -> None:
    return None


async def greets(name: str) -> str:
    return name


SCRIPT = Icon("javascript:alert(1)")

Register = Callable[[Server], Any]

MISTAKES: list[tuple[str, Register, str]] = [
    ("tool of a string", lambda s: s.tool("search"), r"write @server.tool\(name='search'\)"),  # type: ignore[call-overload]
    ("prompt of a string", lambda s: s.prompt("ask"), r"write @server.prompt\(name='ask'\)"),  # type: ignore[call-overload]
    ("resource without a URI", lambda s: s.resource(plain), r'write @server.resource\("data://NAME"\)'),  # type: ignore[arg-type]
    ("add_resource the other way round", lambda s: s.add_resource(plain, "x://y"), "a resource has a URI"),  # type: ignore[arg-type]
    ("resource without a scheme", lambda s: s.resource("config"), r'"data://config"'),
    ("method without a name", lambda s: s.method(of_one), r'write @server.method\("my/method"\)'),  # type: ignore[type-var]
    ("method that is not async", lambda s: s.method("x/y")(plain), r"write async def f\(params, ctx\)"),
    ("method with a text of scopes", lambda s: s.method("x/y", scopes="a b"), "write a list of scopes"),
    ("method with a wrong scope", lambda s: s.method("x/y", scopes=["a b"]), "write a list of scopes"),
    ("method of one parameter", lambda s: s.method("x/y")(of_one), "does not take two arguments"),
    ("middleware that is not async", lambda s: s.middleware(plain), r"async def f\(ctx, call_next\)"),  # type: ignore[arg-type]
    ("inline generator", lambda s: s.tool(values, inline=True), "remove inline=True"),
    ("inline async generator", lambda s: s.tool(later_values, inline=True), "remove inline=True"),
    ("generator as a prompt", lambda s: s.add_prompt(values, name="x"), "annotated with str|collect them"),
    ("context without annotation", lambda s: s.tool(with_ctx), "write ctx: Context"),
    ("context of a prompt", lambda s: s.prompt(with_ctx), "write ctx: Context"),
    (
        "context of a completion",
        lambda s: s.completion(prompt="x", argument="y")(completes),
        "write ctx: Context",
    ),
    ("context of a sync function", lambda s: s.tool(needs_await), "write ctx: Context"),
    ("method of a class", lambda s: s.add_tool(Shelf.books), r"server.add_tool\(thing.method\)"),
    ("no function", lambda s: s.add_tool(None), "None is not a function"),  # type: ignore[arg-type]
    ("unknown option", lambda s: s.add_tool(greets, desc="x"), "the options are name, title, description"),  # type: ignore[call-arg]
    ("wrong option", lambda s: s.add_tool(greets, title=5), "write a string"),  # type: ignore[arg-type]
    ("wrong annotations", lambda s: s.add_tool(greets, annotations={}), r"write ToolAnnotations"),  # type: ignore[arg-type]
    ("wrong icons", lambda s: s.add_tool(greets, icons=["x"]), "write a list of Icon"),  # type: ignore[list-item]
    ("icon that is a script", lambda s: s.add_tool(greets, icons=[SCRIPT]), "https, http or data"),
    ("icon of a file", lambda s: s.add_prompt(greets, icons=[Icon("file:///i.png")]), "https, http or data"),
    ("icon of a resource", lambda s: s.add_resource("x://a", plain, icons=[SCRIPT]), "https, http or data"),
    ("icon of the server", lambda s: Server("x", icons=[SCRIPT]), "https, http or data"),
    ("icons that are texts", lambda s: Server("x", icons=["https://i"]), "write a list of Icon"),  # type: ignore[list-item]
    ("tool of no name", lambda s: s.add_tool(greets, name=""), "write a name of one character or more"),
    ("prompt of no name", lambda s: s.add_prompt(greets, name=""), "write a name of one character or more"),
    ("resource of no name", lambda s: s.add_resource("x://a", plain, name=""), "write a name of one"),
    ("meta that is no JSON", lambda s: s.add_tool(greets, meta={"a": object()}), "JSON cannot hold it"),
    ("time limit of nothing", lambda s: s.add_tool(greets, timeout=0), "greater than 0"),
    ("time limit inline", lambda s: s.add_tool(plain, inline=True, timeout=1), "remove inline=True"),
    ("name taken", lambda s: (s.add_tool(greets), s.add_tool(greets)), "there is already a tool 'greets'"),
    ("nothing to remove", lambda s: s.remove_tool("x"), "there is no tool 'x'"),
    ("pages of nothing", lambda s: Server("x", page_size=0), "page_size=0: write"),
    ("negative time to live", lambda s: Server("x", ttl_ms=-1), "ttl_ms=-1: write"),
    ("unknown cache scope", lambda s: Server("x", cache_scope="mine"), '"private" or "public"'),  # type: ignore[arg-type]
    ("one version", lambda s: Server("x", versions="2025-06-18"), r"versions=\['2025-06-18'\]"),
    ("server without a name", lambda s: Server(plain), r'write Server\("NAME"\)'),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("mistake", "register", "way_out"), MISTAKES, ids=[each[0] for each in MISTAKES])
def test_a_mistake_is_refused_at_its_own_line(mistake: str, register: Register, way_out: str) -> None:
    server = Server("x")
    with pytest.raises(Exception, match=way_out) as refused:
        register(server)
    line = inspect.getsourcelines(register)[1]
    file, _, found = str(refused.value).partition(": ")[0].rpartition(", line ")
    assert file == str(Path(__file__)), refused.value
    assert line <= int(found) <= line + 4


async def test_what_is_right_is_taken() -> None:
    server = Server("x", page_size=1, ttl_ms=0, cache_scope="public")
    shelf = Shelf()
    server.add_tool(shelf.books, title=None, icons=[Icon("https://x/y.png")], meta={"a": [1]})
    server.add_tool(greets, annotations=ToolAnnotations(read_only_hint=True), timeout=1.5)
    server.add_resource("{scheme}://all", lambda scheme: scheme, name="all")
    server.add_resource("urn:isbn:{number}", lambda number: number, name="book")
    async with Client(server) as client:
        assert [each.name async for each in client.tools()] == ["books", "greets"]
        assert (await client.read_resource("urn:isbn:7")).contents[0].text == "7"  # type: ignore[union-attr]


# -- What a server declares before there is anything of it, and what clients that came before then are told ---

TOOLS_CHANGED = "notifications/tools/list_changed"


def hello() -> str:
    """Says hello."""
    return "hello"


@pytest.mark.parametrize("name", ["tools", "resources", "prompts", "completions"])
async def test_what_is_named_is_declared_before_there_is_anything(name: Any) -> None:
    server = Server("early", capabilities=[name])
    async with raw_client(server) as peer:
        discovered = (await modern(peer, 1, "server/discover"))["result"]["capabilities"]
        initialized = (await peer.initialize("2025-11-25"))["capabilities"]
    assert set(discovered) == set(initialized) == {name, "logging"}


@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list"])
async def test_a_list_that_is_declared_and_empty_is_answered(method: str) -> None:
    kind = method.partition("/")[0]
    server: Any = Server("early", capabilities=[kind])  # type: ignore[list-item]
    async with raw_client(server) as peer:
        await peer.initialize("2025-11-25")
        assert (await peer.request(1, method))["result"] == {kind: []}


@pytest.mark.parametrize("era", [*LEGACY, "2026-07-28"])
async def test_a_client_that_came_before_the_tools_finds_them_and_hears_of_them(era: str) -> None:
    server = Server("early", capabilities=["tools"])
    heard = trio.Event()
    async with Client(server, era=era, on_change=lambda kind, uri: heard.set()) as client:
        assert [tool async for tool in client.tools()] == []
        await wait_all_tasks_blocked()
        server.add_tool(hello)
        with trio.fail_after(60):
            await heard.wait()
        assert [tool.name async for tool in client.tools()] == ["hello"]


@pytest.mark.parametrize("version", LEGACY)
async def test_a_session_is_not_notified_of_what_it_was_not_told_of(
    version: str, autojump_clock: MockClock
) -> None:
    server = Server("late", capabilities=["prompts"])
    async with raw_client(server) as peer:
        await begin(peer, version)
        await wait_all_tasks_blocked()
        server.add_tool(hello)
        server.add_resource("x://a", hello, name="a")
        await nothing_comes(peer)
        server.add_prompt(hello)
        assert (await peer.receive())["method"] == "notifications/prompts/list_changed"
        # Asking is not forbidden to it, and the next session is told.
        assert (await peer.request(1, "tools/list"))["result"]["tools"][0]["name"] == "hello"


async def test_a_listener_hears_of_what_is_registered_after_it_came() -> None:
    server = Server("late")
    async with raw_client(server) as peer:
        asked = {"toolsListChanged": True, "resourceSubscriptions": ["x://a"]}
        params = {"notifications": asked, "_meta": meta()}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params})
        assert (await peer.receive())["params"]["notifications"] == {}  # nothing of it is offered yet
        server.add_tool(hello)
        with trio.fail_after(60):
            assert (await peer.receive())["method"] == TOOLS_CHANGED
        server.add_resource("x://a", hello, name="a")
        server.resource_updated("x://a")
        with trio.fail_after(60):
            assert (await peer.receive())["params"]["uri"] == "x://a"


@pytest.mark.parametrize("capabilities", ["tools", ["tool"], {"tools": {}, "logging": {}}])
def test_an_unknown_name_is_refused_with_the_known_ones(capabilities: Any) -> None:
    with pytest.raises(ValueError, match="tools, resources, prompts, completions"):
        Server("wrong", capabilities=capabilities)


def test_a_time_to_live_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="ttl_ms"):
        Server("wrong", ttl_ms=-1)


@pytest.mark.parametrize("params", [{}, {"notifications": None}])
async def test_a_listener_has_to_say_what_it_wants(params: dict[str, Any]) -> None:
    server = Server("late")
    async with raw_client(server) as peer:
        answer = await modern(peer, 1, "subscriptions/listen", params)
        assert answer["error"]["code"] == -32602


# -- A server that sends something else than messages: what came is said at once, and by the error that follows ---

EVENT = "the server sent text that is not a message"
CAME = (
    "\nwhat came was no JSON-RPC message (a program on stdio prints to stderr, never to stdout):\n"
    "  Welcome!\n  Listening on port 9000"
)


@pytest.mark.parametrize("lines", [[b"Welcome!", b"Listening on port 9000"], []])
async def test_the_timeout_of_the_handshake_names_it(lines: list[bytes], autojump_clock: MockClock) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:

        async def print_lines() -> None:
            peer = await server.accept()
            for line in lines:
                await peer.channel.send(Frame(line))

        nursery.start_soon(print_lines)
        with capture_logs() as logs, pytest.raises(CallTimeout) as caught:
            async with Client(server.transport):
                pass
    assert caught.value.received == tuple(line.decode() for line in lines)
    assert str(caught.value).endswith(CAME if lines else "(the idle clock)")
    assert [each["text"] for each in logs if each["event"] == EVENT] == list(caught.value.received)


@pytest.mark.parametrize("count", [10, 1000])
async def test_it_is_bounded_and_a_later_call_names_it_too(count: int, autojump_clock: MockClock) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:

        async def babble() -> None:
            peer = await server.accept()
            await play_initialize(peer)
            for number in range(count):
                await peer.channel.send(Frame(b"%d " % number + b"\xff" * 100_000))

        nursery.start_soon(babble)
        with capture_logs() as logs:
            async with Client(server.transport, era="legacy", timeout=3) as client:
                with pytest.raises(CallTimeout) as caught:
                    await client.request("any/thing")
    assert [text[:2] for text in caught.value.received] == ["0 ", "1 ", "2 "]
    assert all(len(text) == 202 for text in caught.value.received)
    assert len([each for each in logs if each["event"] == EVENT]) == 3


async def test_a_program_that_serves_nothing_is_told_apart() -> None:
    with trio.fail_after(30), pytest.raises(ConnectionLost) as caught:
        async with Client([sys.executable, "-c", "print('hello')"]):
            pass
    assert (
        "it exited with code 0 before it sent a message: a program that serves has to call server.run()"
        in str(caught.value)
    )
    assert caught.value.received == ("hello",)
    assert str(caught.value).endswith("\n  hello")
