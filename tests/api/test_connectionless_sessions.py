"""Sessions that no connection carries: their messages come one by one, each with an outlet of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Context, Server

from .exchanging import INITIALIZED, Desk, Recorder, desk, initialize, legacy

settled = trio.testing.wait_all_tasks_blocked


class Bench:
    """A server with tools whose calls the test can watch and let go."""

    def __init__(self) -> None:
        self.server = Server("bench")
        self.seen: list[str] = []
        self.limiters: dict[str, trio.Event] = {}
        server = self.server

        @server.tool
        async def wait(name: str, ctx: Context) -> str:
            limiter = self.limiters[name] = trio.Event()
            try:
                await ctx.progress(1)
                await limiter.wait()
            except trio.Cancelled:
                self.seen.append(f"{name} cancelled")
                raise
            return name

        @server.tool
        async def ask(ctx: Context) -> str:
            answer = await ctx.elicit("?", {"type": "object", "properties": {}})
            return answer.action

        @server.tool
        async def let_go(ctx: Context) -> str:
            ctx.close_stream()
            return "later"

        @server.resource("x://y")
        def resource() -> str:
            return "y"


@asynccontextmanager
async def session_of(bench: Bench, version: str = "2025-11-25") -> AsyncIterator[tuple[Desk, Any, Recorder]]:
    async with desk(bench.server) as each:
        apart = Recorder()
        session = each.handler.open_session(apart)
        assert not session.initialized
        answer = each.deliver(session, initialize(0, version, elicitation={})).answer
        assert answer["result"]["protocolVersion"] == version
        assert session.initialized
        each.deliver(session, INITIALIZED)
        yield each, session, apart
        session.close()


def wait_for(id: Any, name: str, **meta: Any) -> Any:
    return legacy(id, "tools/call", name="wait", arguments={"name": name}, _meta=meta)


async def test_each_answer_goes_to_the_outlet_that_came_with_its_request() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, apart):
        first = each.deliver(session, wait_for(1, "a", progressToken="t"))
        second = each.deliver(session, wait_for(2, "b"))
        await settled()
        assert session.busy
        bench.limiters["b"].set()
        bench.limiters["a"].set()
        await settled()
        assert [m.get("method", m.get("id")) for m in first.messages] == ["notifications/progress", 1]
        assert [m["id"] for m in second.messages] == [2]
        assert apart.frames == []
        assert not session.busy


async def test_two_requests_with_one_id_get_their_own_answers() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, _):
        first, second = (each.deliver(session, wait_for(1, name)) for name in "ab")
        await settled()
        # Nobody can tell which one is meant: neither is ended.
        each.deliver(session, cancel(1))
        bench.limiters["b"].set()
        bench.limiters["a"].set()
        await settled()
        assert first.answer["result"]["content"][0]["text"] == "a"
        assert second.answer["result"]["content"][0]["text"] == "b"
        assert bench.seen == []


def cancel(id: Any) -> Any:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


async def test_a_cancelled_call_settles_its_outlet_without_an_answer() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, _):
        outlet = each.deliver(session, wait_for(1, "a"))
        await settled()
        each.deliver(session, cancel(1))
        await settled()
        assert bench.seen == ["a cancelled"]
        assert (outlet.frames, outlet.settled) == ([], 1)


async def test_a_question_goes_where_the_answer_of_its_call_goes() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, apart):
        outlet = each.deliver(session, legacy(1, "tools/call", name="ask", arguments={}))
        await settled()
        question = outlet.messages[0]
        assert question["method"] == "elicitation/create"
        assert outlet.frames[0].request == question["id"]
        assert outlet.frames[0].about == 1
        assert apart.frames == []
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
        assert each.deliver(session, reply).frames == []
        await settled()
        assert outlet.answer["result"]["content"][0]["text"] == "decline"


async def test_what_is_told_unasked_goes_to_the_outlet_of_the_session() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, apart):
        each.deliver(session, legacy(1, "resources/subscribe", uri="x://y"))
        bench.server.resource_updated("x://y")
        await settled()
        assert [m["method"] for m in apart.messages] == ["notifications/resources/updated"]
        session.close()
        bench.server.resource_updated("x://y")
        await settled()
        assert len(apart.frames) == 1


async def test_closing_cancels_what_is_in_flight_and_forgets_the_session() -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, _):
        outlet = each.deliver(session, wait_for(1, "a"))
        await settled()
        assert len(bench.server.tree().sessions) == 1
        session.close()
        session.close()
        await settled()
        assert bench.seen == ["a cancelled"]
        assert outlet.frames == []
        assert bench.server.tree().sessions == ()
        assert each.deliver(session, legacy(2, "ping")).frames == []


async def test_nothing_is_served_before_initialize_and_no_second_one() -> None:
    bench = Bench()
    async with desk(bench.server) as each:
        session = each.handler.open_session(Recorder())
        early = each.deliver(session, legacy(1, "tools/list"))
        assert early.refusal == -32600
        assert not session.initialized
        session.close()
    async with session_of(bench) as (each, session, _):
        assert each.deliver(session, initialize(5)).refusal == -32600


@pytest.mark.parametrize(("version", "resumes"), [("2025-11-25", True), ("2025-06-18", False)])
async def test_only_some_clients_come_back_for_a_closed_stream(version: str, resumes: bool) -> None:
    bench = Bench()
    async with session_of(bench, version) as (each, session, _):
        assert session.resumes is resumes
        outlet = each.deliver(session, legacy(1, "tools/call", name="let_go", arguments={}))
        await settled()
        assert outlet.closed == 1
        assert outlet.answer["result"]["content"][0]["text"] == "later"


async def test_a_batch_is_answered_by_one_last_frame() -> None:
    bench = Bench()
    async with session_of(bench, "2025-03-26") as (each, session, _):
        outlet = each.deliver(session, [wait_for(1, "a"), legacy(2, "ping"), cancel(9)])
        await settled()
        bench.limiters["a"].set()
        await settled()
        assert [frame.last for frame in outlet.frames] == [True]
        assert sorted(answer["id"] for answer in outlet.answer) == [1, 2]
        outlet = each.deliver(session, [wait_for(3, "c")])
        await settled()
        each.deliver(session, cancel(3))
        await settled()
        assert (outlet.frames, outlet.settled) == ([], 1)


async def test_an_idle_session_has_no_task() -> None:
    bench = Bench()
    async with session_of(bench) as (each, _, _):
        before = trio.lowlevel.current_statistics().tasks_living
        sessions = [each.handler.open_session(Recorder()) for _ in range(100)]
        for number, other in enumerate(sessions):
            each.deliver(other, initialize(number))
            each.deliver(other, INITIALIZED)
        await settled()
        assert trio.lowlevel.current_statistics().tasks_living == before
        assert len(bench.server.tree().sessions) == 101
        for other in sessions:
            other.close()


async def test_stopping_lets_calls_of_sessions_end(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, _):
        outlet = each.deliver(session, wait_for(1, "a"))
        idle = each.handler.open_session(Recorder())
        await settled()
        bench.server.stop()
        await settled()
        assert idle.dispatcher.state == "ended"
        bench.limiters["a"].set()
        await settled()
        assert outlet.answer["result"]["content"][0]["text"] == "a"


async def test_all_who_wait_for_a_session_to_be_idle_see_it(autojump_clock: trio.testing.MockClock) -> None:
    bench = Bench()
    async with session_of(bench) as (each, session, _):
        each.deliver(session, wait_for(1, "a"))
        await settled()
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.wait_until_idle)
                nursery.start_soon(session.wait_until_idle)
                await settled()
                session.stop()
                await settled()
                # The call goes on, so that nobody is told yet.
                assert len(nursery.child_tasks) == 2
                bench.limiters["a"].set()
