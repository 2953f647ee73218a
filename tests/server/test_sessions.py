"""What a server keeps in a session and tells its client outside of any call."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Optional

import attrs
import pydantic
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked
from typing_extensions import TypedDict

from mcp_actors import Client, Context, LocalProtocolError, Server, SyncContext, ToolError
from mcp_actors._server.peer_session import is_wanted
from mcp_actors.abc.discovery import client_transport
from mcp_actors.server import FormResult
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import ElicitFormParams, ElicitResult, TextContent
from tests.scripted_peers import EVERY, LEGACY, begin, call
from tests.server.exchanging import INITIALIZED, Desk, Recorder, desk, initialize, legacy


@attrs.define(eq=False)
class Cart:
    """What one client has chosen."""

    things: list[str] = attrs.field(factory=list)


carts: list[weakref.ref[Cart]] = []


def make_server() -> Server:
    server = Server("shop")

    @server.tool
    async def put(thing: str, ctx: Context) -> int:
        """Puts something into the session's cart."""
        assert ctx.session is not None
        cart = ctx.session.get(Cart)
        cart.things.append(thing)
        carts.append(weakref.ref(cart))
        return len(cart.things)

    return server


@asynccontextmanager
async def connections(server: Server, count: int) -> AsyncIterator[list[ScriptedPeer]]:
    """That many connections to one serving of the server."""
    transport: Any = client_transport("memory:")
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        await nursery.start(server.serve, transport)
        channels = [await stack.enter_async_context(transport.connect()) for _ in range(count)]
        yield [ScriptedPeer(channel) for channel in channels]
        nursery.cancel_scope.cancel()


async def logged(peer: ScriptedPeer) -> list[Any]:
    """All log messages that come within a long time, and nothing else."""
    found = []
    with trio.move_on_after(100):
        while True:
            message = await peer.receive()
            assert message["method"] == "notifications/message"
            found.append(message["params"])
    return found


@pytest.mark.parametrize("version", EVERY)
async def test_a_connection_has_a_place_of_its_own_for_each_class(version: str) -> None:
    server = make_server()
    async with Client(server, era=version) as one, Client(server, era=version) as other:
        results = [await one.call_tool("put", {"thing": each}) for each in "ab"]
        results.append(await other.call_tool("put", {"thing": "c"}))
    assert [result.content for result in results] == [[TextContent(each)] for each in "121"]


async def test_what_is_kept_is_freed_with_the_session_without_the_collector(collector_rests: None) -> None:
    carts.clear()
    async with connections(make_server(), 1) as [peer]:
        await begin(peer, "2025-11-25")
        await call(peer, "2025-11-25", 1, "put", thing="a")
        assert carts[0]() is not None
        await peer.channel.aclose()
        await wait_all_tasks_blocked()
        assert carts[0]() is None


async def test_what_cannot_be_made_is_not_kept() -> None:
    server = Server("shop")
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        if len(made) == 1:
            raise ToolError("not yet")
        return made

    @server.tool
    async def count(ctx: Context) -> int:
        """Counts."""
        assert ctx.session is not None
        return len(ctx.session.get(make))

    async with Client(server) as client:
        assert (await client.call_tool("count")).is_error
        results = [await client.call_tool("count") for _ in range(2)]
    assert [result.content for result in results] == [[TextContent("2")]] * 2


# -- logs outside of calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEGACY)
async def test_the_server_logs_to_every_session_that_wants_it(
    version: str, autojump_clock: MockClock
) -> None:
    server = make_server()
    async with connections(server, 4) as [quiet, chatty, usual, nobody]:
        for peer in (quiet, chatty, usual):
            await begin(peer, version)
        await quiet.request(1, "logging/setLevel", {"level": "error"})
        await chatty.request(1, "logging/setLevel", {"level": "debug"})
        await wait_all_tasks_blocked()
        server.log("debug", 1)
        server.log("warning", {"disk": "full"}, "storage")
        server.log("alert", 2)
        alert = {"level": "alert", "data": 2}
        warning = {"level": "warning", "data": {"disk": "full"}, "logger": "storage"}
        assert await logged(quiet) == [alert]
        assert await logged(usual) == [warning, alert]
        assert await logged(chatty) == [{"level": "debug", "data": 1}, warning, alert]
        assert await logged(nobody) == []


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="no such level"):
        is_wanted("loud", "info")


async def test_a_client_that_does_not_read_loses_logs_and_holds_nobody_up() -> None:
    server = make_server()
    async with connections(server, 2) as [asleep, awake]:
        await begin(asleep, "2025-11-25")
        await begin(awake, "2025-11-25")
        await wait_all_tasks_blocked()
        for number in range(10_000):
            server.log("error", number)
            assert (await awake.receive())["params"]["data"] == number
        links = [session.link for session in server.tree().sessions]
        # Those of one write are on their way, and no more wait than there is room for.
        assert [link.outbox <= 2 * server.limits.outbox for link in links if link is not None] == [True, True]


# -- Sessions that no connection carries: their messages come one by one, each with an outlet of its own ---

settled = trio.testing.wait_all_tasks_blocked


class Bench:
    """A server with tools whose calls the test can watch and let go."""

    def __init__(self) -> None:
        self.server = Server("bench")
        self.seen: list[str] = []
        self.limiters: dict[str, trio.Event] = {}
        server = self.server

        @server.tool
        async def wait(name: str, ctx: Context) -> str:
            limiter = self.limiters[name] = trio.Event()
            try:
                await ctx.progress(1)
                await limiter.wait()
            except trio.Cancelled:
                self.seen.append(f"{name} cancelled")
                raise
            return name

        @server.tool
        async def ask(ctx: Context) -> str:
            answer = await ctx.elicit("?", {"type": "object", "properties": {}})
            return answer.action

        @server.tool
        async def let_go(ctx: Context) -> str:
            ctx.close_stream()
            return "later"

        @server.resource("x://y")
        def resource() -> str:
            return "y"


@asynccontextmanager
async def session_of(bench: Bench, version: str = "2025-11-25") -> AsyncIterator[tuple[Desk, Any, Recorder]]:
    async with desk(bench.server) as each:
        apart = Recorder()
        session = each.handler.open_session(apart)
        assert not session.initialized
        answer = each.deliver(session, initialize(0, version, elicitation={})).answer
        assert answer["result"]["protocolVersion"] == version
        assert session.initialized
        each.deliver(session, INITIALIZED)
        yield each, session, apart
        session.close()


def wait_for(id: Any, name: str, **meta: Any) -> Any:
    return legacy(id, "tools/call", name="wait", arguments={"name": name}, _meta=meta)


async def test_each_answer_goes_to_the_outlet_that_came_with_its_request() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, apart):
        first = each.deliver(session, wait_for(1, "a", progressToken="t"))
        second = each.deliver(session, wait_for(2, "b"))
        await settled()
        assert session.busy
        bench.limiters["b"].set()
        bench.limiters["a"].set()
        await settled()
        assert [m.get("method", m.get("id")) for m in first.messages] == ["notifications/progress", 1]
        assert [m["id"] for m in second.messages] == [2]
        assert apart.frames == []
        assert not session.busy


async def test_two_requests_with_one_id_get_their_own_answers() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, _):
        first, second = (each.deliver(session, wait_for(1, name)) for name in "ab")
        await settled()
        # Nobody can tell which one is meant: neither is ended.
        each.deliver(session, cancel(1))
        bench.limiters["b"].set()
        bench.limiters["a"].set()
        await settled()
        assert first.answer["result"]["content"][0]["text"] == "a"
        assert second.answer["result"]["content"][0]["text"] == "b"
        assert bench.seen == []


def cancel(id: Any) -> Any:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


async def test_a_cancelled_call_settles_its_outlet_without_an_answer() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, _):
        outlet = each.deliver(session, wait_for(1, "a"))
        await settled()
        each.deliver(session, cancel(1))
        await settled()
        assert bench.seen == ["a cancelled"]
        assert (outlet.frames, outlet.settled) == ([], 1)


async def test_a_question_goes_where_the_answer_of_its_call_goes() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, apart):
        outlet = each.deliver(session, legacy(1, "tools/call", name="ask", arguments={}))
        await settled()
        question = outlet.messages[0]
        assert question["method"] == "elicitation/create"
        assert outlet.frames[0].request == question["id"]
        assert outlet.frames[0].about == 1
        assert apart.frames == []
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
        assert each.deliver(session, reply).frames == []
        await settled()
        assert outlet.answer["result"]["content"][0]["text"] == "decline"


async def test_what_is_told_unasked_goes_to_the_outlet_of_the_session() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, apart):
        each.deliver(session, legacy(1, "resources/subscribe", uri="x://y"))
        bench.server.resource_updated("x://y")
        await settled()
        assert [m["method"] for m in apart.messages] == ["notifications/resources/updated"]
        session.close()
        bench.server.resource_updated("x://y")
        await settled()
        assert len(apart.frames) == 1


async def test_closing_cancels_what_is_in_flight_and_forgets_the_session() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, _):
        outlet = each.deliver(session, wait_for(1, "a"))
        await settled()
        assert len(bench.server.tree().sessions) == 1
        session.close()
        session.close()
        await settled()
        assert bench.seen == ["a cancelled"]
        assert outlet.frames == []
        assert bench.server.tree().sessions == ()
        assert each.deliver(session, legacy(2, "ping")).frames == []


async def test_nothing_is_served_before_initialize_and_no_second_one() -> None:
    bench = Bench()
    async with desk(bench.server) as each:
        session = each.handler.open_session(Recorder())
        early = each.deliver(session, legacy(1, "tools/list"))
        assert early.refusal == -32600
        assert not session.initialized
        session.close()
    async with session_of(bench) as (each, session, _):
        assert each.deliver(session, initialize(5)).refusal == -32600


@pytest.mark.parametrize(("version", "resumes"), [("2025-11-25", True), ("2025-06-18", False)])
async def test_only_some_clients_come_back_for_a_closed_stream(version: str, resumes: bool) -> None:
    bench = Bench()
    async with session_of(bench, version) as (each, session, _):
        assert session.resumes is resumes
        outlet = each.deliver(session, legacy(1, "tools/call", name="let_go", arguments={}))
        await settled()
        assert outlet.closed == 1
        assert outlet.answer["result"]["content"][0]["text"] == "later"


async def test_a_batch_is_answered_by_one_last_frame() -> None:
    bench = Bench()
    async with session_of(bench, "2025-03-26") as (each, session, _):
        outlet = each.deliver(session, [wait_for(1, "a"), legacy(2, "ping"), cancel(9)])
        await settled()
        bench.limiters["a"].set()
        await settled()
        assert [frame.last for frame in outlet.frames] == [True]
        assert sorted(answer["id"] for answer in outlet.answer) == [1, 2]
        outlet = each.deliver(session, [wait_for(3, "c")])
        await settled()
        each.deliver(session, cancel(3))
        await settled()
        assert (outlet.frames, outlet.settled) == ([], 1)


async def test_an_idle_session_has_no_task() -> None:
    bench = Bench()
    async with session_of(bench) as (each, _, _):
        before = trio.lowlevel.current_statistics().tasks_living
        sessions = [each.handler.open_session(Recorder()) for _ in range(100)]
        for number, other in enumerate(sessions):
            each.deliver(other, initialize(number))
            each.deliver(other, INITIALIZED)
        await settled()
        assert trio.lowlevel.current_statistics().tasks_living == before
        assert len(bench.server.tree().sessions) == 101
        for other in sessions:
            other.close()


async def test_stopping_lets_calls_of_sessions_end(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, _):
        outlet = each.deliver(session, wait_for(1, "a"))
        idle = each.handler.open_session(Recorder())
        await settled()
        bench.server.stop()
        await settled()
        assert idle.dispatcher.state == "ended"
        bench.limiters["a"].set()
        await settled()
        assert outlet.answer["result"]["content"][0]["text"] == "a"


async def test_all_who_wait_for_a_session_to_be_idle_see_it(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, _):
        each.deliver(session, wait_for(1, "a"))
        await settled()
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.wait_until_idle)
                nursery.start_soon(session.wait_until_idle)
                await settled()
                session.stop()
                await settled()
                # The call goes on, so that nobody is told yet.
                assert len(nursery.child_tasks) == 2
                bench.limiters["a"].set()


# -- Forms that are asked for by a class, and contexts that name what the server's lifespan yields -------

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@dataclass
class Order:
    dish: str
    size: Literal["small", "large"] = "small"
    number: int = 1
    note: str | None = None


@attrs.frozen
class Table:
    seats: int


class Guest(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def is_known(cls, name: str) -> str:
        if name == "nobody":
            raise ValueError("nobody knows them")
        return name


class Wish(TypedDict):
    wish: str


def answering(content: dict[str, Any] | None, action: Any = "accept") -> Any:
    async def elicit(question: object) -> ElicitResult:
        assert isinstance(question, ElicitFormParams)
        return ElicitResult(action, content)

    return elicit


def restaurant(seen: list[Any], form: Any) -> Server:
    server = Server("restaurant")

    @server.tool
    async def take(ctx: Context) -> str:
        answer = await ctx.elicit("What?", form)
        assert isinstance(answer, FormResult)
        seen.append((answer.action, answer.data))
        return "done"

    @server.tool(loop="asyncio")
    async def take_in_asyncio(ctx: Context) -> str:
        answer = await ctx.elicit("What?", form)
        assert isinstance(answer, FormResult)
        seen.append((answer.action, answer.data))
        return "done"

    @server.tool
    def take_in_thread(ctx: SyncContext) -> str:
        answer = ctx.elicit("What?", form)
        assert isinstance(answer, FormResult)
        seen.append((answer.action, answer.data))
        return "done"

    return server


@ERAS
@pytest.mark.parametrize("tool", ["take", "take_in_thread", "take_in_asyncio"])
@pytest.mark.parametrize(
    ("form", "content", "expected"),
    [
        (Order, {"dish": "soup", "number": 2}, Order("soup", "small", 2)),
        (Table, {"seats": 4}, Table(4)),
        (Guest, {"name": "Ada"}, Guest(name="Ada")),
        (Wish, {"wish": "peace"}, {"wish": "peace"}),
    ],
)
async def test_a_form_is_answered_with_an_object(
    era: str, tool: str, form: Any, content: dict[str, Any], expected: object
) -> None:
    seen: list[Any] = []
    async with Client(restaurant(seen, form), era=era, elicitation=answering(content)) as client:
        assert (await client.call_tool(tool)).text == "done"
    assert seen == [("accept", expected)]


@ERAS
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_form_that_is_not_accepted_has_no_data(era: str, action: str) -> None:
    seen: list[Any] = []
    async with Client(restaurant(seen, Order), era=era, elicitation=answering(None, action)) as client:
        await client.call_tool("take")
    assert seen == [(action, None)]


@ERAS
async def test_an_answer_that_the_class_refuses_never_reaches_the_function(era: str) -> None:
    seen: list[Any] = []
    async with Client(restaurant(seen, Guest), era=era, elicitation=answering({"name": "nobody"})) as client:
        with capture_logs() as logs, trio.fail_after(60):
            try:
                text = (await client.call_tool("take")).text
            except Exception as error:
                text = str(error)
    assert "does not fit the form" in text
    assert "nobody knows them" in text
    assert seen == []
    # With a session it fails the function that asked, which may catch it; a retry that does not fit is not run.
    assert [each["event"] for each in logs] == (["handler failed"] if era == "legacy" else [])


class Database:
    def __init__(self) -> None:
        self.rows = ["one"]


@asynccontextmanager
async def opened(server: Server[Database]) -> AsyncIterator[Database]:
    yield Database()


async def test_a_context_names_the_state() -> None:
    server = Server("typed", lifespan=opened)

    @server.tool
    async def named(ctx: Context[Database]) -> list[str]:
        # There is a context for each call: the parameter of the class must not make it any bigger.
        assert not hasattr(ctx, "__dict__")
        return ctx.state.rows

    @server.tool
    async def maybe(ctx: Context[Database] | None = None) -> list[str]:
        return ctx.state.rows if ctx is not None else []

    @server.tool
    async def old_maybe(ctx: Optional[Context[Database]] = None) -> list[str]:  # noqa: UP045
        return ctx.state.rows if ctx is not None else []

    @server.tool
    async def text(ctx: "Context[Database]") -> list[str]:  # noqa: UP037
        return ctx.state.rows

    @server.tool(loop="asyncio")
    async def in_asyncio(ctx: Context[Database]) -> list[str]:
        return ctx.state.rows

    @server.tool
    def in_thread(ctx: SyncContext[Database]) -> list[str]:
        return ctx.state.rows

    async with Client(server) as client:
        async for tool in client.tools():
            assert tool.input_schema["properties"] == {}
            assert await client.call_tool(tool.name, returns=list[str]) == ["one"]


@pytest.mark.parametrize("annotation", [SyncContext[Database], Optional[SyncContext[Database]]])  # noqa: UP045
def test_an_async_function_that_takes_the_sync_context_is_refused(annotation: Any) -> None:
    async def wrong(ctx: Any) -> None: ...

    wrong.__annotations__["ctx"] = annotation
    with pytest.raises(TypeError, match="is async, and awaits its context: write ctx: Context"):
        Server("typed").add_tool(wrong)


DESCRIBED: dict[str, Any] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"roots": {}},
    "clientInfo": {"name": "c", "version": "1"},
}
# What differs in a second ``initialize``, and whether it is answered again.
REPEATED: dict[str, tuple[dict[str, Any], bool]] = {
    "the same": ({}, True),
    "another revision": ({"protocolVersion": "2025-11-25"}, False),
    "other capabilities": ({"capabilities": {}}, False),
    "another client": ({"clientInfo": {"name": "d", "version": "1"}}, False),
    "no revision": ({"protocolVersion": None}, False),
}


@pytest.mark.parametrize(("differs", "answered"), REPEATED.values(), ids=REPEATED.keys())
@pytest.mark.parametrize("operating", [False, True])
async def test_initialize_is_answered_again_for_the_same_client(
    differs: dict[str, Any], answered: bool, operating: bool
) -> None:
    server = Server("s")

    @server.tool
    async def who(ctx: Context) -> str:
        return f"{ctx.era.version} {ctx.peer.raw_capabilities}"

    async with raw_client(server) as peer:
        first = await peer.request(1, "initialize", DESCRIBED)
        if operating:
            await peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        second = await peer.request(2, "initialize", {**DESCRIBED, **differs})
        if answered:
            assert second["result"] == first["result"]
        else:
            assert second["error"]["code"] == -32600
        # Whatever came of it, the session is that of the client that it began with.
        called = await peer.request(3, "tools/call", {"name": "who", "arguments": {}})
    assert called["result"]["content"][0]["text"] == "2025-06-18 {'roots': {}}"
