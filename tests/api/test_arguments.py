"""A wrong argument is told where it is passed, in one line that says what to write."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import mcp_actors.asyncio
from mcp_actors import Client, ClientPool, Server
from mcp_actors.errors import ConnectFailed, RpcError, TransportNotFound
from mcp_transports.stdio import StdioServerTransport

FILE = """
from mcp_actors import Server
server = Server("from a file")
server.run()
"""


def complaint(make: Callable[[], object], *kinds: type[Exception]) -> str:
    with pytest.raises(kinds) as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("kind", ["path", "list", "tuple"])
async def test_a_path_and_a_command_are_servers(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "my server.py"
    path.write_text(FILE)
    target: Any = {"path": path, "list": [sys.executable, str(path)], "tuple": (sys.executable, str(path))}[
        kind
    ]
    with trio.fail_after(60):
        async with Client(target) as client:
            assert client.server_info.name == "from a file"


async def test_a_path_of_a_program_is_started(tmp_path: Path) -> None:
    path = tmp_path / "program"
    (tmp_path / "server.py").write_text(FILE)
    path.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/server.py\n")
    path.chmod(0o755)
    with trio.fail_after(60):
        async with Client(path) as client:
            assert client.era == "modern"


@pytest.mark.parametrize(
    ("target", "kind", "says"),
    [
        (None, TypeError, "a Client takes a Server object, a URL, a command as a list of strings"),
        (3, TypeError, "or a transport, not int"),
        (Server, TypeError, "Server is a class: make an object of it"),
        (StdioServerTransport(), TypeError, "StdioServerTransport can be served, not connected to"),
        (
            {"mcpServers": {"files": {"command": "npx"}}},
            TypeError,
            "not a configuration of 'files': write Client([",
        ),
        ([], ValueError, "a command is a list of strings, the program first"),
        (["python", 3], ValueError, "a command is a list of strings, the program first"),
        (Path("/no/such/server.py"), ValueError, "there is no file '/no/such/server.py'"),
        (Path(os.devnull).parent, ValueError, "there is no file '/dev'"),
        ("weather.py", TransportNotFound, "write 'stdio:python weather.py', or Client(Path('weather.py'))"),
        ("python weather.py", TransportNotFound, "to start this command write 'stdio:python weather.py'"),
        ("localhost:8000", TransportNotFound, "for an HTTP server write http://localhost:8000/mcp"),
        ("127.0.0.1:8000/x", TransportNotFound, "for an HTTP server write http://127.0.0.1:8000/x"),
        (
            "http://h:notaport/mcp",
            ValueError,
            "the port of a URL is a number from 0 to 65535, not 'notaport'",
        ),
        ("ws://h:99999/", ValueError, "the port of a URL is a number from 0 to 65535, not '99999'"),
        ("http://", ValueError, "the URL names no host: write http://HOST:PORT/PATH"),
        ("wss:///x", ValueError, "the URL names no host: write wss://HOST:PORT/PATH"),
        ("stdio:python 'x", ConnectFailed, "cannot be split into words: No closing quotation"),
    ],
)
def test_what_is_no_target_says_what_to_write(target: Any, kind: type[Exception], says: str) -> None:
    assert says in complaint(lambda: Client(target), kind)


def test_a_file_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    text = complaint(lambda: Client(tmp_path / "notes.txt"), ValueError)
    assert text.endswith("is neither a .py file nor executable: write the command as a list")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("timeout", "3", "timeout is a number of seconds above 0"),
        ("timeout", True, "timeout is a number of seconds above 0"),
        ("cap", -1, "cap is a number of seconds above 0"),
        ("cap", float("nan"), "cap is a number of seconds above 0"),
        ("probe_timeout", None, "probe_timeout is a number of seconds above 0, not None"),
        ("max_rounds", "x", "max_rounds is a whole number, not 'x'"),
        ("sampling", 3, "sampling is an async function that takes CreateMessageParams, not 3"),
        ("elicitation", "x", "elicitation is an async function"),
        ("on_log", 3, "on_log is a function on_log(level, data, logger)"),
        ("on_change", 3, "on_change is a function on_change(kind, uri)"),
        ("roots", "file:///x", "roots is a list of roots"),
        ("log_level", "loud", "log_level is one of debug, info,"),
        ("info", "me", "info is an Implementation(name, version), not 'me'"),
        ("limits", 3, "limits is a Limits object"),
    ],
)
def test_an_option_of_a_client(name: str, value: Any, says: str) -> None:
    options: dict[str, Any] = {name: value}
    assert says in complaint(lambda: Client(Server("s"), **options), TypeError)


async def decorated_not(server: Server) -> Any:
    yield 1


async def coroutine(server: Server) -> None:
    """Forgets to yield."""


@contextlib.contextmanager
def not_async(server: Server) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "lifespan",
            decorated_not,
            "decorated with contextlib.asynccontextmanager, not <function decorated_not",
        ),
        ("lifespan", coroutine, "decorated with contextlib.asynccontextmanager, not <function coroutine"),
        ("lifespan", not_async, "make it 'async def' and decorate it with contextlib.asynccontextmanager"),
        ("lifespan", 3, "decorated with contextlib.asynccontextmanager, not 3"),
        ("name", 3, "name is a text, not 3"),
        ("versions", "2025-06-18", "versions is a list of protocol versions, not '2025-06-18'"),
        ("limits", 3, "limits is a Limits object"),
        ("state_key", "x", "state_key is bytes, not 'x'"),
        ("shared", "redis://localhost", "shared is a MemoryShared, SqliteShared or RedisShared"),
    ],
)
def test_an_argument_of_a_server(name: str, value: Any, says: str) -> None:
    options: dict[str, Any] = {"name": "s", name: value}
    assert says in complaint(lambda: Server(**options), TypeError)


async def test_arguments_of_a_call() -> None:
    server = Server("s")

    @server.tool
    def echo(value: str) -> str:
        return value

    wrong: Any
    async with Client(server) as client:
        for wrong, says in (
            (["x"], "the arguments of a tool are a dict of their names"),
            ({"value": {"deep": [1, object()]}}, "tools/call.arguments.value.deep[1] is a object"),
            ({1j: 2}, "Only dicts with"),
        ):
            with pytest.raises(TypeError, match=says.replace("[", r"\[")):
                await client.call_tool("echo", wrong)
        with pytest.raises(RpcError, match="unknown tool: ecko; did you mean 'echo'"):
            await client.call_tool("ecko", {"value": "x"})
        with pytest.raises(RpcError, match=r"unknown tool: e{1000} \(code"):
            await client.call_tool("e" * 1000)
        assert (await client.call_tool("echo", {"value": "x"})).content[0].text == "x"


async def in_a_notebook(what: str) -> None:
    client, server = Client(Server("s")), Server("s")
    if what == "enter":
        async with client:
            raise AssertionError("entered")
    elif what == "await":
        await client
    elif what == "call":
        await client.call_tool("echo")
    elif what == "iterate":
        await anext(client.tools())
    elif what == "listen":
        async with client.listen(tools=True):
            raise AssertionError("entered")
    elif what == "task":
        await client.task("id").status()
    elif what == "pool":
        async with ClientPool():
            raise AssertionError("entered")
    else:
        await server.serve("memory:")


@pytest.mark.parametrize("what", ["enter", "await", "call", "iterate", "listen", "task", "pool", "serve"])
def test_under_asyncio_one_line_names_what_to_use(what: str) -> None:
    text = complaint(lambda: asyncio.run(in_a_notebook(what)), RuntimeError)
    if what == "serve":
        assert text.endswith("use mcp_actors.asyncio.serve")
    else:
        assert "use mcp_actors.asyncio.Client" in text
        assert "without a loop mcp_actors.sync.Client" in text


async def test_a_client_is_not_awaited_under_trio_either() -> None:
    with pytest.raises(TypeError, match="use 'async with Client"):
        await Client(Server("s"))


async def test_run_inside_of_trio_names_serve() -> None:
    text = complaint(lambda: Server("s").run("memory:"), RuntimeError)
    assert text.endswith("use 'await server.serve(...)'")


def test_run_under_asyncio_names_serve_there() -> None:
    async def main() -> None:
        Server("s").run("memory:")

    text = complaint(lambda: asyncio.run(main()), RuntimeError)
    assert text.endswith("use 'await mcp_actors.asyncio.serve(server, ...)'")


def test_a_plain_with_names_the_client_without_a_loop() -> None:
    with pytest.raises(RuntimeError, match=r"without a loop mcp_actors\.sync\.Client"), Client(Server("s")):
        raise AssertionError("entered")


async def test_a_plain_with_on_trio_names_async_with() -> None:
    with pytest.raises(TypeError, match="async with"), Client(Server("s")):
        raise AssertionError("entered")


async def test_a_client_for_asyncio_names_the_others_on_trio() -> None:
    with pytest.raises(RuntimeError, match=r"on Trio use mcp_actors itself, without a loop"):
        async with mcp_actors.asyncio.Client(Server("s")):
            raise AssertionError("entered")


@pytest.mark.parametrize("target", [3, None])
def test_what_is_no_place_to_serve_at(target: Any) -> None:
    assert "a server serves at URLs and transports, not at" in complaint(
        lambda: Server("s").run(target), TypeError
    )


def test_run_works_in_a_thread_and_leaves_the_signals_alone() -> None:
    """In a process of its own, whose SIGTERM kills it as it would without a server."""
    program = (
        "import signal, threading, trio\nfrom mcp_actors import Client, Server\n"
        "server, started = Server('in a thread'), threading.Event()\n"
        "class Status:\n    def started(self, places):\n        self.url = places[0]; started.set()\n"
        "status = Status()\n"
        "run = lambda: server.run('tcp://127.0.0.1:0', task_status=status)\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "assert started.wait(30)\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "async def main():\n    async with Client(status.url) as client:\n        print(client.server_info.name)\n"
        "trio.run(main)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.returncode) == ("in a thread\n", 0), ran.stderr
