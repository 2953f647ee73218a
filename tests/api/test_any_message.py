"""Whatever a peer puts into well-formed messages: an error at most, never a dead session, never a crash inside."""

from __future__ import annotations

from typing import Any

import structlog
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors import Client, Context, Server
from mcp_actors.testing import ScriptedPeer, raw_client, raw_server
from mcp_actors.types import ElicitResult
from tests.messages import PREFIX

from .peers import LEGACY, MODERN, greet, meta

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
