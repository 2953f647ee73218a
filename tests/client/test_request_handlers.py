"""A client whose server asks by requests: what it answers, what it refuses, what it fills in."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, RpcError, Server
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    Root,
    TextContent,
)
from tests.scripted_peers import LEGACY, modern, nothing_comes, scripted

LATEST = "2025-11-25"


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if len(content) == 1 else list(content)}


def assistant(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content[0] if len(content) == 1 else list(content)}


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "t", "input": {}}


def outcome(id: str) -> dict[str, Any]:
    return {"type": "tool_result", "toolUseId": id, "content": [text("x")]}


async def sampling(params: CreateMessageParams) -> CreateMessageResult:
    return CreateMessageResult("assistant", TextContent("hello"), "model-1", stop_reason="endTurn")


async def elicitation(params: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    return ElicitResult("accept", {} if isinstance(params, ElicitFormParams) else None)


async def sample(peer: ScriptedPeer, id: int, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    params = {"messages": list(messages), "maxTokens": 5, **more}
    answer: dict[str, Any] = await peer.request(id, "sampling/createMessage", params)
    return answer


# -- sampling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEGACY)
async def test_sampling_is_answered(version: str) -> None:
    async with scripted(version, sampling=sampling) as (_, peer):
        result = (await sample(peer, 1, user(text("hi"))))["result"]
        assert result == {
            "role": "assistant",
            "content": text("hello"),
            "model": "model-1",
            "stopReason": "endTurn",
        }


GOOD_CONVERSATIONS = [
    [user(text("hi"))],
    [user(text("a"), text("b")), assistant(text("c"))],
    [user(text("hi")), assistant(use("1")), user(outcome("1"))],
    [user(text("hi")), assistant(text("so"), use("1"), use("2")), user(outcome("2"), outcome("1"))],
    [
        user(text("a")),
        assistant(use("1")),
        user(outcome("1")),
        assistant(use("2")),
        user(outcome("2")),
        user(text("z")),
    ],
]
BAD_CONVERSATIONS = [
    [user(text("hi")), assistant(use("1"))],
    [user(text("hi")), assistant(use("1")), user(text("well"))],
    [user(text("hi")), assistant(use("1")), user(outcome("1"), text("and"))],
    [user(text("hi")), assistant(use("1")), user(outcome("2"))],
    [user(text("hi")), assistant(use("1"), use("2")), user(outcome("1"))],
    [user(text("hi")), assistant(use("1")), user(outcome("1"), outcome("2"))],
    [user(outcome("1"))],
    [user(text("hi")), assistant(use("1")), assistant(text("hm")), user(outcome("1"))],
]
MALFORMED: list[dict[str, Any]] = [
    {},
    {"messages": []},
    {"messages": "hi", "maxTokens": 5},
    {"messages": [user(text("hi"))], "maxTokens": "5"},
    {"messages": [user(text("hi"))], "maxTokens": 5.5},
    {"messages": [{"role": "nobody", "content": text("hi")}], "maxTokens": 5},
    {"messages": [{"role": "user", "content": {"type": "dance"}}], "maxTokens": 5},
    {"messages": [{"role": "user"}], "maxTokens": 5},
]


@pytest.mark.parametrize("messages", GOOD_CONVERSATIONS)
async def test_conversations_with_tools(messages: list[dict[str, Any]]) -> None:
    async with scripted(LATEST, sampling=sampling, sampling_tools=True) as (_, peer):
        assert "result" in await sample(peer, 1, *messages, tools=[], toolChoice={"mode": "auto"})


@pytest.mark.parametrize("messages", BAD_CONVERSATIONS)
async def test_unbalanced_conversations_are_invalid(messages: list[dict[str, Any]]) -> None:
    async with scripted(LATEST, sampling=sampling, sampling_tools=True) as (_, peer):
        assert (await sample(peer, 1, *messages))["error"]["code"] == -32602


@pytest.mark.parametrize("more", [{"tools": []}, {"toolChoice": {"mode": "none"}}])
async def test_tools_need_their_own_capability(more: dict[str, Any]) -> None:
    async with scripted(LATEST, sampling=sampling) as (_, peer):
        assert (await sample(peer, 1, user(text("hi")), **more))["error"]["code"] == -32602


@pytest.mark.parametrize("params", MALFORMED)
async def test_malformed_sampling(params: dict[str, Any]) -> None:
    async with scripted(LATEST, sampling=sampling) as (_, peer):
        assert (await peer.request(1, "sampling/createMessage", params))["error"]["code"] == -32602


async def test_a_handler_that_raises_tells_no_more_than_it_wants() -> None:
    async def broken(params: CreateMessageParams) -> CreateMessageResult:
        raise KeyError("the key of the house")

    async with scripted(LATEST, sampling=broken) as (_, peer):
        error = (await sample(peer, 1, user(text("hi"))))["error"]
        assert error == {"code": -32603, "message": "internal error"}


# -- elicitation ---------------------------------------------------------------------------------------------------

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John"},
        "age": {"type": "integer", "default": 0},
        "score": {"type": "number", "default": 95.5},
        "ok": {"type": "boolean", "default": False},
        "colours": {"type": "array", "items": {"type": "string", "enum": ["r", "g"]}, "default": ["r"]},
        "free": {"type": "string"},
    },
}
DEFAULTS = {"name": "John", "age": 0, "score": 95.5, "ok": False, "colours": ["r"]}


@pytest.mark.parametrize("version", ["2025-06-18", LATEST])
@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, DEFAULTS),
        (None, DEFAULTS),
        ({"name": "", "age": 5, "free": "x"}, {**DEFAULTS, "name": "", "age": 5, "free": "x"}),
    ],
)
async def test_defaults_fill_what_was_left_out(version: str, given: Any, sent: dict[str, Any]) -> None:
    async def accepting(params: Any) -> ElicitResult:
        return ElicitResult("accept", given)

    async with scripted(version, elicitation=accepting) as (_, peer):
        params = {"message": "?", "requestedSchema": FORM}
        result = (await peer.request(1, "elicitation/create", params))["result"]
        assert result == {"action": "accept", "content": sent}


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_no_has_no_content(action: Any) -> None:
    async def refusing(params: Any) -> ElicitResult:
        return ElicitResult(action)

    async with scripted(LATEST, elicitation=refusing) as (_, peer):
        params = {"message": "?", "requestedSchema": FORM}
        assert (await peer.request(1, "elicitation/create", params))["result"] == {"action": action}


async def test_elicitation_by_url() -> None:
    asked: list[Any] = []

    async def visiting(params: Any) -> ElicitResult:
        asked.append(params)
        return ElicitResult("accept")

    async with scripted(LATEST, elicitation=visiting) as (_, peer):
        params = {"mode": "url", "message": "Go", "url": "https://example.org", "elicitationId": "e1"}
        assert (await peer.request(1, "elicitation/create", params))["result"] == {"action": "accept"}
        assert asked == [ElicitUrlParams("Go", "https://example.org", "e1")]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"message": "?"},
        {"message": 5, "requestedSchema": FORM},
        {"message": "?", "requestedSchema": []},
        {"mode": "dance", "message": "?"},
        {"mode": "url", "message": "?"},
        {"mode": 5, "message": "?"},
    ],
)
async def test_malformed_elicitation(params: dict[str, Any]) -> None:
    async with scripted(LATEST, elicitation=elicitation) as (_, peer):
        assert (await peer.request(1, "elicitation/create", params))["error"]["code"] == -32602


async def test_a_revision_without_urls_is_not_sent_to_one() -> None:
    async with scripted("2025-06-18", elicitation=elicitation) as (_, peer):
        params = {"mode": "url", "message": "Go", "url": "https://example.org", "elicitationId": "e1"}
        assert (await peer.request(1, "elicitation/create", params))["error"]["code"] == -32602


# -- roots ---------------------------------------------------------------------------------------------------------


async def computed() -> list[Root | str]:
    await trio.lowlevel.checkpoint()
    return ["file:///a", Root("file:///b", "B")]


@pytest.mark.parametrize("roots", [["file:///a", Root("file:///b", "B")], computed, lambda: computed()])
@pytest.mark.parametrize("version", LEGACY)
async def test_roots_in_every_form(version: str, roots: Any) -> None:
    async with scripted(version, roots=roots) as (_, peer):
        result = (await peer.request(1, "roots/list"))["result"]
        assert result == {"roots": [{"uri": "file:///a"}, {"uri": "file:///b", "name": "B"}]}


async def test_no_roots_are_roots_too() -> None:
    async with scripted(LATEST, roots=[]) as (_, peer):
        assert (await peer.request(1, "roots/list"))["result"] == {"roots": []}


# -- time ----------------------------------------------------------------------------------------------------------


async def test_while_the_server_waits_for_us_our_call_is_not_idle(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def book(ctx: Context) -> str:
        """Asks a person."""
        return (await ctx.elicit("?", {"type": "object", "properties": {}})).action

    async def slow(params: Any) -> ElicitResult:
        await trio.sleep(100)
        return ElicitResult("decline")

    async with Client(server, era="legacy", elicitation=slow, timeout=5, cap=1000) as client:
        assert (await client.call_tool("book")).content == [TextContent("decline")]


async def test_a_question_that_is_withdrawn_is_withdrawn() -> None:
    """The server gives up; the handler at the client sees it, and no answer is sent."""
    seen: list[str] = []

    async def endless(params: Any) -> ElicitResult:
        try:
            await trio.sleep_forever()
        finally:
            seen.append("withdrawn")
        raise AssertionError

    async with scripted(LATEST, elicitation=endless) as (client, peer):
        params = {"message": "?", "requestedSchema": FORM}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params})
        await wait_all_tasks_blocked()
        assert len(client.tree().calls) == 1
        await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await wait_all_tasks_blocked()
        assert seen == ["withdrawn"]
        assert (await peer.request(2, "ping"))["result"] == {}


def tasks(group: str, method: str) -> dict[str, Any]:
    return {"list": {}, "cancel": {}, "requests": {group: {method: {}}}}


async def test_what_is_declared_is_what_can_be_answered() -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
        ({}, {}, {}),
        (
            {"sampling": sampling},
            {"sampling": {}, "tasks": tasks("sampling", "createMessage")},
            {"sampling": {}},
        ),
        (
            {"sampling": sampling, "sampling_tools": True, "tasks": False},
            {"sampling": {"tools": {}}},
            {"sampling": {}},
        ),
        (
            {"elicitation": elicitation},
            {"elicitation": {"form": {}, "url": {}}, "tasks": tasks("elicitation", "create")},
            {},
        ),
        ({"roots": []}, {"roots": {"listChanged": True}}, {"roots": {"listChanged": True}}),
    ]
    server = Server("s")

    @server.tool
    async def declared(ctx: Context) -> dict[str, Any]:
        """What the client declared."""
        return ctx.peer.raw_capabilities

    for options, latest, oldest in rows:
        for version, expected in ((LATEST, latest), ("2024-11-05", oldest)):
            async with Client(server, era=version, **options) as client:
                result = (await client.request("tools/call", {"name": "declared"}))["content"][0]["text"]
                assert result == json.dumps(expected, separators=(",", ":"))


# -- The end of an elicitation by URL, told by what handles the page, outside of the call that asked -----

REVISION = "2025-11-25"
COMPLETE = "notifications/elicitation/complete"
CAPABLE = {"elicitation": {"url": {}}}


def make_server(ids: list[str]) -> Server:
    server = Server("asks")

    @server.tool
    async def sign_in(ctx: Context) -> str:
        """Sends the person to a page."""

        def page(id: str) -> str:
            ids.append(id)
            return f"https://example.org/in?elicitation={id}"

        return (await ctx.elicit_url("Sign in", page)).action

    return server


async def asked(peer: ScriptedPeer, id: int) -> dict[str, Any]:
    """Calls the tool; the question that comes of it."""
    params = {"name": "sign_in", "arguments": {}}
    await peer.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    question: dict[str, Any] = await peer.receive()
    assert question["method"] == "elicitation/create"
    return question


async def answer(peer: ScriptedPeer, question: dict[str, Any], action: str) -> None:
    """Answers a question, and takes the result of the call."""
    await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": action}})
    assert (await peer.receive())["result"]["content"][0]["text"] == action


async def test_the_client_that_was_asked_is_told_of_the_end_once(autojump_clock: MockClock) -> None:
    ids: list[str] = []
    server = make_server(ids)
    async with raw_client(server) as peer:
        await peer.initialize(REVISION, CAPABLE)
        question = await asked(peer, 1)
        assert question["params"]["elicitationId"] == ids[0]
        assert question["params"]["url"].endswith(ids[0])
        await answer(peer, question, "accept")
        assert server.elicitation_complete(ids[0])
        told = {"jsonrpc": "2.0", "method": COMPLETE, "params": {"elicitationId": ids[0]}}
        assert await peer.receive() == told
        assert not server.elicitation_complete(ids[0])
        assert not server.elicitation_complete("unknown")
        await nothing_comes(peer)


async def test_a_person_may_be_done_before_the_client_answers() -> None:
    ids: list[str] = []
    server = make_server(ids)
    async with raw_client(server) as peer:
        await peer.initialize(REVISION, CAPABLE)
        question = await asked(peer, 1)
        assert server.elicitation_complete(ids[0])
        assert (await peer.receive())["method"] == COMPLETE
        await answer(peer, question, "accept")


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_what_was_declined_has_no_end(action: str) -> None:
    ids: list[str] = []
    server = make_server(ids)
    async with raw_client(server) as peer:
        await peer.initialize(REVISION, CAPABLE)
        await answer(peer, await asked(peer, 1), action)
        assert not server.elicitation_complete(ids[0])


async def test_a_session_takes_its_elicitations_along_and_keeps_few() -> None:
    ids: list[str] = []
    server = make_server(ids)
    async with raw_client(server) as peer:
        await peer.initialize(REVISION, CAPABLE)
        for number in range(300):
            await answer(peer, await asked(peer, number), "accept")
        assert not server.elicitation_complete(ids[0])
        assert server.elicitation_complete(ids[299])
        open_ones = server._runtime.sessions.elicitations
        assert len(open_ones) == 255
        await peer.channel.aclose()
        await wait_all_tasks_blocked()
        assert len(open_ones) == 0
        assert not server.elicitation_complete(ids[298])


async def test_a_stateless_client_is_told_nothing() -> None:
    ids: list[str] = []
    server = make_server(ids)
    async with raw_client(server) as peer:
        params = {"name": "sign_in", "arguments": {}}
        result = (await modern(peer, 1, "tools/call", params, capabilities=CAPABLE))["result"]
        [question] = result["inputRequests"].values()
        assert question["params"] == {
            "mode": "url",
            "message": "Sign in",
            "url": f"https://example.org/in?elicitation={ids[0]}",
        }
        assert not server.elicitation_complete(ids[0])


# -- -32042: one revision asks for a visit to a url by an error, and the client makes the call again after it ---

ENTRY = {"mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "e1"}


def make_server_url_required(entries: Any, calls: list[int]) -> Server:
    server = Server("s")

    @server.tool
    async def private() -> str:
        """Needs somebody who is signed in."""
        calls.append(1)
        if len(calls) == 1:
            raise RpcError(-32042, "sign in first", {"elicitations": entries})
        return "secret"

    return server


async def test_the_person_is_sent_there_and_the_call_is_made_again() -> None:
    visited: list[str] = []
    calls: list[int] = []

    async def visit(params: Any) -> ElicitResult:
        assert isinstance(params, ElicitUrlParams)
        visited.append(f"{params.url} {params.elicitation_id}")
        return ElicitResult("accept")

    async with Client(
        make_server_url_required([ENTRY, ENTRY], calls), era=REVISION, elicitation=visit
    ) as client:
        result = await client.call_tool("private")
    assert [block.text for block in result.content] == ["secret"]  # type: ignore[union-attr]
    assert visited == ["https://example.com/in e1"] * 2
    assert len(calls) == 2


@pytest.mark.parametrize("entries", [[ENTRY], [], None, "x", [5], [{"mode": "form"}]])
async def test_without_consent_the_error_is_the_callers(entries: Any) -> None:
    calls: list[int] = []

    async def decline(params: Any) -> ElicitResult:
        return ElicitResult("decline")

    async with Client(make_server_url_required(entries, calls), era=REVISION, elicitation=decline) as client:
        with pytest.raises(RpcError) as caught:
            await client.call_tool("private")
    assert caught.value.code == -32042
    assert len(calls) == 1


async def test_a_client_that_answers_nothing_is_told() -> None:
    async with Client(make_server_url_required([ENTRY], []), era=REVISION) as client:
        with pytest.raises(RpcError) as caught:
            await client.call_tool("private")
    assert caught.value.data == {"elicitations": [ENTRY]}


async def test_nobody_goes_in_circles() -> None:
    server = Server("s")

    @server.tool
    async def never() -> str:
        """Is never content."""
        raise RpcError(-32042, "again", {"elicitations": [ENTRY]})

    visits: list[int] = []

    async def visit(params: Any) -> ElicitResult:
        visits.append(1)
        return ElicitResult("accept")

    async with Client(server, era=REVISION, elicitation=visit, max_rounds=3) as client:
        with pytest.raises(RpcError):
            await client.call_tool("never")
    assert len(visits) == 3
