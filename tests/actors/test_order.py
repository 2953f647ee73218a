"""What arrives in order is told in order: progress before the answer, logs before the result."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, Limits, Progress, ResourceNotFound, RpcError, Server
from mcp_actors._actors.inbound_call import READING_LIMIT, READING_TIME
from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.abc.framing import LineChannel
from mcp_actors.testing import ScriptedPeer, connected_pair
from mcp_transports.memory import memory_channel_pair
from tests.messages import BATCHING, modern_request

from .peers import (
    LEGACY,
    TEXT,
    Message,
    Serves,
    arrived,
    call,
    cancelled,
    faulty_pair,
    legacy_client,
    met,
    modern_call,
    notification,
    progressed,
    reply,
    request,
    settled,
)
from .witness import Witness

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
MANY = 10_000


@pytest.fixture
def counter() -> Server:
    server = Server("counter")

    @server.tool
    async def count(to: int, ctx: Context) -> str:
        for number in range(1, to + 1):
            await ctx.progress(number, to, f"number {number}")
        return "counted"

    return server


@ERAS
async def test_10000_reports_are_told_in_wire_order_before_the_call_returns(
    counter: Server, era: str
) -> None:
    told: list[Progress] = []
    async with connected_pair(counter, era=era) as client:
        await client.call_tool("count", {"to": MANY}, on_progress=told.append)
        assert told == [Progress(number, MANY, f"number {number}") for number in range(1, MANY + 1)]


@ERAS
async def test_async_callbacks_run_one_after_the_other_and_all_of_them(counter: Server, era: str) -> None:
    told: list[float] = []
    running = 0

    async def slow(progress: Progress) -> None:
        nonlocal running
        assert running == 0
        running += 1
        await trio.sleep(0.01)
        running -= 1
        told.append(progress.progress)

    async with connected_pair(counter, era=era) as client:
        await client.call_tool("count", {"to": 1000}, on_progress=slow)
        assert told == list(range(1, 1001))


async def test_an_answer_in_the_same_read_does_not_overtake() -> None:
    told: list[float] = []
    async with met() as (client, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer() -> None:
            asked = await peer.receive()
            token = asked["params"]["_meta"]["progressToken"]
            for number in range(100):
                await peer.send(progressed(token, number))
            await peer.send(reply(asked, TEXT))
            # What comes after the answer is nobody's business any more.
            await peer.send(progressed(token, 1000))

        await client.call_tool("any", on_progress=lambda progress: told.append(progress.progress))
        assert told == list(range(100))
        await settled()
        assert client.tree().pending == ()


async def test_concurrent_calls_get_their_own_reports_only(counter: Server) -> None:
    told: dict[int, list[float]] = {}

    async def count(client: Client, to: int) -> None:
        reports = told[to] = []
        await client.call_tool("count", {"to": to}, on_progress=lambda p: reports.append(p.progress))
        assert reports == list(range(1, to + 1))

    async with connected_pair(counter) as client, trio.open_nursery() as nursery:
        for to in range(50, 150):
            nursery.start_soon(count, client, to)
    assert len(told) == 100


@ERAS
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_callback_that_raises_ends_its_call_and_no_other(
    counter: Server, era: str, asynchronous: bool
) -> None:
    async def raise_later(progress: Progress) -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("from the callback")

    def raise_now(progress: Progress) -> None:
        raise KeyError("from the callback")

    callback: Any = raise_later if asynchronous else raise_now
    async with connected_pair(counter, era=era) as client:
        with pytest.raises(KeyError, match="from the callback"):
            await client.call_tool("count", {"to": MANY}, on_progress=callback)
        await settled()
        assert client.tree().pending == ()
        told: list[Progress] = []
        await client.call_tool("count", {"to": 3}, on_progress=told.append)
        assert len(told) == 3


async def test_the_peer_is_told_when_a_callback_raised() -> None:
    async with met() as (client, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def report() -> None:
            asked = await peer.receive()
            await peer.send(progressed(asked["params"]["_meta"]["progressToken"], 1))

        def fail(progress: Progress) -> None:
            raise KeyError("from the callback")

        with pytest.raises(KeyError):
            await client.call_tool("any", on_progress=fail)
        [told] = await arrived(peer, within=1000)
        assert told["method"] == "notifications/cancelled"


async def test_a_flood_of_reports_is_bounded_by_dropping_the_oldest() -> None:
    told: list[float] = []

    async def slow(progress: Progress) -> None:
        await trio.sleep(1)
        told.append(progress.progress)

    async with met(limits=Limits(progress_queue=10)) as (client, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer() -> None:
            asked = await peer.receive()
            token = asked["params"]["_meta"]["progressToken"]
            await peer.send(progressed(token, 1))
            await settled()
            for number in range(2, 100):
                await peer.send(progressed(token, number))
            await settled()
            [pending] = client.tree().pending
            assert pending.progress_waiting == 10
            await peer.send(reply(asked, TEXT))

        await client.call_tool("any", on_progress=slow)
        assert told == [1, *range(90, 100)]


@ERAS
async def test_reports_that_do_not_grow_are_not_sent(era: str) -> None:
    server = Server("jumpy")

    @server.tool
    async def jump(ctx: Context) -> None:
        for number in (1, 1, 0.5, 2, -1, 3):
            await ctx.progress(number)

    told: list[float] = []
    async with connected_pair(server, era=era) as client:
        await client.call_tool("jump", on_progress=lambda progress: told.append(progress.progress))
    assert told == [1, 2, 3]


# -- logs ------------------------------------------------------------------------------------------------------------


@ERAS
async def test_the_logs_of_a_call_are_told_before_its_result(era: str) -> None:
    server = Server("talks")

    @server.tool
    async def talk(ctx: Context) -> None:
        for number in range(1000):
            await ctx.log("warning", number)

    told: list[Any] = []
    async with connected_pair(
        server, era=era, on_log=lambda level, data, logger: told.append(data)
    ) as client:
        await client.call_tool("talk")
        assert told == list(range(1000))


async def test_async_log_handlers_are_awaited_in_order_and_survive_a_failure() -> None:
    told: list[Any] = []

    async def on_log(level: Any, data: Any, logger: str | None) -> None:
        await trio.sleep(10 - data)
        if data == 5:
            raise KeyError("from the handler")
        told.append(data)

    async with met(on_log=on_log) as (_, peer):
        for number in range(10):
            await peer.send(notification("notifications/message", level="info", data=number))
        await trio.sleep(100)
        assert told == [0, 1, 2, 3, 4, 6, 7, 8, 9]


# -- the outbox ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [0, 1, 256])
@pytest.mark.parametrize("outbox", [1, 2, 16])
async def test_a_full_outbox_changes_no_order(buffer: int, outbox: int) -> None:
    """Calls that report at once, over a channel that takes frames directly as well as through the writer."""

    server = Server("floods", limits=Limits(outbox=outbox))

    @server.tool
    async def count(to: int, ctx: Context) -> None:
        for number in range(1, to + 1):
            await ctx.progress(number)

    ours, theirs = memory_channel_pair(buffer)
    peer = ScriptedPeer(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(ours))
        await peer.initialize(LEGACY)
        for id in range(20):
            await peer.send(call(id, "count", token=id, to=50))
        seen: dict[int, list[float]] = {id: [] for id in range(20)}
        answered = 0
        while answered < 20:
            for message in await arrived(peer):
                if "result" in message:
                    answered += 1
                    assert seen[message["id"]] == list(range(1, 51))
                else:
                    seen[message["params"]["progressToken"]].append(message["params"]["progress"])
        nursery.cancel_scope.cancel()


class Burst(FrameChannel):
    """Brings all its frames at once, then nothing; keeps what is sent."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.sent: list[int] = []

    async def receive(self) -> Frame:
        raise AssertionError("frames are received as a burst")

    async def receive_many(self) -> list[Frame]:
        await trio.lowlevel.checkpoint()
        if not self.frames:
            await trio.sleep_forever()
        frames, self.frames = self.frames, []
        return frames

    async def send(self, value: Frame) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(json.loads(value.data)["id"])

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_the_first_answers_of_a_burst_leave_before_the_last_requests_are_looked_at(
    nursery: trio.Nursery,
) -> None:
    server, seen = Server("s"), []
    channel = Burst([Frame(json.dumps(modern_call(number, "look")).encode()) for number in range(300)])

    @server.tool(inline=True)
    def look() -> None:
        seen.append(len(channel.sent))

    await nursery.start(server.serve, Serves(channel))
    await settled()
    assert (seen[0], 0 < seen[-1] < 300) == (0, True)
    assert channel.sent == list(range(300))
    nursery.cancel_scope.cancel()


# -- Request ids: one that is in flight is not taken twice -----------------------------------------------


async def test_an_id_in_flight_is_not_taken_twice() -> None:
    witness = Witness()
    async with legacy_client(witness.server) as peer:
        await peer.send(call(1, "nap", seconds=5))
        for again in (
            call(1, "echo", text="other"),
            modern_call(1, "echo", text="other"),
            request(1, "ping"),
        ):
            await peer.send(again)
            [refusal] = await arrived(peer)
            assert (refusal["id"], refusal["error"]["code"]) == (1, -32600)
        await peer.send(call("1", "echo", text="another type, another id"))
        [other] = await arrived(peer)
        assert other["id"] == "1"
        [answer] = await arrived(peer, within=10)
        assert answer["result"]["content"][0]["text"] == "slept"
        assert "result" in await peer.request(1, "ping")


async def test_ids_doubled_within_one_batch() -> None:
    witness = Witness()
    channel, peer = faulty_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(witness.server.serve, Serves(channel))
        await peer.initialize(BATCHING)
        await peer.send([call(1, "nap", seconds=1), call(1, "nap", seconds=1), request("p", "ping"), 5])
        batch = await peer.receive()
        codes = sorted((str(each.get("id")), each.get("error", {}).get("code", 0)) for each in batch)
        assert codes == [("1", -32600), ("1", 0), ("None", -32600), ("p", 0)]
        nursery.cancel_scope.cancel()


# -- The answer to a call that reported progress waits until the peer has read the report, and nothing else waits ---


class Pipe(trio.abc.SendStream):
    """Sends at once, and says that the peer has not read it until ``read`` is called."""

    def __init__(self, inner: trio.abc.SendStream) -> None:
        self._inner = inner
        self._taken = self.sent = 0
        self.looks = 0

    def read(self) -> None:
        self._taken = self.sent

    def unread(self) -> int | None:
        self.looks += 1
        return self.sent - self._taken

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += len(data)
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._inner.aclose()


server = Server("reporting")


@server.tool
async def report(ctx: Context) -> str:
    await ctx.progress(1)
    return "reported"


@server.tool
async def wait(ctx: Context) -> str:
    await trio.lowlevel.checkpoint()
    return "waited"


@asynccontextmanager
async def served(info: Message | None = None, *, pipe: bool) -> AsyncIterator[tuple[ScriptedPeer, Pipe]]:
    """A peer that has introduced itself as ``info``, over a pipe that says what is read or a stream that does not."""
    near, far = trio.testing.memory_stream_pair()
    out = Pipe(near)
    peer = ScriptedPeer(LineChannel(far, far))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(LineChannel(near, out if pipe else near)))
        params: dict[str, Any] = {
            "protocolVersion": LEGACY,
            "capabilities": {},
            "clientInfo": info or {"name": "any"},
        }
        await peer.send(request(0, "initialize", params))
        await peer.receive()
        await peer.send(notification("notifications/initialized"))
        await settled()
        yield peer, out
        nursery.cancel_scope.cancel()


def told(messages: list[Message]) -> list[Any]:
    """The id of each answer, the method of everything else."""
    return [message.get("method") or message["id"] for message in messages]


async def test_the_answer_waits_until_the_pipe_is_read_and_others_go_on() -> None:
    async with served(pipe=True) as (peer, out):
        await peer.send(call(1, "report", token="t"))
        await peer.send(call(2, "wait"))
        await peer.send(call(3, "wait", token="u"))
        assert told(await arrived(peer)) == ["notifications/progress", 2, 3]
        out.read()
        assert told(await arrived(peer, within=0.01)) == [1]


async def test_a_peer_that_does_not_read_is_not_waited_for_long() -> None:
    async with served(pipe=True) as (peer, _):
        began = trio.current_time()
        await peer.send(call(1, "report", token="t"))
        assert told([await peer.receive(), await peer.receive()]) == ["notifications/progress", 1]
        assert trio.current_time() - began == pytest.approx(READING_LIMIT)


async def test_a_thousand_calls_wait_side_by_side() -> None:
    async with served(pipe=True) as (peer, out):
        for number in range(1, 1001):
            await peer.send(call(number, "report", token=number))
        messages = await arrived(peer)
        assert told(messages) == ["notifications/progress"] * 1000
        out.read()
        assert sorted(told(await arrived(peer, within=0.01))) == list(range(1, 1001))


async def test_what_reports_nothing_does_not_look_at_the_pipe() -> None:
    async with served(pipe=True) as (peer, out):
        await peer.send(call(1, "wait", token="t"))
        await peer.send(call(2, "report"))
        assert told([await peer.receive(), await peer.receive()]) == [1, 2]
        assert out.looks == 0


@pytest.mark.parametrize(
    ("info", "waits"),
    [
        ({"name": "mcp-actors", "version": "9"}, False),
        ({"name": "mcp", "version": "0.1.0"}, False),
        ({"name": "mcp", "version": "1.0.0"}, True),
        ({"name": "claude-code", "version": "0.1.0"}, True),
    ],
)
async def test_who_handles_what_it_reads_in_order_is_not_waited_for(info: Message, waits: bool) -> None:
    async with served(info, pipe=True) as (peer, _):
        await peer.send(call(1, "report", token="t"))
        assert told(await arrived(peer)) == ["notifications/progress", *([] if waits else [1])]


async def test_a_call_that_is_cancelled_while_it_waits_is_not_answered() -> None:
    async with served(pipe=True) as (peer, _):
        await peer.send(call(1, "report", token="t"))
        assert told(await arrived(peer)) == ["notifications/progress"]
        await peer.send(cancelled(1))
        assert told(await arrived(peer, within=1)) == []
        assert server.tree().sessions[0].calls == ()


async def test_where_reading_is_not_seen_a_ping_shows_it() -> None:
    async with served(pipe=False) as (peer, _):
        await peer.send(call(1, "report", token="t"))
        progress, ping = await arrived(peer)
        assert told([progress, ping]) == ["notifications/progress", "ping"]
        await peer.send(reply(ping))
        assert told(await arrived(peer)) == [1]


async def test_a_ping_that_is_not_answered_holds_nothing_up_for_long() -> None:
    async with served(pipe=False) as (peer, _):
        began = trio.current_time()
        await peer.send(call(1, "report", token="t"))
        for expected in ("notifications/progress", "ping", 1):
            assert told([await peer.receive()]) == [expected]
        assert trio.current_time() - began == pytest.approx(READING_LIMIT)
        # Nor is it taken back, as a request of a program's own would be.
        assert await arrived(peer, within=1) == []


async def test_where_no_ping_exists_a_moment_has_to_do() -> None:
    near, far = trio.testing.memory_stream_pair()
    peer = ScriptedPeer(LineChannel(far, far))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(LineChannel(near, near)))
        began = trio.current_time()
        await peer.send(
            modern_request(1, "tools/call", {"name": "report", "arguments": {}}, progressToken="t")
        )
        assert told([await peer.receive(), await peer.receive()]) == ["notifications/progress", 1]
        assert trio.current_time() - began == pytest.approx(READING_TIME)
        nursery.cancel_scope.cancel()


# -- A request always gets an answer: what an answer repeats is cut, and one that is too long becomes an error ---

LIMIT = 100_000
server_answers_too_long = Server("long answers")


@server_answers_too_long.resource("x:{name}")
async def nothing(name: str) -> str:
    raise ResourceNotFound(f"x:{name}")


@server_answers_too_long.tool
async def refuses(times: int) -> str:
    raise RpcError(-32000, "no " * times, {"why": "no " * times})


@server_answers_too_long.tool
async def repeats(times: int, text: str = "x") -> str:
    return text * times


@asynccontextmanager
async def client(version: str = LEGACY, limit: int = LIMIT) -> AsyncIterator[ScriptedPeer]:
    ours, theirs = trio.testing.memory_stream_pair()
    near, far = (LineChannel(each, each, max_message_bytes=limit) for each in (ours, theirs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server_answers_too_long.serve, Serves(near))
        peer = ScriptedPeer(far)
        await peer.initialize(version)
        yield peer
        nursery.cancel_scope.cancel()


async def idle() -> bool:
    """Whether nothing is in flight: a request without an answer would keep its session busy for ever."""
    await settled()
    return all(not session.calls for session in server_answers_too_long.tree().sessions)


@pytest.mark.parametrize("length", [5_000, 50_000, LIMIT - 200])
@pytest.mark.parametrize(
    ("method", "member"),
    [
        ("resources/read", "uri"),
        ("resources/subscribe", "uri"),
        ("tools/call", "name"),
        ("prompts/get", "name"),
        ("logging/setLevel", "level"),
        ("tools/list", "cursor"),
    ],
)
async def test_what_an_error_repeats_is_cut(length: int, method: str, member: str) -> None:
    async with client() as peer:
        answer = await peer.request(1, method, {member: "y" * length})
        assert "error" in answer, answer
        assert len(json.dumps(answer)) < 2 * 4096
        assert await idle()


async def test_a_method_of_any_length_is_refused_with_a_short_text() -> None:
    async with client() as peer:
        answer = await peer.request(1, "m" * (LIMIT - 100), {})
        assert answer["error"]["code"] == -32601
        assert len(json.dumps(answer)) < 4096


@pytest.mark.parametrize("make", [call, modern_call])
async def test_an_error_that_is_too_long_to_be_sent_is_replaced_by_one_that_says_so(make: Any) -> None:
    async with client() as peer:
        await peer.send(make(1, "refuses", times=LIMIT))
        answer = await peer.receive()
        assert answer["id"] == 1
        assert answer["error"]["code"] == -32603
        assert f"the limit is {LIMIT}" in answer["error"]["message"]
        assert await idle()


@pytest.mark.parametrize("number", [10, 100])
async def test_every_one_of_many_requests_is_answered(number: int) -> None:
    async with client() as peer, trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def read() -> None:
            while len(answers) < number:
                answers.append(await peer.receive())

        nursery.start_soon(read)
        for id in range(number):
            uri = f"x:{'y' * 8000}" if id % 2 else "z" * (LIMIT - 200)
            await peer.send(request(id, "resources/read", {"uri": uri}))
        await settled()
        assert sorted(answer["id"] for answer in answers) == list(range(number))
        assert await idle()


async def test_an_id_that_is_too_long_is_refused_without_it() -> None:
    """The error cannot repeat the id, which alone may be longer than the connection carries."""
    async with client() as peer:
        await peer.send(request("x" * (LIMIT - 200), "ping"))
        answer = await peer.receive()
        assert "id" not in answer
        assert answer["error"]["code"] == -32600
        assert "1024" in answer["error"]["message"]
        assert "result" in await peer.request("x" * 1024, "ping")


@pytest.mark.parametrize("make", [call, modern_call])
async def test_a_progress_token_that_is_too_long_is_refused(make: Any) -> None:
    async with client() as peer:
        message = make(1, "repeats", times=1)
        message["params"].setdefault("_meta", {})["progressToken"] = "t" * 1025
        await peer.send(message)
        answer = await peer.receive()
        assert answer["error"]["code"] == -32602
        assert "1024" in answer["error"]["message"]


@pytest.mark.parametrize("size", [10, 100])
async def test_each_request_of_a_batch_is_answered_although_their_answers_are_too_long_together(
    size: int,
) -> None:
    async with client(BATCHING) as peer:
        await peer.send([call(id, "repeats", times=2 * LIMIT // size) for id in range(size)])
        first = await peer.receive()
        assert {each["id"] for each in first} == set(range(size))
        answered = [each for each in first if "result" in each]
        refused = [each for each in first if "error" in each]
        assert answered
        assert refused
        assert all("too long" in each["error"]["message"] for each in refused)
        assert await idle()
