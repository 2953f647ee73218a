"""A server whose transport brings requests one by one, each with an outlet for its answer, and no connection."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Limits, MissingCapability, Progress, Server
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    TextContent,
)
from tests.messages import SUBSCRIPTION_ID, TASKS_DECLARED
from tests.scripted_peers import (
    CAPABILITIES,
    CLIENT_INFO,
    EVERY,
    LEGACY,
    LOG_LEVEL,
    MODERN,
    VERSION,
    scripted,
)
from tests.server.exchanging import Recorder, initialize, legacy, mirror, modern
from tests.server.exchanging import desk as a_desk


@pytest.fixture(params=["awaited", "begun"])
def desk(request: pytest.FixtureRequest) -> Any:
    """Each test is run in both ways in which a binding may have a request answered."""
    return functools.partial(a_desk, begins=request.param == "begun")


def make_server(**options: Any) -> Server:
    server = Server("desk", **options)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool(inline=True)
    def twice(n: int) -> int:
        return 2 * n

    @server.tool
    async def steps(count: int, ctx: Context) -> str:
        for step in range(1, count + 1):
            await ctx.progress(step, count)
        return "done"

    @server.tool
    async def greet(ctx: Context) -> str:
        answer = await ctx.elicit(
            "Who?", {"type": "object", "properties": {"name": {"type": "string"}}}, key="who"
        )
        return f"Hello {answer.content['name']}"

    @server.tool
    async def needy() -> str:
        raise MissingCapability({"sampling": {}})

    @server.tool(
        input_schema={
            "type": "object",
            "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        }
    )
    async def where(arguments: dict[str, Any]) -> str:
        return str(arguments.get("region"))

    return server


def call(id: Any, tool: str, meta: Any = None, capabilities: Any = None, **arguments: Any) -> Any:
    return modern(
        id, "tools/call", name=tool, arguments=arguments, meta=meta or {}, capabilities=capabilities
    )


@pytest.mark.parametrize(
    ("tool", "arguments", "text"), [("add", {"a": 2, "b": 3}, "5"), ("twice", {"n": 4}, "8")]
)
async def test_one_request_one_answer(desk: Any, tool: str, arguments: dict[str, int], text: str) -> None:
    async with desk(make_server()) as each:
        outlet = await each.exchange(call("x", tool, **arguments), **mirror("tools/call", tool))
    assert [frame.last for frame in outlet.frames] == [True]
    assert outlet.answer["id"] == "x"
    assert outlet.answer["result"]["content"][0]["text"] == text
    assert outlet.answer["result"]["resultType"] == "complete"
    assert outlet.refusal is None


async def test_what_a_call_tells_comes_before_its_answer(desk: Any) -> None:
    async with desk(make_server()) as each:
        message = call(1, "steps", meta={"progressToken": 0}, count=3)
        outlet = await each.exchange(message, **mirror("tools/call", "steps"))
    assert [frame.last for frame in outlet.frames] == [False, False, False, True]
    assert [m["params"]["progress"] for m in outlet.messages[:3]] == [1, 2, 3]


async def test_cancelling_the_exchange_cancels_the_call(
    desk: Any, autojump_clock: trio.testing.MockClock
) -> None:
    seen: list[str] = []
    server = make_server()

    @server.tool
    async def forever() -> None:
        seen.append("began")
        try:
            await trio.sleep_forever()
        finally:
            seen.append("cancelled")

    async with desk(server) as each:
        outlet = Recorder()
        with trio.move_on_after(1):
            await each.exchange(call(1, "forever"), outlet, **mirror("tools/call", "forever"))
        assert seen == ["began", "cancelled"]
        assert outlet.frames == []
        assert server.tree().exchanges == ()
        assert server.tree().limiter.inside == 0


async def test_a_question_ends_the_exchange_and_the_retry_is_another(desk: Any) -> None:
    async with desk(make_server()) as each:
        able = {"elicitation": {}}
        first = await each.exchange(call(1, "greet", capabilities=able), **mirror("tools/call", "greet"))
        asked = first.answer["result"]
        assert asked["resultType"] == "input_required"
        retry = call(2, "greet", capabilities=able)
        retry["params"]["inputResponses"] = {"who": {"action": "accept", "content": {"name": "Ada"}}}
        retry["params"]["requestState"] = asked["requestState"]
        second = await each.exchange(retry, **mirror("tools/call", "greet"))
        assert second.answer["result"]["content"][0]["text"] == "Hello Ada"


BARE = {"mcp_protocol_version": "2026-07-28", "mcp_method": "server/discover"}


@pytest.mark.parametrize(
    ("message", "metadata", "code"),
    [
        (b"{", {}, -32700),
        (b"[]", {}, -32600),
        (b"17", {}, -32600),
        ([modern(1, "server/discover")], BARE, -32600),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, BARE, -32600),
        (modern(1, "server/discover"), {}, -32020),
        (legacy(1, "server/discover"), {}, -32020),
        (legacy(1, "server/discover"), BARE, -32602),
        (legacy(1, "server/discover", _meta={}), BARE, -32602),
        (modern(1, "server/discover", version="v999.0.0"), BARE, -32020),
        (modern(1, "server/discover", version="v9"), {**BARE, "mcp_protocol_version": "v9"}, -32022),
        (legacy(1, "tools/list"), {"mcp_protocol_version": "v9"}, -32602),
        (modern(1, "server/discover"), {"mcp_protocol_version": "2026-07-28"}, -32020),
        (modern(1, "tools/list"), BARE, -32020),
        (call(1, "add", a=1, b=2), mirror("tools/call"), -32020),
        (call(1, "add", a=1, b=2), mirror("tools/call", "other"), -32020),
        (call(1, "where", region="eu"), mirror("tools/call", "where"), -32020),
        (
            call(1, "where", region="eu"),
            {**mirror("tools/call", "where"), "mcp_param_region": "us"},
            -32020,
        ),
        (modern(1, "no/such"), mirror("no/such"), -32601),
        (modern(1, "initialize"), mirror("initialize"), -32601),
        (modern(1, "ping"), mirror("ping"), -32601),
        (modern(1, "prompts/list"), mirror("prompts/list"), -32601),
        (call(1, "greet"), mirror("tools/call", "greet"), -32021),
        (call(1, "needy"), mirror("tools/call", "needy"), -32021),
    ],
)
async def test_what_cannot_be_served_is_refused_with_its_code(
    desk: Any, message: Any, metadata: dict[str, str], code: int
) -> None:
    async with desk(make_server()) as each:
        outlet = await each.exchange(message, **metadata)
    assert outlet.answer["error"]["code"] == code
    assert outlet.refusal == code


@pytest.mark.parametrize(
    ("message", "metadata", "code"),
    [
        (call(1, "unknown"), mirror("tools/call", "unknown"), -32602),
        (modern(1, "tools/call", name="add", arguments=7), mirror("tools/call", "add"), -32602),
        (modern(1, "tools/list", cursor="x"), mirror("tools/list"), -32602),
    ],
)
async def test_what_is_wrong_with_the_request_itself_is_no_refusal(
    desk: Any, message: Any, metadata: dict[str, str], code: int
) -> None:
    async with desk(make_server()) as each:
        outlet = await each.exchange(message, **metadata)
    assert outlet.answer["error"]["code"] == code
    assert outlet.refusal is None


async def test_mirrored_parameters_that_agree_pass(desk: Any) -> None:
    async with desk(make_server()) as each:
        metadata = {**mirror("tools/call", "where"), "mcp_param_region": "=?base64?w6k=?="}
        outlet = await each.exchange(call(1, "where", region="é"), **metadata)
    assert outlet.answer["result"]["content"][0]["text"] == "é"


async def test_a_notification_is_taken_without_a_word(desk: Any) -> None:
    async with desk(make_server()) as each:
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        outlet = await each.exchange(note, **mirror("notifications/cancelled"))
        assert outlet.frames == []
        refused = await each.exchange(note, mcp_protocol_version="v9", mcp_method="notifications/cancelled")
        assert refused.refusal == -32022


async def test_an_overloaded_server_says_so(desk: Any, autojump_clock: trio.testing.MockClock) -> None:
    server = make_server(limits=Limits(server_max_in_flight=1, max_waiting=0))

    @server.tool
    async def slow() -> str:
        await trio.sleep(10)
        return "slow"

    async with desk(server) as each, trio.open_nursery() as nursery:
        first = Recorder()
        nursery.start_soon(lambda: each.exchange(call(1, "slow"), first, **mirror("tools/call", "slow")))
        await trio.testing.wait_all_tasks_blocked()
        second = await each.exchange(call(1, "slow"), **mirror("tools/call", "slow"))
        assert second.refusal == 429
        await trio.sleep(11)
        assert first.answer["result"]["content"][0]["text"] == "slow"


# -- revisions with sessions -----------------------------------------------------------------------------
#
# To a transport that keeps none.


async def test_initialize_alone_is_answered(desk: Any) -> None:
    async with desk(make_server()) as each:
        arrival = each.sort(initialize(5))
        assert (arrival.era, arrival.requests, arrival.initializes) == ("legacy", 1, True)
        outlet = await each.exchange(initialize(5))
        assert outlet.answer["result"]["protocolVersion"] == "2025-11-25"
        # Nothing is promised that takes somebody who remembers.
        assert outlet.answer["result"]["capabilities"] == {"logging": {}, "tools": {}}


@pytest.mark.parametrize("version", [None, "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_calls_without_a_session(desk: Any, version: str | None) -> None:
    headers = {} if version is None else {"mcp_protocol_version": version}
    async with desk(make_server()) as each:
        outlet = await each.exchange(
            legacy(1, "tools/call", name="add", arguments={"a": 1, "b": 1}), **headers
        )
        assert outlet.answer["result"]["content"][0]["text"] == "2"
        assert "resultType" not in outlet.answer["result"]
        subscribing = await each.exchange(legacy(2, "resources/subscribe", uri="x://y"), **headers)
        assert subscribing.answer["error"]["code"] == -32601
        asking = await each.exchange(legacy(3, "tools/call", name="greet", arguments={}), **headers)
        assert asking.answer["error"]["code"] == -32602


async def test_a_batch_alone(desk: Any) -> None:
    async with desk(make_server()) as each:
        batch = [legacy(1, "ping"), legacy(2, "tools/call", name="add", arguments={"a": 1, "b": 2})]
        outlet = await each.exchange(batch)
        assert sorted(answer["id"] for answer in outlet.answer) == [1, 2]
        for refused in (
            await each.exchange(batch, mcp_protocol_version="2025-06-18"),
            await each.exchange([initialize(1)]),
        ):
            assert refused.refusal == -32600


async def test_a_server_without_sessions_names_its_versions(desk: Any) -> None:
    async with desk(make_server(versions=["2026-07-28"])) as each:
        assert not each.handler.has_sessions
        outlet = await each.exchange(initialize(1))
        assert outlet.refusal == -32020
        assert "2026-07-28" in outlet.answer["error"]["message"]


async def test_a_server_that_only_has_sessions_refuses_by_version(desk: Any) -> None:
    async with desk(make_server(versions=["2025-11-25"])) as each:
        outlet = await each.exchange(modern(1, "server/discover"), **mirror("server/discover"))
        assert outlet.refusal == -32022
        assert outlet.answer["error"]["data"]["supported"] == ["2025-11-25"]


async def test_stopping_ends_what_would_listen_for_ever_and_lets_the_rest_end(
    desk: Any,
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = make_server()

    @server.tool
    async def slow() -> str:
        await trio.sleep(2)
        return "slow"

    async with desk(server) as each, trio.open_nursery() as nursery:
        listening, calling = Recorder(), Recorder()
        message = modern(7, "subscriptions/listen", notifications={"toolsListChanged": True})
        nursery.start_soon(lambda: each.exchange(message, listening, **mirror("subscriptions/listen")))
        nursery.start_soon(lambda: each.exchange(call(8, "slow"), calling, **mirror("tools/call", "slow")))
        await trio.sleep(1)
        assert listening.messages[0]["method"] == "notifications/subscriptions/acknowledged"
        server.stop()
        assert each.handler.leaving.is_set()
        await trio.sleep(0.5)
        assert each.handler.stopping.is_set()
        assert listening.answer["result"]["_meta"][SUBSCRIPTION_ID] == 7
        await trio.sleep(1)
        assert calling.answer["result"]["content"][0]["text"] == "slow"


# -- What a caller adds to a request's ``_meta``, and what of it reaches whom ----------------------------

FORGED = {
    VERSION: "1999-01-01",
    CAPABILITIES: {"sampling": {}},
    CLIENT_INFO: {"name": "somebody else", "version": "1"},
    LOG_LEVEL: "debug",
    "progressToken": 5,
    "acme/mine": 1,
}


def make_server_envelopes(seen: list[Any]) -> Server:
    server = Server("s")

    @server.tool
    async def look(ctx: Context) -> str:
        """Looks at what came along."""
        info = ctx.peer.info
        seen.append(
            (ctx.peer.version, info and info.name, ctx.peer.raw_capabilities, ctx.meta.get("acme/mine"))
        )
        await ctx.progress(1)
        return "seen"

    @server.method("acme/report")
    async def report(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        await ctx.progress(1)
        return {}

    return server


@pytest.mark.parametrize("version", EVERY)
async def test_a_callers_meta_never_replaces_what_the_client_says_of_itself(version: str) -> None:
    seen: list[Any] = []
    async with Client(make_server_envelopes(seen), era=version) as client:
        assert (await client.call_tool("look", meta=FORGED)).content == [TextContent("seen")]
    declared = TASKS_DECLARED if version == MODERN else {}
    assert seen == [(version, "mcp-actors", declared, 1)]


@pytest.mark.parametrize("version", EVERY)
async def test_a_callers_token_never_takes_the_reports_of_another_call(version: str) -> None:
    reports: list[Progress] = []
    async with Client(make_server_envelopes([]), era=version) as client:
        await client.call_tool("look", meta=FORGED, on_progress=reports.append)
        await client.request("acme/report", {"_meta": {"progressToken": 5}})
        assert client.tree().counters.late == 0
    assert [report.progress for report in reports] == [1]


async def test_the_level_of_one_call_can_be_asked_for_where_the_client_has_none() -> None:
    async with scripted(MODERN) as (client, peer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.request, "acme/x", {"_meta": {LOG_LEVEL: "debug"}})
            asked = await peer.receive()
            assert asked["params"]["_meta"][LOG_LEVEL] == "debug"
            await peer.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"resultType": "complete"}})


@pytest.mark.parametrize("version", [each for each in LEGACY if each >= "2025-06-18"])
async def test_the_meta_of_a_question_reaches_the_handler(version: str) -> None:
    metas: list[Any] = []

    async def elicitation(params: Any) -> ElicitResult:
        metas.append(params.meta)
        return ElicitResult("decline")

    async def sampling(params: CreateMessageParams) -> CreateMessageResult:
        metas.append(params.meta)
        return CreateMessageResult("assistant", TextContent("hi"), "m")

    server = Server("asks")

    @server.tool
    async def ask(ctx: Context) -> str:
        """Asks two things."""
        form = {"type": "object", "properties": {}}
        questions = {
            "form": ElicitFormParams("?", form, meta={"acme/why": 1}),
            "model": CreateMessageParams([], 5, meta={"acme/why": 2}),
        }
        return " ".join(await ctx.ask(questions))

    async with Client(server, era=version, elicitation=elicitation, sampling=sampling) as client:
        assert (await client.call_tool("ask")).content == [TextContent("form model")]
    assert metas == [{"acme/why": 1}, {"acme/why": 2}]
