"""Deadlines: what is left of a call's time travels with it, and everything that is done for the call stops at it."""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Limits, Server, SyncContext
from mcp_actors.errors import CallTimeout, DeadlineExceeded, RpcError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.sync import Client as SyncClient
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import ElicitFormParams, ElicitResult, ElicitUrlParams
from tests.messages import modern_meta, request
from tests.scripted_peers import fail, reply, scripted
from tests.server.asking import FORM

ERAS = ["2025-11-25", "2026-07-28"]
KEY = "mcp-actors/deadline-ms"


class Recorder:
    """A server whose tools write down what they see of their deadline."""

    def __init__(self, **options: Any) -> None:
        self.server = server = Server("recorder", mask_errors=False, **options)
        self.events: list[Any] = []

        @server.tool
        async def left(ctx: Context) -> str:
            self.events.append(ctx.meta.get(KEY))
            return f"{ctx.deadline - trio.current_time():.3f}"

        @server.tool
        async def slow(ctx: Context) -> str:
            self.events.append("begun")
            try:
                await trio.sleep(1000)
            except trio.Cancelled:
                self.events.append(("stopped", trio.current_time()))
                raise
            return "slept"


async def call(peer: ScriptedPeer, id: int, tool: str, left: Any, **more: Any) -> Any:
    """Calls a tool with a deadline, without a session, and returns the answer."""
    meta = {**modern_meta(), KEY: left}
    return await peer.request(id, "tools/call", {"name": tool, "arguments": more, "_meta": meta})


# -- the server --------------------------------------------------------------------------------------------------------


async def test_a_function_sees_its_deadline_and_is_stopped_at_it(autojump_clock: Any) -> None:
    recorder = Recorder()
    async with raw_client(recorder.server) as peer:
        began = trio.current_time()
        answer = await call(peer, 1, "left", 4200)
        assert answer["result"]["content"][0]["text"] == "4.200"
        answer = await call(peer, 2, "slow", 4200.5)
        assert trio.current_time() - began == pytest.approx(4.2005)
        assert answer["error"] == {
            "code": 504,
            "message": "tools/call slow: the time that its caller had left was over while it ran: it was cancelled, "
            "and may have done a part of its work",
            "data": {"reason": "deadline_exceeded", "begun": True},
        }
        assert recorder.events == [4200, "begun", ("stopped", pytest.approx(began + 4.2005))]
        # The place, and the task that ran it, are free and have no deadline of the former call.
        assert (await call(peer, 3, "left", 1))["result"]["content"][0]["text"] == "0.001"
        answer = await peer.request(4, "tools/call", {"name": "left", "_meta": modern_meta()})
        assert answer["result"]["content"][0]["text"] == "inf"


@pytest.mark.parametrize("left", [-1, -0.5, "4", True, False, None, [], {}, "1e3"])
async def test_a_malformed_deadline_is_refused(left: Any) -> None:
    recorder = Recorder()
    async with raw_client(recorder.server) as peer:
        answer = await call(peer, 1, "left", left)
        assert answer["error"]["code"] == -32602
        assert KEY in answer["error"]["message"]
    assert recorder.events == []


@pytest.mark.parametrize("left", [10**400, 1e300, 10**15])
async def test_a_huge_deadline_is_a_week(left: Any, autojump_clock: Any) -> None:
    async with raw_client(Recorder().server) as peer:
        answer = await call(peer, 1, "left", left)
        assert answer["result"]["content"][0]["text"] == "604800.000"


@pytest.mark.parametrize("tool", ["left", "inline", "unknown"])
async def test_without_any_time_left_nothing_is_run(tool: str) -> None:
    recorder = Recorder()

    @recorder.server.tool(inline=True)
    def inline() -> str:
        recorder.events.append("inline")
        return ""

    async with raw_client(recorder.server) as peer:
        answer = await call(peer, 1, tool, 0)
        assert (answer["error"]["code"], answer["error"]["data"]["begun"]) == (504, False)
    assert recorder.events == []


async def test_a_session_has_deadlines_too(autojump_clock: Any) -> None:
    recorder = Recorder()
    async with raw_client(recorder.server) as peer:
        await peer.initialize("2025-11-25")
        for left, code in ((0, 504), (3000, 504), ("x", -32602)):
            params = {"name": "slow", "arguments": {}, "_meta": {KEY: left}}
            assert (await peer.request(f"r{left}", "tools/call", params))["error"]["code"] == code
    assert recorder.events == ["begun", ("stopped", pytest.approx(trio.current_time()))]


async def test_what_is_over_while_it_waits_for_a_place_is_dropped_unbegun(autojump_clock: Any) -> None:
    recorder = Recorder(limits=Limits(max_in_flight=1))
    async with raw_client(recorder.server) as peer:
        await peer.send(request(1, "tools/call", {"name": "slow", "_meta": {**modern_meta(), KEY: 9000}}))
        await peer.send(request(2, "tools/call", {"name": "slow", "_meta": {**modern_meta(), KEY: 2000}}))
        await peer.send(request(3, "tools/call", {"name": "left", "_meta": {**modern_meta(), KEY: 10_000}}))
        answers = [await peer.receive() for _ in range(3)]
    assert [each["id"] for each in answers] == [2, 1, 3]
    assert answers[0]["error"]["data"]["begun"] is False
    assert answers[1]["error"]["data"]["begun"] is True
    # The one behind it has waited for 9 of its 10 seconds.
    assert answers[2]["result"]["content"][0]["text"] == "1.000"
    assert recorder.events[0] == "begun"
    assert recorder.events.count("begun") == 1


async def test_what_a_function_raises_after_its_deadline_is_not_sent_and_what_it_returns_is(
    autojump_clock: Any,
) -> None:
    server = Server("late", mask_errors=False)

    @server.tool
    async def raises() -> str:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while it cleans up")

    @server.tool
    async def finishes() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return "done all the same"

    async with raw_client(server) as peer:
        answer = await call(peer, 1, "raises", 1000)
        assert (answer["error"]["code"], answer["error"]["data"]["begun"]) == (504, True)
        answer = await call(peer, 2, "finishes", 1000)
        assert answer["result"]["content"][0]["text"] == "done all the same"


async def test_a_shorter_time_limit_of_the_tool_comes_first(autojump_clock: Any) -> None:
    server = Server("limited", mask_errors=False)

    @server.tool(timeout=1)
    async def short() -> None:
        await trio.sleep_forever()

    async with raw_client(server) as peer:
        answer = await call(peer, 1, "short", 5000)
        assert answer["result"]["isError"] is True
        answer = await call(peer, 2, "short", 500)
        assert answer["error"]["code"] == 504


async def test_functions_in_threads_and_in_asyncio_have_it_in_their_own_time() -> None:
    server = Server("others", mask_errors=False)

    @server.tool
    def thread(ctx: SyncContext) -> float:
        return ctx.deadline - time.monotonic()

    @server.tool(inline=True)
    def inline(ctx: SyncContext) -> float:
        return ctx.deadline - time.monotonic()

    @server.tool(loop="asyncio")
    async def loop(ctx: Context) -> list[float]:
        own = ctx.deadline - asyncio.get_running_loop().time()
        return [own, await asyncio.to_thread(lambda: ctx.deadline - time.monotonic())]

    @server.tool
    def none(ctx: SyncContext) -> bool:
        return ctx.deadline == math.inf

    async with Client(server, deadlines=True, cap=100) as client, Client(server) as plain:
        for name in ("thread", "inline"):
            assert 0 < (await client.call_tool(name)).structured_content <= 100
        left = (await client.call_tool("loop")).structured_content
        assert len([each for each in left if 0 < each <= 100]) == 2
        assert (await plain.call_tool("none")).structured_content is True


# -- the client --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_says_what_is_left_of_its_time(era: str, autojump_clock: Any) -> None:
    recorder = Recorder()
    async with Client(recorder.server, era=era, deadlines=True) as client:
        assert client.extensions == {"mcp-actors/deadlines": {}}
        await client.call_tool("left")
        await client.call_tool("left", cap=5)
        # A report of progress would move the idle clock, so that it says nothing about the end.
        await client.call_tool("left", timeout=4, cap=math.inf)
        with trio.move_on_after(3):
            await client.call_tool("left", cap=5)
    assert recorder.events == [300_000, 5000, None, 3000]


@pytest.mark.parametrize("era", ERAS)
async def test_a_request_that_wants_no_progress_says_what_the_idle_clock_leaves(
    era: str, autojump_clock: Any
) -> None:
    async with scripted(era, deadlines=True) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(client.list_tools)
        asked = await peer.receive()
        assert asked["params"]["_meta"][KEY] == 30_000
        await reply(peer, asked, {"tools": []})


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_without_deadlines_sends_and_declares_none(era: str, autojump_clock: Any) -> None:
    recorder = Recorder()
    async with Client(recorder.server, era=era) as client:
        assert client.server_capabilities.extensions is None
        await client.call_tool("left", cap=5)
    assert recorder.events == [None]


@pytest.mark.parametrize("era", ERAS)
async def test_the_time_of_a_call_ends_at_both_sides(era: str, autojump_clock: Any) -> None:
    recorder = Recorder()
    async with Client(recorder.server, era=era, deadlines=True) as client:
        began = trio.current_time()
        # Which of them comes first depends on the way between them.
        with pytest.raises((CallTimeout, DeadlineExceeded)):
            await client.call_tool("slow", cap=5)
        assert trio.current_time() - began == pytest.approx(5)
    assert recorder.events == ["begun", ("stopped", pytest.approx(began + 5))]


async def test_the_error_of_a_server_has_its_class(autojump_clock: Any) -> None:
    recorder = Recorder()
    async with Client(recorder.server) as client:
        with pytest.raises(DeadlineExceeded, match="tools/call slow") as caught:
            await client.call_tool("slow", meta={KEY: 700})
        assert caught.value.begun
        with pytest.raises(DeadlineExceeded) as caught:
            await client.call_tool("slow", meta={KEY: 0})
        assert not caught.value.begun
        assert caught.value.__notes__ == ["see: mcp-actors docs deadlines"]


@pytest.mark.parametrize("era", ERAS)
async def test_each_attempt_says_what_is_left_for_it(era: str, autojump_clock: Any) -> None:
    refusal = {"reason": "server_stopping", "begun": False, "retryAfterMs": 1000}
    async with scripted(era, deadlines=True) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.call_tool, "x", cap=10))
        first = await peer.receive()
        began = trio.current_time()
        await trio.sleep(3)
        await fail(peer, first, 503, refusal)
        second = await peer.receive()
        left = 10 - (trio.current_time() - began)
        await reply(peer, second, {"content": []})
    assert first["params"]["_meta"][KEY] == 10_000
    assert left < 6
    assert second["params"]["_meta"][KEY] == pytest.approx(1000 * left, abs=1)


# -- what is done for a call -------------------------------------------------------------------------------------------


async def test_calls_inside_of_a_tool_inherit_what_is_left_less_a_hop(autojump_clock: Any) -> None:
    inner, outer = Recorder(), Recorder()
    async with Client(inner.server, deadlines=True) as nested, Client(inner.server) as plain:

        @outer.server.tool
        async def both(ctx: Context) -> str:
            await trio.sleep(1)
            await plain.call_tool("left")
            return (await nested.call_tool("left")).text

        @outer.server.tool
        async def too_late(ctx: Context) -> str:
            await trio.sleep(ctx.deadline - trio.current_time() - 0.01)
            try:
                await nested.call_tool("left")
            except DeadlineExceeded as error:
                return f"begun: {error.begun}"
            return "sent"

        @outer.server.tool
        async def caught(ctx: Context) -> str:
            try:
                await nested.call_tool("slow")
            except (CallTimeout, DeadlineExceeded) as error:
                return f"there was time for {type(error).__name__}"
            return ""

        async with Client(outer.server, deadlines=True, cap=5) as client:
            assert (await client.call_tool("both")).text == "3.980"
            assert inner.events == [None, 3980]
            assert (await client.call_tool("too_late")).text == "begun: False"
            assert inner.events == [None, 3980]
            assert (await client.call_tool("caught")).text.startswith("there was time for ")


async def test_a_call_inside_that_ends_with_the_call_is_no_failure_of_the_tool() -> None:
    # In real time, which goes on between two looks at the clock.
    inner, outer = Recorder(), Recorder()
    async with Client(inner.server, deadlines=True) as nested:

        @outer.server.tool
        async def asks() -> str:
            return (await nested.call_tool("slow")).text

        async with Client(outer.server, deadlines=True) as client:
            for _ in range(5):
                with pytest.raises((CallTimeout, DeadlineExceeded)):
                    await client.call_tool("asks", cap=0.1)


async def test_what_goes_on_after_a_call_inherits_nothing(autojump_clock: Any) -> None:
    inner, outer = Recorder(), Recorder()
    async with Client(inner.server, deadlines=True) as nested, trio.open_nursery() as nursery:

        @outer.server.tool
        async def spawns() -> None:
            nursery.start_soon(later)

        async def later() -> None:
            await trio.sleep(60)
            await nested.call_tool("left", cap=7)

        async with Client(outer.server, deadlines=True, cap=5) as client:
            await client.call_tool("spawns")
    assert inner.events == [7000]


async def test_a_thread_of_a_call_hands_it_on() -> None:
    inner, outer = Recorder(), Recorder()

    @outer.server.tool
    def asks(ctx: SyncContext) -> str:
        with SyncClient(inner.server, deadlines=True) as nested:
            return nested.call_tool("left").text

    async with Client(outer.server, deadlines=True, cap=50) as client:
        assert 0 < float((await client.call_tool("asks")).text) <= 50


@pytest.mark.parametrize("era", ERAS)
async def test_questions_to_the_client_end_with_the_call(era: str, autojump_clock: Any) -> None:
    server = Server("asks", mask_errors=False)
    seen: list[Any] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("well?", FORM)
        return answer.action

    async def person(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        try:
            await trio.sleep(100)
        except trio.Cancelled:
            seen.append(("gave up", trio.current_time()))
            raise
        return ElicitResult("accept", {"name": "x"})

    async with Client(server, era=era, deadlines=True, elicitation=person) as client:
        began = trio.current_time()
        with trio.move_on_after(50):
            with pytest.raises((CallTimeout, DeadlineExceeded)):
                await client.call_tool("ask", cap=5)
            assert era == "2025-11-25"
            await trio.sleep(1)
            assert seen == [("gave up", pytest.approx(began + 5, abs=0.1))]


async def test_a_question_says_what_is_left(autojump_clock: Any) -> None:
    server = Server("asks", mask_errors=False)

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("well?", FORM)).action

    async with raw_client(server) as peer:
        await peer.initialize("2025-11-25", {"elicitation": {}})
        await peer.send(request(1, "tools/call", {"name": "ask", "arguments": {}, "_meta": {KEY: 8000}}))
        question = await peer.receive()
        assert question["params"]["_meta"][KEY] == 7980
        await peer.send(request(2, "tools/call", {"name": "ask", "arguments": {}}))
        question = await peer.receive()
        assert KEY not in question["params"].get("_meta", {})


PAIRS = [(client, server) for client in ERAS for server in ERAS]


@pytest.mark.parametrize(("client_era", "server_era"), PAIRS)
async def test_a_gateway_passes_on_what_is_left_less_a_hop(
    client_era: str, server_era: str, autojump_clock: Any
) -> None:
    recorder = Recorder()
    gateway = Gateway([Upstream(name="up", target=recorder.server, era=server_era)])
    async with Client(gateway, era=client_era, deadlines=True) as client:
        assert (await client.call_tool("up_left", cap=5)).text == "4.980"
        began = trio.current_time()
        with pytest.raises((CallTimeout, RpcError)):
            await client.call_tool("up_slow", cap=5)
    async with Client(gateway, era=client_era) as plain:
        assert (await plain.call_tool("up_left", cap=5)).text == "inf"
    assert recorder.events == [4980, "begun", ("stopped", pytest.approx(began + 4.98)), None]


async def test_a_call_that_a_gateway_holds_while_its_client_is_asked_has_no_deadline_there(
    autojump_clock: Any,
) -> None:
    server = Server("asks", mask_errors=False)
    seen: list[Any] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        seen.append(ctx.meta.get(KEY))
        return (await ctx.elicit("well?", FORM)).action

    async def person(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        await trio.sleep(100)
        return ElicitResult("accept", {"name": "x"})

    gateway = Gateway([Upstream(name="up", target=server, era="2025-11-25")])
    async with Client(gateway, era="2026-07-28", deadlines=True, elicitation=person) as client:
        assert (await client.call_tool("up_ask", cap=5)).text == "accept"
    assert seen == [None]


@pytest.mark.parametrize("era", ERAS)
async def test_a_task_ends_at_the_deadline_of_the_call_that_it_was_made_of(
    era: str, autojump_clock: Any
) -> None:
    server = Server("tasks", mask_errors=False)
    seen: list[Any] = []

    @server.tool(task="required")
    async def long(ctx: Context) -> str:
        seen.append(round(ctx.deadline - trio.current_time(), 3))
        try:
            await trio.sleep(1000)
        except trio.Cancelled:
            seen.append("stopped")
            raise
        return "slept"

    async with Client(server, era=era, deadlines=True, cap=5) as client:
        with pytest.raises((CallTimeout, RpcError)):
            await client.call_tool("long")
        await trio.sleep(1)
        assert seen == [pytest.approx(5), "stopped"]
        # What is started as a task outlives the request that creates it.
        seen.clear()
        handle = await client.start_tool("long")
        await trio.sleep(100)
        assert seen == [math.inf]
        assert (await handle.status()).status == "working"


async def test_a_task_that_reaches_its_deadline_fails_with_it(autojump_clock: Any) -> None:
    server = Server("tasks", mask_errors=False)

    @server.tool(task="required")
    async def long(ctx: Context) -> None:
        await trio.sleep(1000)

    async with Client(server, era="2026-07-28") as client:
        handle = await client.start_tool("long", meta={KEY: 3000})
        with pytest.raises(DeadlineExceeded) as caught:
            await handle.result()
        assert caught.value.begun
