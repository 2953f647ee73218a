"""What operators are told: of the upstreams of a gateway, of the process, and of what has not happened yet."""

from __future__ import annotations

import os
import resource
import time

import httpx2
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client, Server
from mcp_actors.abc.telemetry import CallEnding, ObservedRequest
from mcp_actors.errors import RpcError, UpstreamUnavailable
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.shared.redis import RedisShared
from mcp_actors.supervision.logging import RareWarning
from mcp_actors.telemetry import Metrics
from mcp_actors.telemetry.exposition import BUCKETS, Family, Sample, counted, page_of, summed
from mcp_transports.http.server import HttpServerTransport, health
from tests.gateway.upstreams import Behind, make_server
from tests.redis_server import RedisServer

from .test_metrics import read, value

CALLS, DURATIONS = "mcp_actors_calls_total", "mcp_client_operation_duration_seconds"


def searching(name: str, answer: str = "found") -> Server:
    server = Server(name)

    @server.tool
    async def search(text: str) -> str:
        if text == "nothing":
            raise RpcError(-32050, "nothing was found")
        return answer

    return server


# -- the upstreams of a gateway --------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_first_call_of_a_tool_counts_under_its_name(era: str) -> None:
    metrics = Metrics()
    gateway = Gateway([Upstream(name="a", target=searching("a"), era=era)], telemetry=metrics)  # type: ignore[arg-type]
    async with Client(gateway) as client:
        # Nobody has listed anything before.
        await client.call_tool("a_search", {"text": "x"})
        page = metrics.text()
    assert value(page, CALLS, side="server", target="a_search", ending="answered") == 1
    assert value(page, CALLS, side="client", target="search", upstream="a") == 1
    assert value(page, CALLS, target="other") == 0


async def test_what_a_client_makes_up_is_no_label_of_a_gateway() -> None:
    metrics = Metrics()
    gateway = Gateway([Upstream(name="a", target=searching("a"))], telemetry=metrics)
    async with Client(gateway) as client:
        for number in range(5):
            with pytest.raises(RpcError):
                await client.call_tool(f"a_made_up_{number}")
        page = metrics.text()
    found = {labels["target"] for labels, number in read(page)[CALLS] if number}
    assert found == {"", "other"}


async def test_equal_names_of_two_upstreams_are_two_tools() -> None:
    metrics = Metrics()
    upstreams = [Upstream(name=name, target=searching(name)) for name in ("a", "b")]
    async with Client(Gateway(upstreams, telemetry=metrics)) as client:
        for name, times in (("a", 2), ("b", 3)):
            for _ in range(times):
                await client.call_tool(f"{name}_search", {"text": "x"})
        with pytest.raises(RpcError):
            await client.call_tool("b_search", {"text": "nothing"})
        page = metrics.text()
    assert value(page, CALLS, side="client", target="search", upstream="a", ending="answered") == 2
    assert value(page, CALLS, side="client", target="search", upstream="b", ending="answered") == 3
    assert value(page, CALLS, side="client", upstream="b", ending="error", code="-32050") == 1
    assert value(page, f"{DURATIONS}_count", target="search", upstream="a") == 2


async def test_each_upstream_says_how_it_is(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    metrics, behind = Metrics(), Behind(nursery, make_server())
    await behind.come()
    upstreams = [Upstream(name="a", target=behind, era="modern"), Upstream(name="b", target=make_server())]
    async with Client(Gateway(upstreams, telemetry=metrics)) as client:
        await client.list_tools()
        await client.call_tool("a_add", {"a": 1, "b": 2})
        page = metrics.text()
        for name in ("a", "b"):
            assert value(page, "mcp_actors_upstream_up", upstream=name) == 1
            assert value(page, "mcp_actors_upstream_connections", upstream=name) == 1
            assert value(page, "mcp_actors_upstream_circuit", upstream=name, state="closed") == 1
            assert value(page, "mcp_actors_upstream_refused_total", upstream=name) == 0
            assert value(page, "mcp_actors_upstream_limit", upstream=name) == 256
        behind.go()
        await trio.sleep(20)
        with pytest.raises(UpstreamUnavailable):
            await client.call_tool("a_add", {"a": 1, "b": 2})
        page = metrics.text()
        assert value(page, "mcp_actors_upstream_up", upstream="a") == 0
        assert value(page, "mcp_actors_upstream_up", upstream="b") == 1
        assert value(page, "mcp_actors_upstream_connections", upstream="a") == 0
        assert value(page, "mcp_actors_upstream_lost_total", upstream="a") == 1
        assert value(page, "mcp_actors_upstream_circuit", upstream="a", state="closed") == 0
        assert value(page, "mcp_actors_upstream_failed_connects_total", upstream="a") > 2
        assert value(page, "mcp_actors_upstream_refused_total", upstream="a") == 1
        await behind.come()
        await trio.sleep(60)
        page = metrics.text()
        assert value(page, "mcp_actors_upstream_up", upstream="a") == 1
        assert value(page, "mcp_actors_upstream_circuit", upstream="a", state="open") == 0


async def test_one_line_says_that_an_upstream_is_away_and_one_that_it_is_back(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    with capture_logs() as lines:
        async with Client(Gateway([Upstream(name="a", target=behind)])) as client:
            await trio.sleep(60)
            await behind.come()
            await trio.sleep(60)
            await client.ping()
    said = [each["event"] for each in lines if each["log_level"] == "warning" and "list" not in each]
    assert said == ["an upstream cannot be connected to", "an upstream is connected again"]


async def test_a_gateway_without_any_upstream_is_not_ready(nursery: trio.Nursery) -> None:
    first, second = Behind(nursery), Behind(nursery)
    gateway = Gateway([Upstream(name=name, target=each) for name, each in (("a", first), ("b", second))])
    transport = HttpServerTransport("http://127.0.0.1:0/mcp", routes={"/health": health})
    (url,) = await nursery.start(gateway.serve, transport)
    base = url.replace("/mcp", "/health")
    async with httpx2.AsyncClient() as http:

        async def until(ready: bool) -> httpx2.Response:
            while (answer := await http.get(f"{base}/ready")).json()["ready"] is not ready:  # noqa: ASYNC110
                await trio.sleep(0.01)
            return answer

        answer = await until(ready=False)
        assert (answer.status_code, answer.json()["missing"]) == (503, ["upstreams: all 2 are away"])
        assert [(await http.get(f"{base}{path}")).status_code for path in ("", "/live")] == [200, 200]
        await second.come()
        answer = await until(ready=True)
        assert (answer.status_code, "missing" in answer.json()) == (200, False)
    nursery.cancel_scope.cancel()


# -- a store that goes away ----------------------------------------------------------------------------


@pytest.mark.peers
@pytest.mark.parametrize("is_slow", [False, True])
async def test_one_line_says_that_redis_is_away_and_one_that_it_is_back(is_slow: bool) -> None:
    with RedisServer() as redis, capture_logs() as lines:
        async with RedisShared(redis.url).open("said") as state:
            away, back = (redis.stop, redis.go_on) if is_slow else (redis.kill, redis.start)
            await trio.to_thread.run_sync(away)
            with trio.fail_after(60):
                while state.failure is None:  # noqa: ASYNC110 - it is about another process
                    await trio.sleep(0.01)
                # Each connection is lost at its own time.
                while any(each.is_up for each in state._links):  # noqa: ASYNC110
                    await trio.sleep(0.01)
                await trio.to_thread.run_sync(back)
                while state.failure is not None:  # noqa: ASYNC110
                    await trio.sleep(0.01)
    said = [(each["event"], each["log_level"]) for each in lines if each["log_level"] != "debug"]
    # That one which was started again is empty is another matter.
    others = ("lease", "another process")
    assert [each for each in said if not any(other in each[0] for other in others)] == [
        ("redis was lost: calls that need it are refused", "warning"),
        ("redis is connected again", "warning"),
    ]


def test_one_line_says_that_what_failed_is_over() -> None:
    now = 1000.0
    failing = RareWarning("it fails", clock=lambda: now, over="it is good again")
    with capture_logs() as lines:
        failing.over()
        for _ in range(3):
            failing("full", file="a")
        failing.over()
        failing.over()
        # What fails and is good again all the time fills no log.
        failing("full", file="a")
        failing.over()
    assert [(each["event"], each["file"]) for each in lines] == [("it fails", "a"), ("it is good again", "a")]


# -- counters before the first event ---------------------------------------------------------------------


async def test_counters_begin_at_0() -> None:
    metrics, server = Metrics(), searching("counts")
    server.telemetry = metrics
    server.add_prompt(lambda: "hello", name="greet")

    @server.resource("file:///a")
    async def a() -> str:
        return "a"

    async with Client(server):
        page = metrics.text()
    for ending, code in (("answered", ""), ("tool_error", ""), ("error", "-32603")):
        assert value(page, CALLS, side="server", target="search", ending=ending, code=code) == 0
    zeros = {
        (labels["mcp_method_name"], labels["target"]) for labels, number in read(page)[CALLS] if number == 0
    }
    assert zeros == {("tools/call", "search"), ("prompts/get", "greet"), ("resources/read", "")}
    found = read(page)
    assert {labels["status"] for labels, _ in found["mcp_actors_http_refused_total"]} >= {"401", "403", "503"}
    assert value(page, "mcp_actors_crashes_total", kind="call") >= 0
    assert value(page, "mcp_actors_arguments_repaired_total", tool="search") == 0
    assert value(page, "mcp_actors_limiter_refused_total") == 0
    assert value(page, "mcp_actors_limiter_limit") > 0


def test_counters_that_wait_are_bounded_with_the_others() -> None:
    server = Server("many")
    for number in range(3000):
        server.add_tool(lambda: "x", name=f"tool{number}")
    metrics = Metrics()
    metrics.served(server._runtime.statistics)
    assert len(read(metrics.text())[CALLS]) == 1000


# -- the process -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("collector_rests")  # it would close what other tests have left open
def test_the_process_by_the_names_of_prometheus() -> None:
    page = Metrics().text()
    assert 5e6 < value(page, "process_resident_memory_bytes") < value(page, "process_virtual_memory_bytes")
    assert value(page, "process_cpu_seconds_total") > 0
    assert value(page, "process_max_fds") == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    start = value(page, "process_start_time_seconds")
    assert 0 < time.time() - start < 24 * 3600
    before = value(page, "process_open_fds")
    ends = os.pipe()
    assert value(Metrics().text(), "process_open_fds") == before + 2
    for each in ends:
        os.close(each)


# -- several processes as one ----------------------------------------------------------------------------


def families(**numbers: float) -> list[Family]:
    buckets = (1, *[0] * len(BUCKETS))
    return [
        Family("calls_total", "counter", "", [Sample({"target": "a"}, numbers["calls"])]),
        Family("took_seconds", "histogram", "", [Sample({}, 0.5, buckets)]),
        Family("inside", "gauge", "", [Sample({}, numbers["inside"])]),
        Family("up", "gauge", "", [Sample({}, numbers["up"])], "min"),
        Family("fullest", "gauge", "", [Sample({}, numbers["fullest"])], "max"),
    ]


def test_the_metrics_of_several_processes_are_those_of_one() -> None:
    pages = [families(calls=2, inside=1, up=1, fullest=7), families(calls=3, inside=4, up=0, fullest=5)]
    found = page_of(summed([*pages, counted(pages[0])], 10))
    assert value(found, "calls_total") == 7
    assert value(found, "took_seconds_count") == 3
    assert value(found, "took_seconds_sum") == 1.5
    assert value(found, "took_seconds_bucket", le="0.01") == 3
    assert (value(found, "inside"), value(found, "up"), value(found, "fullest")) == (5, 0, 7)


def test_the_labels_of_a_sum_are_bounded() -> None:
    labels = [{"target": f"tool{number}", "ending": "answered"} for number in range(50)]
    pages = [[Family("calls_total", "counter", "", [Sample(each, 1)])] for each in labels]
    found = read(page_of(summed(pages, 10)))["calls_total"]
    assert len(found) == 11
    assert found[-1] == ({"target": "other", "ending": "answered"}, 40)


def test_a_real_metrics_object_survives_the_sum() -> None:
    metrics = Metrics()
    request = ObservedRequest("tools/call", "a", True, 1, {}, None, "s", "p")
    observation = metrics.inbound(request)
    assert observation is not None
    observation.ended(CallEnding("answered", 0.1))
    page = page_of(summed([metrics.families(), metrics.families()], 1000))
    assert value(page, CALLS, target="a") == 2
    assert value(page, "mcp_server_operation_duration_seconds_count", target="a") == 2
