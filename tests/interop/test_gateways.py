"""Official clients reach official servers of the other era through a gateway, and see what they see without it."""

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
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client

from .installation import Peers
from .servers import DRIVERS, SERVERS, Endpoint, Launch, Served, reachable
from .test_official_clients import report_of, run
from .user import LEGACY, LIMIT, MODERN, text_of

__all__ = ["LISTED", "STEPS", "TELL_OF_CHANGES", "plan_of"]


# -- The servers of others that stand behind one gateway, and what a client does with each ---------------
#
# A step has a name, an expression that its answer matches as JSON, a method of ``peers/planned_client.py`` (and of its
# counterpart in TypeScript), and arguments, in which ``*_`` stands for the prefix of the server in the gateway.

LONG, SHORT = {"seconds": 60, "steps": 1000}, {"seconds": 0.06, "steps": 3}
GREETING = "gruß 🐍\n\u2028"
TOTAL = {"a": 2, "b": 3.5}
SUM = r'"structuredContent": {"total": 5.5'
NOT_THERE = r'"code": -32602'
DEPARTMENT = {"name": "department", "value": "E"}
WEATHER = {"city": "Paris", "state": "Texas"}
Step = tuple[Any, ...]

STEPS: dict[str, list[Step]] = {
    "python": [
        ("text", "This is a simple text", "call", "*_test_simple_text", {}),
        ("structured", SUM, "call", "*_add", TOTAL),
        ("log", "Tool with logging executed", "call", "*_test_tool_with_logging", {}),
        ("progress", "slept 0.06 s", "call", "*_sleep", SHORT),
        ("failing", '"isError": true', "call", "*_test_error_handling", {}),
        ("sampling", "I am the model", "call", "*_test_sampling", {"prompt": "Who are you?"}),
        ("elicitation", "my username", "call", "*_test_elicitation", {"message": "Tell me"}),
        ("template", "Data for ID: 7", "read", "test://template/7/data"),
        ("no_resource", NOT_THERE + r'.*"uri": "test://nothing"', "read", "test://nothing"),
        ("prompt", "arg1='a'", "prompt", "*_test_prompt_with_arguments", {"arg1": "a", "arg2": "b"}),
        # This server has a code of its own for it in each era.
        ("no_prompt", r'"code": (0|-32603)', "prompt", "*_nothing", {}),
        (
            "complete",
            '"paris", "park", "party"',
            "complete",
            {"type": "ref/prompt", "name": "*_test_prompt_with_arguments"},
            {"name": "arg1", "value": "par"},
        ),
        ("cancel", '"cancelled"', "cancel", "*_sleep", LONG),
        ("subscribe", "", "subscribe", "test://watched-resource", "*_touch", {"text": "new"}),
    ],
    "typescript": [
        ("text", "gruß 🐍", "call", "*_echo", {"message": GREETING}),
        ("structured", SUM, "call", "*_add", TOTAL),
        ("log", "logged", "call", "*_log", {}),
        ("progress", "slept 0.06 s", "call", "*_sleep", SHORT),
        ("failing", '"isError": true', "call", "*_add", {"a": "two", "b": 1}),
        ("elicitation", "Hello, my name!", "call", "*_ask", {}),
        ("template", "Data for ID: 7", "read", "typescript://template/7/data"),
        ("no_resource", NOT_THERE + r'.*"uri": "typescript://nothing"', "read", "typescript://nothing"),
        ("prompt", "Greet Ada.", "prompt", "*_greet", {"name": "Ada"}),
        ("no_prompt", NOT_THERE, "prompt", "*_nothing", {}),
        ("cancel", '"cancelled"', "cancel", "*_sleep", LONG),
        ("subscribe", "", "subscribe", "typescript://watched-resource", "*_touch", {"text": "new"}),
    ],
    "fastmcp": [
        ("text", "gruß 🐍", "call", "*_echo", {"message": GREETING}),
        ("structured", SUM, "call", "*_add", TOTAL),
        ("log", "logged", "call", "*_log", {}),
        ("progress", "slept 0.06 s", "call", "*_sleep", SHORT),
        ("failing", '"isError": true', "call", "*_fail", {}),
        ("elicitation", "Hello, my name!", "call", "*_ask", {}),
        ("template", "Data for ID: 7", "read", "fast://template/7/data"),
        ("no_resource", NOT_THERE + r'.*"uri": "fast://nothing"', "read", "fast://nothing"),
        ("prompt", "Greet Ada.", "prompt", "*_greet", {"name": "Ada"}),
        ("no_prompt", NOT_THERE, "prompt", "*_nothing", {}),
        ("cancel", '"cancelled"', "cancel", "*_sleep", LONG),
        ("subscribe", "", "subscribe", "fast://text", "*_echo", {"message": GREETING}),
    ],
    "everything": [
        ("text", "Echo: hello", "call", "*_echo", {"message": "hello"}),
        (
            "structured",
            '"structuredContent": {.*"Light rain',
            "call",
            "*_get-structured-content",
            {"location": "Chicago"},
        ),
        ("progress", "completed", "call", "*_trigger-long-running-operation", {"duration": 0.06, "steps": 3}),
        ("failing", '"isError": true', "call", "*_get-sum", {"a": "one", "b": 2}),
        ("sampling", "I am the model", "call", "*_trigger-sampling-request", {"prompt": "hi"}),
        ("elicitation", "my name", "call", "*_trigger-elicitation-request", {}),
        ("roots", "file:///home/peer", "call", "*_get-roots-list", {}),
        ("template", "Resource 7:", "read", "demo://resource/dynamic/text/7"),
        ("no_resource", NOT_THERE, "read", "demo://resource/nothing"),
        ("prompt", "weather in Paris, Texas", "prompt", "*_args-prompt", WEATHER),
        ("no_prompt", NOT_THERE, "prompt", "*_nothing", {}),
        (
            "complete",
            "Engineering",
            "complete",
            {"type": "ref/prompt", "name": "*_completable-prompt"},
            DEPARTMENT,
        ),
        ("subscribe", "", "subscribe", "demo://resource/dynamic/text/7", "*_toggle-subscriber-updates", {}),
    ],
}
LISTED = {
    # One thing of each list.
    "python": ("*_add", "test://static-text", "test://template/{id}/data", "*_test_simple_prompt"),
    "typescript": ("*_add", "typescript://watched-resource", "typescript://template/{id}/data", "*_greet"),
    "fastmcp": ("*_add", "fast://text", "fast://template/{id}/data", "*_greet"),
    "everything": (
        "*_echo",
        "demo://resource/static/document/features.md",
        "demo://resource/dynamic/text/{resourceId}",
        "*_simple-prompt",
    ),
}
TELL_OF_CHANGES = {("python", "modern"), ("typescript", "modern"), ("everything", "legacy")}
"""The servers that take subscriptions to resources, with the eras in which they do."""


def plan_of(servers: list[str], *, is_modern: bool) -> list[list[Any]]:
    """Returns the steps for these servers, whose keys are ``server step``, and before them the lists of all."""
    steps: list[list[Any]] = [["list", "list"]]
    for server in servers:
        for name, _, *step in STEPS[server]:
            steps.append([f"{server} {name}", *json.loads(json.dumps(step).replace('"*_', f'"{server}_'))])
            if name == "subscribe" and is_modern and server == ASKS_AT_ONCE:
                # It tells the session of the call that changes something, and the calls of a stateless client share
                # none: nothing that could be waited for.
                steps[-1].append(False)
    return steps


# -- Clients of others use servers of others through one gateway, each in both eras ----------------------
#
# One gateway speaks the stateless revision with all of its servers, another one has sessions with them, and each client
# is connected to both: so each sees every server in its own era and in the other one. They all talk at once.

# Seconds for all conversations of one program: they take about three, and two hundred on a full machine.
TALK_LIMIT = 300.0
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
ASKS_AT_ONCE = "everything"
"""The server that asks for roots a third of a second after it was connected to, whatever call is then in flight."""
INSPECTED = [
    # What MCP Inspector is asked to do over HTTP.
    "--method tools/call --tool-name python_add --tool-arg a=2 b=3.5",
    "--method resources/read --uri test://static-text",
    "--method prompts/get --prompt-name typescript_greet --prompt-args name=Ada",
]
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
def commands(servers: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The command of each gateway, which then serves one client over stdio."""
    made = {}
    for era, names in BEHIND.items():
        entries = {name: {"url": servers[name], "era": era} for name in names}
        path = tmp_path_factory.mktemp(era) / "servers.json"
        path.write_text(json.dumps({"mcpServers": entries}))
        made[era] = [sys.executable, "-m", "mcp_actors", "gateway", str(path)]
    return made


@pytest.fixture(scope="module")
def gateways(commands: dict[str, list[str]]) -> Iterator[dict[str, str]]:
    started = {
        era: Served(Launch([*command, "--listen", "http://127.0.0.1:0/mcp"], r"^serving .*:(\d+)/mcp$"))
        for era, command in commands.items()
    }
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
            plan = plan_of(BEHIND[era], is_modern=mode == "auto")
            connections.append({"kind": kind, "mode": mode, "url": gateways[era], "plan": plan})
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
    for name, expected, *step in STEPS[server]:
        seen = json.dumps(report["steps"][f"{server} {name}"], ensure_ascii=False)
        if name == "no_resource" and CLIENTS[client][3] == MODERN and ASKS_AT_ONCE in BEHIND[era]:
            # All servers are asked for it. Where one asks for roots meanwhile, the retry has the refusal of that one,
            # which names the resource in its text alone.
            expected = f"{NOT_THERE}.*{re.escape(step[1])}"
        assert re.search(expected, seen), f"{name}: {seen}"
    reported = report["steps"][f"{server} progress"]["reported"]
    if CLIENTS[client][3] == MODERN and server == ASKS_AT_ONCE:
        # No request is there to report to between the result that asks for roots and the retry that brings them.
        reported = [each for each in reported if each[1] is not None]
        assert reported == sorted(reported)
        assert all(each in ([1, 3], [2, 3], [3, 3]) for each in reported)
    else:
        assert reported == [[1, 3], [2, 3], [3, 3]]
    assert server not in LOGGED or [entry for entry in report["logs"] if LOGGED[server] in str(entry)]


@pytest.mark.parametrize(("client", "era"), [(client, era) for client in CLIENTS for era in BEHIND])
def test_a_client_is_asked_what_the_servers_ask(reports: Reports, client: str, era: str) -> None:
    expected = [ASKED[name] for server in BEHIND[era] for name, *_ in STEPS[server] if name in ASKED]
    asked = reports[client, era]["asked"]
    assert set(asked) == set(expected)
    of_calls = [method for method in asked if method != ASKED["roots"]]
    assert sorted(of_calls) == sorted(method for method in expected if method != ASKED["roots"])


@pytest.mark.parametrize(
    ("client", "server", "era"), [pair for pair in PAIRS if not pair[0].startswith("fastmcp")]
)
def test_a_client_is_told_of_changes_where_its_server_tells_of_them(
    reports: Reports, client: str, server: str, era: str
) -> None:
    seen = reports[client, era]["steps"][f"{server} subscribe"]
    if server == ASKS_AT_ONCE and CLIENTS[client][3] == MODERN:
        assert seen["honored"]
    elif (server, era) in TELL_OF_CHANGES:
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
            activity = {"sleeping": 1}
            # That a call is given up is told behind the client's back, over two connections.
            while activity["sleeping"]:
                activity = json.loads(text_of((await client.call_tool("activity")).content))
    assert activity == {"sleeping": 0, "slept": calls, "cancelled": calls}


class Inspector:
    """MCP Inspector at the command line, which prints the answer to one request."""

    def __init__(self, peers: Peers, home: Path) -> None:
        script = (
            peers.package("@modelcontextprotocol/inspector") / "clients" / "launcher" / "build" / "index.js"
        )
        self._command = [str(peers.node), str(script), "--cli"]
        self._environment = {**os.environ, "HOME": str(home)}

    def __call__(self, era: str, *arguments: str) -> Any:
        command = [*self._command, *arguments, "--protocol-era", era, "--quiet"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, check=False, env=self._environment
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return json.loads(done.stdout)


@pytest.mark.parametrize("era", BEHIND)
def test_the_inspector_sees_the_servers_of_the_other_era(
    peers: Peers, gateways: dict[str, str], commands: dict[str, list[str]], tmp_path: Path, era: str
) -> None:
    inspect = Inspector(peers, tmp_path)
    other = "legacy" if era == "modern" else "modern"
    at = ("--server-url", gateways[era])
    with ThreadPoolExecutor() as threads:
        listed = threads.submit(inspect, other, *commands[era], "--method", "tools/list")
        asked = [threads.submit(inspect, other, *at, *shlex.split(request)) for request in INSPECTED]
        called, read, prompt = [each.result() for each in asked]
    names = {tool["name"] for tool in listed.result()["tools"]}
    assert names >= {LISTED[server][0].replace("*", server) for server in BEHIND[era]}
    assert called["structuredContent"] == {"total": 5.5, "terms": 2}
    assert read["contents"][0]["text"] == "This is the content of the static text resource."
    assert prompt["messages"][0]["content"]["text"] == "Greet Ada."


# -- Official clients reach official servers of the other era --------------------------------------------

PROGRAM = Path(__file__).parent / "gateway_program.py"
ROWS = [
    # An official client, an official server, and the era in which the gateway speaks with it.
    ("python-legacy", "python", "modern"),
    ("typescript-client-legacy", "python", "modern"),
    ("python-legacy", "typescript", "modern"),
    ("typescript-client-auto", "typescript", "legacy"),
]
# The eras differ in these on the official servers themselves: a server has subscriptions, levels or the title of a form
# in one of its eras only, and a gateway answers what only some of its servers have with nothing.
OF_THE_ERA = {
    "asked",
    "capabilities",
    "complete_prompt",
    "complete_template",
    "honored",
    "notified",
    "progress",
    "set_level",
    "subscribe",
    "unsubscribe",
}


@pytest.mark.parametrize(("client", "server", "era"), ROWS)
def test_a_client_sees_the_server_of_the_other_era(peers: Peers, client: str, server: str, era: str) -> None:
    with reachable(peers, server, "stdio") as there, ThreadPoolExecutor() as threads:
        command = (sys.executable, str(PROGRAM), era, "stdio:", there.target)
        # Each has a server of its own, and waits for most of its time.
        runs = [threads.submit(run, peers, client, each) for each in (there, Endpoint("stdio", command))]
        direct, through = (report_of(done.result(), client, done.result().stderr) for done in runs)
    assert {name for name in direct if direct[name] != through.get(name)} <= OF_THE_ERA
    # The official client may lose a last report that comes with the answer.
    reports = zip(direct["progress"], through["progress"], strict=False)
    assert [one for one, other in reports if one != other] == []
    assert [method for method, _ in through["asked"]] == [method for method, _ in direct["asked"]]
    if server == "python":
        # The other one has no tools that ask.
        assert "I am the model" in str(through["test_sampling"])


# These differ between any two of these runs too: one process counts the calls of all, and each hop has sessions and
# streams of its own.
OF_THE_HOP = {"activity", "session", "test_reconnection"}


def test_clients_of_sessions_see_a_stateless_server_over_http(peers: Peers) -> None:
    """One bridge stands between them all, and speaks the other era with the server."""
    with reachable(peers, "python", "http") as there:
        command = [sys.executable, "-m", "mcp_actors", "bridge", "--era", "modern", there.target]
        bridge = Served(Launch([*command, "http://127.0.0.1:0/mcp"], r"^serving .*:(\d+)/mcp$"))
        try:
            endpoint = Endpoint("http", (f"http://127.0.0.1:{bridge.port()}/mcp",))
            for client in ("python-legacy", "typescript-client-legacy"):
                done = run(peers, client, there)
                direct = report_of(done, client, done.stderr)
                done = run(peers, client, endpoint)
                through = report_of(done, client, done.stderr)
                differing = {name for name in direct if direct[name] != through.get(name)}
                assert differing <= OF_THE_ERA | OF_THE_HOP
                assert through["activity"]["cancelled"] == direct["activity"]["cancelled"] + 1
                assert "I am the model" in str(through["test_sampling"])
                assert through["together"]
        finally:
            code = bridge.stop()
    assert (code, "Traceback" in bridge.output) == (0, False), bridge.output
