"""A client whose server asks for input in the middle of a call: by itself, by hand, and only so often."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors import Client, Context, InputRequired, Server
from mcp_actors.errors import RemoteProtocolError
from mcp_actors.testing import ScriptedPeer, raw_client, raw_server
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    ListRootsResult,
    Root,
    TextContent,
)
from tests.messages import PREFIX
from tests.scripted_peers import LEGACY, LOG_LEVEL, MODERN, greet, meta, reply, scripted
from tests.server import asking

FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 7}},
}
NAME = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Name?", "requestedSchema": FORM},
}
URL = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Go", "url": "https://example.org"},
}
ROOTS = {"method": "roots/list"}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5},
}
DONE: dict[str, Any] = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}


async def elicitation(params: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    return ElicitResult("accept", {"name": "Ada"} if isinstance(params, ElicitFormParams) else None)


async def sampling(params: CreateMessageParams) -> CreateMessageResult:
    return CreateMessageResult("assistant", TextContent("hello"), "model-1")


HANDLERS: dict[str, Any] = {"elicitation": elicitation, "sampling": sampling, "roots": ["file:///a"]}


def required(requests: Any = None, state: Any = None) -> dict[str, Any]:
    result: dict[str, Any] = {"resultType": "input_required"}
    if requests is not None:
        result["inputRequests"] = requests
    if state is not None:
        result["requestState"] = state
    return result


class Outcome:
    """What became of a call that runs in the background."""

    result: Any = None
    error: Exception | None = None


async def calling(client: Client, outcome: Outcome, **options: Any) -> None:
    try:
        outcome.result = await client.call_tool("t", {"a": 1}, **options)
    except Exception as error:
        outcome.error = error


async def play(peer: ScriptedPeer, *results: dict[str, Any]) -> list[dict[str, Any]]:
    """Answers as many requests, one after the other, and returns them."""
    requests = []
    for result in results:
        requests.append(await peer.receive())
        await reply(peer, requests[-1], result)
    return requests


async def test_everything_is_answered_and_the_same_request_sent_again() -> None:
    questions = {"who": NAME, "where": ROOTS, "what": SAMPLE, "go": URL}
    state = 'opaque {"json": 1.0}\u00e4'
    async with scripted(MODERN, **HANDLERS) as (client, peer), trio.open_nursery() as nursery:
        outcome = Outcome()
        nursery.start_soon(calling, client, outcome)
        first, second = await play(peer, required(questions, state), DONE)
        assert outcome.error is None
        assert second["id"] != first["id"]
        assert second["method"] == first["method"]
        params = second["params"]
        assert params["requestState"] == state  # to the byte
        assert params["inputResponses"] == {
            "who": {"action": "accept", "content": {"name": "Ada", "age": 7}},  # defaults are filled in
            "where": {"roots": [{"uri": "file:///a"}]},
            "what": {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "model-1"},
            "go": {"action": "accept"},
        }
        assert (params["name"], params["arguments"]) == ("t", {"a": 1})
        assert set(params["_meta"]) == set(
            first["params"]["_meta"]
        )  # an ordinary request with all its metadata


async def test_a_state_is_sent_once_and_only_when_there_was_one() -> None:
    async with scripted(MODERN, **HANDLERS) as (client, peer), trio.open_nursery() as nursery:
        outcome = Outcome()
        nursery.start_soon(calling, client, outcome)
        rounds = await play(
            peer, required({"a": ROOTS}, "one"), required({"b": ROOTS}), required(state="three"), DONE
        )
        assert [each["params"].get("requestState") for each in rounds] == [None, "one", None, "three"]
        answered = [list(each["params"].get("inputResponses", {})) for each in rounds]
        assert answered == [[], ["a"], ["b"], []]  # a bare state means: come back
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(calling, client, Outcome())
        (later,) = await play(peer, DONE)
        assert not {"requestState", "inputResponses"} & set(later["params"])


async def test_an_empty_state_is_a_state() -> None:
    async with scripted(MODERN, **HANDLERS) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(calling, client, Outcome())
        _, second = await play(peer, required({"a": ROOTS}, ""), DONE)
        assert second["params"]["requestState"] == ""


async def test_a_result_without_a_type_is_complete() -> None:
    async with scripted(MODERN, **HANDLERS) as (client, peer), trio.open_nursery() as nursery:
        outcome = Outcome()
        nursery.start_soon(calling, client, outcome)
        await play(peer, {"content": [], "inputRequests": {"a": ROOTS}})
        await trio.testing.wait_all_tasks_blocked()
        assert outcome.result.content == []


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "task", "taskId": "1"},
        {"resultType": "acme", "content": []},
        {"resultType": 5},
        {"resultType": None, "content": []},
        required([]),
        required({"a": 5}),
        required({"a": {}}),
        required({"a": {"method": "ping"}}),
        required({"a": {"method": "tools/call", "params": {}}}),
        required({"a": {"method": "roots/list", "params": []}}),
        required({"a": {"method": "elicitation/create", "params": {}}}),
        required({"a": {"method": "elicitation/create", "params": {"mode": "dance", "message": ""}}}),
        required({"a": ROOTS}, 5),
    ],
)
async def test_what_cannot_be_understood_is_not_answered(result: dict[str, Any]) -> None:
    async with scripted(MODERN, **HANDLERS) as (client, peer):
        async with trio.open_nursery() as nursery:
            outcome = Outcome()
            nursery.start_soon(calling, client, outcome)
            await play(peer, result)
        assert isinstance(outcome.error, RemoteProtocolError)


@pytest.mark.parametrize("question", [NAME, ROOTS, SAMPLE])
async def test_what_was_not_declared_is_not_answered(question: dict[str, Any]) -> None:
    async with scripted(MODERN) as (client, peer):
        async with trio.open_nursery() as nursery:
            outcome = Outcome()
            nursery.start_soon(calling, client, outcome)
            await play(peer, required({"a": question}))
        assert isinstance(outcome.error, RemoteProtocolError)
        assert question["method"] in str(outcome.error)


async def test_only_three_methods_may_ask() -> None:
    async with scripted(MODERN, **HANDLERS) as (client, peer):
        async with trio.open_nursery() as nursery:

            async def listing() -> None:
                with pytest.raises(RemoteProtocolError):
                    await client.list_tools()

            nursery.start_soon(listing)
            await play(peer, required({"a": ROOTS}))


async def test_rounds_are_bounded_and_nobody_is_asked_in_vain() -> None:
    asked = 0

    async def counting(params: Any) -> ElicitResult:
        nonlocal asked
        asked += 1
        return ElicitResult("decline")

    async with scripted(MODERN, elicitation=counting, max_rounds=3) as (client, peer):
        async with trio.open_nursery() as nursery:
            outcome = Outcome()
            nursery.start_soon(calling, client, outcome)
            await play(peer, *[required({"a": NAME})] * 4)
        assert isinstance(outcome.error, RemoteProtocolError)
        assert asked == 3  # the last question has no round left in which an answer could be sent


async def test_a_handler_that_raises_ends_the_call_with_its_own_exception() -> None:
    class Refused(Exception):
        pass

    async def refusing(params: Any) -> ElicitResult:
        raise Refused

    async with scripted(MODERN, elicitation=refusing) as (client, peer):
        async with trio.open_nursery() as nursery:
            outcome = Outcome()
            nursery.start_soon(calling, client, outcome)
            await play(peer, required({"a": NAME}))
        assert isinstance(outcome.error, Refused)
        with trio.move_on_after(0):  # the call is not repeated, and there is nothing to cancel
            await peer.receive()


async def test_time_for_thought_is_not_the_servers(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(params: Any) -> ElicitResult:
        await trio.sleep(1000)
        return ElicitResult("decline")

    async with scripted(MODERN, elicitation=slow, timeout=5, cap=20) as (client, peer):
        async with trio.open_nursery() as nursery:
            outcome = Outcome()
            nursery.start_soon(calling, client, outcome)
            await play(peer, required({"a": NAME}), DONE)
        assert outcome.error is None
        assert outcome.result.content == [TextContent("done")]


# -- by hand -------------------------------------------------------------------------------------------------------


async def test_the_manual_way() -> None:
    async with Client(asking.make_server(), answer_input=False, **HANDLERS) as client:
        with pytest.raises(InputRequired) as required:
            await client.call_tool("both")
        assert set(required.value.requests) == {"name", "where"}
        assert isinstance(required.value.requests["name"], ElicitFormParams)
        answers = {
            "name": ElicitResult("accept", {"name": "Ada"}),
            "where": ListRootsResult([Root("file:///b")]),
        }
        result = await client.call_tool("both", answers=answers, state=required.value.state)
        assert result.content == [TextContent("Ada in ['file:///b']")]


async def test_the_manual_way_for_prompts_and_resources() -> None:
    async with Client(asking.make_server(), answer_input=False, **HANDLERS) as client:
        with pytest.raises(InputRequired) as required:
            await client.get_prompt("letter")
        answers = {key: ListRootsResult([Root("file:///b")]) for key in required.value.requests}
        prompt = await client.get_prompt("letter", answers=answers, state=required.value.state)
        assert prompt.messages[0].content == TextContent("file:///b")
        with pytest.raises(InputRequired) as required:
            await client.read_resource("x://n")
        read = await client.read_resource("x://n", answers=answers, state=required.value.state)
        assert read.contents[0].text == "nfile:///b"  # type: ignore[union-attr]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_same_functions_in_both_eras(era: str) -> None:
    async with Client(asking.make_server(), era=era, **HANDLERS) as client:
        assert (await client.call_tool("both")).content == [TextContent("Ada in ['file:///a']")]
        assert (await client.call_tool("twice", {"greeting": "Hi"})).content == [TextContent("Hi Ada Ada")]
        assert (await client.call_tool("draw")).content == [TextContent("model-1")]
        assert (await client.call_tool("visit")).content == [TextContent("accept")]
        assert (await client.get_prompt("letter")).messages[0].content == TextContent("file:///a")


async def test_metadata_of_the_caller_stays_in_every_round() -> None:
    async with scripted(MODERN, **HANDLERS) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(
            lambda: calling(client, Outcome(), meta={"traceparent": "00-1", LOG_LEVEL: "error"})
        )
        for request in await play(peer, required({"a": ROOTS}), DONE):
            assert request["params"]["_meta"]["traceparent"] == "00-1"
            assert request["params"]["_meta"][LOG_LEVEL] == "error"


async def test_metadata_of_a_raw_request_stays() -> None:
    for version in (MODERN, "2025-11-25"):
        async with scripted(version) as (client, peer), trio.open_nursery() as nursery:
            nursery.start_soon(client.request, "acme/thing", {"a": 1, "_meta": {"acme/x": 2}})
            (request,) = await play(peer, {})
            assert request["params"]["a"] == 1
            assert request["params"]["_meta"]["acme/x"] == 2
            assert len(request["params"]["_meta"]) == (4 if version == MODERN else 1)


# -- Whatever a peer puts into well-formed messages: an error at most, never a dead session, never a crash inside ---

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
WORDS = st.sampled_from(
    ["t", "p", "x://a", "x://b", "complete", "form", "url", "info", "text", "user", "ref/prompt", ""]
)
VALUES = st.recursive(
    LEAVES | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | WORDS, inner, max_size=3)
    ),
    max_leaves=8,
)
IDS = st.integers(-5, 5) | st.text(max_size=3) | LEAVES
MEMBERS = st.sampled_from(
    [
        "name",
        "arguments",
        "uri",
        "cursor",
        "level",
        "ref",
        "argument",
        "context",
        "notifications",
        "requestId",
        "reason",
        "progressToken",
        "progress",
        "inputResponses",
        "requestState",
        "protocolVersion",
        "capabilities",
        "clientInfo",
        "data",
        "message",
        "requestedSchema",
        "messages",
        "maxTokens",
        "mode",
        "url",
    ]
)
KEYS = st.sampled_from(
    [
        PREFIX + key
        for key in ("protocolVersion", "clientCapabilities", "clientInfo", "logLevel", "subscriptionId")
    ]
    + ["progressToken", "traceparent"]
)
METAS = (
    VALUES | st.just(meta()) | st.dictionaries(KEYS, VALUES, max_size=3).map(lambda more: {**meta(), **more})
)
PARAMS = VALUES | st.tuples(st.dictionaries(MEMBERS, VALUES, max_size=4), st.none() | METAS).map(
    lambda both: both[0] if both[1] is None else {**both[0], "_meta": both[1]}
)


def messages(methods: list[str]) -> st.SearchStrategy[Any]:
    requests = st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0"), "method": st.sampled_from(methods)},
        optional={"id": IDS, "params": PARAMS},
    )
    answers = st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0"), "id": IDS}, optional={"result": VALUES, "error": VALUES}
    )
    return requests | answers | VALUES | st.lists(requests | answers, max_size=3)


TO_SERVER = [
    "ping",
    "server/discover",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "subscriptions/listen",
    "acme/thing",
    "initialize",
    "initialized",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/initialized",
    "notifications/roots/list_changed",
]
TO_CLIENT = [
    "ping",
    "roots/list",
    "sampling/createMessage",
    "elicitation/create",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/message",
    "notifications/tools/list_changed",
    "notifications/resources/updated",
    "notifications/subscriptions/acknowledged",
    "notifications/elicitation/complete",
    "acme/thing",
]


def make_server() -> Server:
    server = Server("any", page_size=1)

    @server.tool(name="t")
    async def tool(ctx: Context, name: str = "", data: object = None) -> str:
        """A tool."""
        await ctx.progress(1, message=name)
        await ctx.log("info", data)
        return name

    @server.prompt(name="p")
    async def prompt(name: str = "", ctx: Context | None = None) -> str:
        """A prompt."""
        return name

    server.add_resource("x://a", lambda: "a", name="a")
    server.add_resource("x://{b}", lambda b: b, name="b")
    server.method("acme/thing")(thing)
    return server


async def thing(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
    return {"trace": ctx.trace, "level": ctx.log_level}


async def answered(peer: ScriptedPeer, request: dict[str, Any]) -> None:
    """Sends a request and reads until its answer; nothing on the way may be a crash."""
    await peer.send(request)
    with trio.fail_after(60):
        while True:
            received = await peer.receive()
            for message in received if isinstance(received, list) else [received]:
                assert message.get("error", {}).get("code") != -32603, message
                if message.get("id") == request["id"] and "method" not in message:
                    return


@pytest.mark.slow
@settings(max_examples=60)
@given(st.sampled_from(LEGACY), st.lists(messages(TO_SERVER), max_size=6))
def test_a_server_survives_any_message(version: str, said: list[Any]) -> None:
    async def converse() -> None:
        async with raw_client(make_server()) as peer:
            await peer.initialize(version)
            for message in said:
                await peer.send(message)
            params = {"_meta": meta()}
            await answered(
                peer, {"jsonrpc": "2.0", "id": "alive", "method": "server/discover", "params": params}
            )

    with structlog.testing.capture_logs() as logs:
        trio.run(converse, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [log for log in logs if log["log_level"] == "error"] == []


@pytest.mark.slow
@settings(max_examples=60)
@given(st.sampled_from((*LEGACY, MODERN)), st.lists(messages(TO_CLIENT), max_size=6))
def test_a_client_survives_any_message(version: str, said: list[Any]) -> None:
    async def elicitation(params: Any) -> ElicitResult:
        return ElicitResult("accept", {})

    async def converse() -> None:
        async with raw_server() as server, trio.open_nursery() as nursery:

            async def play() -> None:
                peer = await server.accept()
                await greet(peer, version)
                for message in said:
                    await peer.send(message)
                while True:
                    request = await peer.receive()
                    if isinstance(request, dict) and request.get("method") == "tools/list":
                        await peer.send({"jsonrpc": "2.0", "id": request["id"], "result": {"tools": []}})

            nursery.start_soon(play)
            handlers: dict[str, Any] = {"elicitation": elicitation, "roots": ["file:///a"]}
            handlers |= {"on_log": lambda *log: None, "on_change": lambda *change: None}
            async with Client(server.transport, era=version, **handlers) as client:
                await trio.testing.wait_all_tasks_blocked()
                listed = await client.request("tools/list")
                assert isinstance(listed, dict)
                assert client.tree().state == "open"
                nursery.cancel_scope.cancel()

    with structlog.testing.capture_logs() as logs:
        trio.run(converse, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [log for log in logs if log["log_level"] == "error"] == []
