"""A user's callback that fails costs the one call or notification it was made for, however it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, Limits, LocalProtocolError, RpcError, Server
from mcp_actors.errors import McpError
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import CreateMessageResult, ElicitResult, TextContent
from mcp_transports.memory import MemoryTransport
from tests.scripted_peers import EVERY, LEGACY, begin, meta
from tests.server.exchanging import INITIALIZED, Recorder, desk, initialize
from tests.transports.crashes import Unexpected, stray_cancelled


def leave_a_scope_open() -> None:
    trio.CancelScope().__enter__()


def leave_a_cancelled_scope_open() -> None:
    trio.CancelScope().__enter__().cancel()


def leave_a_nest_of_scopes_open_and_raise() -> None:
    trio.CancelScope().__enter__()
    trio.move_on_after(0.001).__enter__()
    raise KeyError("inside")


def leave_a_nursery_open() -> None:
    # Entering a nursery does not wait, so a sync function can do it too.
    with pytest.raises(StopIteration) as entered:
        trio.open_nursery().__aenter__().send(None)  # type: ignore[attr-defined]
    entered.value.value.start_soon(trio.sleep_forever)


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


FAILURES = [
    "Exception",
    "BaseException",
    "SystemExit",
    "stray Cancelled",
    "scope left open",
    "cancelled scope left open",
    "scopes left open, and raised",
    "nursery left open",
]
EACH_FAILURE = pytest.mark.parametrize("kind", FAILURES)
EACH_ERA = pytest.mark.parametrize("era", ["legacy", "modern"])
EACH_COLOUR = pytest.mark.parametrize("colour", ["sync", "async"])


async def failure(kind: str) -> Callable[[], None]:
    return {
        "Exception": raising(KeyError("mine")),
        "BaseException": raising(Unexpected()),
        "SystemExit": raising(SystemExit(3)),
        "stray Cancelled": raising(await stray_cancelled()),
        "scope left open": leave_a_scope_open,
        "cancelled scope left open": leave_a_cancelled_scope_open,
        "scopes left open, and raised": leave_a_nest_of_scopes_open_and_raise,
        "nursery left open": leave_a_nursery_open,
    }[kind]


def callback(colour: str, fail: Callable[[], None], seen: list[Any]) -> Callable[..., Any]:
    """Fails the first time it is called, and takes note of what it is called with later."""
    calls = 0

    def sync(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            fail()
        else:
            seen.append(args)

    async def later(*args: Any) -> None:
        sync(*args)
        await trio.lowlevel.checkpoint()

    return sync if colour == "sync" else later


def talkative() -> Server:
    server = Server("talkative")

    @server.tool
    async def log(ctx: Context, text: str) -> str:
        await ctx.log("warning", text)
        return text

    @server.tool
    async def change() -> None:
        server.add_tool(lambda: None, name=f"tool{len(server.tools)}")

    @server.tool
    async def report(ctx: Context) -> str:
        await ctx.progress(1, 2)
        await ctx.progress(2, 2)
        return "reported"

    @server.tool
    async def sample(ctx: Context) -> str:
        answer = await ctx.sample("?", max_tokens=5)
        return str(answer.content)

    @server.tool
    async def elicit(ctx: Context) -> str:
        return (await ctx.elicit("?", {"type": "object", "properties": {}})).action

    @server.tool
    async def roots(ctx: Context) -> int:
        return len(await ctx.list_roots())

    return server


@contextmanager
def named(name: str) -> Iterator[None]:
    """What is logged inside names the callback, once."""
    with capture_logs() as logs:
        yield
    failed = [line for line in logs if line["log_level"] == "error"]
    assert [line.get("callback") for line in failed] == [name]


@EACH_COLOUR
@EACH_FAILURE
@EACH_ERA
async def test_a_log_handler_that_fails_costs_one_message(
    era: str, kind: str, colour: str, autojump_clock: trio.testing.MockClock
) -> None:
    seen: list[Any] = []
    on_log = callback(colour, await failure(kind), seen)
    async with Client(talkative(), era=era, on_log=on_log) as client:
        with named("on_log"):
            assert (await client.call_tool("log", {"text": "lost"})).text == "lost"
            await trio.sleep(1)
        assert (await client.call_tool("log", {"text": "told"})).text == "told"
        await trio.sleep(1)
        assert [args[1] for args in seen] == ["told"]


@EACH_COLOUR
@EACH_FAILURE
@EACH_ERA
async def test_a_change_handler_that_fails_costs_one_change(
    era: str, kind: str, colour: str, autojump_clock: trio.testing.MockClock
) -> None:
    seen: list[Any] = []
    on_change = callback(colour, await failure(kind), seen)
    async with Client(talkative(), era=era, on_change=on_change) as client:
        await trio.sleep(1)
        with named("on_change"):
            await client.call_tool("change")
            await trio.sleep(1)
        assert seen == []
        await client.call_tool("change")
        await trio.sleep(1)
        assert seen == [("tools", None)]


@EACH_COLOUR
@EACH_FAILURE
@EACH_ERA
async def test_a_progress_callback_that_fails_costs_its_call(
    era: str, kind: str, colour: str, autojump_clock: trio.testing.MockClock
) -> None:
    raised = KeyError if kind in ("Exception", "scopes left open, and raised") else RuntimeError
    async with Client(talkative(), era=era) as client:
        fail = callback(colour, await failure(kind), [])
        with named("on_progress"), pytest.raises(raised):
            await client.call_tool("report", on_progress=fail)
        assert (await client.call_tool("report", on_progress=fail)).text == "reported"


async def answer_sampling(question: Any) -> CreateMessageResult:
    return CreateMessageResult("assistant", TextContent("fine"), "a model")


async def answer_elicitation(question: Any) -> ElicitResult:
    return ElicitResult("decline")


async def answer_roots() -> list[str]:
    return ["file:///a"]


ANSWERS: dict[str, Callable[..., Any]] = {
    "sampling": answer_sampling,
    "elicitation": answer_elicitation,
    "roots": answer_roots,
}


@pytest.mark.parametrize(
    ("name", "tool"), [("sampling", "sample"), ("elicitation", "elicit"), ("roots", "roots")]
)
@EACH_FAILURE
@EACH_ERA
async def test_a_request_handler_that_fails_costs_its_call(
    era: str, kind: str, name: str, tool: str, autojump_clock: trio.testing.MockClock
) -> None:
    fail, calls = await failure(kind), 0

    async def handler(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            fail()
        return await ANSWERS[name](*args)

    options: dict[str, Any] = {name: handler}
    raised = KeyError if kind in ("Exception", "scopes left open, and raised") else RuntimeError
    async with Client(talkative(), era=era, **options) as client:
        with capture_logs() as logs:
            # In a session the server is answered with an error, which its tool lets pass.
            with pytest.raises(RpcError if era == "legacy" else raised):
                await client.call_tool(tool)
        assert name in [line.get("callback") for line in logs if line["log_level"] == "error"]
        assert not (await client.call_tool(tool)).is_error


PLAIN_ANSWERS: dict[str, Callable[..., Any]] = {
    "sampling": lambda question: CreateMessageResult("assistant", TextContent("fine"), "a model"),
    "elicitation": lambda question: ElicitResult("decline"),
    "roots": lambda: ["file:///a"],
}


@EACH_ERA
async def test_a_request_handler_may_be_a_plain_function(era: str) -> None:
    async with Client(talkative(), era=era, **PLAIN_ANSWERS) as client:
        plain = [(await client.call_tool(tool)).text for tool in ("sample", "elicit", "roots")]
    async with Client(talkative(), era=era, **ANSWERS) as client:
        assert plain == [(await client.call_tool(tool)).text for tool in ("sample", "elicit", "roots")]


@EACH_ERA
async def test_a_refusal_of_a_handler_is_no_failure(era: str) -> None:
    async def elicitation(question: Any) -> ElicitResult:
        raise RpcError(-1, "not now")

    async with Client(talkative(), era=era, elicitation=elicitation) as client:
        with capture_logs() as logs, pytest.raises(RpcError, match="not now"):
            await client.call_tool("elicit")
        assert not any("callback" in line for line in logs)


@EACH_COLOUR
async def test_an_interrupt_in_a_callback_is_the_programs(colour: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    async with Client(talkative()) as client:
        with pytest.raises(KeyboardInterrupt):
            await client.call_tool("report", on_progress=callback(colour, interrupt, []))
        await client.ping()


async def test_a_call_that_is_cancelled_in_a_callback_is_just_cancelled() -> None:
    async with Client(talkative()) as client:
        with capture_logs() as logs, trio.CancelScope() as scope:

            async def cancel(progress: Any) -> None:
                scope.cancel()
                await trio.lowlevel.checkpoint()

            await client.call_tool("report", on_progress=cancel)
        assert scope.cancelled_caught
        assert not any("callback" in line for line in logs)
        await client.ping()


# -- what ------------------------------------------------------------------------------------------------
#
# Is none of the user's.


class Explodes:
    """A transport with a defect: it connects ``times`` times, then raises ``error``."""

    def __init__(self, inner: Any, times: int, error: BaseException) -> None:
        self.inner = inner
        self.times = times
        self.error = error

    def connect(self) -> Any:
        self.times -= 1
        if self.times < 0:
            raise self.error
        return self.inner.connect()


@pytest.mark.parametrize("error", [KeyError("a defect"), Unexpected(), SystemExit(3)], ids=repr)
async def test_a_defect_of_a_transport_is_one_typed_error_for_who_enters(error: BaseException) -> None:
    baseline = trio.lowlevel.current_statistics().tasks_living
    with pytest.raises(McpError, match="could not connect") as caught:
        async with Client(Explodes(None, 0, error)):
            raise AssertionError
    assert caught.value.__cause__ is error
    assert trio.lowlevel.current_statistics().tasks_living == baseline


@pytest.mark.parametrize("error", [KeyError("a defect"), Unexpected(), SystemExit(3)], ids=repr)
async def test_a_defect_of_a_transport_is_one_typed_error_for_who_calls(
    error: BaseException, autojump_clock: trio.testing.MockClock
) -> None:
    server, transport = talkative(), MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(Explodes(transport, 1, error), restart=True, timeout=3) as client:
            [session] = server._runtime._sessions
            with capture_logs() as logs:
                session.stop()
                await trio.sleep(1)
                with pytest.raises(McpError, match=r"the client has failed|could not connect again"):
                    await client.call_tool("log", {"text": "?"})
            assert any(line["log_level"] == "error" for line in logs)
            with pytest.raises(McpError):
                client.tree()
        nursery.cancel_scope.cancel()


# -- Notifications of clients that functions of the server take ------------------------------------------

MOVED = "acme/moved"
Heard = list[tuple[Any, ...]]


def make_server(heard: Heard, **options: Any) -> Server:
    server = Server("hears", **options)

    @server.notification(MOVED)
    async def moved(x: int, y: float = 0.5, *, ctx: Context) -> None:
        heard.append((x, y, ctx.era.version, ctx.principal, ctx.session is not None))

    @server.notification("acme/fails")
    def fails() -> None:
        raise ValueError("no")

    return server


async def tell(peer: ScriptedPeer, method: str, **params: Any) -> None:
    await peer.send({"jsonrpc": "2.0", "method": method, "params": params})
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("version", LEGACY)
async def test_a_function_takes_it_with_the_types_it_asks_for(version: str) -> None:
    heard: Heard = []
    async with raw_client(make_server(heard)) as peer:
        await begin(peer, version)
        await tell(peer, MOVED, x=1, y=2, unknown=3, _meta={"a": 1})
        await tell(peer, MOVED, x=2)
    assert heard == [(1, 2.0, version, None, True), (2, 0.5, version, None, True)]


async def test_a_stateless_client_is_heard_on_a_connection() -> None:
    heard: Heard = []
    async with raw_client(make_server(heard)) as peer:
        await tell(peer, MOVED, x=1, _meta=meta())
        await tell(peer, MOVED, x=2)
        await tell(peer, MOVED, x=3, _meta=meta(version="2099-01-01"))
    assert [each[0] for each in heard] == [1, 2]
    assert {each[2] for each in heard} == {"2026-07-28"}


async def test_what_came_by_itself_is_heard_and_accepted() -> None:
    heard: Heard = []
    message = {"jsonrpc": "2.0", "method": MOVED, "params": {"x": 1, "_meta": meta()}}
    async with desk(make_server(heard)) as binding:
        outlet = await binding.exchange(message, mcp_protocol_version="2026-07-28", mcp_method=MOVED)
        await wait_all_tasks_blocked()
    assert outlet.frames == []
    assert heard == [(1, 0.5, "2026-07-28", None, False)]


async def test_a_session_without_a_connection_is_heard() -> None:
    heard: Heard = []
    async with desk(make_server(heard)) as binding:
        outlet = Recorder()
        session = binding.handler.open_session(outlet)
        told = {"jsonrpc": "2.0", "method": MOVED, "params": {"x": 1}}
        for each in (initialize(), INITIALIZED, told):
            binding.deliver(session, each)
        await wait_all_tasks_blocked()
        session.close()
    assert outlet.frames == []
    assert heard == [(1, 0.5, "2025-11-25", None, True)]


async def test_what_does_not_fit_or_fails_is_logged_and_disturbs_nobody() -> None:
    heard: Heard = []
    async with raw_client(make_server(heard)) as peer:
        await begin(peer, "2025-11-25")
        with capture_logs() as logs:
            await tell(peer, MOVED, x="far")
            await tell(peer, MOVED)
            await tell(peer, "acme/fails")
            with trio.fail_after(60):
                while len([each for each in logs if each["log_level"] in ("warning", "error")]) < 3:
                    assert (await peer.request(2, "ping"))["result"] == {}
    assert heard == []
    assert [each.get("method") for each in logs if each["log_level"] == "warning"] == [MOVED, MOVED]


@pytest.mark.parametrize("era", LEGACY)
async def test_changed_roots_are_asked_for_where_that_is_heard(era: str) -> None:
    server = Server("roots")
    known: list[list[str]] = []
    roots = ["file:///a"]

    @server.notification("notifications/roots/list_changed")
    async def changed(ctx: Context) -> None:
        known.append([root.uri for root in await ctx.list_roots()])

    async with Client(server, era=era, roots=lambda: roots) as client:
        roots.append("file:///b")
        await client.roots_changed()
        with trio.fail_after(60):
            while not known:
                await client.ping()
    assert known == [["file:///a", "file:///b"]]


async def test_a_flood_is_bounded_and_the_rest_is_dropped(autojump_clock: MockClock) -> None:
    server = Server("slow", limits=Limits(max_in_flight=10, max_waiting=10))
    began: list[int] = []

    @server.notification(MOVED)
    async def slow(x: int) -> None:
        began.append(x)
        await trio.sleep(1)

    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        for x in range(200):
            await peer.send({"jsonrpc": "2.0", "method": MOVED, "params": {"x": x}})
        await wait_all_tasks_blocked()
        [session] = server.tree().sessions
        assert len(session.calls) == 20
        await trio.sleep(10)
        assert server.tree().sessions[0].calls == ()
        assert (await peer.request(1, "ping"))["result"] == {}
    assert sorted(began) == list(range(20))


async def test_the_end_of_the_connection_cancels_it() -> None:
    server = Server("slow")
    ended = trio.Event()

    @server.notification(MOVED)
    async def slow() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        await tell(peer, MOVED)
    assert ended.is_set()


@pytest.mark.parametrize(
    "name", ["notifications/initialized", "notifications/cancelled", "notifications/progress"]
)
def test_the_engines_own_cannot_be_taken(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="the engine itself"):
        Server("greedy").notification(name)(lambda: None)


def test_one_function_for_each() -> None:
    with pytest.raises(LocalProtocolError, match="already"):
        make_server([]).notification(MOVED)(lambda: None)


@pytest.mark.parametrize("version", EVERY)
async def test_a_request_of_that_name_is_still_unknown(version: str) -> None:
    async with raw_client(make_server([])) as peer:
        await begin(peer, version)
        params = {"_meta": meta()} if version not in LEGACY else {}
        assert (await peer.request(1, MOVED, params))["error"]["code"] == -32601
