"""What a caller sees of a gateway is what it may see, over a connection of its own where the server keeps sessions."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client, Context, Limits, Server
from mcp_actors._actors.inbound_call import Continuation
from mcp_actors.errors import (
    InputRequired,
    InsufficientScope,
    McpError,
    MissingCapability,
    ResourceNotFound,
    RpcError,
)
from mcp_actors.gateway import Gateway, Upstream, held_calls
from mcp_actors.tasks import Tasks
from mcp_actors.types import (
    ElicitFormParams,
    ElicitResult,
    InputRequiredResult,
    ReadResourceResult,
    TextResourceContents,
)
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport
from tests.gateway.test_lists import make_library, make_server, names_of
from tests.gateway.upstreams import Behind as ServerThatGoes
from tests.middleware.callers import served

ERAS = ("legacy", "modern")


@pytest.mark.parametrize("era", ERAS)
async def test_without_the_scopes_of_a_server_nobody_sees_or_uses_it(era: str) -> None:
    gateway = Gateway(
        [
            Upstream(name="a", target=make_library("a", "aa")),
            Upstream(name="b", target=make_library("b", "bb"), scopes=["books"]),
            Upstream(name="c", target=make_server("c", "x", instructions="Of c."), scopes=["c"]),
        ],
        instructions="Own.",
    )
    async with served(gateway) as way:
        async with way.client("alice", scopes=["books"], era=era) as client:
            assert [each.uri async for each in client.resources()] == ["aa://index", "bb://index"]
            assert (await client.read_resource("bb://books/emma")).text == "b book emma"
            assert client.instructions == "Own."
        async with way.client("bob", era=era) as client:
            assert [each.uri async for each in client.resources()] == ["aa://index"]
            assert [each.name async for each in client.prompts()] == ["a_greet"]
            assert await names_of(client) == []
            requests: list[tuple[str, dict[str, Any]]] = [
                ("tools/call", {"name": "c_x"}),
                ("prompts/get", {"name": "b_greet", "arguments": {"who": "x"}}),
                ("resources/read", {"uri": "bb://index"}),
                ("resources/read", {"uri": "bb://books/emma"}),
            ]
            for method, params in requests:
                with pytest.raises(InsufficientScope):
                    await client.request(method, params)
            with pytest.raises(ResourceNotFound):
                await client.read_resource("cc://unlisted")


async def test_each_session_has_the_lists_of_its_own_session_at_the_server() -> None:
    server = Server("s", capabilities=["tools"])

    @server.tool
    async def log_in(ctx: Context) -> None:
        """Shows another tool in this session."""
        assert ctx.session is not None
        ctx.session.get(list[str]).append("secret")
        ctx.session.notify("notifications/tools/list_changed", {})

    listed = server._features.handlers["tools/list"]

    def of_session(ctx: Context) -> Any:
        page = listed(ctx)
        assert ctx.session is not None
        return page if not ctx.session.get(list[str]) else {"tools": [{"name": "secret", "inputSchema": {}}]}

    server._features.handlers["tools/list"] = of_session
    gateway = Gateway([Upstream(name="u", target=server, era="legacy")])
    async with (
        served(gateway) as way,
        way.client(None, era="legacy") as one,
        way.client(None, era="legacy") as other,
        one.listen(tools=True) as changes,
    ):
        assert await names_of(one) == await names_of(other) == ["u_log_in"]
        await one.call_tool("u_log_in")
        await anext(changes)
        assert await names_of(one) == ["u_secret"]
        assert await names_of(other) == ["u_log_in"]


class OwnLists:
    """An upstream that lists to each of its sessions what was said in it, and another one that lists when it may."""

    def __init__(self) -> None:
        self.sessions: dict[str, Any] = {}
        self.gate = trio.Event()
        self.own, self.slow = Server("own", capabilities=["tools", "resources"]), make_server("slow", "late")
        self.own.add_tool(self.log_in, name="log_in", description="Says who somebody is.")
        for method, member in (("tools/list", "tools"), ("resources/list", "resources")):
            self.own._features.handlers[method] = partial(self._of_session, member)
        handlers = self.slow._features.handlers
        listed = handlers["tools/list"]

        async def when_open(ctx: Context) -> Any:
            await self.gate.wait()
            return listed(ctx)

        handlers["tools/list"] = lambda ctx: Continuation(when_open, ctx)

    async def log_in(self, name: str, ctx: Context) -> None:
        assert ctx.session is not None
        ctx.session.get(list[str]).append(name)
        self.sessions[name] = ctx.session

    def change(self, name: str) -> None:
        self.sessions[name].notify("notifications/tools/list_changed", {})

    def _of_session(self, member: str, ctx: Context) -> dict[str, Any]:
        assert ctx.session is not None
        names = [f"of_{each}" for each in ctx.session.get(list[str])]
        if member == "templates":
            return {
                "resourceTemplates": [{"name": each, "uriTemplate": f"doc://{{{each}}}"} for each in names]
            }
        if member == "tools":
            return {"tools": [{"name": each, "inputSchema": {"type": "object"}} for each in names]}
        return {"resources": [{"name": each, "uri": f"own://{each}"} for each in names]}


@pytest.mark.parametrize("number", range(60))
async def test_no_caller_is_listed_what_only_another_one_may_see(
    number: int, autojump_clock: MockClock
) -> None:
    chance, lists = random.Random(number), OwnLists()
    gateway = Gateway(
        [
            Upstream(name="own", target=lists.own, era="legacy", sessions=chance.choice(["own", "auto"])),
            Upstream(name="slow", target=lists.slow),
        ]
    )
    seen: list[tuple[str, list[str]]] = []

    async def list_tools(name: str) -> None:
        seen.append((name, await names_of(clients[name])))

    async with served(gateway) as way, AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(way.client(None, era="legacy")) for name in ("ann", "bob")
        }
        for name, client in clients.items():
            await client.call_tool("own_log_in", {"name": name})
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                name = chance.choice(["ann", "bob"])
                step = chance.choice(["list", "list", "change", "wait"])
                if step == "list":
                    nursery.start_soon(list_tools, name)
                elif step == "change":
                    lists.change(name)
                else:
                    await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            lists.gate.set()
        for name, client in clients.items():
            await list_tools(name)
            assert [each.uri async for each in client.resources()] == [f"own://of_{name}"]
    assert {name for name, _ in seen} == {"ann", "bob"}
    for name, names in seen:
        # Of a list that has changed twice while it was read, nothing may be known any more.
        assert names in ([f"own_of_{name}", "slow_late"], ["slow_late"]), name


@pytest.mark.parametrize("number", range(30))
async def test_a_caller_whose_connection_was_lost_is_listed_nothing_of_another_one(
    number: int, autojump_clock: MockClock
) -> None:
    """The session that follows has not logged in, so its list is empty."""
    chance, lists = random.Random(number), OwnLists()
    seen: list[tuple[str, list[str]]] = []

    async def list_tools(name: str) -> None:
        seen.append((name, await names_of(clients[name])))

    async with trio.open_nursery() as nursery:
        behind = ServerThatGoes(nursery, lists.own)
        await behind.come()
        own = Upstream(name="own", target=behind, era="legacy", sessions=chance.choice(["own", "auto"]))
        gateway = Gateway([own, Upstream(name="slow", target=lists.slow)])
        async with served(gateway) as way, AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(way.client(None, era="legacy"))
                for name in ("ann", "bob")
            }
            for name, client in clients.items():
                await client.call_tool("own_log_in", {"name": name})
            async with trio.open_nursery() as listing:
                for _ in range(12):
                    name = chance.choice(["ann", "bob"])
                    step = chance.choice(["list", "list", "change", "lose", "log in", "wait"])
                    if step == "list":
                        listing.start_soon(list_tools, name)
                    elif step == "change":
                        lists.change(name)
                    elif step == "lose":
                        behind.go()
                        await behind.come()
                    elif step == "log in":
                        with suppress(McpError):
                            await clients[name].call_tool("own_log_in", {"name": name})
                    else:
                        await trio.testing.wait_all_tasks_blocked()
                await trio.testing.wait_all_tasks_blocked()
                lists.gate.set()
            for name in clients:
                await list_tools(name)
        nursery.cancel_scope.cancel()
    for name, names in seen:
        assert set(names) <= {f"own_of_{name}", "slow_late"}, name


async def test_a_template_that_only_another_caller_was_listed_leads_nowhere() -> None:
    lists = OwnLists()
    lists.own._features.handlers["resources/templates/list"] = partial(lists._of_session, "templates")
    quiet = Server("quiet")
    quiet.add_resource("doc://{number}", lambda number: f"quiet {number}", name="doc", inline=True)
    quiet._features.handlers["resources/templates/list"] = lambda ctx: {"resourceTemplates": []}
    gateway = Gateway(
        [
            Upstream(name="own", target=lists.own, era="legacy", sessions="own"),
            Upstream(name="quiet", target=quiet),
        ]
    )
    async with (
        served(gateway) as way,
        way.client(None, era="legacy") as ann,
        way.client(None, era="legacy") as bob,
    ):
        await ann.call_tool("own_log_in", {"name": "ann"})
        assert [each.uri_template async for each in ann.resource_templates()] == ["doc://{of_ann}"]
        with pytest.raises(ResourceNotFound):
            await ann.read_resource("doc://1")
        # His own session at the first server lists no such template, so the second server is asked.
        assert (await bob.read_resource("doc://1")).text == "quiet 1"


async def test_parameters_that_are_sent_in_headers_are_so_on_both_sides(nursery: trio.Nursery) -> None:
    server = Server("s")
    seen: list[str | None] = []

    def region(arguments: dict[str, Any], ctx: Context) -> str:
        assert ctx.request is not None
        seen.append(ctx.request.headers.get("mcp-param-region"))
        return str(arguments["region"])

    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    server.add_tool(region, name="region", description="Says it.", input_schema=schema, inline=True)
    (behind,) = await nursery.start(server.serve, "http://127.0.0.1:0/mcp")
    gateway = Gateway([Upstream(name="u", target=behind, era="modern")])
    (url,) = await nursery.start(gateway.serve, "http://127.0.0.1:0/mcp")
    async with Client(url, era="modern") as client:
        # Neither the client nor the gateway has listed the tool, so both learn from a refusal what is sent in headers.
        assert (await client.call_tool("u_region", {"region": "eu"})).text == "eu"
        assert [each.input_schema async for each in client.tools()] == [schema]
        assert (await client.call_tool("u_region", {"region": "us"})).text == "us"
    assert seen == ["eu", "us"]
    nursery.cancel_scope.cancel()


# -- Callers of the stateless revisions at servers of sessions: what their revision wants, whatever the server says ---

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def in_front_of(server: Server) -> Gateway:
    return Gateway([Upstream(name="x", target=server, era="legacy")])


async def never(question: object) -> ElicitResult:
    raise AssertionError("it is asked by a result")


async def test_a_capability_that_is_missing_has_the_code_of_the_callers_revision() -> None:
    server = Server("behind")

    @server.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.elicit("Who?", FORM))

    async with Client(in_front_of(server), era="modern") as client:
        with pytest.raises(MissingCapability) as refused:
            await client.call_tool("x_ask", {})
    assert refused.value.code == -32021
    assert refused.value.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}


async def test_each_round_of_a_held_call_has_a_state_of_its_own(autojump_clock: MockClock) -> None:
    server = Server("behind")

    @server.tool
    async def ask(ctx: Context) -> str:
        names = [(await ctx.elicit(each, FORM)).content for each in ("Who?", "And who?")]
        return str(names)

    gateway = in_front_of(server)
    async with Client(gateway, era="modern", elicitation=never, answer_input=False) as client:
        with pytest.raises(InputRequired) as first:
            await client.call_tool("x_ask", {})
        answers = dict.fromkeys(first.value.requests, ElicitResult("accept", {"name": "Ann"}))
        with pytest.raises(InputRequired) as second:
            await client.call_tool("x_ask", {}, answers=answers, state=first.value.state)
        answers = dict.fromkeys(second.value.requests, ElicitResult("accept", {"name": "Bob"}))
        result = await client.call_tool("x_ask", {}, answers=answers, state=second.value.state)
    # No time passed, so that only the round can make the difference.
    assert first.value.state != second.value.state
    assert result.text == "[{'name': 'Ann'}, {'name': 'Bob'}]"


async def test_the_param_of_tasks_of_sessions_is_ignored() -> None:
    """SEP-2663: a call with ``task`` is neither refused nor made a task."""
    server = Server("behind")
    server.add_extension(Tasks())

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool(task="optional")
    async def later() -> str:
        await trio.lowlevel.checkpoint()
        return "now"

    async with Client(in_front_of(server), era="modern") as client:
        task = {"ttl": 1000}
        added = await client.request(
            "tools/call", {"name": "x_add", "arguments": {"a": 1, "b": 2}, "task": task}
        )
        said = await client.request("tools/call", {"name": "x_later", "arguments": {}, "task": task})
    assert added["content"][0]["text"] == "3"
    assert said["content"][0]["text"] == "now"


def server_that_remembers() -> Server:
    """Returns one that asks for the roots once in a session, as nothing tells it that another client is behind it."""
    server = Server("behind")
    server.add_resource("data://r", lambda: "r", name="r")

    @server.tool
    async def roots(ctx: Context) -> str:
        assert ctx.session is not None
        known = ctx.session.get(list[str])
        if not known:
            known += [root.uri for root in await ctx.list_roots()]
        return known[0]

    return server


async def test_a_client_is_asked_for_its_roots_although_another_one_has_said_its_own(
    nursery: trio.Nursery,
) -> None:
    (url,) = await nursery.start(in_front_of(server_that_remembers()).serve, "http://127.0.0.1:0/mcp")
    for root in ("file:///home/ann", "file:///home/bob"):
        async with Client(url, era="modern", roots=[root]) as client:
            assert (await client.call_tool("x_roots")).text == root
    nursery.cancel_scope.cancel()


async def test_what_a_client_has_subscribed_to_stays_so_after_it_has_said_its_roots(
    nursery: trio.Nursery,
) -> None:
    server = server_that_remembers()
    (url,) = await nursery.start(in_front_of(server).serve, "http://127.0.0.1:0/mcp")
    async with (
        Client(url, era="modern", roots=["file:///home/ann"]) as ann,
        Client(url, era="modern", roots=["file:///home/bob"]) as bob,
        ann.listen(uris=["data://r"]) as changes,
    ):
        assert (await ann.call_tool("x_roots")).text == "file:///home/ann"
        assert (await bob.call_tool("x_roots")).text == "file:///home/bob"
        server.resource_updated("data://r")
        assert (await anext(changes)).uri == "data://r"
    nursery.cancel_scope.cancel()


# -- A call at a server with sessions is held while a client without one is asked, and ends when nobody comes back ---

ANN = ElicitResult("accept", {"name": "Ann"})


async def never_held_calls(question: Any) -> ElicitResult:
    raise AssertionError("it is asked by a result, and answers by a retry")


class Behind:
    """A server with a tool that asks, and what becomes of its calls."""

    def __init__(self) -> None:
        # It waits longer for an answer than the gateway does.
        self.server = Server("behind", limits=Limits(ask_timeout=1e5))
        self.running = 0
        self.cancelled = 0
        self.changed = trio.Event()
        self.server.add_tool(self.ask, name="ask")
        self.server.add_tool(self.wait, name="wait")

    async def ask(self, ctx: Context, patience: float = 1e6) -> str:
        self.running += 1
        try:
            with trio.move_on_after(patience):
                answer = await ctx.elicit("Who?", FORM)
                return str(answer.content and answer.content["name"])
            return "nobody came"
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            self.changed.set()

    async def wait(self) -> str:
        self.changed.set()
        return await self.ask_never()

    async def ask_never(self) -> str:
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled += 1

    @asynccontextmanager
    async def connected(self, **settings: Any) -> AsyncIterator[Client]:
        gateway = Gateway([Upstream(name="x", target=self.server, era="legacy", cap=1e6, **settings)])
        async with Client(
            gateway, era="modern", elicitation=never_held_calls, answer_input=False, cap=1e6
        ) as client:
            yield client


async def asked(client: Client, **arguments: Any) -> InputRequired:
    with pytest.raises(InputRequired) as required:
        await client.call_tool("x_ask", arguments)
    return required.value


async def retried(client: Client, question: InputRequired, answer: Any = ANN) -> str:
    answers = dict.fromkeys(question.requests, answer)
    result = await client.call_tool("x_ask", {}, answers=answers, state=question.state)
    return result.text


async def test_the_retry_gets_the_result_of_the_call_that_was_held(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with behind.connected() as client:
        question = await asked(client)
        assert behind.running == 1
        await trio.sleep(500)
        assert await retried(client, question) == "Ann"
        assert (behind.running, behind.cancelled) == (0, 0)
        with pytest.raises(RpcError, match="the call has ended"):
            await retried(client, question)


async def test_a_client_that_does_not_come_back_ends_the_call(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with behind.connected() as client:
        question = await asked(client)
        await trio.sleep(held_calls.HELD_TIMEOUT + 1)
        assert (behind.running, behind.cancelled) == (0, 1)
        with pytest.raises(RpcError, match="nobody answered in time") as refused:
            await retried(client, question)
    assert refused.value.code == -32602


async def test_a_result_that_was_there_before_the_answers_waits_for_the_retry(
    autojump_clock: MockClock,
) -> None:
    behind = Behind()
    async with behind.connected() as client:
        with pytest.raises(InputRequired) as required:
            await client.call_tool("x_ask", {"patience": 10.0})
        await trio.sleep(20)
        assert behind.running == 0
        answers = dict.fromkeys(required.value.requests, ANN)
        result = await client.call_tool(
            "x_ask", {"patience": 10.0}, answers=answers, state=required.value.state
        )
    assert result.text == "nobody came"


@pytest.mark.parametrize("first", ["asks", "has"])
@pytest.mark.parametrize("upstream_era", ["legacy", "modern"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_no_server_lists_is_found_although_another_one_asks_before_it_says_no(
    era: str, upstream_era: str, first: str
) -> None:
    asks, has = Server("asks"), Server("has")
    told: list[object] = []

    @asks.middleware
    async def ask(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "resources/read":
            await ctx.elicit("May I?", {"type": "object", "properties": {}})
            raise ResourceNotFound(ctx.params["uri"])
        return await call_next(ctx)

    @has.middleware
    async def answer(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "resources/read":
            told.append(ctx.call.invocation.answers)
        if ctx.method == "resources/read" and ctx.params["uri"] == "x://unlisted":
            return ReadResourceResult([TextResourceContents("x://unlisted", "here")])
        return await call_next(ctx)

    for server in (asks, has):
        server.add_resource(f"{server.name}://listed", lambda: "", name="listed")
    servers = sorted((asks, has), key=lambda each: each.name != first)
    gateway = Gateway([Upstream(name=each.name, target=each, era=upstream_era) for each in servers])

    async def accept(question: Any) -> ElicitResult:
        return ElicitResult("accept", {})

    async with Client(gateway, era=era, elicitation=accept) as client:
        assert (await client.read_resource("x://unlisted")).text == "here"
        with pytest.raises(ResourceNotFound) as refused:
            await client.read_resource("x://nothing")
    assert refused.value.uri == "x://nothing"
    # What was answered to one server is told to no other one.
    assert told == [None, None]


async def test_answers_to_a_server_that_gives_no_state_are_told_to_no_other_one() -> None:
    asks, other = Server("asks"), Server("other")
    told: dict[str, list[object]] = {"asks": [], "other": []}
    question = ElicitFormParams("May I?", {"type": "object", "properties": {}})

    @asks.middleware
    async def ask(ctx: Any, call_next: Any) -> Any:
        if ctx.method != "resources/read":
            return await call_next(ctx)
        told["asks"].append(ctx.call.invocation.answers)
        if told["asks"] == [None]:
            return InputRequiredResult({"may": question})
        raise ResourceNotFound(ctx.params["uri"])

    @other.middleware
    async def answer(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "resources/read":
            told["other"].append(ctx.call.invocation.answers)
        return await call_next(ctx)

    for server in (asks, other):
        server.add_resource(f"{server.name}://listed", lambda: "", name="listed")
    gateway = Gateway([Upstream(name=each.name, target=each, era="modern") for each in (other, asks)])

    async def accept(question: Any) -> ElicitResult:
        return ElicitResult("accept", {})

    async with Client(gateway, era="modern", elicitation=accept) as client:
        with pytest.raises(ResourceNotFound):
            await client.read_resource("x://nothing")
    assert [each is None for each in told["asks"]] == [True, False]
    assert told["other"] == [None]


async def test_a_state_is_good_for_the_same_request_alone(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with behind.connected() as client:
        question = await asked(client)
        assert question.state is not None
        forged = question.state[:-2] + ("AA" if question.state[-2:] != "AA" else "BB")
        for name, arguments, state in (
            ("x_ask", {}, forged),
            ("x_ask", {"patience": 1.0}, question.state),
            ("x_wait", {}, question.state),
        ):
            with pytest.raises(RpcError, match="requestState") as refused:
                await client.call_tool(name, arguments, state=state, answers={})
            assert refused.value.code == -32602
        assert await retried(client, question) == "Ann"


async def test_an_answer_that_does_not_fit_is_refused_and_the_call_goes_on(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with behind.connected() as client:
        question = await asked(client)
        with pytest.raises(RpcError, match="does not fit the form"):
            await retried(client, question, ElicitResult("accept", {"name": 7}))
        again = await asked_again(client, question)
        assert list(again.requests) == list(question.requests)
        assert await retried(client, again) == "Ann"


async def asked_again(client: Client, question: InputRequired) -> InputRequired:
    """A retry without answers is asked the same once more."""
    with pytest.raises(InputRequired) as required:
        await client.call_tool("x_ask", {}, answers={}, state=question.state)
    return required.value


async def test_one_retry_at_a_time_waits_for_a_call(autojump_clock: MockClock) -> None:
    server, asking = Server("behind"), trio.Event()

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.elicit("Who?", FORM)
        asking.set()
        await trio.sleep(5)
        return "done"

    behind = Behind()
    behind.server = server
    async with behind.connected() as client, trio.open_nursery() as nursery:
        question = await asked(client)

        async def first() -> None:
            assert await retried(client, question) == "done"

        nursery.start_soon(first)
        await asking.wait()
        with pytest.raises(RpcError, match="another retry of this call is in flight"):
            await retried(client, question)


async def test_a_client_that_cancels_its_retry_ends_the_call(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with behind.connected() as client:
        with trio.move_on_after(1):
            await client.call_tool("x_wait")
        await behind.changed.wait()
        await trio.sleep(0.1)
        assert behind.cancelled == 1


async def test_a_gateway_that_ends_ends_what_it_holds(autojump_clock: MockClock) -> None:
    behind = Behind()
    with capture_logs() as lines:
        async with behind.connected() as client:
            await asked(client)
    assert behind.running == 0
    assert not [line for line in lines if line["log_level"] == "error"]


async def test_as_many_calls_as_one_caller_may_have_are_held(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_calls, "MAX_HELD_BY_CALLER", 2)
    behind = Behind()
    async with behind.connected() as client:
        questions = [await asked(client) for _ in range(2)]
        with pytest.raises(
            RpcError, match="too many calls that wait for input of this client: the limit is 2"
        ):
            await client.call_tool("x_ask")
        assert await retried(client, questions[0]) == "Ann"
        # Its place is free for the next one.
        await asked(client)


async def test_as_many_bytes_as_one_caller_may_have_are_held(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_calls, "MAX_HELD_BYTES", 8 * 1000)
    server = Server("behind")

    @server.tool
    async def ask(ctx: Context, text: str) -> str:
        return (await ctx.elicit(text, FORM)).action

    behind = Behind()
    behind.server = server
    async with behind.connected() as client:
        await asked(client, text="a" * 300)
        with pytest.raises(RpcError, match="too many bytes in the calls that wait for input"):
            await client.call_tool("x_ask", {"text": "a" * 900})


async def test_the_state_of_one_principal_is_of_no_use_to_another_one() -> None:
    behind = Behind()
    gateway = Gateway([Upstream(name="x", target=behind.server, era="legacy")])
    transport = HttpServerTransport(
        "http://127.0.0.1:0/mcp", authenticate=lambda request: request.headers["x-who"]
    )
    async with trio.open_nursery() as nursery:
        (where,) = await nursery.start(gateway.serve, transport)

        def as_somebody(name: str) -> Client:
            target = HttpClientTransport(str(where), headers={"x-who": name})
            return Client(target, era="modern", elicitation=never_held_calls, answer_input=False)

        async with as_somebody("ann") as ann, as_somebody("bob") as bob:
            question = await asked(ann)
            with pytest.raises(RpcError, match="requestState was not issued for this request"):
                await retried(bob, question)
            assert await retried(ann, question) == "Ann"
        nursery.cancel_scope.cancel()
