"""Which connection serves whom, how an upstream goes and comes back, and what it costs the others."""

from __future__ import annotations

import gc

import msgspec
import pytest
import trio
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, Limits, Server
from mcp_actors._actors.session import ReadingPace
from mcp_actors._wire.codec import JsonRpcNotification, JsonRpcResult
from mcp_actors.errors import Overloaded, UpstreamTimeout, UpstreamUnavailable
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.gateway.breaker import NEXT_STATE, PAUSES, THRESHOLD, CircuitBreaker, CircuitState
from mcp_actors.gateway.connections import UpstreamConnection
from mcp_actors.gateway.upstream import CONNECT_TIMEOUT, IDLE_TIMEOUT, PING_TIMEOUT, SWEEP_INTERVAL
from mcp_transports.memory import MemoryTransport
from tests.actors.peers import BreaksFirst, counting
from tests.gateway.upstreams import Behind, make_server, serve_gateway
from tests.middleware.callers import served


@pytest.mark.parametrize("name", ["max_in_flight", "max_connections", "max_notifications"])
def test_a_limit_with_which_no_call_is_made_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Upstream(name="x", target=Server("x"), **{name: 0})  # type: ignore[arg-type]


async def test_a_server_with_sessions_has_one_for_each_session_of_a_client(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    way = await serve_gateway(nursery, Upstream(name="u", target=behind, era="legacy", lazy=True))
    async with Client(way, era="legacy") as first, Client(way, era="modern") as second:
        assert [(await first.call_tool("u_count")).text for _ in range(3)] == ["1", "2", "3"]
        assert (await second.call_tool("u_count")).text == "1"
        assert behind.open == 2
    await trio.sleep(1)
    assert behind.open == 0


async def test_a_server_without_sessions_is_shared_by_all(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    way = await serve_gateway(nursery, Upstream(name="u", target=behind, era="modern", lazy=True))
    async with Client(way, era="legacy") as first, Client(way, era="modern") as second:
        assert (await first.call_tool("u_add", {"a": 1, "b": 2})).text == "3"
        assert (await second.call_tool("u_add", {"a": 1, "b": 2})).text == "3"
        assert (behind.connects, behind.open) == (1, 1)


async def test_who_shares_can_be_said(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    behind = Behind(nursery)
    await behind.come()
    way = await serve_gateway(
        nursery,
        Upstream(name="all", target=behind, era="legacy", lazy=True, sessions="shared"),
        Upstream(name="each", target=behind, era="modern", lazy=True, sessions="own"),
    )
    async with Client(way) as first, Client(way) as second:
        assert (await first.call_tool("all_count")).text == "1"
        assert (await second.call_tool("all_count")).text == "2"
        assert behind.open == 1
        for client in (first, second):
            await client.call_tool("each_add", {"a": 1, "b": 2})
        assert behind.open == 3


async def test_all_who_need_one_connection_wait_for_one_attempt(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    behind.gate = trio.Event()
    way = await serve_gateway(nursery, Upstream(name="u", target=behind, era="modern", lazy=True))
    async with Client(way) as client, trio.open_nursery() as calls:
        cancelled = trio.CancelScope()

        async def give_up() -> None:
            with cancelled:
                await client.call_tool("u_add", {"a": 1, "b": 2})

        calls.start_soon(give_up)
        await wait_all_tasks_blocked()
        for _ in range(5):
            calls.start_soon(client.call_tool, "u_add", {"a": 1, "b": 2})
        await wait_all_tasks_blocked()
        # Whoever waited first gives up, and the others get the connection all the same.
        cancelled.cancel()
        await wait_all_tasks_blocked()
        behind.gate.set()
    assert cancelled.cancelled_caught
    assert behind.connects == 1


async def test_it_is_connected_to_before_anybody_calls_unless_it_is_lazy(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    eager, lazy = Behind(nursery), Behind(nursery)
    await eager.come()
    await lazy.come()
    await serve_gateway(
        nursery,
        Upstream(name="eager", target=eager, era="modern"),
        Upstream(name="lazy", target=lazy, era="modern", lazy=True),
    )
    await trio.sleep(10)
    assert (eager.open, lazy.open) == (1, 0)
    eager.go()
    await trio.lowlevel.checkpoint()
    await eager.come()
    await trio.sleep(60)
    assert eager.open == 1


async def test_the_connection_that_was_made_first_is_the_first_callers(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    way = await serve_gateway(nursery, Upstream(name="u", target=behind, era="legacy"))
    await trio.sleep(10)
    assert behind.connects == 1
    async with Client(way, tasks=False, era="legacy") as client:
        assert (await client.call_tool("u_count")).text == "1"
        assert behind.connects == 1


async def test_a_server_that_is_away_is_in_the_log_once_until_it_is_back(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    with capture_logs() as lines:
        await serve_gateway(nursery, Upstream(name="u", target=behind, era="modern"))
        await trio.sleep(60)
        assert behind.connects > 3
        await behind.come()
        await trio.sleep(60)
        behind.go()
        await trio.sleep(60)
    told = [each for each in lines if each["event"] == "an upstream cannot be connected to"]
    assert [each["log_level"] for each in told].count("warning") == 2
    assert told[0]["log_level"] == "warning"


async def test_a_server_that_went_away_is_refused_at_once_and_tried_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind, other = Behind(nursery), Behind(nursery)
    await behind.come()
    await other.come()
    way = await serve_gateway(
        nursery,
        Upstream(name="u", target=behind, era="modern", lazy=True),
        Upstream(name="v", target=other, era="modern", lazy=True),
    )
    async with Client(way) as client:
        await client.call_tool("u_add", {"a": 1, "b": 2})
        behind.go()
        await trio.sleep(0.01)
        for _ in range(THRESHOLD):
            with pytest.raises(UpstreamUnavailable, match="it cannot be connected to"):
                await client.call_tool("u_add", {"a": 1, "b": 2})
        connects = behind.connects
        with pytest.raises(UpstreamUnavailable, match="several times in a row") as refused:
            await client.call_tool("u_add", {"a": 1, "b": 2})
        assert refused.value.data["upstream"] == "u"
        assert 0 < refused.value.data["retryAfterMs"] <= PAUSES[0] * 1000
        assert behind.connects == connects
        assert (await client.call_tool("v_add", {"a": 1, "b": 2})).text == "3"
        await behind.come()
        await trio.sleep(PAUSES[0])
        assert (await client.call_tool("u_add", {"a": 1, "b": 2})).text == "3"


async def test_a_call_whose_server_goes_away_fails_with_its_name_and_no_other_one_does(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind, other = Behind(nursery), Behind(nursery)
    await behind.come()
    await other.come()
    way = await serve_gateway(
        nursery, Upstream(name="u", target=behind, lazy=True), Upstream(name="v", target=other, lazy=True)
    )
    async with Client(way) as client, trio.open_nursery() as calls:

        async def lost() -> None:
            with pytest.raises(UpstreamUnavailable, match="'u' is not available: the connection was lost"):
                await client.call_tool("u_wait", {"seconds": 10})

        async def kept() -> None:
            assert (await client.call_tool("v_wait", {"seconds": 10})).text == "waited"

        calls.start_soon(lost)
        calls.start_soon(kept)
        await trio.sleep(1)
        behind.go()


@pytest.mark.parametrize("how", ["at once", "queued"])
@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_of_which_nothing_was_sent_is_made_again(era: str, is_listed: bool, how: str) -> None:
    """One whose name is not listed has a task at the gateway, and another one has none."""
    transport = MemoryTransport()
    gateway = Gateway([Upstream(name="u", target=BreaksFirst(transport, [how]), era=era)])
    async with trio.open_nursery() as nursery:
        await nursery.start(counting().serve, transport)
        async with Client(gateway, era=era) as client:
            if is_listed:
                assert [tool.name async for tool in client.tools()] == ["u_count"]
            assert (await client.call_tool("u_count")).text == "1"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_call_whose_connections_all_break_is_made_a_few_times(is_listed: bool) -> None:
    transport, hows = MemoryTransport(), ["at once"] * 20
    gateway = Gateway([Upstream(name="u", target=BreaksFirst(transport, hows), era="legacy")])
    async with trio.open_nursery() as nursery:
        await nursery.start(counting().serve, transport)
        async with Client(gateway, era="legacy") as client:
            if is_listed:
                assert [tool.name async for tool in client.tools()] == ["u_count"]
            with pytest.raises(UpstreamUnavailable):
                await client.call_tool("u_count")
        nursery.cancel_scope.cancel()
    assert len(hows) >= 15


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_that_may_have_been_sent_is_not_made_again(era: str) -> None:
    transport = MemoryTransport()
    gateway = Gateway([Upstream(name="u", target=BreaksFirst(transport, ["torn"]), era=era)])
    async with trio.open_nursery() as nursery:
        await nursery.start(counting().serve, transport)
        async with Client(gateway, era=era) as client:
            with pytest.raises(UpstreamUnavailable):
                await client.call_tool("u_count")
            assert (await client.call_tool("u_count")).text == "2"
        nursery.cancel_scope.cancel()


async def test_a_slow_server_holds_so_many_calls_and_one_caller_half_of_them(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    settings = Upstream(name="u", target=behind, era="modern", lazy=True, max_in_flight=4)
    way = await serve_gateway(nursery, settings)
    async with Client(way) as greedy, Client(way) as modest, Client(way) as late:
        await greedy.call_tool("u_add", {"a": 1, "b": 2})
        async with trio.open_nursery() as calls:
            for client in (greedy, greedy, modest, modest):
                calls.start_soon(client.call_tool, "u_wait", {"seconds": 5})
            await wait_all_tasks_blocked()
            with pytest.raises(
                Overloaded, match="too many calls at one server of this client: the limit is 2"
            ):
                await greedy.call_tool("u_add", {"a": 1, "b": 2})
            with pytest.raises(Overloaded, match="of all callers"):
                await late.call_tool("u_add", {"a": 1, "b": 2})
        assert (await late.call_tool("u_add", {"a": 1, "b": 2})).text == "3"


async def test_a_server_that_answers_nothing_is_given_up_for_a_while(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    way = await serve_gateway(nursery, Upstream(name="u", target=behind, era="modern", lazy=True, timeout=2))
    async with Client(way) as client:
        await client.call_tool("u_add", {"a": 1, "b": 2})
        behind.is_silent = True
        for _ in range(THRESHOLD):
            with pytest.raises(UpstreamTimeout):
                await client.call_tool("u_add", {"a": 1, "b": 2})
            await trio.sleep(PING_TIMEOUT + 0.1)
        with pytest.raises(UpstreamUnavailable, match="several times in a row"):
            await client.call_tool("u_add", {"a": 1, "b": 2})


async def test_calls_that_take_too_long_keep_nobody_from_a_server_that_is_alive(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    way = await serve_gateway(
        nursery, Upstream(name="u", target=behind, era="modern", lazy=True, timeout=2, cap=3)
    )
    async with Client(way) as hostile, Client(way) as other:
        for _ in range(2 * THRESHOLD):
            with pytest.raises(UpstreamTimeout):
                await hostile.call_tool("u_wait", {"seconds": 1000})
        assert (await other.call_tool("u_add", {"a": 1, "b": 2})).text == "3"


async def test_a_handshake_without_an_end_is_given_up(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    behind.is_silent = True
    way = await serve_gateway(nursery, Upstream(name="u", target=behind, lazy=True))
    async with Client(way, timeout=100) as client:
        began = trio.current_time()
        with pytest.raises(UpstreamUnavailable, match="it cannot be connected to"):
            await client.call_tool("u_add", {"a": 1, "b": 2})
        assert trio.current_time() - began <= CONNECT_TIMEOUT + 1
        assert behind.open == 0


async def test_connections_have_a_bound_and_those_that_nobody_needs_make_room(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    settings = Upstream(name="u", target=behind, era="legacy", lazy=True, max_connections=2)
    way = await serve_gateway(nursery, settings)
    async with Client(way) as first, Client(way) as third:
        async with Client(way) as second:
            for client in (first, second):
                await client.call_tool("u_add", {"a": 1, "b": 2})
            with pytest.raises(Overloaded, match="connections of all callers to one server"):
                await third.call_tool("u_add", {"a": 1, "b": 2})
        await trio.sleep(1)
        assert (await third.call_tool("u_add", {"a": 1, "b": 2})).text == "3"


async def test_what_is_made_before_anybody_calls_is_closed_when_nobody_takes_it(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    await serve_gateway(nursery, Upstream(name="u", target=behind, era="legacy"))
    await trio.sleep(10)
    assert behind.open == 1
    await trio.sleep(IDLE_TIMEOUT + 2 * SWEEP_INTERVAL)
    assert behind.open == 0


async def test_a_target_that_cannot_be_made_costs_its_upstream_alone(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    def broken() -> MemoryTransport:
        raise RuntimeError("no target")

    behind = Behind(nursery)
    await behind.come()
    way = await serve_gateway(
        nursery, Upstream(name="u", target=broken, lazy=True), Upstream(name="v", target=behind, lazy=True)
    )
    async with Client(way) as client:
        with pytest.raises(UpstreamUnavailable, match="'u' is not available: it cannot be connected to"):
            await client.call_tool("u_add", {"a": 1, "b": 2})
        assert (await client.call_tool("v_add", {"a": 1, "b": 2})).text == "3"


async def test_one_principal_may_have_half_of_the_connections(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    gateway = Gateway([Upstream(name="u", target=behind, era="legacy", lazy=True, max_connections=2)])
    async with served(gateway) as place:
        async with place.client("greedy") as one, place.client("greedy") as two:
            await one.call_tool("u_count")
            with pytest.raises(Overloaded, match="connections to one server of this client: the limit is 1"):
                await two.call_tool("u_count")
            async with place.client("other") as other:
                assert (await other.call_tool("u_count")).text == "1"


async def test_one_address_may_have_half_of_the_connections(nursery: trio.Nursery) -> None:
    behind = Behind(nursery)
    await behind.come()
    gateway = Gateway([Upstream(name="u", target=behind, era="legacy", lazy=True, max_connections=2)])
    url, _ = await nursery.start(gateway.serve, "tcp://127.0.0.1:0", "memory:beside")
    async with Client(url, era="legacy") as one, Client(url, era="legacy") as two:
        await one.call_tool("u_count")
        with pytest.raises(Overloaded, match="connections to one server of this client: the limit is 1"):
            await two.call_tool("u_count")
        async with Client("memory:beside", era="legacy") as other:
            assert (await other.call_tool("u_count")).text == "1"


async def test_a_connection_that_was_lost_is_forgotten_while_its_session_goes_on(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    way = await serve_gateway(nursery, Upstream(name="u", target=behind, era="legacy"))
    async with Client(way, era="legacy") as client:
        for _ in range(5):
            assert (await client.call_tool("u_count")).text == "1"
            behind.go()
            await trio.sleep(1)
            await behind.come()
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, UpstreamConnection)]
        # The last one says what the server is, as long as there is no other.
        assert len(kept) <= 2


# -- The circuit breaker of an upstream ------------------------------------------------------------------


async def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        breaker.failed()


async def test_it_opens_after_failures_in_a_row_and_says_for_how_long(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker()
    await fail(breaker, THRESHOLD - 1)
    assert breaker.seconds_left() is None
    breaker.failed()
    left = breaker.seconds_left()
    assert left is not None
    assert PAUSES[0] / 2 <= left <= PAUSES[0]
    await trio.sleep(left)
    assert breaker.seconds_left() is None
    assert breaker.state is CircuitState.HALF_OPEN


async def test_an_answer_between_failures_begins_the_count_anew(autojump_clock: MockClock) -> None:
    breaker = CircuitBreaker()
    for _ in range(5):
        await fail(breaker, THRESHOLD - 1)
        breaker.succeeded()
    assert (breaker.state, breaker.failures) == (CircuitState.CLOSED, 0)


async def test_each_trial_that_fails_makes_the_pause_longer_and_a_success_short_again(
    autojump_clock: MockClock,
) -> None:
    breaker = CircuitBreaker()
    await fail(breaker, THRESHOLD)
    for pause in (*PAUSES, PAUSES[-1]):
        left = breaker.seconds_left()
        assert left is not None
        assert pause / 2 <= left <= pause
        await trio.sleep(left)
        assert breaker.seconds_left() is None
        breaker.failed()
    left = breaker.seconds_left()
    assert left is not None
    await trio.sleep(left)
    assert breaker.seconds_left() is None
    breaker.succeeded()
    await fail(breaker, THRESHOLD)
    left = breaker.seconds_left()
    assert left is not None
    assert left <= PAUSES[0]


@given(st.lists(st.sampled_from(["fail", "succeed", "wait", "look"]), max_size=60))
def test_no_history_leads_out_of_its_table_or_past_the_longest_pause(steps: list[str]) -> None:
    async def live() -> None:
        breaker = CircuitBreaker()
        for step in steps:
            if step == "fail":
                breaker.failed()
            elif step == "succeed":
                breaker.succeeded()
                assert breaker.seconds_left() is None
            elif step == "wait":
                await trio.sleep(PAUSES[-1] / 3)
            left = breaker.seconds_left()
            assert left is None or 0 < left <= PAUSES[-1]
            assert (left is None) == (breaker.state is not CircuitState.OPEN)

    trio.run(live, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("state", CircuitState)
def test_every_state_is_left_by_a_success(state: CircuitState) -> None:
    assert {after for (before, _), after in NEXT_STATE.items() if before is state} & {CircuitState.CLOSED}


# -- What an upstream tells unasked is bounded, over all its connections, and costs no other one ---------

NOTIFICATION = JsonRpcNotification("notifications/message")
RESULT = JsonRpcResult(1, msgspec.Raw(b"{}"))


async def test_so_many_may_come_at_once_and_then_at_their_rate(autojump_clock: MockClock) -> None:
    pace = ReadingPace(100)
    assert pace.take([NOTIFICATION] * 100) == 0
    assert pace.take([NOTIFICATION] * 50) == pytest.approx(0.5)
    await trio.sleep(0.5)
    assert pace.take([NOTIFICATION]) == pytest.approx(0.01)
    await trio.sleep(10)
    assert pace.take([NOTIFICATION] * 101) == pytest.approx(0.01)


async def test_answers_count_nothing_and_a_batch_counts_what_is_in_it(autojump_clock: MockClock) -> None:
    pace = ReadingPace(10)
    assert pace.take([RESULT] * 1000) == 0
    assert pace.take([[NOTIFICATION] * 20]) == pytest.approx(1.0)
    assert pace.take([RESULT]) == 0


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_flooding_upstream_waits_and_another_does_not(
    nursery: trio.Nursery, autojump_clock: MockClock, era: str
) -> None:
    """None of fifty reports is lost where ten a second may come, and nothing more is read for seconds."""
    server = make_server()

    @server.tool
    async def flood(ctx: Context) -> str:
        for number in range(50):
            await ctx.progress(number + 1)
        return "done"

    flooding, quiet = Behind(nursery, server), Behind(nursery)
    for behind in (flooding, quiet):
        await behind.come()
    transport = MemoryTransport()
    bad = Upstream(name="bad", target=flooding, era=era, max_notifications=10)
    await nursery.start(Gateway([bad, Upstream(name="good", target=quiet, era=era)]).serve, transport)
    reports: list[float] = []
    async with Client(transport) as client:

        async def took(tool: str, **arguments: int) -> float:
            began = trio.current_time()
            await client.call_tool(
                tool, arguments, on_progress=lambda progress: reports.append(progress.progress)
            )
            return trio.current_time() - began

        assert await took("bad_flood") < 1
        assert reports == list(range(1, 51))
        assert await took("good_add", a=1, b=2) == 0
        assert await took("bad_add", a=1, b=2) > 3
        assert await took("bad_add", a=1, b=2) == 0


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_at_a_url_that_ends_is_away_at_the_next_call(era: str) -> None:
    inner = Server("inner", limits=Limits(drain_grace=0.1, close_timeout=0.1))
    inner.add_tool(lambda: "there", name="tool")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(inner.serve, "http://127.0.0.1:0/mcp")
            gateway = Gateway([Upstream(name="u", target=url, era=era)])
            async with Client(gateway) as client:
                assert (await client.call_tool("u_tool")).text == "there"
                inner.stop()
                while inner.tree().transports:
                    await trio.lowlevel.checkpoint()
                # Its own time for a call is minutes.
                with pytest.raises(UpstreamUnavailable, match="'u'"):
                    await client.call_tool("u_tool", timeout=20)
                (upstream,) = gateway.tree().upstreams
                assert not upstream.is_up
