"""The alerts and the dashboard in ``docs/how-to/operations`` on a real Prometheus.

Each alert fires under its fault, and none without. Seven servers are scraped for that: at first they are only used,
then each gets faults of its own. Windows and delays of the rules are made shorter; thresholds stay. With
``MCP_ACTORS_ALERTS`` it takes about three minutes, of which the alert on slow calls needs the most; without, that one
is left out. Each panel of the dashboard has data of servers that are used.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import attrs
import httpx2
import pytest
import trio

from mcp_actors import Client
from mcp_actors.errors import McpError
from tests.redis_server import RedisServer
from tests.telemetry.test_operations import ALERTS, DASHBOARD, OPERATIONS, expressions

from .servers import Launch, Served, free_port

pytestmark = [pytest.mark.peers, pytest.mark.long]

# Seconds between two scrapes: a busy machine has to answer within them.
INTERVAL = 2
# Seconds for which the servers are used without a fault: two windows of the rules, which are so long here.
IS_WHOLE = "MCP_ACTORS_ALERTS" in os.environ
QUIET, WINDOW = (50, 20) if IS_WHOLE else (16, 8)
PATIENCE = 300.0
# Descriptors of the server that runs out of them.
DESCRIPTORS = 256

FAULTY = """
import trio
from mcp_actors import RpcError, Server
from mcp_actors.supervision.containment import TaskKind, start
server = Server("faulty")

@server.tool
async def good() -> str:
    return "good"

@server.tool
async def bad() -> str:
    raise RuntimeError("bad")

@server.tool
async def broken() -> str:
    raise RpcError(-32603, "broken")

@server.tool
async def hold(seconds: float, text: str = "") -> str:
    await trio.sleep(seconds)
    return "held"

@server.tool
async def crash() -> str:
    async def crashes() -> None:
        raise RuntimeError("planted")
    async with trio.open_nursery() as nursery:
        start(nursery, TaskKind("planted", "a test", "nothing", "nobody"), crashes)
    return "crashed"
"""


def shortened(rules: str) -> str:
    """The rules with windows and delays that a test can wait for."""
    rules = re.sub(r"\[\d+m\]", f"[{WINDOW}s]", rules)
    return re.sub(r"for: \d+[ms]", f"for: {2 * INTERVAL}s", rules)


@attrs.frozen
class Site:
    """The servers, each with its place."""

    served: dict[str, Served]
    place: Callable[[str], str]

    def url(self, name: str) -> str:
        return f"http://{self.place(name)}/mcp"

    def kill(self, name: str) -> None:
        self.served[name].process.kill()


SERVERS = {
    "errors": (),
    "full": (
        *("--limit", "server_max_in_flight=4"),
        *("--limit", "server_in_flight_bytes=256KiB"),
        *("--limit", "in_flight_bytes=256KiB"),
        *("--limit", "http.max_sessions=2"),
    ),
    "workers": ("--workers", "2"),
    "sharing": (),
    "down": (),
    "behind-a": (),
    "behind-b": (),
    "behind-c": (),
}
GATEWAYS = {"gateway": ("behind-a", "behind-b"), "lonely": ("behind-c",)}
SCRAPED = ("errors", "full", "workers", "sharing", "down", *GATEWAYS)
# The servers that have something for every panel of the dashboard, and one that is never called.
ON_DASHBOARD = ("workers", "sharing", "gateway")
UNUSED = "errors"


@contextmanager
def running(folder: Path, redis: RedisServer, names: Collection[str]) -> Iterator[Site]:
    program = folder / "faulty.py"
    program.write_text(FAULTY)
    ports = {name: free_port() for name in names}
    site = Site({}, lambda name: f"127.0.0.1:{ports[name]}")
    serve = [sys.executable, "-m", "mcp_actors"]
    with ExitStack() as stack:
        for name, words in SERVERS.items():
            if name not in names:
                continue
            shared = ("--shared", redis.url) if name == "sharing" else ()
            command = [*serve, "serve", str(program), *words, *shared]
            begin(stack, site, name, command)
        for name, behind in GATEWAYS.items():
            if name not in names:
                continue
            servers = {f"u{each[-1]}": {"type": "http", "url": site.url(each)} for each in behind}
            (folder / f"{name}.json").write_text(json.dumps({"mcpServers": servers}))
            begin(stack, site, name, [*serve, "gateway", str(folder / f"{name}.json")])
        for each in site.served.values():
            each.port()
        yield site


def begin(stack: ExitStack, site: Site, name: str, command: list[str]) -> None:
    command += ["--listen", site.url(name), "--metrics", "/metrics"]
    for started in list(site.served.values())[:-1]:
        # Two start at a time, so that each has its time on a busy machine.
        started.port()
    if name == "full":
        limit = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS},) * 2)"
        command = [sys.executable, "-c", f"{limit}; os.execv(sys.argv[1], sys.argv[1:])", *command]
    site.served[name] = served = Served(Launch(command, r"serving \S+?:(\d+)/mcp"))
    stack.callback(served.stop)


@contextmanager
def prometheus(folder: Path, site: Site, scraped: Sequence[str]) -> Iterator[Callable[[str], Any]]:
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is not installed: apt-get install prometheus"
    (folder / "alerts.yml").write_text(shortened(ALERTS))
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {
                    "scrape_interval": f"{INTERVAL}s",
                    "scrape_timeout": f"{INTERVAL}s",
                    "evaluation_interval": f"{INTERVAL}s",
                },
                "rule_files": ["alerts.yml"],
                "scrape_configs": [
                    {
                        "job_name": "mcp",
                        "static_configs": [
                            {"targets": [site.place(each)], "labels": {"instance": each}} for each in scraped
                        ],
                    }
                ],
            }
        )
    )
    base = f"http://127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={base.removeprefix('http://')}",
    ]

    def ask(path: str) -> Any:
        with urlopen(f"{base}{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield ask
        finally:
            process.terminate()


async def fetched(ask: Callable[[str], Any], path: str) -> Any:
    with trio.fail_after(PATIENCE):
        while True:
            try:
                return await trio.to_thread.run_sync(ask, path)
            except OSError:
                await trio.sleep(0.5)


async def failed_scrapes(ask: Callable[[str], Any]) -> list[str]:
    """What went wrong with the last scrape of each server, where something did."""
    targets = (await fetched(ask, "/api/v1/targets"))["activeTargets"]
    return [each["lastError"] for each in targets if each["lastError"]]


async def firing(ask: Callable[[str], Any]) -> set[tuple[str, str]]:
    """The alerts that fire, each with the name of its server, and with the upstream where it has one."""
    alerts = (await fetched(ask, "/api/v1/alerts"))["alerts"]
    labels = [each["labels"] for each in alerts if each["state"] == "firing"]
    return {(each["alertname"], f"{each['instance']}{each.get('upstream', '')}") for each in labels}


async def use(url: str, tool: str) -> None:
    """Calls a tool again and again; what fails is what the alerts are about."""
    while True:
        try:
            async with Client(url, era="modern") as client:
                while True:
                    await client.call_tool(tool)
                    await trio.sleep(0.3)
        except McpError:
            await trio.sleep(0.3)


async def hold(url: str, arguments: dict[str, Any]) -> None:
    """Has one call in flight for ever."""
    while True:
        try:
            async with Client(url, era="modern", timeout=600, cap=600) as client:
                while True:
                    await client.call_tool("hold", arguments)
        except McpError:
            await trio.sleep(0.3)


async def begin_sessions(url: str) -> None:
    """Begins more sessions than there may be."""
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    async with httpx2.AsyncClient() as http:
        while True:
            headers = {"accept": "application/json, text/event-stream"}
            await http.post(url, json=request, headers=headers)
            await trio.sleep(0.3)


async def open_connections(place: str, address: str, number: int) -> None:
    """Opens connections from an address that say something now and then, so that they are not closed for others."""
    host, _, port = place.partition(":")
    request = f"GET /nowhere HTTP/1.1\r\nhost: {place}\r\n\r\n".encode()
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(
                await trio.open_tcp_stream(host, int(port), local_address=address)
            )
            for _ in range(number)
        ]
        while True:
            for each in streams:
                try:
                    await each.send_all(request)
                    await each.receive_some()
                except trio.BrokenResourceError:
                    continue
            await trio.sleep(0.2)


def children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for one in lists for each in one.read_text().split()]


async def lose_workers(place: str, supervisor: int) -> None:
    """Kills one of two workers, and has the other one hang once there is one in its place: one answers all the time."""
    first, second = children(supervisor)
    os.kill(first, signal.SIGKILL)
    async with httpx2.AsyncClient() as http:
        page = ""
        while 'deaths_total{worker="1"} 1' not in page or 'workers{state="ready"} 2' not in page:
            await trio.sleep(INTERVAL)
            page = (await http.get(f"http://{place}/metrics")).text
    os.kill(second, signal.SIGSTOP)


EXPECTED = {
    ("McpErrors", "errors"),
    ("McpSlow", "errors"),
    ("McpCrashes", "errors"),
    ("McpSaturated", "full"),
    ("McpNoRoom", "full"),
    ("McpMemoryOfClients", "full"),
    ("McpDescriptors", "full"),
    ("McpWorkersDie", "workers"),
    ("McpWorkersMissing", "workers"),
    ("McpSharedStateAway", "sharing"),
    ("McpServerDown", "down"),
    # The server behind one of them is away, and that behind the other answers with errors, which its clients see.
    ("McpUpstreamAway", "gatewayua"),
    ("McpUpstreamErrors", "gatewayub"),
    ("McpErrors", "gateway"),
    ("McpAllUpstreamsAway", "lonely"),
    ("McpUpstreamAway", "lonelyuc"),
}


# What else may fire, because of the same faults.
CONSEQUENCES = {
    # Requests on their way are lost with an upstream, and calls for it are refused.
    ("McpUpstreamErrors", "gatewayua"),
    ("McpUpstreamErrors", "lonelyuc"),
    ("McpErrors", "lonely"),
    # Calls that are held end late, if at all.
    ("McpSlow", "full"),
    ("McpErrors", "full"),
}


async def test_each_alert_fires_under_its_fault_and_none_without(tmp_path: Path) -> None:
    assert {name for name, _ in EXPECTED} == set(re.findall(r"- alert: (\w+)", ALERTS))
    with (
        RedisServer() as redis,
        running(tmp_path, redis, (*SERVERS, *GATEWAYS)) as site,
        prometheus(tmp_path, site, SCRAPED) as ask,
    ):
        async with trio.open_nursery() as nursery:
            for name in SCRAPED:
                tool = {"gateway": "ua_good", "lonely": "uc_good"}.get(name, "good")
                nursery.start_soon(use, site.url(name), tool)
            rules = await fetched(ask, "/api/v1/rules")
            assert sum(len(group["rules"]) for group in rules["groups"]) == len(
                re.findall("- alert:", ALERTS)
            )
            seen: set[tuple[str, str]] = set()
            with trio.move_on_after(QUIET):
                while True:
                    seen |= await firing(ask)
                    await trio.sleep(INTERVAL)
            assert seen == set()
            with trio.fail_after(PATIENCE):
                # One scrape of a busy machine may take too long.
                while await failed_scrapes(ask):  # noqa: ASYNC110 - another process: only asking can tell
                    await trio.sleep(INTERVAL)
            plant(site, redis, nursery)
            # A call is slow from 30 s on.
            expected = EXPECTED if IS_WHOLE else EXPECTED - {("McpSlow", "errors")}
            planted = time.monotonic()
            while not (seen := seen | await firing(ask)) >= expected:
                if time.monotonic() > planted + PATIENCE:
                    break
                await trio.sleep(INTERVAL)
            print(f"seen {time.monotonic() - planted:.0f} s after the faults: {sorted(seen)}")
            assert sorted(expected - seen) == []
            assert sorted(seen - EXPECTED - CONSEQUENCES) == []
            nursery.cancel_scope.cancel()


def plant(site: Site, redis: RedisServer, nursery: trio.Nursery) -> None:
    errors, full = site.url("errors"), site.url("full")
    for tool in ("bad", "crash"):
        nursery.start_soon(use, errors, tool)
    nursery.start_soon(hold, errors, {"seconds": 31})
    # Bytes of a call in flight, and more calls than there are places.
    nursery.start_soon(hold, full, {"seconds": 590, "text": "x" * 220 * 1024})
    for _ in range(8):
        nursery.start_soon(hold, full, {"seconds": 590})
    nursery.start_soon(begin_sessions, full)
    # One address may have the half of the connections.
    for address in ("127.0.0.2", "127.0.0.3"):
        nursery.start_soon(open_connections, site.place("full"), address, DESCRIPTORS * 3 // 8)
    nursery.start_soon(lose_workers, site.place("workers"), site.served["workers"].process.pid)
    redis.kill()
    site.kill("down")
    site.kill("behind-a")
    site.kill("behind-c")
    nursery.start_soon(use, site.url("gateway"), "ub_broken")


def filled_in(text: str, instances: Sequence[str]) -> str:
    """A query as Grafana sends it: two selected instances, and every job."""
    values = {"job": ".*", "instance": f"({'|'.join(instances)})", "__rate_interval": f"{4 * INTERVAL}s"}
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], text)


async def values_of(ask: Callable[[str], Any], query: str) -> list[float]:
    """The numbers that a query returns now; NaN is none."""
    found = await fetched(ask, f"/api/v1/query?{urlencode({'query': query})}")
    numbers = (float(each["value"][1]) for each in found["result"])
    return [each for each in numbers if not math.isnan(each)]


async def test_each_panel_of_the_dashboard_has_data(tmp_path: Path) -> None:
    names = (*ON_DASHBOARD, *GATEWAYS["gateway"], UNUSED)
    with (
        RedisServer() as redis,
        running(tmp_path, redis, names) as site,
        prometheus(tmp_path, site, (*ON_DASHBOARD, UNUSED)) as ask,
    ):
        async with trio.open_nursery() as nursery:
            for name in ON_DASHBOARD:
                nursery.start_soon(use, site.url(name), "ua_good" if name == "gateway" else "good")
            nursery.start_soon(use, site.url("gateway"), "ub_broken")
            queries = {
                (panel["title"], target["refId"]): target["expr"]
                for panel in DASHBOARD["panels"]
                for target in panel.get("targets", ())
                # No loop is blocked here, and the panel says so.
                if "loop_blocked" not in target["expr"]
            }
            empty = dict(queries)
            with trio.move_on_after(PATIENCE):
                while empty:
                    for panel, query in list(empty.items()):
                        if found := await values_of(ask, filled_in(query, ON_DASHBOARD)):
                            print(panel, found[:6])
                            del empty[panel]
                    await trio.sleep(INTERVAL)
            assert list(empty) == []
            # Whoever opens it in a quiet hour sees numbers as well, where one number is the panel.
            for panel in DASHBOARD["panels"]:
                if panel["type"] == "stat":
                    query = filled_in(panel["targets"][0]["expr"], [UNUSED])
                    with trio.fail_after(PATIENCE):
                        while not await values_of(ask, query):  # noqa: ASYNC110 - as above
                            await trio.sleep(INTERVAL)
            for each in DASHBOARD["templating"]["list"]:
                if each["type"] == "query":
                    await assert_choices(ask, each["query"]["query"])
            nursery.cancel_scope.cancel()


async def assert_choices(ask: Callable[[str], Any], query: str) -> None:
    """A variable of the dashboard offers what is scraped."""
    asked = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    assert asked is not None
    series = urlencode({"match[]": filled_in(asked[1], (*ON_DASHBOARD, UNUSED))})
    found = await fetched(ask, f"/api/v1/label/{asked[2]}/values?{series}")
    assert set(found) == {"job": {"mcp"}, "instance": {*ON_DASHBOARD, UNUSED}}[asked[2]]


def test_the_rules_and_the_queries_of_the_dashboard_are_well_formed(tmp_path: Path) -> None:
    program = shutil.which("promtool")
    assert program is not None, "promtool is not installed: apt-get install prometheus"
    queries = [
        text for name, text in expressions() if name in {each["title"] for each in DASHBOARD["panels"]}
    ]
    recorded = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "1m").replace("$", "")}
        for number, query in enumerate(queries)
    ]
    (tmp_path / "dashboard.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    for each in (OPERATIONS / "alerts.yml", tmp_path / "dashboard.yml"):
        done = subprocess.run(
            [program, "check", "rules", str(each)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        print(done.stdout)
