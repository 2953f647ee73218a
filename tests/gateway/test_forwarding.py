"""A request goes through a gateway to its server, and the result comes back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Limits, Server
from mcp_actors._actors import eager
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.link import Link
from mcp_actors._actors.outbound import OutboundCalls
from mcp_actors._actors.outbound_call import CallOptions, OutboundCall
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    ConnectionLost,
    HeaderMismatch,
    LocalProtocolError,
    RpcError,
    SessionExpired,
    UpstreamUnavailable,
)
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.gateway.breaker import THRESHOLD
from mcp_actors.supervision.task_kinds import CALL_WORKER
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_transports.http.server import HttpServerTransport
from tests.gateway.hostile import HostileUpstream
from tests.messages import LEGACY, call, cancelled

PAIRS = [(client, server) for client in ("legacy", "modern") for server in ("legacy", "modern")]


def make_server() -> Server:
    server = Server("behind")

    @server.tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    return server


@pytest.mark.parametrize(("client_era", "server_era"), PAIRS)
async def test_a_call_reaches_the_server_whose_prefix_its_name_has(client_era: str, server_era: str) -> None:
    gateway = Gateway([Upstream(name="sums", target=make_server(), era=server_era)])
    gateway.add_tool(lambda: "mine", name="own", description="Its own.")
    async with Client(gateway, era=client_era) as client:
        assert [tool.name async for tool in client.tools()] == ["own", "sums_add"]
        result = await client.call_tool("sums_add", {"a": 1, "b": 2})
        assert result.text == "3"
        assert (await client.call_tool("own")).text == "mine"
        with pytest.raises(RpcError, match="unknown tool: none_add"):
            await client.call_tool("none_add")


async def test_a_server_that_is_away_costs_its_own_tools_alone() -> None:
    away = Upstream(name="away", target="stdio:false")
    gateway = Gateway([away, Upstream(name="sums", target=make_server())])
    async with Client(gateway) as client:
        with pytest.raises(UpstreamUnavailable, match="'away' is not available"):
            await client.call_tool("away_add", {"a": 1, "b": 2})
        result = await client.call_tool("sums_add", {"a": 1, "b": 2})
        assert result.text == "3"


# -- A call that waits for nothing but the answer of an upstream has no task, and ends as every other call does ---

GRACE = 30.0


class SlowUpstream(HostileUpstream):
    """An upstream that answers a call when the test says so."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery, tools__call=self._call)
        self.gate = trio.Event()

    async def _call(self, channel: FrameChannel, message: dict[str, Any]) -> dict[str, Any]:
        self._called = channel, message["params"].get("_meta", {}).get("progressToken")
        await self.gate.wait()
        return {"content": [{"type": "text", "text": "late"}]}

    async def report(self, done: float) -> None:
        """Reports progress of the call that came last."""
        channel, token = self._called
        params = {"progressToken": token, "progress": done}
        report = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        await channel.send(Frame(json.dumps(report).encode()))

    def leave(self) -> None:
        """Closes the connection that the last call came over."""
        self._nursery.start_soon(self._called[0].aclose)

    def cancelled(self) -> int:
        """The number of calls that were taken back."""
        return sum(each.get("method") == "notifications/cancelled" for each in self.received)


@asynccontextmanager
async def in_front_of(slow: SlowUpstream) -> AsyncIterator[tuple[Gateway, ScriptedPeer]]:
    """Yields a gateway in front of an upstream, and a client of it that has listed the tools."""
    way = await slow.begin()
    upstream = Upstream(name="u", target=lambda: way, era="legacy", timeout=100)
    gateway = Gateway([upstream], limits=Limits(end_grace=GRACE, drain_grace=GRACE))
    async with raw_client(gateway) as peer:
        await peer.initialize(LEGACY)
        await peer.request("list", "tools/list")
        yield gateway, peer


def tasks_of_calls() -> list[str]:
    """The names of the tasks that run calls of tools at the moment."""
    found, waiting = [], [trio.lowlevel.current_root_task()]
    while waiting:
        task = waiting.pop()
        assert task is not None
        found += [task.name] if task.name == f"{CALL_WORKER.name} tools/call" else []
        waiting += [each for nursery in task.child_nurseries for each in nursery.child_tasks]
    return found


def in_flight(gateway: Gateway) -> tuple[int, int]:
    """The calls in flight at the gateway, and those at the upstream."""
    tree = gateway.tree()
    return sum(len(each.calls) for each in tree.sessions), sum(each.in_flight for each in tree.upstreams)


async def test_it_is_answered(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        await peer.send(call(1, "u_x"))
        await peer.send(call(2, "u_x"))
        await wait_all_tasks_blocked()
        assert (tasks_of_calls(), in_flight(gateway)) == ([], (2, 2))
        slow.gate.set()
        answers = [await peer.receive(), await peer.receive()]
        assert sorted(each["id"] for each in answers) == [1, 2]
        assert answers[0]["result"]["content"][0]["text"] == "late"
        assert in_flight(gateway) == (0, 0)


async def test_one_with_a_progress_token_has_a_task_when_there_is_progress(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        await peer.send(call(1, "u_x", token="t"))
        await wait_all_tasks_blocked()
        assert (len(tasks_of_calls()), in_flight(gateway)) == (0, (1, 1))
        for done in (1, 2):
            await slow.report(done)
            report = await peer.receive()
            assert report["method"] == "notifications/progress"
            assert report["params"] == {"progressToken": "t", "progress": done}
            await wait_all_tasks_blocked()
            assert (len(tasks_of_calls()), in_flight(gateway)) == (1, (1, 1))
        await slow.report(3)
        slow.gate.set()
        # The report that comes with the answer is passed on before it.
        assert (await peer.receive())["params"]["progress"] == 3
        assert (await peer.receive())["result"]["content"][0]["text"] == "late"
        await wait_all_tasks_blocked()
        assert (tasks_of_calls(), in_flight(gateway)) == ([], (0, 0))


@pytest.mark.parametrize("reports", [0, 1])
async def test_one_with_a_progress_token_is_cancelled(
    reports: int, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        await peer.send(call(1, "u_x", token="t"))
        await wait_all_tasks_blocked()
        for done in range(reports):
            await slow.report(done + 1)
            await peer.receive()
        await peer.send(cancelled(1))
        await wait_all_tasks_blocked()
        assert (slow.cancelled(), in_flight(gateway), tasks_of_calls()) == (1, (0, 0), [])
        assert (await peer.request(1, "ping"))["result"] == {}


async def test_one_that_is_cancelled_between_its_progress_and_its_task(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without eager steps the task begins a turn after the report was read.
    monkeypatch.setattr(eager, "step", None)
    started: list[InboundCall] = []
    start = TaskPool.start

    def start_and_cancel(pool: TaskPool, call: InboundCall) -> None:
        start(pool, call)
        if call.invocation.progress_token is not None:
            started.append(call)
            call.cancel("it was not needed any more")

    monkeypatch.setattr(TaskPool, "start", start_and_cancel)
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        await peer.send(call(1, "u_x", token="t"))
        await wait_all_tasks_blocked()
        assert (started, in_flight(gateway)) == ([], (1, 1))
        await slow.report(1)
        await wait_all_tasks_blocked()
        assert len(started) == 1
        assert (slow.cancelled(), in_flight(gateway), tasks_of_calls()) == (1, (0, 0), [])


async def test_an_upstream_is_lost_after_progress(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        await peer.send(call(1, "u_x", token="t"))
        await wait_all_tasks_blocked()
        await slow.report(1)
        assert (await peer.receive())["method"] == "notifications/progress"
        slow.leave()
        answer = await peer.receive()
        assert (answer["id"], "error" in answer) == (1, True)
        await wait_all_tasks_blocked()
        assert (in_flight(gateway), tasks_of_calls()) == ((0, 0), [])


async def test_the_client_cancels_it(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        await peer.send(call(1, "u_x"))
        await wait_all_tasks_blocked()
        await peer.send(cancelled(1))
        await wait_all_tasks_blocked()
        assert (slow.cancelled(), in_flight(gateway)) == (1, (0, 0))
        slow.gate.set()
        # Nothing is sent for it, and its id may be used again.
        assert (await peer.request(1, "ping"))["result"] == {}


async def test_an_operator_ends_it(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        await peer.send(call(1, "u_x"))
        await wait_all_tasks_blocked()
        (of_client,) = gateway._runtime.calls()
        of_client.end_with(RpcError(-32000, "an operator has ended it"))
        assert (await peer.receive())["error"]["message"] == "an operator has ended it"
        await wait_all_tasks_blocked()
        assert (slow.cancelled(), in_flight(gateway)) == (1, (0, 0))


async def test_the_connection_of_its_client_breaks(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        await peer.send(call(1, "u_x"))
        await wait_all_tasks_blocked()
        (session,) = gateway._runtime._sessions
        session.lose("the wire was cut")
        await wait_all_tasks_blocked()
        assert (slow.cancelled(), in_flight(gateway)) == (1, (0, 0))


@pytest.mark.parametrize("answered", [True, False], ids=["answered in time", "too slow"])
async def test_the_server_stops_and_waits_for_it_as_long_as_for_others(
    nursery: trio.Nursery, autojump_clock: MockClock, answered: bool
) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        await peer.send(call(1, "u_x"))
        await wait_all_tasks_blocked()
        (session,) = gateway._runtime._sessions
        began = trio.current_time()
        session.stop()
        if answered:
            await trio.sleep(GRACE / 2)
            assert in_flight(gateway) == (1, 1)
            slow.gate.set()
            assert (await peer.receive())["result"]["content"][0]["text"] == "late"
        await session.ended.wait()
        await wait_all_tasks_blocked()
        assert trio.current_time() - began == pytest.approx(GRACE / 2 if answered else GRACE, abs=1)
        assert (slow.cancelled(), in_flight(gateway)) == (0 if answered else 1, (0, 0))


async def test_the_upstream_never_answers(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        await peer.send(call(1, "u_x"))
        assert (await peer.receive())["error"]["code"] == 504
        await wait_all_tasks_blocked()
        assert (slow.cancelled(), in_flight(gateway)) == (1, (0, 0))


async def test_a_defect_costs_the_call_and_not_the_connection_that_its_answer_came_on(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowUpstream(nursery)
    slow.gate.set()
    async with in_front_of(slow) as (gateway, peer):
        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr("mcp_actors.gateway.forwarding.result_for_caller", None)
            answer = await peer.request(1, "tools/call", {"name": "u_x", "arguments": {}})
        assert answer["error"]["code"] == INTERNAL_ERROR
        assert "TypeError" in str([each.get("exc_info") for each in logs])
        answer = await peer.request(2, "tools/call", {"name": "u_x", "arguments": {}})
        assert answer["result"]["content"][0]["text"] == "late"
        assert (slow.connects, in_flight(gateway)) == (1, (0, 0))


async def test_one_that_was_refused_without_being_run_is_made_again(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowUpstream(nursery)
    slow.gate.set()
    take = OutboundCalls.take
    refusals = [HeaderMismatch("a header is missing"), SessionExpired("forgotten", never_run=True)]

    def refuses_first(self: OutboundCalls, pending: OutboundCall, options: CallOptions) -> dict[str, Any]:
        result = take(self, pending, options)
        if refusals:
            raise refusals.pop()
        return result

    monkeypatch.setattr(OutboundCalls, "take", refuses_first)
    async with in_front_of(slow) as (gateway, peer):
        for number in (1, 2, 3):
            answer = await peer.request(number, "tools/call", {"name": "u_x", "arguments": {}})
            assert answer["result"]["content"][0]["text"] == "late"
        asked = [each["method"] for each in slow.received].count("tools/call")
        assert (asked, in_flight(gateway)) == (5, (0, 0))


async def test_it_has_no_task_over_http_either() -> None:
    server, gate, began = Server("behind"), trio.Event(), trio.Event()

    @server.tool
    async def wait() -> str:
        began.set()
        await gate.wait()
        return "late"

    async with trio.open_nursery() as nursery:
        (where,) = await nursery.start(server.serve, HttpServerTransport("http://127.0.0.1:0/mcp"))
        async with raw_client(Gateway([Upstream(name="u", target=str(where))])) as peer:
            await peer.initialize(LEGACY)
            await peer.request("list", "tools/list")
            await peer.send(call(1, "u_wait"))
            await began.wait()
            assert len(tasks_of_calls()) == 1, "the server's own"
            gate.set()
            assert (await peer.receive())["result"]["content"][0]["text"] == "late"
        nursery.cancel_scope.cancel()


async def test_what_cannot_be_sent_costs_the_call_and_says_nothing_of_the_gateway(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowUpstream(nursery)
    slow.gate.set()
    async with in_front_of(slow) as (gateway, peer):
        for number, error, code in (
            (1, ConnectionLost("the connection to /home/ann/server --key secret broke"), 502),
            (2, LocalProtocolError("a message of 17 bytes is too long"), INVALID_PARAMS),
        ):

            def fails(*args: Any, error: Exception = error, **named: Any) -> Any:
                raise error

            with monkeypatch.context() as patched:
                patched.setattr(OutboundCalls, "begin", fails)
                answer = await peer.request(number, "tools/call", {"name": "u_x", "arguments": {}})
            assert answer["error"]["code"] == code
            assert "secret" not in str(answer)
            assert in_flight(gateway) == (0, 0)
        answer = await peer.request(3, "tools/call", {"name": "u_x", "arguments": {}})
        assert answer["result"]["content"][0]["text"] == "late"


async def test_an_open_circuit_refuses_it_and_counts_no_call(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        (live,) = gateway._live.values()
        for _ in range(THRESHOLD):
            live.actors["u"].health.failed("it is away")
        answer = await peer.request(1, "tools/call", {"name": "u_x", "arguments": {}})
        assert answer["error"]["code"] == 502
        assert in_flight(gateway) == (0, 0)


async def test_an_answer_that_cannot_be_passed_back_costs_no_other_call_of_the_connection(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowUpstream(nursery)
    async with in_front_of(slow) as (gateway, peer):
        for number in (1, 2):
            await peer.send(call(number, "u_x"))
        await wait_all_tasks_blocked()
        post, failures = Link.post, [ZeroDivisionError("a defect")]

        def fails_first(self: Link, frame: Frame) -> None:
            if frame.last and failures:
                raise failures.pop()
            post(self, frame)

        monkeypatch.setattr(Link, "post", fails_first)
        slow.gate.set()
        assert (await peer.receive())["result"]["content"][0]["text"] == "late"
        await wait_all_tasks_blocked()
        assert (slow.connects, in_flight(gateway)) == (1, (0, 0))
