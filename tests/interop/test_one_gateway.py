"""Clients of others use servers of others through one gateway, each in both eras.

One gateway speaks the stateless revision with all of its servers, another one has sessions with them, and each client
is connected to both: so each sees every server in its own era and in the other one. They all talk at once.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import trio

from mcp_actors import Client

from .installation import Peers
from .plans import LISTED, STEPS, TELL_OF_CHANGES, plan_of
from .servers import DRIVERS, SERVERS, Launch, Served
from .user import LEGACY, LIMIT, MODERN, text_of

TALK_LIMIT = 90.0  # seconds for all conversations of one program; they take about three
CLIENTS = {
    # The program, the client in it, its mode, and the revision that it then speaks.
    "python-legacy": ("python", "python", "legacy", LEGACY),
    "python-auto": ("python", "python", "auto", MODERN),
    "fastmcp-legacy": ("fastmcp", "fastmcp", "legacy", LEGACY),
    "fastmcp-auto": ("fastmcp", "fastmcp", "auto", MODERN),
    "typescript-sdk-legacy": ("typescript", "sdk", "legacy", LEGACY),
    "typescript-client-legacy": ("typescript", "client", "legacy", LEGACY),
    "typescript-client-auto": ("typescript", "client", "auto", MODERN),
}
BEHIND = {"modern": [name for name in STEPS if name != "everything"], "legacy": list(STEPS)}
"""The servers behind the gateway that speaks this era with them; one has no other era."""
PAIRS = [(client, server, era) for client in CLIENTS for era in BEHIND for server in BEHIND[era]]
ASKED = {"sampling": "sampling/createMessage", "elicitation": "elicitation/create", "roots": "roots/list"}
LOGGED = {"python": "Tool processing data", "typescript": "a message", "fastmcp": "'msg': 'a message'"}
"""What each server logs; the other one logs at a level that it draws by lot."""
INSPECTED = {
    # What MCP Inspector is asked to do.
    "tools": "--method tools/list",
    "call": "--method tools/call --tool-name python_add --tool-arg a=2 b=3.5",
    "read": "--method resources/read --uri test://static-text",
    "prompt": "--method prompts/get --prompt-name typescript_greet --prompt-args name=Ada",
}
Reports = dict[tuple[str, str], Any]


@pytest.fixture(scope="module")
def servers(peers: Peers) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        started = {}
        for name in STEPS:
            launch = SERVERS[name](peers, "http")
            environment = {**launch.environment, "URI_SCHEME": name}
            started[name] = Served(replace(launch, environment=environment))
            stack.callback(started[name].stop)
        yield {name: f"http://127.0.0.1:{served.port()}/mcp" for name, served in started.items()}


@pytest.fixture(scope="module")
def gateways(servers: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    started = {}
    for era, names in BEHIND.items():
        entries = {name: {"url": servers[name], "era": era} for name in names}
        path = tmp_path_factory.mktemp(era) / "servers.json"
        path.write_text(json.dumps({"mcpServers": entries}))
        command = [sys.executable, "-m", "mcp_actors", "gateway", str(path)]
        command += ["--listen", "http://127.0.0.1:0/mcp"]
        started[era] = Served(Launch(command, r"^serving .*:(\d+)/mcp$"))
    try:
        yield {era: f"http://127.0.0.1:{served.port()}/mcp" for era, served in started.items()}
    finally:
        ended = {era: (served.stop(), served.output) for era, served in started.items()}
    for code, written in ended.values():
        assert (code, "Traceback" in written) == (0, False), written[-6000:]


@pytest.fixture(scope="module")
def reports(peers: Peers, gateways: dict[str, str]) -> Reports:
    programs = {
        "python": [str(peers.python), str(DRIVERS / "planned_client.py")],
        "fastmcp": [str(peers.fastmcp), str(DRIVERS / "planned_client.py")],
        "typescript": [str(peers.node), str(DRIVERS / "planned_client.mjs"), str(peers.modules)],
    }

    def talk(program: str) -> Reports:
        keys = [(client, era) for client in CLIENTS for era in BEHIND if CLIENTS[client][0] == program]
        connections = []
        for client, era in keys:
            _, kind, mode, _ = CLIENTS[client]
            connections.append(
                {"kind": kind, "mode": mode, "url": gateways[era], "plan": plan_of(BEHIND[era])}
            )
        given = json.dumps(connections)
        done = subprocess.run(
            programs[program], input=given, capture_output=True, text=True, timeout=TALK_LIMIT, check=False
        )
        assert done.returncode == 0, f"{program}: {done.stderr[-6000:]}"
        return dict(zip(keys, json.loads(done.stdout), strict=True))

    with ThreadPoolExecutor() as threads:
        return {key: report for each in threads.map(talk, programs) for key, report in each.items()}


@pytest.mark.parametrize(("client", "server", "era"), PAIRS)
def test_a_client_has_what_the_server_has(reports: Reports, client: str, server: str, era: str) -> None:
    report = reports[client, era]
    assert report["version"] == CLIENTS[client][3]
    lists = report["steps"]["list"]
    for kind, name in zip(("tools", "resources", "templates", "prompts"), LISTED[server], strict=True):
        assert name.replace("*", server) in lists[kind]
    for name, expected, *_ in STEPS[server]:
        seen = json.dumps(report["steps"][f"{server} {name}"], ensure_ascii=False)
        assert re.search(expected, seen), f"{name}: {seen}"
    assert report["steps"][f"{server} progress"]["reported"] == [[1, 3], [2, 3], [3, 3]]
    assert server not in LOGGED or [entry for entry in report["logs"] if LOGGED[server] in str(entry)]


@pytest.mark.parametrize(("client", "era"), [(client, era) for client in CLIENTS for era in BEHIND])
def test_a_client_is_asked_what_the_servers_ask(reports: Reports, client: str, era: str) -> None:
    asked = [ASKED[name] for server in BEHIND[era] for name, *_ in STEPS[server] if name in ASKED]
    assert sorted(reports[client, era]["asked"]) == sorted(asked)


@pytest.mark.parametrize(
    ("client", "server", "era"), [pair for pair in PAIRS if not pair[0].startswith("fastmcp")]
)
def test_a_client_is_told_of_changes_where_its_server_tells_of_them(
    reports: Reports, client: str, server: str, era: str
) -> None:
    seen = reports[client, era]["steps"][f"{server} subscribe"]
    if (server, era) in TELL_OF_CHANGES:
        assert seen == {"honored": True, "updated": True}
    elif CLIENTS[client][3] == MODERN:
        # It is refused nothing: it is said which part of its wish is honoured.
        assert seen == {"honored": False, "updated": False}
    else:
        assert seen["error"]["code"] == -32601


@pytest.mark.parametrize("server", [name for name in STEPS if name != "everything"])
async def test_a_call_that_a_client_gave_up_is_cancelled_at_its_server(
    reports: Reports, servers: dict[str, str], server: str
) -> None:
    calls = len(CLIENTS) * len(BEHIND)
    with trio.fail_after(LIMIT):
        async with Client(servers[server]) as client:
            activity = json.loads(text_of((await client.call_tool("activity")).content))
    assert activity == {"sleeping": 0, "slept": calls, "cancelled": calls}


@pytest.fixture(scope="module")
def inspected(peers: Peers, gateways: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What MCP Inspector prints of each gateway, with which it speaks the other era."""
    script = peers.package("@modelcontextprotocol/inspector") / "clients" / "launcher" / "build" / "index.js"
    home = tmp_path_factory.mktemp("inspector")

    def inspect(row: tuple[str, str]) -> Any:
        era, request = row
        command = [str(peers.node), str(script), "--cli", "--quiet", "--server-url", gateways[era]]
        command += ["--protocol-era", "legacy" if era == "modern" else "modern", *shlex.split(request)]
        environment = {**os.environ, "HOME": str(home)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return json.loads(done.stdout)

    with ThreadPoolExecutor(2) as threads:
        rows = [(era, request) for era in BEHIND for request in INSPECTED.values()]
        seen = list(threads.map(inspect, rows))
    return dict(zip([(era, name) for era in BEHIND for name in INSPECTED], seen, strict=True))


@pytest.mark.parametrize("era", BEHIND)
def test_the_inspector_sees_the_servers_of_the_other_era(inspected: Reports, era: str) -> None:
    names = {tool["name"] for tool in inspected[era, "tools"]["tools"]}
    assert names >= {LISTED[server][0].replace("*", server) for server in BEHIND[era]}
    assert inspected[era, "call"]["structuredContent"] == {"total": 5.5, "terms": 2}
    assert inspected[era, "read"]["contents"][0]["text"] == "This is the content of the static text resource."
    assert inspected[era, "prompt"]["messages"][0]["content"]["text"] == "Greet Ada."
