"""A client whose server asks by requests: what it answers, what it refuses, what it fills in."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, Server
from mcp_actors.testing import ScriptedPeer
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    Root,
    TextContent,
)

from .peers import LEGACY, scripted

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
