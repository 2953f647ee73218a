"""Extensions as applications write them: declared by both sides, per request or session, unknown to all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, Server, SyncContext
from mcp_actors.errors import (
    HeaderMismatch,
    LocalProtocolError,
    MethodNotFound,
    MissingCapability,
    RemoteProtocolError,
    RpcError,
)
from mcp_actors.extensions import (
    AnsweredCall,
    AskedRequest,
    ClientExtension,
    ServerExtension,
    detached,
    remembered,
)
from mcp_actors.types import CreateMessageResult, ElicitFormParams, ElicitResult, TextContent
from tests.scripted_peers import EVERY, LEGACY, MODERN
from tests.server.exchanging import desk, modern
from tests.server.stocks import ID, Words, market, stocks, watcher

BOTH = ["modern", "legacy"]


# -- who may use it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EVERY)
async def test_a_method_answers_clients_that_declared_the_extension(version: str) -> None:
    server = market(stocks().extension)
    extension, _ = watcher(settings={"digits": 2})
    async with Client(server, era=version, extensions=[extension]) as client:
        result = await client.request("stocks/price", {"name": "ACME"})
        assert client.extensions == {ID: {"currency": "EUR"}}
    assert (result["price"], result["settings"]) == (1.0, {"digits": 2})


@pytest.mark.parametrize("version", EVERY)
async def test_a_method_refuses_clients_that_did_not(version: str) -> None:
    async with Client(market(stocks().extension), era=version) as client:
        with pytest.raises(RpcError) as refused:
            await client.request("stocks/price", {"name": "ACME"})
        assert client.extensions == {}
    if version == MODERN:
        assert isinstance(refused.value, MissingCapability)
        assert refused.value.data == {"requiredCapabilities": {"extensions": {ID: {}}}}
    else:
        assert isinstance(refused.value, MethodNotFound)


async def test_each_stateless_request_declares_for_itself() -> None:
    async with desk(market(stocks().extension)) as binding:
        declared = {"extensions": {ID: {"digits": 1}}}
        headers = {"mcp_protocol_version": MODERN, "mcp_method": "stocks/price", "mcp_name": "ACME"}
        price = modern(1, "stocks/price", capabilities=declared, name="ACME")
        first = await binding.exchange(price, **headers)
        second = await binding.exchange(modern(2, "stocks/price", name="ACME"), **headers)
    assert first.answer["result"]["settings"] == {"digits": 1}
    assert second.answer["error"]["code"] == MissingCapability.CODE


@pytest.mark.parametrize("name", ["OTHER", None])
async def test_the_target_is_mirrored_and_checked(name: str | None) -> None:
    async with desk(market(stocks().extension)) as binding:
        headers = {"mcp_protocol_version": MODERN, "mcp_method": "stocks/price"}
        if name is not None:
            headers["mcp_name"] = name
        declared = {"extensions": {ID: {}}}
        refused = await binding.exchange(
            modern(1, "stocks/price", capabilities=declared, name="ACME"), **headers
        )
    assert refused.answer["error"]["code"] == HeaderMismatch.CODE


@pytest.mark.parametrize("era", BOTH)
async def test_a_notification_of_others_is_dropped(era: str) -> None:
    made = stocks()
    server = market(made.extension)
    for extensions in ([watcher()[0]], []):
        async with Client(server, era=era, extensions=extensions) as client:
            await client.notify("notifications/stocks/correct", {"name": "ACME", "price": 3.0})
            await wait_all_tasks_blocked()
    assert made.corrected == [("ACME", 3.0)]


@pytest.mark.parametrize("era", BOTH)
async def test_what_one_side_alone_declares_is_not_in_use(era: str) -> None:
    async with Client(market(stocks().extension), era=era, extensions={"com.example/other": {}}) as client:
        assert client.extensions == {}
        assert client.server_capabilities.extensions == {ID: {"currency": "EUR"}}


@pytest.mark.parametrize("settings", [None, [], "x", {ID: None}])
async def test_hostile_declarations_are_no_extension(settings: Any) -> None:
    async with desk(market(stocks().extension)) as binding:
        headers = {"mcp_protocol_version": MODERN, "mcp_method": "stocks/price", "mcp_name": "ACME"}
        answered = await binding.exchange(
            modern(1, "stocks/price", capabilities={"extensions": settings}, name="ACME"), **headers
        )
    refused = answered.answer.get("error", {}).get("code")
    assert refused == (None if isinstance(settings, dict) else MissingCapability.CODE)


# -- what runs round requests, and goes on after them -------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
async def test_a_function_goes_on_after_its_call_was_answered(fails: bool) -> None:
    spoken: list[Words] = []

    def words() -> Words:
        spoken.append(Words())
        return spoken[-1]

    made = stocks(words=words)
    server = market(made.extension)
    extension, _ = watcher()
    answered: list[AnsweredCall] = []

    @extension.result("later")
    async def later(call: AnsweredCall, raw: dict[str, Any]) -> dict[str, Any]:
        answered.append(call)
        while not made.later:
            await trio.testing.wait_all_tasks_blocked()
        price = await call.send("stocks/price", {"name": "ACME"}, call.options)
        result: dict[str, Any] = dict(made.later[-1]["result"])
        return {**result, "_meta": {"of": raw["for"], "price": price["price"]}}

    seen: list[str] = []

    @server.middleware
    async def middleware(ctx: Context, call_next: Any) -> Any:
        seen.append(ctx.method)
        return await call_next()

    async with Client(server, era="modern", extensions=[extension]) as client:
        result = await client.call_tool("slow", {"fail": fails})
        # Whoever wants the answer of the extension itself has it.
        claimed = await client.request("tools/call", {"name": "slow", "arguments": {"fail": fails}})
    assert (claimed["resultType"], claimed["for"]) == ("later", "slow")
    plain_server = market(stocks().extension)
    async with Client(plain_server, era="modern") as client:
        plain = await client.call_tool("slow", {"fail": fails})
    assert (result.content, result.is_error) == (plain.content, plain.is_error)
    assert result.meta == {"of": "slow", "price": 1.0}
    assert [(call.method, call.params["name"]) for call in answered] == [("tools/call", "slow")]
    assert seen.count("tools/call") == 2
    assert spoken[0].said[0] == ("progress", 1, 2, "half")


async def test_what_a_detached_function_logs_reaches_its_voice() -> None:
    voice = Words()
    made = stocks(words=lambda: voice)
    async with Client(
        market(made.extension), era="legacy", extensions=[watcher()[0]], on_log=lambda *a: None
    ) as client:
        await client.request("tools/call", {"name": "slow", "arguments": {}})
        await wait_all_tasks_blocked()
    assert ("notifications/message", {"level": "warning", "data": "careful"}) in voice.said
    assert made.later == [{"result": {"content": [{"type": "text", "text": "done for 2025-11-25"}]}}]


@pytest.mark.parametrize("era", BOTH)
async def test_a_detached_function_asks_by_its_voice_and_runs_once(era: str) -> None:
    voice = Words({"name": ElicitResult("accept", {"name": "Ada"})})
    made = stocks(words=lambda: voice)
    server = Server("s", extensions=[made.extension])
    runs: list[int] = []

    @server.tool
    async def slow(ctx: Context) -> str:
        """Asks."""
        runs.append(1)
        answers = await ctx.ask({"name": ElicitFormParams("Who?", {"type": "object", "properties": {}})})
        return str(answers["name"].content["name"])

    async def never(question: Any) -> ElicitResult:
        raise AssertionError("the client was asked")

    async with Client(server, era=era, extensions=[watcher()[0]], elicitation=never) as client:
        await client.request("tools/call", {"name": "slow", "arguments": {}})
        await wait_all_tasks_blocked()
    assert (voice.said, runs) == ([("asked", ["name"])], [1])
    assert made.later[0]["result"]["content"] == [{"type": "text", "text": "Ada"}]


@pytest.mark.parametrize("version", EVERY)
async def test_a_remembered_request_runs_again_at_another_server(version: str) -> None:
    kept: list[bytes] = []
    extension = ServerExtension(ID)

    @extension.around("tools/call", when=lambda params: True)
    async def around(ctx: Context, call_next: Any) -> Any:
        kept.append(remembered(ctx))
        return await call_next()

    async with Client(market(extension), era=version) as client:
        await client.call_tool("slow", {})
    made = stocks()
    voice = Words()
    async with Client(market(made.extension)):
        assert made.serving is not None
        ctx, run = made.serving.begin_again(kept[0], voice)
        assert (ctx.params, ctx.peer.version, ctx.principal) == (
            {"name": "slow", "arguments": {}},
            version,
            None,
        )
        result: Any = await run()
    assert result.content[0].text == f"done for {version}"
    assert voice.said[0][:2] == ("progress", 1)


@pytest.mark.parametrize(
    "request_bytes",
    [b"", b"{}", b'{"version":"1999-01-01","method":"tools/call","params":{},"meta":{},"capabilities":{}}',
     b'{"version":"2026-07-28","method":"none/such","params":{},"meta":{},"capabilities":{}}'],
)  # fmt: skip
async def test_what_was_remembered_otherwise_is_refused(request_bytes: bytes) -> None:
    made = stocks()
    async with Client(market(made.extension)):
        assert made.serving is not None
        with pytest.raises(ValueError, match=r"remembered|answer"):
            made.serving.begin_again(request_bytes, Words())


@pytest.mark.parametrize("era", BOTH)
async def test_a_plain_function_in_a_thread_goes_on_too(era: str) -> None:
    voice = Words({"name": ElicitResult("accept", {"name": "Ada"})})
    made = stocks(words=lambda: voice)
    server = Server("s", extensions=[made.extension])

    @server.tool
    def slow(ctx: SyncContext) -> str:
        """Asks in a worker thread."""
        ctx.progress(1)
        answers = ctx.ask({"name": ElicitFormParams("Who?", {"type": "object", "properties": {}})})
        return str(answers["name"].content["name"])

    async def never(question: Any) -> ElicitResult:
        raise AssertionError("the client was asked")

    async with Client(server, era=era, extensions=[watcher()[0]], elicitation=never) as client:
        await client.request("tools/call", {"name": "slow", "arguments": {}})
        while not made.later:
            await trio.lowlevel.checkpoint()
    assert voice.said == [("progress", 1, None, None), ("asked", ["name"])]
    assert made.later[0]["result"]["content"] == [{"type": "text", "text": "Ada"}]


async def test_a_function_that_goes_on_is_cancelled_with_the_nursery_of_its_extension() -> None:
    made = stocks()
    server = Server("s", extensions=[made.extension])
    ends: list[str] = []

    @server.tool
    async def slow() -> None:
        """Never ends by itself."""
        try:
            await trio.sleep_forever()
        finally:
            ends.append("cancelled")

    async with Client(server, era="modern", extensions=[watcher()[0]]) as client:
        await client.request("tools/call", {"name": "slow", "arguments": {}})
        await wait_all_tasks_blocked()
        assert ends == []
    assert (ends, made.later) == (["cancelled"], [])


async def test_a_function_goes_on_when_its_client_has_left() -> None:
    voice = Words()
    made = stocks(words=lambda: voice)
    server = Server("s", extensions=[made.extension])
    go = trio.Event()

    @server.tool
    async def slow(ctx: Context) -> str:
        """Waits until its client is gone."""
        before = ctx.session is not None
        await go.wait()
        await ctx.progress(1)
        return f"{before} {ctx.session}"

    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, "memory:extensions-left")
        async with Client("memory:extensions-left", era="legacy", extensions=[watcher()[0]]) as client:
            await client.request("tools/call", {"name": "slow", "arguments": {}})
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert made.later == []
        go.set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert voice.said == [("progress", 1, None, None)]
    assert made.later[0]["result"]["content"] == [{"type": "text", "text": "True None"}]


async def test_middleware_may_run_the_rest_with_another_context() -> None:
    server = Server("s")
    voice = Words()

    @server.middleware
    async def elsewhere(ctx: Context, call_next: Any) -> Any:
        return await call_next(detached(ctx, voice))

    @server.tool
    async def slow(ctx: Context) -> None:
        """Reports."""
        await ctx.progress(1, 2, "half")

    async with Client(server) as client:
        await client.call_tool("slow")
    assert voice.said == [("progress", 1, 2, "half")]


async def test_an_inline_tool_that_no_extension_wants_stays_inline() -> None:
    asked: list[Any] = []
    extension = ServerExtension(ID)

    @extension.around("tools/call", when=lambda params: bool(asked.append(params["name"])))
    async def around(ctx: Context, call_next: Any) -> Any:
        raise AssertionError("it concerns no call")

    server = Server("s", extensions=[extension])
    tasks: list[str] = []

    @server.tool(inline=True)
    def quick() -> str:
        tasks.append(trio.lowlevel.current_task().name)
        return "quick"

    async with Client(server) as client:
        await client.call_tool("quick")
    assert asked == ["quick"]
    assert not tasks[0].startswith("call")


# -- listening ----------------------------------------------------------------------------------------------------


async def test_listeners_hear_of_their_keys_and_slow_ones_of_the_last_state() -> None:
    made = stocks()
    extension, told = watcher()
    async with Client(market(made.extension), era="modern", extensions=[extension]) as client:
        async with client.listen(members={"stocks": ["ACME", "HIDDEN", "NONE"]}) as listener:
            assert listener.honored is not None
            assert listener.honored.extra == {"stocks": ["ACME"]}
            assert made.extension.subscribed("stocks") == ["ACME"]
            made.set("HIDDEN", 5.0)
            made.set("ACME", 6.0)
            made.set("ACME", 7.0)
            await wait_all_tasks_blocked()
            assert told == [{"name": "ACME", "price": 7.0}]
        await wait_all_tasks_blocked()
        assert made.extension.subscribed("stocks") == []


async def test_members_of_undeclared_extensions_are_refused() -> None:
    made = stocks()
    async with Client(market(made.extension), era="modern") as client:
        request = {"notifications": {"stocks": ["ACME"]}}
        with pytest.raises(MissingCapability):
            await client.request("subscriptions/listen", request)


@pytest.mark.parametrize("wanted", ["ACME", [1], {}, None])
async def test_members_of_another_form_are_refused(wanted: Any) -> None:
    async with Client(market(stocks().extension), era="modern", extensions=[watcher()[0]]) as client:
        with pytest.raises(RpcError, match="array of strings"):
            await client.request("subscriptions/listen", {"notifications": {"stocks": wanted}})


async def test_keys_are_bounded() -> None:
    async with Client(market(stocks().extension), era="modern", extensions=[watcher()[0]]) as client:
        for keys in ([str(number) for number in range(2000)], ["x" * 100_000]):
            with pytest.raises(RpcError, match=r"too many|characters"):
                await client.request("subscriptions/listen", {"notifications": {"stocks": keys}})
        price = await client.request("stocks/price", {"name": "ACME"})
    assert price["price"] == 1.0


# -- lives --------------------------------------------------------------------------------------------------------


async def test_what_an_extension_serves_is_entered_once_and_left(autojump_clock: MockClock) -> None:
    made = stocks()
    state: list[Any] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[str]:
        made.served.append("lifespan entered")
        yield "state"
        made.served.append("lifespan left")

    server = market(made.extension, lifespan=lifespan)
    async with Client(server):
        assert made.serving is not None
        state.append(made.serving.state)
    assert made.served == ["lifespan entered", "entered", "left", "lifespan left"]
    assert state == ["state"]


async def test_a_client_extension_lives_as_long_as_its_client() -> None:
    lives: list[str] = []
    extension = ClientExtension(ID)

    @extension.lifespan
    @asynccontextmanager
    async def lifespan(client: Client) -> AsyncIterator[None]:
        lives.append(client.version)
        yield
        lives.append("left")

    async with Client(market(stocks().extension), era="modern", extensions=[extension]):
        assert lives == [MODERN]
    assert lives == [MODERN, "left"]


async def test_an_answer_of_an_unknown_kind_is_refused() -> None:
    made = stocks()
    async with Client(market(made.extension), era="modern", extensions={ID: {}}) as client:
        with pytest.raises(RemoteProtocolError, match="unknown type 'later'"):
            await client.call_tool("slow", {})


async def test_the_header_is_made_by_the_client_and_read_by_the_server() -> None:
    server = market(stocks().extension)
    without = ClientExtension(ID)
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server.serve, "http://127.0.0.1:0/mcp")
        async with Client(url, era="modern", extensions=[watcher()[0]]) as client:
            assert (await client.request("stocks/price", {"name": "ACME"}))["price"] == 1.0
        async with Client(url, era="modern", extensions=[without]) as client:
            with pytest.raises(HeaderMismatch):
                await client.request("stocks/price", {"name": "ACME"})
        async with Client(url, era="legacy", extensions=[without]) as client:
            assert (await client.request("stocks/price", {"name": "ACME"}))["price"] == 1.0
        nursery.cancel_scope.cancel()


# -- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id", ["", "x", "/x", "x/", "com..example/x", "com.example/x/y", "-a/b", "com.example/ä", 1]
)
def test_ids_of_another_form_are_refused(id: Any) -> None:
    for make in (ServerExtension, ClientExtension):
        with pytest.raises(ValueError, match=r"com\.example/name"):
            make(id)


@pytest.mark.parametrize("id", ["io.modelcontextprotocol/tasks", "x/y", "com.example-shop.a1/My_ext.v2-b"])
def test_ids_of_the_form_are_taken(id: str) -> None:
    assert (ServerExtension(id).id, ClientExtension(id).id) == (id, id)


def test_an_extension_is_complete_before_it_is_offered() -> None:
    made = stocks()
    server = market(made.extension)
    with pytest.raises(LocalProtocolError, match="complete it before"):

        @made.extension.method("stocks/more")
        async def more(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
            return {}

    with pytest.raises(LocalProtocolError, match="offered already"):
        server.add_extension(ServerExtension(ID))
    with pytest.raises(LocalProtocolError, match="offered already"):
        market(made.extension)


def test_what_is_no_extension_is_refused_where_it_is_given() -> None:
    offered, used = stocks().extension, watcher()[0]
    for wrong, text in [
        (offered, "list of ServerExtension"),
        ([used], "ServerExtension, not"),
        ("x", "list of"),
    ]:
        with pytest.raises(TypeError, match=text):
            Server("s", extensions=wrong)  # type: ignore[arg-type]
    for wrong, text in [
        (used, "list of ClientExtension"),
        ([offered], "ClientExtension, not"),
        ("x", "list of"),
    ]:
        with pytest.raises(TypeError, match=text):
            Client(Server("s"), extensions=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"name '{ID}'"):
        Client(Server("s"), extensions=[used, watcher()[0]])


def test_a_name_is_taken_once() -> None:
    first, second = stocks().extension, ServerExtension("com.example/other")

    @second.method("stocks/price")
    async def price(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {}

    with pytest.raises(LocalProtocolError, match="answered already"):
        Server("s", extensions=[first, second])


def test_publishing_without_a_server_or_a_member_is_a_mistake() -> None:
    made = stocks()
    with pytest.raises(LocalProtocolError, match="no server offers"):
        made.extension.publish("stocks", "ACME")
    market(made.extension)
    with pytest.raises(LocalProtocolError, match="no member"):
        made.extension.publish("bonds", "ACME")


def test_kinds_of_the_protocol_are_not_for_extensions() -> None:
    for kind in ("complete", "input_required"):
        with pytest.raises(LocalProtocolError, match="taken already"):
            ClientExtension(ID).result(kind)


@pytest.mark.parametrize("make", [ServerExtension, ClientExtension])
def test_a_capability_that_no_revision_has_is_no_core(make: Any) -> None:
    with pytest.raises(ValueError, match="no revision"):
        make(ID, core={"stocks": {}})


# -- An extension that one revision has in its core ------------------------------------------------------
#
# There that revision's rules hold, elsewhere those of extensions.

ID_EXTENSION_CORE = "io.modelcontextprotocol/tasks"
CORE = "2025-11-25"
GONE = {"tasks/get", "tasks/cancel"}


def tasks(core: dict[str, Any]) -> ServerExtension:
    extension = ServerExtension(ID_EXTENSION_CORE, core=core)

    async def answer(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"method": ctx.method}

    for name in ("tasks/get", "tasks/cancel"):
        extension.method(name, target="taskId")(answer)
    for name in ("tasks/list", "tasks/result"):
        extension.method(name, target="taskId", core=True)(answer)
    return extension


async def answered(client: Client) -> dict[str, str]:
    answers = {}
    for name in ("tasks/get", "tasks/cancel", "tasks/list", "tasks/result"):
        try:
            answers[name] = (await client.request(name, {"taskId": "1"}))["method"]
        except RpcError as error:
            answers[name] = type(error).__name__
    return answers


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("declares", [True, False])
async def test_each_revision_has_its_own_methods(version: str, declares: bool) -> None:
    server = Server("s", extensions=[tasks({"tasks": {"list": {}, "cancel": {}}})])
    extensions = {ID_EXTENSION_CORE: {}} if declares else {}
    async with Client(server, era=version, extensions=extensions, tasks=False) as client:
        answers = await answered(client)
        declared = client.server_capabilities.tasks
    refusal = MissingCapability.__name__ if version == MODERN else MethodNotFound.__name__
    every = {name: name for name in answers}
    expected = {
        name: name if declares and name in GONE else (refusal if name in GONE else "MethodNotFound")
        for name in answers
    }
    assert answers == (every if version == CORE else expected)
    assert declared == ({"list": {}, "cancel": {}} if version == CORE else None)


async def test_what_the_core_capability_leaves_out_is_no_method() -> None:
    server = Server("s", extensions=[tasks({"tasks": {"cancel": {}}})])
    async with Client(server, era=CORE) as client:
        answers = await answered(client)
    assert [name for name, answer in answers.items() if answer == "MethodNotFound"] == ["tasks/list"]


async def test_without_the_core_capability_the_extension_is_negotiated() -> None:
    server = Server("s", extensions=[tasks({})])
    async with Client(server, era=CORE, extensions={ID_EXTENSION_CORE: {}}) as client:
        assert set((await answered(client)).values()) == {"MethodNotFound"}


@pytest.mark.parametrize("version", LEGACY)
async def test_a_client_declares_the_core_where_there_is_one_and_answers_it(version: str) -> None:
    extension = ClientExtension(ID_EXTENSION_CORE, core={"tasks": {"list": {}}})

    @extension.method("tasks/list")
    async def listed(request: AskedRequest) -> dict[str, Any]:
        return {"tasks": [], "asked": dict(request.params)}

    server = Server("s")
    seen: list[Any] = []

    @server.tool
    async def ask(ctx: Context) -> None:
        """Asks the client for its tasks."""
        seen.append(ctx.peer.raw_capabilities.get("tasks"))
        try:
            seen.append(await ctx.call.ask("tasks/list", {"cursor": "x"}, idle=5, cap=5))
        except MethodNotFound:
            seen.append("MethodNotFound")

    async with Client(server, era=version, extensions=[extension]) as client:
        await client.call_tool("ask")
    has_core = [{"list": {}}, {"tasks": [], "asked": {"cursor": "x"}}]
    assert seen == (has_core if version == CORE else [None, "MethodNotFound"])


async def test_a_function_runs_round_a_request_of_the_server() -> None:
    extension = ClientExtension(ID_EXTENSION_CORE, core={"tasks": {}})
    kept: list[Any] = []

    @extension.around("sampling/createMessage", when=lambda params: "task" in params)
    async def around(request: AskedRequest, call_next: Any) -> dict[str, Any]:
        kept.append(await call_next())
        return {"task": {"taskId": "1"}}

    async def sampling(question: Any) -> Any:
        from_server.append(question.max_tokens)
        return CreateMessageResult("assistant", TextContent("hi"), "model")

    from_server: list[int] = []
    server = Server("s")
    answers: list[Any] = []

    @server.tool
    async def ask(ctx: Context) -> None:
        """Asks the client's model, as a task and plainly."""
        question = {"messages": [], "maxTokens": 5}
        answers.append(await ctx.call.ask("sampling/createMessage", {**question, "task": {}}, idle=5, cap=5))
        answers.append(await ctx.call.ask("sampling/createMessage", question, idle=5, cap=5))

    async with Client(server, era=CORE, extensions=[extension], sampling=sampling) as client:
        await client.call_tool("ask")
    assert from_server == [5, 5]
    assert answers[0] == {"task": {"taskId": "1"}}
    assert answers[1] == kept[0]
