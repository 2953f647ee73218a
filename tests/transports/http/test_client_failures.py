"""What a failure in one of the tasks of a client's channel costs: its call or its connection, never the program."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Client
from mcp_actors.abc import Frame, NoAnswer, NotificationsMissed
from mcp_actors.errors import CallTimeout, ConnectionLost, RpcError, SessionExpired
from mcp_transports.http.client import HttpChannel, HttpClientTransport

from .scripted import LEGACY, URL, Asked, Script, Stream, connected, handshake, json_answer, request, sse

ENDPOINT = b"event: endpoint\ndata: /messages\n\n"


class Defect(BaseException):
    """An exception that no ``except Exception`` catches."""


async def failure(kind: str) -> BaseException:
    if kind == "exception":
        return KeyError("a defect")
    if kind == "base exception":
        return Defect("a defect")
    if kind == "system exit":
        return SystemExit(3)
    # A cancellation that belongs to no scope any more, as a cache of failed results would raise it again.
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            return error
    raise AssertionError


every_kind = pytest.mark.parametrize(
    "kind", ["exception", "base exception", "system exit", "stray cancellation"]
)


class FailingStream(httpx2.AsyncByteStream):
    """A body that raises ``error`` after ``first``, once ``fail`` is set."""

    def __init__(self, error: BaseException, first: bytes = b"", *, fails_at_once: bool = False) -> None:
        self._error = error
        self._first = first
        self.fail = trio.Event()
        if fails_at_once:
            self.fail.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._first
        await self.fail.wait()
        raise self._error


def event_stream(stream: httpx2.AsyncByteStream) -> httpx2.Response:
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)


async def reason(channel: HttpChannel) -> Exception:
    frame = await channel.receive()
    assert isinstance(frame, NoAnswer)
    assert frame.reason is not None
    channel.settled(frame.about or 0)
    return frame.reason


async def require_broken(channel: HttpChannel, cause: type[Exception]) -> None:
    with pytest.raises(trio.BrokenResourceError) as broken:
        await channel.receive()
    assert isinstance(broken.value.__cause__, cause)
    with pytest.raises(trio.BrokenResourceError):
        await channel.send(request(99))


@every_kind
@pytest.mark.parametrize("modern", [False, True])
async def test_a_post_that_raises_costs_its_call(
    kind: str, modern: bool, autojump_clock: trio.abc.Clock
) -> None:
    error = await failure(kind)

    async def handler(asked: Asked) -> httpx2.Response:
        if b'"id":1,' in asked.body:
            return event_stream(FailingStream(error, fails_at_once=True))
        await trio.sleep(1)
        return json_answer(2)

    async with connected(handler) as (channel, _):
        await channel.send(request(2, modern=modern))
        await channel.send(request(1, modern=modern))
        assert isinstance(await reason(channel), ConnectionLost)
        assert b'"id":2' in (await channel.receive()).data


@every_kind
async def test_a_client_of_the_user_that_raises_costs_the_call(kind: str) -> None:
    error = await failure(kind)

    async def handler(asked: Asked) -> httpx2.Response:
        if b'"id":1,' in asked.body:
            raise error
        return json_answer(2)

    async with connected(handler) as (channel, _):
        await channel.send(request(1))
        await reason(channel)
        await channel.send(request(2))
        assert b'"id":2' in (await channel.receive()).data


@every_kind
async def test_a_message_that_raises_costs_nothing_else(kind: str, autojump_clock: trio.abc.Clock) -> None:
    error = await failure(kind)

    async def handler(asked: Asked) -> httpx2.Response:
        if asked.body.startswith(b"{}"):
            raise error
        return json_answer(2)

    async with connected(handler) as (channel, script):
        await channel.send(Frame(b"{}", method="notifications/initialized", metadata=LEGACY))
        await channel.send(Frame(b"{}", method="notifications/roots/list_changed"))
        await channel.send(request(2))
        assert b'"id":2' in (await channel.receive()).data
        began = trio.current_time()
    # Closing waits for messages on their way: none is counted that has failed.
    assert trio.current_time() == began
    assert len(script.asked) == 3


@every_kind
async def test_a_cancellation_that_raises_still_closes_the_stream_of_its_call(
    kind: str, autojump_clock: trio.abc.Clock
) -> None:
    error = await failure(kind)
    stream = Stream()

    async def handler(asked: Asked) -> httpx2.Response:
        if asked.body == b"stop":
            raise error
        return sse(stream)

    async with connected(handler) as (channel, _):
        await channel.send(request(1))
        await trio.testing.wait_all_tasks_blocked()
        await channel.send(Frame(b"stop", method="notifications/cancelled", cancels=1))
        await stream.closed.wait()
        assert trio.current_time() == 0


@every_kind
async def test_the_stream_of_a_session_that_raises_costs_the_connection(
    kind: str, autojump_clock: trio.abc.Clock
) -> None:
    stream = FailingStream(await failure(kind))

    async def handler(asked: Asked) -> httpx2.Response:
        if asked.method == "GET":
            return event_stream(stream)
        if b'"initialize"' in asked.body:
            return json_answer(headers={"mcp-session-id": "s"})
        if b'"tools/call"' in asked.body:
            await trio.sleep_forever()
        return httpx2.Response(202)

    async with connected(handler) as (channel, script):
        await handshake(channel)
        await channel.send(request(2, metadata=LEGACY))
        await trio.testing.wait_all_tasks_blocked()
        assert len(script.of("GET")) == 1
        assert isinstance(await channel.receive(), NotificationsMissed)
        stream.fail.set()
        await require_broken(channel, ConnectionLost)
    # The session is still ended in order.
    assert len(script.of("DELETE")) == 1


@every_kind
async def test_the_stream_of_http_sse_that_raises_costs_the_connection(
    kind: str, autojump_clock: trio.abc.Clock
) -> None:
    stream = FailingStream(await failure(kind), ENDPOINT)

    async def handler(asked: Asked) -> httpx2.Response:
        if asked.method == "GET":
            return event_stream(stream)
        return httpx2.Response(405 if asked.url == URL else 202)

    async with connected(handler) as (channel, script):
        await channel.send(request(1, "initialize"))
        await trio.testing.wait_all_tasks_blocked()
        assert [asked.method for asked in script.asked] == ["POST", "GET", "POST"]
        stream.fail.set()
        await require_broken(channel, ConnectionLost)


@every_kind
async def test_the_stream_of_http_sse_that_raises_at_first_costs_initialize(
    kind: str, autojump_clock: trio.abc.Clock
) -> None:
    error = await failure(kind)

    async def handler(asked: Asked) -> httpx2.Response:
        if asked.method == "GET":
            return event_stream(FailingStream(error, fails_at_once=True))
        return httpx2.Response(405)

    async with connected(handler) as (channel, _):
        await channel.send(request(1, "initialize"))
        await reason(channel)


@every_kind
async def test_a_resumption_that_raises_costs_its_call(kind: str, autojump_clock: trio.abc.Clock) -> None:
    error = await failure(kind)

    async def handler(asked: Asked) -> httpx2.Response:
        if asked.method == "GET":
            return event_stream(FailingStream(error, fails_at_once=True))
        if b'"id":1,' in asked.body:
            return sse(Stream(b"id: 7\ndata:\n\n", end=True))
        return json_answer(2)

    async with connected(handler) as (channel, _):
        await channel.send(request(1, metadata=LEGACY))
        assert isinstance(await reason(channel), ConnectionLost)
        await channel.send(request(2, metadata=LEGACY))
        assert b'"id":2' in (await channel.receive()).data


@every_kind
async def test_the_end_of_a_session_that_raises_still_ends_the_channel(
    kind: str, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = await failure(kind)

    class Failing:
        def __init__(self, seconds: float) -> None:
            raise error

    async def handler(asked: Asked) -> httpx2.Response:
        if b'"initialize"' in asked.body:
            return json_answer(headers={"mcp-session-id": "s"})
        if b'"id":2,' in asked.body:
            await trio.sleep_forever()
        return httpx2.Response(404 if b'"id":3,' in asked.body else 202)

    async with connected(handler, listen=False) as (channel, _):
        await handshake(channel)
        await channel.send(request(2, metadata=LEGACY))
        await trio.testing.wait_all_tasks_blocked()
        with monkeypatch.context() as patch:
            patch.setattr(trio, "move_on_after", Failing)
            await channel.send(request(3, metadata=LEGACY))
            told = [await channel.receive(), await channel.receive()]
        assert {frame.about for frame in told} == {2, 3}
        for frame in told:
            assert isinstance(frame, NoAnswer)
            assert isinstance(frame.reason, SessionExpired)
        await require_broken(channel, SessionExpired)


@every_kind
async def test_the_parent_of_all_tasks_that_raises_costs_the_connection(
    kind: str, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = await failure(kind)
    fail = trio.Event()

    async def fails() -> None:
        await fail.wait()
        raise error

    async def handler(asked: Asked) -> httpx2.Response:
        return sse(Stream())

    with monkeypatch.context() as patch:
        patch.setattr(trio, "sleep_forever", fails)
        async with connected(handler) as (channel, _):
            await channel.send(request(1))
            await trio.testing.wait_all_tasks_blocked()
            fail.set()
            await require_broken(channel, ConnectionLost)


@every_kind
async def test_a_delete_that_raises_does_not_reach_the_caller(kind: str) -> None:
    error = await failure(kind)

    async def handler(asked: Asked) -> httpx2.Response:
        if asked.method == "DELETE":
            raise error
        return json_answer(headers={"mcp-session-id": "s"})

    async with connected(handler, listen=False) as (channel, script):
        await handshake(channel)
    assert len(script.of("DELETE")) == 1


# -- A whole `Client` over HTTP, against a script --------------------------------------------------------

INFO = {"name": "script", "version": "1"}


class Server:
    """Answers handshakes of both eras, and a call by ``call``."""

    def __init__(self, modern: bool) -> None:
        self.modern = modern
        self.streams: list[Stream] = []
        self.messages: list[dict[str, Any]] = []
        self.expired = False

    async def __call__(self, asked: Asked) -> httpx2.Response:
        if asked.method != "POST":
            return httpx2.Response(405)
        message = json.loads(asked.body)
        self.messages.append(message)
        method = message["method"]
        if self.expired and asked.headers.get("mcp-session-id"):
            return httpx2.Response(404)
        if "id" not in message:
            return httpx2.Response(202)
        if method == "server/discover":
            if not self.modern:
                return httpx2.Response(
                    400, json={"jsonrpc": "2.0", "error": {"code": -32000, "message": "session?"}}
                )
            result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            return reply(message, {**result, "_meta": {"io.modelcontextprotocol/serverInfo": INFO}})
        if method == "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO}
            return reply(message, result, {"mcp-session-id": "s"})
        if method == "tools/list":
            return reply(
                message, {"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            )
        if message["params"]["name"] == "fails":
            error = {"code": -32603, "message": "internal"}
            return httpx2.Response(500, json={"jsonrpc": "2.0", "error": error})
        self.streams.append(Stream())
        return sse(self.streams[-1])

    def heard(self, method: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["method"] == method]


def reply(
    message: dict[str, Any], result: dict[str, Any], headers: dict[str, str] | None = None
) -> httpx2.Response:
    return httpx2.Response(
        200, json={"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers
    )


@asynccontextmanager
async def connected_client_engine(modern: bool) -> AsyncIterator[tuple[Client, Server]]:
    server = Server(modern)
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        async with Client(HttpClientTransport(URL, client=http)) as client:
            yield client, server


both = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])


@both
async def test_a_call_that_is_given_up_is_taken_back_once(
    modern: bool, autojump_clock: trio.abc.Clock
) -> None:
    async with connected_client_engine(modern) as (client, server):
        assert client.era == ("modern" if modern else "legacy")
        with trio.move_on_after(1):
            await client.call_tool("slow")
        await trio.sleep(5)
        assert len(server.heard("notifications/cancelled")) == (0 if modern else 1)
        assert server.streams[0].closed.is_set()


@both
async def test_a_call_that_times_out_is_taken_back_once(modern: bool, autojump_clock: trio.abc.Clock) -> None:
    async with connected_client_engine(modern) as (client, server):
        with pytest.raises(CallTimeout):
            await client.call_tool("slow", timeout=3)
        await trio.sleep(5)
        assert len(server.heard("notifications/cancelled")) == (0 if modern else 1)
        assert server.streams[0].closed.is_set()


async def test_giving_up_and_leaving_at_once_still_tells_the_server(autojump_clock: trio.abc.Clock) -> None:
    async with connected_client_engine(modern=False) as (client, server):
        with trio.move_on_after(1):
            await client.call_tool("slow")
    assert len(server.heard("notifications/cancelled")) == 1


@both
async def test_an_error_without_an_id_finds_its_call(modern: bool, autojump_clock: trio.abc.Clock) -> None:
    async with connected_client_engine(modern) as (client, _):
        with pytest.raises(RpcError, match="internal"):
            await client.call_tool("fails")


@both
async def test_a_call_whose_stream_is_cut_fails_at_once(
    modern: bool, autojump_clock: trio.abc.Clock, nursery: trio.Nursery
) -> None:
    async with connected_client_engine(modern) as (client, server):

        async def cut() -> None:
            await trio.sleep(1)
            server.streams[0].end(httpx2.ReadError("reset"))

        nursery.start_soon(cut)
        began = trio.current_time()
        with pytest.raises(ConnectionLost):
            await client.call_tool("slow")
        assert trio.current_time() - began == 1
        # The channel goes on: the next call is a new POST.
        await client.list_tools()


async def test_an_expired_session_is_told_as_such(autojump_clock: trio.abc.Clock) -> None:
    async with connected_client_engine(modern=False) as (client, server):
        server.expired = True
        with pytest.raises(SessionExpired):
            await client.call_tool("slow")
        with pytest.raises(SessionExpired):
            await client.call_tool("slow")
