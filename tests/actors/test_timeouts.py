"""Two clocks for every call: progress moves the idle one, nothing moves the cap."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

from mcp_actors import CallTimeout, Client, Context, Limits, Server
from mcp_actors.testing import ScriptedPeer, connected_pair, raw_server
from mcp_actors.types import ElicitResult

from .peers import TEXT, Dials, arrived, failure, faulty_pair, greet, met, progressed, reply, request, settled

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


async def beat(peer: ScriptedPeer, times: int, every: float) -> None:
    """Reports progress of whatever is asked next, and never answers."""
    asked = await peer.receive()
    for number in range(times):
        await trio.sleep(every)
        await peer.send(progressed(asked["params"]["_meta"]["progressToken"], number + 1))


async def timed_out(client: Client, **options: Any) -> tuple[CallTimeout, float]:
    began = trio.current_time()
    with pytest.raises(CallTimeout) as caught:
        await client.call_tool("any", **options)
    return caught.value, trio.current_time() - began


# -- the two clocks --------------------------------------------------------------------------------------------------


@ERAS
async def test_silence_ends_a_call_and_the_peer_is_told_once(era: str) -> None:
    async with met(era) as (client, peer):
        error, seconds = await timed_out(client)
        assert (error.clock, error.seconds, seconds) == ("idle", 30, 30)
        assert error.method == "tools/call"
        asked, told = await arrived(peer, within=1000)
        assert told["method"] == "notifications/cancelled"
        assert told["params"]["requestId"] == asked["id"]
        assert told["params"]["reason"] == "timed out"
        assert client.tree().pending == ()


@ERAS
@pytest.mark.parametrize("callback", [False, True])
async def test_progress_moves_the_idle_clock_with_and_without_a_callback(era: str, callback: bool) -> None:
    options: dict[str, Any] = {"on_progress": lambda progress: None} if callback else {}
    async with met(era) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(beat, peer, 5, 29)
        error, seconds = await timed_out(client, **options)
        assert (error.clock, seconds) == ("idle", 5 * 29 + 30)


@ERAS
async def test_nothing_moves_the_cap(era: str) -> None:
    async with met(era) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(beat, peer, 100, 7)
        error, seconds = await timed_out(client)
        assert (error.clock, error.seconds, seconds) == ("cap", 300, 300)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("client_options", "call_options", "expected"),
    [
        ({"timeout": 5}, {}, ("idle", 5)),
        ({"timeout": 5}, {"timeout": 7}, ("idle", 7)),
        ({"timeout": 50, "cap": 20}, {}, ("cap", 20)),
        ({"timeout": 50, "cap": 20}, {"cap": 12}, ("cap", 12)),
        ({"timeout": 5, "cap": 5}, {}, ("cap", 5)),
        ({"timeout": math.inf}, {}, ("cap", 300)),
        ({"cap": math.inf}, {}, ("idle", 30)),
        ({}, {"timeout": math.inf, "cap": 1000}, ("cap", 1000)),
    ],
)
async def test_both_clocks_are_set_for_a_client_and_for_a_call(
    client_options: dict[str, Any], call_options: dict[str, Any], expected: tuple[str, float]
) -> None:
    async with met(**client_options) as (client, _):
        error, seconds = await timed_out(client, **call_options)
        assert (error.clock, seconds) == expected
        assert error.seconds == expected[1]


async def test_infinity_must_be_written_and_then_holds() -> None:
    async with met() as (client, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer() -> None:
            asked = await peer.receive()
            await trio.sleep(80_000)
            await peer.send(reply(asked, TEXT))

        result = await client.call_tool("any", timeout=math.inf, cap=math.inf)
        assert result.content[0].text == "done"  # type: ignore[union-attr]
        assert trio.current_time() == 80_000


async def test_many_calls_expire_each_at_its_own_time() -> None:
    ended: dict[int, float] = {}

    async def wait(client: Client, seconds: int) -> None:
        with pytest.raises(CallTimeout):
            await client.call_tool("any", timeout=seconds)
        ended[seconds] = trio.current_time()

    async with met() as (client, _), trio.open_nursery() as nursery:
        for seconds in (5, 3, 9, 1, 7):
            nursery.start_soon(wait, client, seconds)
            await settled()
        await trio.sleep(2)
        nursery.start_soon(wait, client, 2)
    assert ended == {5: 5, 3: 3, 9: 9, 1: 1, 7: 7, 2: 4}


async def test_a_timeout_of_zero_still_asks() -> None:
    async with met() as (client, peer):
        error, seconds = await timed_out(client, timeout=0)
        assert (error.clock, seconds) == ("idle", 0)
        assert [message["method"] for message in await arrived(peer)] in (
            ["tools/call", "notifications/cancelled"],
            [],
        )


# -- late ------------------------------------------------------------------------------------------------------------


async def test_late_answers_and_progress_are_dropped_and_counted() -> None:
    async with met() as (client, peer):
        await timed_out(client)
        asked, _ = await arrived(peer)
        await peer.send(progressed(asked["params"]["_meta"]["progressToken"], 1))
        await peer.send(reply(asked, TEXT))
        await peer.send(failure(asked, -32603))
        await settled()
        assert client.tree().counters.late == 3
        # Whoever answers its last request is still believed.
        await peer.send(request("p", "ping"))
        assert await peer.receive() == reply("p")


async def test_an_answer_just_in_time_counts() -> None:
    async with met() as (client, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer() -> None:
            asked = await peer.receive()
            await trio.sleep(29.999)
            await peer.send(reply(asked, TEXT))

        await client.call_tool("any")
        assert await arrived(peer, within=1000) == []


# -- what is never cancelled by message ------------------------------------------------------------------------------


async def test_probe_and_initialize_end_without_a_message() -> None:
    async with raw_server() as server:
        client = Client(server.transport, probe_timeout=5, timeout=30)
        with pytest.raises(CallTimeout) as caught:
            async with client:
                raise AssertionError
        assert caught.value.method == "initialize"
        assert trio.current_time() == 35
        peer = await server.accept()
        methods = [message["method"] for message in await arrived(peer)]
        assert methods == ["server/discover", "initialize"]


async def test_a_pinned_modern_client_gives_a_slow_server_its_whole_timeout() -> None:
    """It has nothing else to try after the silence."""
    async with raw_server() as server:
        with pytest.raises(CallTimeout) as caught:
            async with Client(server.transport, era="modern", probe_timeout=5, timeout=20):
                raise AssertionError
        assert caught.value.method == "server/discover"
        assert trio.current_time() == 20


async def test_progress_before_the_answer_to_initialize_does_not_disturb() -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def serve() -> None:
            peer = await server.accept()
            await peer.send(progressed(1, 1))
            await greet(peer)

        async with Client(server.transport) as client:
            assert client.era == "legacy"


# -- a full outbox ---------------------------------------------------------------------------------------------------


async def test_a_call_that_cannot_even_be_sent_times_out_and_tells_nobody() -> None:
    channel, peer = faulty_pair()
    dials = Dials([channel])
    limits = Limits(outbox=2, stall_timeout=100, close_timeout=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet, peer)
        async with Client(dials, era="legacy", limits=limits) as client:
            await settled()
            channel.clog()
            errors: list[CallTimeout] = []

            async def wait() -> None:
                errors.append((await timed_out(client, timeout=10))[0])

            async with trio.open_nursery() as callers:
                for _ in range(8):
                    callers.start_soon(wait)
                    # One is held by the writer, two by the outbox, five wait for room.
                    await settled()
            assert [error.clock for error in errors] == ["idle"] * 8
            assert client.tree().pending == ()
            channel.unclog()
            messages = await arrived(peer)
            sent = [message["id"] for message in messages if "id" in message]
            told = [message["params"]["requestId"] for message in messages if "id" not in message]
            # Those that went out were taken back, the others never existed for the peer.
            assert sorted(sent) == sorted(told)
            assert all("id" in message for message in messages[: len(sent)])
            assert len(sent) == 3


# -- while the server asks -------------------------------------------------------------------------------------------


async def test_the_idle_clock_stands_still_while_the_server_waits_for_us() -> None:
    server = Server("asks")

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", FORM)
        await trio.sleep(20)
        return str(answer.action)

    async def elicitation(question: Any) -> ElicitResult:
        await trio.sleep(200)
        return ElicitResult("decline")

    async with connected_pair(server, era="legacy", elicitation=elicitation) as client:
        result = await client.call_tool("ask")
        assert result.content[0].text == "decline"  # type: ignore[union-attr]
        assert trio.current_time() == 220


async def test_the_cap_runs_on_while_the_server_waits_for_us() -> None:
    server = Server("asks")
    ended: list[str] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.elicit("Who?", FORM)
        return "never"

    async def elicitation(question: Any) -> ElicitResult:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("asked no more")
        raise AssertionError

    async with connected_pair(server, era="legacy", elicitation=elicitation) as client:
        with pytest.raises(CallTimeout) as caught:
            await client.call_tool("ask")
        assert (caught.value.clock, trio.current_time()) == ("cap", 300)
        await settled()
        # The server withdrew its question when its call was cancelled.
        assert ended == ["asked no more"]


async def test_the_idle_clock_runs_again_once_we_have_answered() -> None:
    async def elicitation(question: Any) -> ElicitResult:
        await trio.sleep(100)
        return ElicitResult("decline")

    async with met(elicitation=elicitation) as (client, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ask() -> None:
            await peer.receive()
            params = {"message": "Who?", "requestedSchema": FORM, "mode": "form"}
            await peer.send(request("q1", "elicitation/create", params))
            await trio.sleep(50)
            await peer.send(request("q2", "elicitation/create", params))

        error, seconds = await timed_out(client)
        # Two questions overlap: from 0 to 100 and from 50 to 150.
        assert (error.clock, seconds) == ("idle", 180)


async def test_a_question_to_a_client_has_a_bound_too() -> None:
    server = Server("asks", limits=Limits(ask_timeout=600))
    raised: list[CallTimeout] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            await ctx.elicit("Who?", FORM)
        except CallTimeout as error:
            raised.append(error)
        return "went on without"

    async def elicitation(question: Any) -> ElicitResult:
        await trio.sleep_forever()
        raise AssertionError

    async with connected_pair(server, era="legacy", elicitation=elicitation, cap=math.inf) as client:
        result = await client.call_tool("ask")
        assert result.content[0].text == "went on without"  # type: ignore[union-attr]
        assert trio.current_time() == 600
        assert [error.method for error in raised] == ["elicitation/create"]


async def test_a_callback_that_never_ends_does_not_hold_off_the_cap() -> None:
    async def stuck(progress: Any) -> None:
        await trio.sleep_forever()

    async with met() as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(beat, peer, 3, 1)
        error, seconds = await timed_out(client, on_progress=stuck)
        assert (error.clock, seconds) == ("idle", 33)
        messages = await arrived(peer)
        assert [message["method"] for message in messages] == ["notifications/cancelled"]
