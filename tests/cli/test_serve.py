""""""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client

from .conftest import LIMIT, SERVED, Mcp, Ran, Started, announced

pytestmark = pytest.mark.slow

INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "0"},
        },
    }
)

# A stranger's binding, and a server whose file prints before it serves.
TWO_ADDRESSES = """
import trio
from mcp_actors import Server
from mcp_actors.abc.discovery import register_transport

class Pigeon:
    def __init__(self, url):
        self.url = url
    async def serve(self, handler, *, task_status=trio.TASK_STATUS_IGNORED):
        if "grounded" in self.url:
            raise OSError("no pigeon today")
        task_status.started(self.url + "/loft")
        if "lost" in self.url:
            raise OSError("the pigeon got lost")
        await trio.sleep_forever()
    def connect(self):
        raise NotImplementedError

register_transport("pigeon", Pigeon)
print("this line must not reach the wire")
server = Server("two")
"""


def answers(result: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_stdio_is_the_default(mcp: Callable[..., Ran]) -> None:
    result = mcp("serve", str(SERVED), text=INITIALIZE + "\n")
    assert result.returncode == 0, result.stderr
    assert [each["result"]["serverInfo"]["name"] for each in answers(result)] == ["served"]


def test_printing_while_importing_does_not_reach_the_wire(mcp: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(TWO_ADDRESSES)
    result = mcp("serve", "noisy.py", text=INITIALIZE + "\n")
    assert [each["id"] for each in answers(result)] == [1]
    assert "must not reach the wire" in result.stderr


def test_args_reach_the_factory(mcp: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(
        "from mcp_actors import Server\ndef server(*args):\n    return Server('|'.join(args))\n"
    )
    result = mcp("serve", "made.py", "--", "a b", "--write", text=INITIALIZE + "\n")
    assert [each["result"]["serverInfo"]["name"] for each in answers(result)] == ["a b|--write"]


def test_several_addresses_are_announced_and_a_signal_ends_them(started: Started, tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO_ADDRESSES)
    words = ["serve", "two.py", "--listen", "pigeon:north", "--listen", "pigeon:south"]
    with started(*words, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    assert lines[1:] == [
        "serving pigeon:north at pigeon:north/loft\n",
        "serving pigeon:south at pigeon:south/loft\n",
    ]


@pytest.mark.parametrize(
    ("address", "says"), [("grounded", "no pigeon today"), ("lost", "the pigeon got lost")]
)
def test_an_address_that_fails_ends_all(
    mcp: Callable[..., Ran], tmp_path: Path, address: str, says: str
) -> None:
    (tmp_path / "two.py").write_text(TWO_ADDRESSES)
    result = mcp("serve", "two.py", "--listen", "pigeon:north", "--listen", f"pigeon:{address}")
    assert result.returncode == 1
    assert says in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nowhere.py"], 2, "mcp-actors: there is no file nowhere.py"),
        ([f"{SERVED}:nothing"], 2, "has no nothing; its servers: server"),
        ([str(SERVED), "--listen", "nosuchscheme:x"], 2, "nosuchscheme"),
        (
            [str(SERVED), "--shared", "tasks.db"],
            2,
            "memory:, sqlite:, redis:, rediss:, unix:, redis+sentinel:",
        ),
        (
            [str(SERVED), "--shared", "redis:localhost"],
            2,
            "redis://HOST[:PORT][/DATABASE]; of this one: it names no",
        ),
        ([str(SERVED), "--shared", "redis://127.0.0.1:1"], 1, "redis://127.0.0.1:1: nothing listens there"),
        (
            [str(SERVED), "--shared", "sqlite:/no/such/tasks.db"],
            1,
            "/no/such/tasks.db: No such file or directory",
        ),
    ],
)
def test_failures_are_one_line(mcp: Callable[..., Ran], words: list[str], code: int, says: str) -> None:
    result = mcp("serve", *words)
    assert result.returncode == code
    assert result.stdout == ""
    # Behind it comes the page that says more, where there is one.
    assert len([line for line in result.stderr.splitlines() if not line.startswith("see: ")]) == 1
    assert says in result.stderr


def test_a_traceback_where_it_is_asked_for(mcp: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    quiet = mcp("serve", "broken.py")
    loud = mcp("serve", "broken.py", "--traceback")
    assert quiet.returncode == loud.returncode == 1
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert "1 / 0" in loud.stderr


def test_serving_imports_nothing_that_draws(environment: dict[str, str]) -> None:
    program = (
        "import sys\nfrom mcp_actors.cli import main\nbefore = set(sys.modules)\n"
        f"sys.argv = ['mcp-actors', 'serve', {str(SERVED)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "drawing = [name for name in set(sys.modules) - before if name.split('.')[0] == 'rich' or '.demo' in name]\n"
        "print(drawing, file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment,
        check=False,
    )
    assert result.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("listen", [[], ["--listen", "ws://127.0.0.1:0/"]])
def test_a_path_for_health_needs_an_address_of_http(mcp: Callable[..., Ran], listen: list[str]) -> None:
    result = mcp("serve", str(SERVED), *listen, "--health", "/health")
    assert result.returncode == 2
    assert "--health needs --listen with a URL of HTTP" in result.stderr


@pytest.mark.parametrize("paths", [["--metrics", "metrics"], ["--metrics", "/page", "--health", "/page"]])
def test_a_path_that_cannot_be_served_names_its_option(mcp: Callable[..., Ran], paths: list[str]) -> None:
    result = mcp("serve", str(SERVED), "--listen", "http://127.0.0.1:0/mcp", *paths)
    assert result.returncode == 2
    assert "takes a path that nothing else has, such as /" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: --")


def test_the_path_of_mcp_is_no_path_for_anything_else(mcp: Callable[..., Ran]) -> None:
    result = mcp("serve", str(SERVED), "--listen", "http://127.0.0.1:0/mcp", "--health", "/mcp")
    assert result.returncode == 2
    assert "Error: --health: /mcp is the path of MCP itself; take another" in result.stderr.splitlines()[-1]


def test_the_help_has_each_option_under_a_heading(mcp: Callable[..., Ran]) -> None:
    above, below = mcp("serve", "--help").stdout.split("Addresses:")[1].split("Help:")
    for name in ("--listen", "--issuer", "--admin", "--workers", "--reload"):
        assert f"\n  {name} " in above
    assert [line.split()[0] for line in below.splitlines() if line] == ["-h,"]


# -- ``mcp-actors serve`` over HTTP, as a person starts it: a process, its standard error, a signal ------

SECONDS = 60


@contextmanager
def serving(
    program: Path, *arguments: str, addresses: int = 1
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The process and the ports it says it listens on."""
    command = [sys.executable, "-m", "mcp_actors", "serve", str(program), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        try:
            assert process.stderr is not None
            ports = []
            for _ in range(addresses):
                line = announced(process.stderr)
                found = re.search(r"^serving \S+ at http://\S+:(\d+)/mcp$", line)
                assert found is not None, line
                ports.append(int(found[1]))
            yield process, ports
        finally:
            process.kill()


def status(port: int, host: str, origin: str | None = None) -> int:
    headers = {"Host": host, **({} if origin is None else {"Origin": origin})}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request("POST", "/mcp", b"{", headers)
        with connection.getresponse() as answer:
            return answer.status


async def test_one_server_at_two_addresses_ends_on_a_signal() -> None:
    listen = ["--listen", "http://127.0.0.1:0/mcp"]
    with serving(SERVED, *listen, *listen, addresses=2) as (process, ports):
        assert len(set(ports)) == 2
        for port in ports:
            async with Client(f"http://127.0.0.1:{port}/mcp") as client:
                assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
        process.send_signal(signal.SIGINT)
        assert await trio.to_thread.run_sync(process.wait, SECONDS) == 0


def test_who_may_call_it_is_said_on_the_command_line() -> None:
    arguments = ["--listen", "http://127.0.0.1:0/mcp", "--allow-host", "example.org"]
    with serving(SERVED, *arguments, "--allow-origin", "https://app.example.org") as (_, (port,)):
        # Allowed is as far as it gets: what it sends has no media type.
        assert status(port, "example.org") == 415
        assert status(port, "example.org", "https://app.example.org") == 415
        assert status(port, "example.org", "https://evil.example.com") == 403
        assert status(port, "evil.example.com") == 403


def test_an_address_that_is_taken_is_named() -> None:
    with serving(SERVED, "--listen", "http://127.0.0.1:0/mcp") as (_, (port,)):
        url = f"http://127.0.0.1:{port}/mcp"
        command = [sys.executable, "-m", "mcp_actors", "serve", str(SERVED), "--listen", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_anybody_may_ask_how_it_is_where_the_command_line_says() -> None:
    with (
        serving(SERVED, "--listen", "http://127.0.0.1:0/mcp", "--health", "/health") as (_, (port,)),
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection,
    ):
        connection.request("GET", "/health", headers={"Host": "10.0.0.7"})
        with connection.getresponse() as answer:
            assert answer.status == 200
            assert json.load(answer) == {"live": True, "ready": True, "draining": False}


# -- ``mcp-actors serve --issuer``: a server that demands access tokens ----------------------------------

RESOURCE = "https://mcp.example.org/mcp"
ISSUER = "https://login.example.org"
PROTECTED = ["--issuer", ISSUER, "--resource", RESOURCE]


def answer_of(port: int, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    headers = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        with connection.getresponse() as answer:
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()


def test_it_demands_tokens_and_says_of_whom() -> None:
    words = ["--listen", "http://127.0.0.1:0/mcp", *PROTECTED]
    with serving(SERVED, *words, "--scope", "mcp:read mcp:list") as (_, (port,)):
        status, headers, _ = answer_of(port, "POST", "/mcp")
        assert status == 401
        assert headers["www-authenticate"].startswith("Bearer ")
        document = "https://mcp.example.org/.well-known/oauth-protected-resource/mcp"
        assert f'resource_metadata="{document}"' in headers["www-authenticate"]
        status, _, body = answer_of(port, "GET", "/.well-known/oauth-protected-resource/mcp")
    assert status == 200
    published = json.loads(body)
    assert published["resource"] == RESOURCE
    assert published["authorization_servers"] == [ISSUER]
    assert published["scopes_supported"] == ["mcp:read", "mcp:list"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--issuer", ISSUER], "--issuer needs --resource"),
        (["--resource", RESOURCE], "--resource needs --issuer"),
        (["--scope", "mcp:read"], "--scope needs --issuer"),
        (PROTECTED, "stdio: takes no access tokens"),
        (
            [*PROTECTED, "--listen", "http://127.0.0.1:0/mcp", "--listen", "tcp://127.0.0.1:0"],
            "tcp://127.0.0.1:0 takes no access tokens",
        ),
        (
            ["--issuer", ISSUER, "--resource", "mcp.example.org", "--listen", "http://127.0.0.1:0/mcp"],
            "give the public URL of this server",
        ),
    ],
)
def test_words_that_protect_nothing(mcp: Mcp, words: list[str], says: str) -> None:
    result = mcp("serve", str(SERVED), *words)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


# -- ``mcp-actors serve`` over WebSocket, as a person starts it ------------------------------------------

SECONDS_SERVE_WEBSOCKET = 60
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture
def port() -> Iterator[int]:
    command = [sys.executable, "-m", "mcp_actors", "serve", "mcp_actors.examples.everything"]
    command += ["--listen", "ws://127.0.0.1:0/ws", "--allow-host", "example.org", "--allow-host", "127.0.0.1"]
    command += ["--allow-origin", "https://app.example.org"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = announced(process.stderr)
            found = re.search(r"^serving \S+ at ws://\S+:(\d+)/ws$", line)
            assert found is not None, line
            yield int(found[1])
        finally:
            process.kill()


def status_serve_websocket(port: int, host: str, origin: str | None = None) -> int:
    headers = {**UPGRADE, "Host": host, **({} if origin is None else {"Origin": origin})}
    with closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_SERVE_WEBSOCKET)
    ) as connection:
        connection.request("GET", "/ws", headers=headers)
        with connection.getresponse() as answer:
            return answer.status


async def test_who_may_call_it_is_said_on_the_command_line_serve_websocket(port: int) -> None:
    assert status_serve_websocket(port, "example.org") == 101
    assert status_serve_websocket(port, "example.org", "https://app.example.org") == 101
    assert status_serve_websocket(port, "example.org", "https://evil.example.com") == 403
    assert status_serve_websocket(port, "evil.example.com") == 403
    async with Client(f"ws://127.0.0.1:{port}/ws") as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {
            "total": 3,
            "terms": 2,
        }


FILES = """
import resource
from mcp_actors import Server

server = Server("files")


@server.tool
def limits() -> list[int]:
    return list(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("more", ["", "--workers 2", "--reload"])
async def test_a_server_may_open_as_many_files_as_the_system_allows(
    more: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    program = tmp_path / "files.py"
    program.write_text(FILES)
    serve = f"{sys.executable} -m mcp_actors serve {program} --listen http://127.0.0.1:0/mcp {more}"
    command = ["sh", "-c", f"ulimit -Sn 256 && exec {serve}"]
    # It is started at once, and nothing else runs in this loop.
    with subprocess.Popen(  # noqa: ASYNC220
        command, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stderr is not None
            with trio.fail_after(LIMIT):
                line = await trio.to_thread.run_sync(announced, process.stderr)
                async with Client(line.split()[3]) as client:
                    soft, hard = await client.call_tool("limits", returns=list[int])
            assert soft == min(hard, 65_536) > 256
        finally:
            process.terminate()
            process.communicate(timeout=LIMIT)
