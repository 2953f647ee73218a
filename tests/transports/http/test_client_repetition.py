"""Requests that are asked again by a client over HTTP: those that were refused before anything of them was begun."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from mcp_actors import Client, ConnectionLost, McpError, RpcError
from mcp_actors.abc import Frame
from mcp_actors.errors import ServerStopping
from mcp_transports.http.client import HttpUnavailable
from tests.messages import error

from .scripted import LEGACY, Asked, connected, handshake, json_answer, request
from .test_client_eras import DualServer, Message, answer, published

Refuse = Callable[[Message], httpx2.Response]


def stopping(message: Message, said: ServerStopping | None = None) -> httpx2.Response:
    said = said or ServerStopping()
    return answer(error(message, said.code, said.message, said.data), 503, headers={"retry-after": "1"})


def unreachable(message: Message) -> httpx2.Response:
    raise httpx2.ConnectError("connection refused")


def reset(message: Message) -> httpx2.Response:
    raise httpx2.ReadError("reset")


NEVER_BEGUN: dict[str, Refuse] = {
    "a server that stops": stopping,
    "a proxy that says when": lambda message: httpx2.Response(
        503, text="no server", headers={"retry-after": "1"}
    ),
    "too many requests": lambda message: httpx2.Response(429),
    "too many requests for a while": lambda message: httpx2.Response(429, headers={"retry-after": "2"}),
    "nothing listens": unreachable,
}
MAYBE_BEGUN: dict[str, Refuse] = {
    "a call that was cut": lambda message: stopping(message, ServerStopping.cut("tools/call echo", 2.0)),
    "a call that is elsewhere": lambda message: stopping(message, ServerStopping.elsewhere()),
    "a program that failed": lambda message: httpx2.Response(503, text="no"),
    "a proxy that waited": lambda message: httpx2.Response(504, headers={"retry-after": "1"}),
    "too many requests in the middle": lambda message: answer(
        error(message, 429, "too many questions", {"retryAfterMs": 10}), 503, headers={"retry-after": "1"}
    ),
    "a connection that broke": reset,
}


def refusing(refuse: Refuse, times: float = float("inf")) -> DualServer:
    """A server that refuses the first calls of a tool."""
    left = times

    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        nonlocal left
        if message["method"] != "tools/call":
            return None
        left -= 1
        return refuse(message) if left >= 0 else None

    return DualServer(before)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("kind", NEVER_BEGUN)
@pytest.mark.parametrize("times", [1, 4])
async def test_what_was_refused_before_it_began_is_asked_again(
    era: str, kind: str, times: int, autojump_clock: trio.testing.MockClock
) -> None:
    server = refusing(NEVER_BEGUN[kind], times)
    async with published("again", server) as url, Client(url, era=era) as client:
        began = trio.current_time()
        assert (await client.call_tool("echo")).text == "done"
        pause = {"a server that stops": 1, "a proxy that says when": 1, "too many requests for a while": 2}
        assert trio.current_time() - began >= max(times * pause.get(kind, 0), 0.05)
    assert server.asked.count("tools/call") == times + 1
    assert server.sessions == (era == "legacy")


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("kind", MAYBE_BEGUN)
async def test_what_may_have_begun_is_never_asked_again(
    era: str, kind: str, autojump_clock: trio.testing.MockClock
) -> None:
    server = refusing(MAYBE_BEGUN[kind])
    async with published("once", server) as url, Client(url, era=era) as client:
        with pytest.raises(McpError):
            await client.call_tool("echo")
    assert server.asked.count("tools/call") == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("kind", NEVER_BEGUN)
@pytest.mark.parametrize("limits", [{"timeout": 5.0}, {"timeout": 100.0, "cap": 5.0}])
async def test_all_attempts_together_have_the_time_of_one_call(
    era: str, kind: str, limits: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    server = refusing(NEVER_BEGUN[kind])
    async with published("late", server) as url, Client(url, era=era) as client:
        began = trio.current_time()
        with pytest.raises((ServerStopping, HttpUnavailable, ConnectionLost)):
            await client.call_tool("echo", **limits)
        assert 2.5 < trio.current_time() - began <= 5
    assert 3 <= server.asked.count("tools/call") < 20


async def test_a_pause_that_is_longer_than_the_call_has_is_not_begun(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = refusing(lambda message: httpx2.Response(429, headers={"retry-after": "3600"}))
    async with published("hour", server) as url, Client(url) as client:
        began = trio.current_time()
        with pytest.raises(HttpUnavailable) as refused:
            await client.call_tool("echo")
        assert trio.current_time() - began < 1
    assert refused.value.retry_after == 3600
    assert refused.value.never_run


async def test_an_attempt_that_is_answered_late_has_the_rest_of_the_time_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A proxy may keep a request in a queue for long before it refuses it."""

    async def before(message: Message, asked: Asked) -> httpx2.Response | None:
        if message["method"] != "tools/call":
            return None
        await trio.sleep(4)
        return stopping(message)

    server = DualServer(before)
    async with published("queued", server) as url, Client(url) as client:
        began = trio.current_time()
        with pytest.raises(McpError):
            await client.call_tool("echo", timeout=20, cap=10)
        assert trio.current_time() - began <= 10
    assert server.asked.count("tools/call") == 2


@pytest.mark.parametrize(
    ("kind", "times"), [("a server that stops", 2), ("nothing listens", 2), ("a program that failed", 0)]
)
async def test_an_answer_of_which_nothing_was_taken_is_posted_again(
    kind: str, times: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Where it is lost, the call of the server that waits for it is lost too."""
    refuse = (NEVER_BEGUN | MAYBE_BEGUN)[kind]
    posted = 0

    async def handler(asked: Asked) -> httpx2.Response:
        nonlocal posted
        if asked.method != "POST":
            return httpx2.Response(405)
        message = json.loads(asked.body)
        if message.get("method") == "initialize":
            return json_answer(headers={"mcp-session-id": "s"})
        if "result" not in message:
            return httpx2.Response(202)
        posted += 1
        return httpx2.Response(202) if posted > max(times, 1) else refuse({"id": None})

    async with connected(handler, listen=False) as (channel, _):
        await handshake(channel)
        await channel.send(Frame(b'{"jsonrpc":"2.0","id":7,"result":{}}', metadata=LEGACY))
        await trio.sleep(20)
    assert posted == times + 1


async def test_a_cancellation_is_not_posted_again(autojump_clock: trio.testing.MockClock) -> None:
    async def handler(asked: Asked) -> httpx2.Response:
        message = json.loads(asked.body) if asked.method == "POST" else {}
        if message.get("method") == "initialize":
            return json_answer(headers={"mcp-session-id": "s"})
        if message.get("method") == "tools/call":
            await trio.sleep_forever()
        return stopping({"id": None}) if "cancelled" in str(message) else httpx2.Response(202)

    async with connected(handler, listen=False) as (channel, script):
        await handshake(channel)
        await channel.send(request(2))
        await trio.testing.wait_all_tasks_blocked()
        method = "notifications/cancelled"
        await channel.send(Frame(b'{"method":"notifications/cancelled"}', method=method, cancels=2))
        await trio.sleep(20)
        assert len([each for each in script.of("POST") if b"cancelled" in each.body]) == 1


async def test_an_error_of_the_server_itself_is_no_refusal(autojump_clock: trio.testing.MockClock) -> None:
    server = refusing(lambda message: answer(error(message, 503, "no", {"reason": "mine", "begun": False})))
    async with published("mine", server) as url, Client(url) as client:
        with pytest.raises(RpcError):
            await client.call_tool("echo")
    assert server.asked.count("tools/call") == 1
