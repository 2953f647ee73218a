"""``mcp-actors gateway`` and ``mcp-actors bridge``, as a person starts them: processes, what they say, a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from mcp_actors.sync import Client
from tests.cli.authorization_server import Issued
from tests.cli.conftest import LIMIT, SERVED, Mcp, Started
from tests.cli.test_login import Terminals, home, issued, logged_in

pytestmark = pytest.mark.slow

__all__ = ["home", "issued"]

SECRET = "s3cr3t"
DIES = "import sys; print('there is no disk', file=sys.stderr); sys.exit(3)"
# A server that says who it is, and what it was started and called with.
SERVER = """
import os
from mcp_actors import Context, Server
server = Server("inner", version="1", instructions="Ask the inner one.")

@server.tool
def pid() -> int:
    return os.getpid()

@server.tool
def key() -> str:
    return os.environ.get("KEY", "none")

@server.tool
def presented(ctx: Context) -> str:
    headers = {} if ctx.request is None else ctx.request.headers
    return f"{headers.get('authorization')} {headers.get('x-key')}"

server.run(*os.environ.get("AT", "stdio:").split())
"""


@pytest.fixture
def inner(tmp_path: Path) -> Path:
    path = tmp_path / "inner.py"
    path.write_text(SERVER)
    return path


def written(folder: Path, servers: dict[str, Any], **more: Any) -> str:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers, **more}))
    return str(path)


@contextmanager
def serving(
    started: Started, *words: str, addresses: int = 1, end: signal.Signals = signal.SIGTERM
) -> Iterator[Any]:
    """The process, and the places where it says that it serves."""
    with started(*words, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        places: list[str] = []
        shown = ""
        while len(places) < addresses:
            line = process.stderr.readline()
            assert line, shown
            shown += line
            if found := re.search(r"^serving (\S+)(?: at (\S+))?$", line):
                places.append(found[2] or found[1])
        yield process, places
        process.send_signal(end)
        # Windows has no SIGTERM: the process is ended at once.
        assert process.wait(LIMIT) == (1 if sys.platform == "win32" else 0)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- gateway --------------------------------------------------------------------------------------------------------


def test_check_shows_what_is_there(mcp: Mcp, tmp_path: Path, inner: Path) -> None:
    served = {
        "command": sys.executable,
        "args": ["-m", "mcp_actors", "serve", str(SERVED)],
        "autoApprove": [],
    }
    config = written(tmp_path, {"one": served, "two": {"command": sys.executable, "args": [str(inner)]}})
    result = mcp("gateway", config, "--check")
    assert result.returncode == 0, result.stderr
    head, *rows = [re.split(r"  +", line) for line in result.stdout.splitlines()]
    assert head == ["server", "is", "protocol", "tools", "resources + templates", "prompts"]
    assert [(row[0], row[1], row[2].split()[0]) for row in rows] == [
        ("one", "served 1.2", "modern"),
        ("two", "inner 1", "modern"),
    ]
    assert rows[1][3:] == ["3", "-", "-"]
    assert result.stderr == "mcp-actors: one: these members have no effect here: autoApprove\n"


def test_check_says_who_is_not_there_and_why(mcp: Mcp, tmp_path: Path, inner: Path) -> None:
    servers = {
        "good": {"command": sys.executable, "args": [str(inner)]},
        "keyless": {"url": f"http://127.0.0.1/{SECRET}", "headers": {"A": f"{SECRET} ${{NO_SUCH_KEY}}"}},
        "gone": {"url": "tcp://127.0.0.1:1"},
        "dies": {"command": sys.executable, "args": ["-c", DIES]},
        "off": {"command": "nothing", "disabled": True},
    }
    result = mcp("gateway", written(tmp_path, servers), "--check")
    assert result.returncode == 1
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["server", "good"]
    head, keyless, gone, dies, wrote = result.stderr.splitlines()
    assert head == "mcp-actors: 3 of 4 servers cannot be used"
    assert "server 'keyless', headers.A: the environment variable NO_SUCH_KEY is not set" in keyless
    assert gone.startswith("gone: cannot connect to tcp://127.0.0.1:1")
    assert dies.endswith("it exited with code 3")
    assert wrote == "    there is no disk"
    assert SECRET not in result.stdout + result.stderr


def test_a_gateway_that_would_start_or_ask_itself_is_refused(mcp: Mcp, tmp_path: Path, inner: Path) -> None:
    good = {"command": sys.executable, "args": [str(inner)]}
    itself: dict[str, Any] = {
        "command": sys.executable,
        "args": ["-m", "mcp_actors", "gateway", str(tmp_path / "mcp.json")],
    }
    result = mcp("gateway", written(tmp_path, {"good": good, "itself": itself}), "--check")
    assert result.returncode == 1
    head, itself_fails, wrote = result.stderr.splitlines()
    assert head == "mcp-actors: 1 of 2 servers cannot be used"
    assert itself_fails.startswith("itself: ")
    assert "would start itself for ever. Take its entry out" in wrote
    url = "http://localhost:1/mcp/"
    result = mcp(
        "gateway",
        written(tmp_path, {"good": good, "itself": {"url": url}}),
        "--listen",
        "http://127.0.0.1:1/mcp",
    )
    assert result.returncode == 2
    assert f"the server itself is at {url}, where this gateway serves" in result.stderr
    result = mcp("bridge", url, "http://127.0.0.1:1/mcp")
    assert result.returncode == 2
    assert "it would ask itself for ever" in result.stderr


def test_gateways_that_would_start_each_other_start_once(mcp: Mcp, tmp_path: Path, inner: Path) -> None:
    def starts(name: str) -> dict[str, Any]:
        path = str(tmp_path / f"{name}.json")
        return {"command": sys.executable, "args": ["-m", "mcp_actors", "gateway", path]}

    good = {"command": sys.executable, "args": [str(inner)]}
    for name, servers in (("a", {"b": starts("b")}), ("b", {"good": good, "a": starts("a")})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"mcpServers": servers}))
    result = mcp("gateway", str(tmp_path / "a.json"), "--check")
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["server", "b"]


def test_what_is_no_configuration_is_wrong_usage(mcp: Mcp, tmp_path: Path) -> None:
    result = mcp("gateway", "http://127.0.0.1:1/mcp")
    assert result.returncode == 2
    assert result.stderr.endswith("; for one server: mcp-actors bridge http://127.0.0.1:1/mcp TO\n")
    result = mcp("gateway", written(tmp_path, {"one": {"command": ["npx", "-y"]}}), "--check")
    assert result.returncode == 2
    wrong, page = result.stderr.splitlines()
    assert wrong.endswith("mcp.json, server 'one', command: it has to be a text")
    assert page.startswith("see: mcp-actors docs gateway")


def test_a_gateway_over_stdio_passes_calls_on(tmp_path: Path, inner: Path) -> None:
    entry = {"command": sys.executable, "args": [str(inner)]}
    config = written(tmp_path, {"one": {**entry, "env": {"KEY": "a"}}, "two": {**entry, "prefix": "2-"}})
    with Client([sys.executable, "-m", "mcp_actors", "gateway", config, "--name", "many"]) as client:
        assert client.server_info.name == "many"
        assert client.call_tool("one_key", returns=str) == "a"
        assert client.call_tool("2-key", returns=str) == "none"


def test_several_addresses_and_a_signal_that_leaves_nothing(
    started: Started, tmp_path: Path, inner: Path
) -> None:
    entry = {"command": sys.executable, "args": [str(inner)]}
    listen = ["http://127.0.0.1:0/mcp", "tcp://127.0.0.1:0"]
    servers = {"one": entry, "two": entry, "gone": {"url": "tcp://127.0.0.1:1"}}
    config = written(tmp_path, servers, gateway={"listen": listen, "name": "all"})
    pids = []
    with serving(started, "gateway", config, addresses=2) as (_, places):
        for place in places:
            with Client(place) as client:
                assert client.server_info.name == "all"
                pids += [client.call_tool(f"{name}_pid", returns=int) for name in ("one", "two")]
        assert all(map(is_there, pids))
    assert not any(map(is_there, pids))


def test_a_stored_login_is_used_and_its_lack_is_told(
    mcp: Mcp, terminal: Terminals, issued: Issued, tmp_path: Path
) -> None:
    config = written(tmp_path, {"locked": {"url": issued.resource, "era": "legacy"}})
    result = mcp("gateway", config, "--check")
    assert result.returncode == 3, result.stderr
    assert result.stderr.endswith("; run: mcp-actors login URL\n")
    logged_in(terminal, issued)
    url = f"stdio:{sys.executable} -m mcp_actors gateway {config}"
    assert mcp("call", url, "locked_hello").stdout == "hello\n"
    bridged = f"stdio:{sys.executable} -m mcp_actors bridge {issued.resource} stdio: --era legacy"
    assert mcp("call", bridged, "hello").stdout == "hello\n"
    assert len(issued.authorizations) == 1


def test_one_malformed_entry_costs_itself(mcp: Mcp, tmp_path: Path, inner: Path) -> None:
    servers: dict[str, Any] = {
        "good": {"command": sys.executable, "args": [str(inner)]},
        "listed": {"command": ["npx", "-y"]},
        "both": {"command": "x", "url": "http://a.example/mcp"},
        "renamed": {"command": "x", "rename": {"a": "c", "b": "c"}},
        "none": 5,
    }
    config = written(tmp_path, servers)
    result = mcp("gateway", config, "--check")
    assert result.returncode == 1
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["server", "good"]
    head, *lines = result.stderr.splitlines()
    assert head == "mcp-actors: 4 of 5 servers cannot be used"
    assert [line.partition(": ")[0] for line in lines] == ["listed", "both", "renamed", "none"]
    assert "server 'listed', command: it has to be a text" in lines[0]
    served = mcp("call", f"stdio:{sys.executable} -m mcp_actors gateway {config}", "good_key")
    assert served.stdout == "none\n"
    for name in ("listed", "both", "renamed", "none"):
        assert re.search(rf"a server of the configuration is left out.*upstream={name}", served.stderr)


def test_its_version_is_that_of_the_package(tmp_path: Path, inner: Path) -> None:
    config = written(tmp_path, {"one": {"command": sys.executable, "args": [str(inner)]}})
    with Client([sys.executable, "-m", "mcp_actors", "gateway", config]) as client:
        assert client.server_info.version == version("mcp-actors")


# -- the configuration is read again --------------------------------------------------------------------------------

# A call that is in flight for as long as a file is not there.
SLOW = """
import os, trio
from mcp_actors import Server
server = Server("slow")

@server.tool
async def until(file: str) -> int:
    while not os.path.exists(file):
        await trio.sleep(0.01)
    return os.getpid()

@server.tool
def pid() -> int:
    return os.getpid()

server.run()
"""


def becomes(client: Any, tools: set[str]) -> bool:
    """Waits until the tools of a gateway are these."""
    for _ in range(LIMIT * 10):
        if {tool.name for tool in client.tools() if tool.name.endswith("_pid")} == tools:
            return True
        time.sleep(0.1)
    return False


def has_ended(pid: int) -> bool:
    """Waits until a process has ended."""
    for _ in range(LIMIT * 10):
        if not is_there(pid):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("asked", ["by SIGHUP", "by a change of the file"])
def test_only_what_has_changed_in_the_configuration_is_begun_or_ended(
    started: Started, tmp_path: Path, asked: str
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW)
    entry: dict[str, Any] = {"command": sys.executable, "args": [str(slow)], "era": "modern"}
    token = tmp_path / "token"
    token.write_text("1")
    told = f"${{cmd:{sys.executable} -c 'print(open(\"{token}\").read())'}}"
    # Another time and length where the file counts, and the very same ones where only the signal does.
    (tmp_path / "variables").write_text("TOKEN=1")
    filed = {**entry, "envFile": str(tmp_path / "variables")}
    servers = {"kept": entry, "ended": entry, "changed": entry, "filed": filed}
    servers |= {"told": {**entry, "env": {"TOKEN": told}}}
    config = written(tmp_path, servers)
    with serving(started, "gateway", config, "--listen", "http://127.0.0.1:0/mcp") as (process, (place,)):
        with Client(place) as client, ThreadPoolExecutor(1) as calls:
            assert becomes(client, {f"{name}_pid" for name in servers})
            before = {name: client.call_tool(f"{name}_pid", returns=int) for name in servers}
            done = tmp_path / "done"
            call = calls.submit(client.call_tool, "kept_until", {"file": str(done)}, returns=int)
            token.write_text("2")
            (tmp_path / "variables").write_text("TOKEN=2")
            if asked == "by SIGHUP":
                found = os.stat(config)
                written(tmp_path, servers)
                os.utime(config, ns=(found.st_atime_ns, found.st_mtime_ns))
                process.send_signal(signal.SIGHUP)
                after = set(servers)
            else:
                del servers["ended"]
                servers |= {"changed": {**entry, "env": {"A": "b"}}, "new": entry}
                written(tmp_path, servers)
                after = {"kept", "changed", "told", "filed", "new"}
            ended = before.keys() - ({"kept"} if asked != "by SIGHUP" else {"kept", "ended", "changed"})
            for name in ended:
                assert has_ended(before[name])
            assert becomes(client, {f"{name}_pid" for name in after})
            pids = {name: client.call_tool(f"{name}_pid", returns=int) for name in after}
            assert {name for name in after if pids[name] == before.get(name)} == before.keys() - ended
            done.touch()
            assert call.result(LIMIT) == before["kept"]
    assert not any(map(is_there, pids.values()))


def test_a_configuration_that_cannot_be_used_changes_nothing(
    started: Started, tmp_path: Path, inner: Path
) -> None:
    entry: dict[str, Any] = {"command": sys.executable, "args": [str(inner)]}
    config = written(tmp_path, {"one": entry, "two": entry})
    with serving(started, "gateway", config, "--listen", "http://127.0.0.1:0/mcp") as (process, (place,)):
        with Client(place) as client:
            pids = [client.call_tool(f"{name}_pid", returns=int) for name in ("one", "two")]
            for text, says in (
                ('{"mcpServers": {', "line 1, column 17"),
                ('{"mcpServers": {}}', "has no server that is not disabled"),
                (
                    json.dumps({"mcpServers": {"one": entry, "two": {"command": 5}}}),
                    "'two', command: it has to be",
                ),
            ):
                Path(config).write_text(text)
                line = ""
                while says not in line:
                    line = process.stderr.readline()
                    assert line
            assert [client.call_tool(f"{name}_pid", returns=int) for name in ("one", "two")] == pids


def test_workers_of_a_gateway_share_sessions_and_read_the_configuration_again(
    started: Started, tmp_path: Path, inner: Path
) -> None:
    entry: dict[str, Any] = {"command": sys.executable, "args": [str(inner)], "era": "modern"}
    config = written(tmp_path, {"one": entry})
    words = ["gateway", config, "--listen", "http://127.0.0.1:0/mcp", "--workers", "2"]
    with serving(started, *words, "--health", "/up") as (process, (place,)):
        pids = set()
        for _ in range(LIMIT):
            with Client(place, era="modern") as client:
                pids.add(client.call_tool("one_pid", returns=int))
            if len(pids) == 2:
                break
        assert len(pids) == 2
        with urllib.request.urlopen(place.replace("/mcp", "/up")) as answer:
            assert json.load(answer)["ready"] is True
        written(tmp_path, {"two": entry})
        process.send_signal(signal.SIGHUP)
        for pid in pids:
            assert has_ended(pid)
        with Client(place, era="modern") as client:
            assert becomes(client, {"two_pid"})


# -- bridge ---------------------------------------------------------------------------------------------------------


def test_a_stdio_server_at_a_url_has_a_process_for_each_session(started: Started, inner: Path) -> None:
    server = f"stdio:{sys.executable} {inner}"
    words = ["bridge", server, "http://127.0.0.1:0/mcp", "--era", "legacy"]
    with serving(started, *words, end=signal.SIGINT) as (_, (place,)):
        with Client(place, era="legacy") as one, Client(place, era="legacy") as two:
            pids = [client.call_tool("pid", returns=int) for client in (one, two, one)]
            assert pids[0] == pids[2] != pids[1]
    assert not any(map(is_there, pids))


def test_the_credentials_of_a_caller_are_not_passed_through(
    mcp: Mcp, started: Started, inner: Path, environment: dict[str, str]
) -> None:
    environment["AT"] = "http://127.0.0.1:0/mcp"
    command = [sys.executable, "-c", _SERVES_AND_SAYS_WHERE, str(inner)]
    with subprocess.Popen(command, text=True, env=environment, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            words = ["bridge", url, "http://127.0.0.1:0/mcp", "--header", f"X-Key:{SECRET}"]
            with serving(started, *words) as (_, (place,)):
                result = mcp("call", place, "presented", "--header", "Authorization:Bearer mine")
                assert result.stdout == f"None {SECRET}\n"
                result = mcp("call", place, "presented", "--header", "X-Key:mine")
                assert result.stdout == f"None {SECRET}\n"
        finally:
            server.kill()


_SERVES_AND_SAYS_WHERE = """
import runpy, sys
import mcp_actors
class Status:
    def started(self, places=()):
        print(places[0], flush=True)
run = mcp_actors.Server.run
mcp_actors.Server.run = lambda server, *targets: run(server, *targets, task_status=Status())
runpy.run_path(sys.argv[1])
"""
