"""Servers that have no memory left: they answer others, or end; they never hang."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import Client, McpError, Server
from mcp_actors._actors.dispatcher import Dispatcher
from mcp_actors.supervision import logging as logging_module
from mcp_actors.supervision.logging import StderrWriter, log, write_to_stderr
from mcp_actors.testing import raw_client
from mcp_transports.http.h1.parser import RequestParser
from tests import messages
from tests.cli.conftest import checkout_environment
from tests.transports.http.raw import GET, echo, eventually, post, serving

pytestmark = pytest.mark.slow

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def exhausted() -> Server:
    """A server whose functions find no memory, each kind of them."""
    server = Server("exhausted")

    @server.tool
    async def on_trio() -> str:
        raise MemoryError

    @server.tool
    def in_thread() -> str:
        raise MemoryError("no more")

    @server.tool(inline=True)
    def inline() -> str:
        return "x" * (1 << 62)

    @server.resource("none://it")
    async def it() -> str:
        raise MemoryError

    @server.prompt
    async def ask() -> str:
        raise MemoryError

    @server.notification("acme/event")
    async def event() -> None:
        raise MemoryError

    @server.tool
    async def good() -> str:
        return "good"

    return server


@ERAS
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "on_trio", "arguments": {}}),
        ("tools/call", {"name": "in_thread", "arguments": {}}),
        ("tools/call", {"name": "inline", "arguments": {}}),
        ("resources/read", {"uri": "none://it"}),
        ("prompts/get", {"name": "ask"}),
    ],
)
async def test_a_function_without_memory_costs_its_call(
    method: str, params: dict[str, Any], era: str
) -> None:
    with trio.fail_after(20), capture_logs():
        async with Client(exhausted(), era=era) as client:
            try:
                answer = await client.request(method, params)
            except McpError:
                answer = {"isError": True}
            assert answer.get("isError") is True
            await client.notify("acme/event")
            assert (await client.call_tool("good")).text == "good"


# A server that has so many MiB beside what it has when it begins.
PROGRAM = """
import resource, sys
import trio
from mcp_actors import Server

server = Server("bounded")

@server.tool
async def echo(text: str) -> int:
    return len(text)

@server.tool
async def takes(size: int) -> int:
    return len(bytearray(size))

@server.tool
def takes_in_thread(size: int) -> int:
    return len(bytearray(size))

@server.tool
async def returns(size: int) -> str:
    return "x" * size

@server.tool
async def good() -> str:
    return "good"

pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = pages + int(sys.argv[1]) * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

class Told:
    def started(self, places=()):
        print(*places, flush=True)

server.run(sys.argv[2], task_status=Told() if sys.argv[2] != "stdio:" else trio.TASK_STATUS_IGNORED)
"""
HUGE = 1 << 33
MIB = 1024 * 1024


def lines_of(*told: Any) -> bytes:
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in told)


def answers_of(megabytes: int, *told: Any) -> tuple[dict[Any, Any], int]:
    """Returns the answers of a bounded server by their ids, and its exit code; it has a minute to end."""
    opening = (messages.initialize(0), messages.INITIALIZED)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(megabytes), "stdio:"],
        input=lines_of(*opening, *told),
        capture_output=True,
        timeout=60,
        check=False,
    )
    found = [
        json.loads(line) for line in ran.stdout.splitlines() if line.startswith(b"{") and line.endswith(b"}")
    ]
    return {each.get("id"): each for each in found}, ran.returncode


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux bounds the address space of a process like this"
)
@pytest.mark.parametrize("megabytes", [24, 96])
@pytest.mark.parametrize(
    "attack",
    [
        messages.call(1, "takes", size=HUGE),
        messages.call(1, "takes_in_thread", size=HUGE),
        messages.call(1, "returns", size=HUGE),
        messages.call(1, "returns", size=60 * MIB),
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"%b"}}}'
        % (b"x" * (15 * MIB)),
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":[%b0]}}'
        % (b"0," * (7 * MIB)),
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":[%b[]]}}}'
        % (b"[]," * (4 * MIB)),
    ],
    ids=["tool", "thread", "endless result", "large result", "large text", "numbers", "lists"],
)
def test_a_bounded_process_answers_the_next_or_ends(attack: Any, megabytes: int) -> None:
    answers, code = answers_of(megabytes, attack, messages.call(2, "good"))
    if code == 0 and answers.keys() != {0}:
        assert 1 in answers or None in answers
        assert answers[2]["result"]["content"][0]["text"] == "good"
    else:
        # A connection whose message finds no memory has ended, and over standard input the process with it. The encoder
        # of msgspec ends the process by SIGSEGV where it finds no memory for its buffer.
        assert code in (0, 1, -6, -9, -11)


# -- what a failure holds is freed at once: the collector is far off in a server, and may find no memory itself --------


class Held:
    """Stands for the bytes of a request."""


def notes_and_fails(known: list[weakref.ref[Held]]) -> Any:
    def fail(*_: object) -> None:
        held = Held()
        known.append(weakref.ref(held))
        raise MemoryError

    return fail


@pytest.mark.usefixtures("collector_rests")
async def test_a_body_without_memory_is_freed_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[Held]] = []
    monkeypatch.setattr(RequestParser, "on_message_complete", notes_and_fails(held))
    async with serving(echo) as server:
        peer = await server.connect()
        await peer.send(post(b"x" * 100))
        assert await peer.ended()
        await eventually(lambda: held[0]() is None)
        monkeypatch.undo()
        other = await server.connect()
        await other.send(GET)
        assert (await other.answer()).status == 200


@pytest.mark.usefixtures("collector_rests")
async def test_a_request_whose_application_has_no_memory_is_freed_with_its_answer() -> None:
    held: list[weakref.ref[Held]] = []
    async with serving(notes_and_fails(held)) as server:
        peer = await server.connect()
        await peer.send(GET)
        assert (await peer.answer()).status == 500
        await eventually(lambda: held[0]() is None)


@pytest.mark.usefixtures("collector_rests")
async def test_a_message_that_cannot_be_dispatched_is_freed_with_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[weakref.ref[Held]] = []
    fails = notes_and_fails(held)
    with trio.fail_after(20):
        async with raw_client(Server("s")) as peer:
            monkeypatch.setattr(Dispatcher, "dispatch", fails)
            await peer.send(messages.initialize(0))
            with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
                await peer.receive()
    await eventually(lambda: held[0]() is None)


def test_the_log_goes_on_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(_: threading.Thread) -> None:
        raise MemoryError

    class Odd:
        def __repr__(self) -> str:
            raise MemoryError

    monkeypatch.setattr(logging_module, "_stderr", StderrWriter())
    monkeypatch.setattr(threading.Thread, "start", start)
    write_to_stderr("one line")
    assert "one line" in capfd.readouterr().err
    monkeypatch.setattr(logging_module, "logger", Odd)
    log.error("another", held=Odd())
    assert "another" in capfd.readouterr().err


# -- the same over HTTP, where others are there ------------------------------------------------------------------------


Attack = Callable[[trio.SocketStream, int], Awaitable[None]]
HEAD = (
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
    b"Accept: application/json, text/event-stream\r\n"
)


def posted(message: bytes) -> Attack:
    """Sends one request, and takes of the answer what comes first."""

    async def attack(stream: trio.SocketStream, port: int) -> None:
        await stream.send_all(HEAD % port + b"Content-Length: %d\r\n\r\n" % len(message) + message)
        await stream.receive_some(4096)

    return attack


def called(name: str, arguments: bytes) -> bytes:
    meta = json.dumps(messages.modern_meta()).encode()
    return (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":%b,"name":"%b","arguments":%b}}'
        % (meta, name.encode(), arguments)
    )


async def half_a_body(stream: trio.SocketStream, port: int) -> None:
    await stream.send_all(HEAD % port + b"Content-Length: %d\r\n\r\n" % (15 * MIB) + b"x" * (7 * MIB))
    await trio.sleep_forever()


async def half_a_head(stream: trio.SocketStream, port: int) -> None:
    await stream.send_all(HEAD % port + b"x-much: " + b"x" * 60_000)
    await trio.sleep_forever()


async def unread(stream: trio.SocketStream, port: int) -> None:
    message = called("returns", b'{"size":%d}' % (4 * MIB))
    await stream.send_all(HEAD % port + b"Content-Length: %d\r\n\r\n" % len(message) + message)
    await trio.sleep_forever()


async def session(stream: trio.SocketStream, port: int) -> None:
    for number in range(20):
        message = json.dumps(messages.initialize(number)).encode()
        await stream.send_all(HEAD % port + b"Content-Length: %d\r\n\r\n" % len(message) + message)
        await stream.receive_some(4096)


OVER_HTTP: dict[str, tuple[Attack, int]] = {
    "tool": (posted(called("takes", b'{"size":%d}' % HUGE)), 4),
    "thread": (posted(called("takes_in_thread", b'{"size":%d}' % HUGE)), 4),
    "large result": (posted(called("returns", b'{"size":%d}' % (60 * MIB))), 2),
    "large text": (posted(called("echo", b'{"text":"%b"}' % (b"x" * (15 * MIB)))), 4),
    "numbers": (posted(called("echo", b"[%b0]" % (b"0," * (7 * MIB)))), 2),
    "lists": (posted(called("echo", b'{"text":[%b[]]}' % (b"[]," * (4 * MIB)))), 2),
    "half bodies": (half_a_body, 24),
    "half heads": (half_a_head, 200),
    "unread results": (unread, 24),
    "sessions": (session, 40),
}


@asynccontextmanager
async def bounded_server(
    command: list[str], environment: dict[str, str] | None = None
) -> AsyncIterator[tuple[str, trio.Process]]:
    """A server over HTTP, and its URL: the last word of the first line that it prints."""
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        said = b""
        with trio.fail_after(120):
            while b"\n" not in said:
                more = await process.stdout.receive_some()
                assert more, said
                said += more
        yield said.split()[-1].decode(), process
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


async def attacked(url: str, attack: Attack, times: int, process: trio.Process) -> bool:
    """Attacks a server, while and after which somebody else calls it. Returns whether it still serves."""
    port = int(url.split(":")[2].partition("/")[0])

    async def one() -> None:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await attack(stream, port)
        except (OSError, trio.BrokenResourceError):
            return

    async with trio.open_nursery() as attackers:
        for _ in range(times):
            attackers.start_soon(one)
        with trio.move_on_after(2):
            await trio.sleep_forever()
        attackers.cancel_scope.cancel()
    with trio.fail_after(120):
        while process.returncode is None:
            try:
                async with Client(url, era="modern", timeout=20) as client:
                    assert (await client.call_tool("good")).text == "good"
                    return True
            except McpError:
                await trio.sleep(0.1)
                process.poll()
    return False


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux bounds the address space of a process like this"
)
@pytest.mark.parametrize("megabytes", [24, 96])
@pytest.mark.parametrize("name", OVER_HTTP)
async def test_a_bounded_server_over_http_answers_others_or_ends(name: str, megabytes: int) -> None:
    attack, times = OVER_HTTP[name]
    command = [sys.executable, "-c", PROGRAM, str(megabytes), "http://127.0.0.1:0/mcp"]
    async with bounded_server(command) as (url, process):
        serves = await attacked(url, attack, times, process)
        if not serves:
            # As over standard input: msgspec ends a process by SIGSEGV where it finds no memory for its buffer.
            assert process.returncode in (1, -6, -9, -11)


# -- a bound on the memory of all processes together, at which the system kills one of them ----------------------------

GROUPS = Path("/sys/fs/cgroup")


def names_of_a_group() -> tuple[Path, str, str] | None:
    """Where a group of processes with a bound of memory can be made here, and its files for the bound and the use."""
    if "memory" in _text_of(GROUPS / "cgroup.subtree_control").split():
        found = GROUPS, "memory.max", "memory.current"
    else:
        found = GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
    place = found[0]
    return found if os.access(place, os.W_OK) and (place / "cgroup.procs").exists() else None


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.fixture
def group() -> Iterator[tuple[Path, str, str]]:
    found = names_of_a_group()
    if found is None:
        pytest.skip("no group of processes with a bound of memory can be made here (cgroups, as root)")
    place, bound, use = found
    made = place / f"mcp-actors-test-{os.getpid()}"
    made.mkdir()
    yield made, bound, use
    end = time.monotonic() + 60
    while made.exists():
        try:
            made.rmdir()  # as soon as the kernel has let go of what was killed
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such groups")
@pytest.mark.parametrize("name", ["large result", "large text", "numbers", "half bodies", "unread results"])
@pytest.mark.parametrize("workers", [0, 2])
async def test_a_server_in_a_group_without_memory_answers_others_or_ends(
    workers: int, name: str, group: tuple[Path, str, str], tmp_path: Path
) -> None:
    """With workers the system kills one of them, and another is started in its place."""
    made, bound, use = group
    (tmp_path / "served.py").write_text(PROGRAM.partition("pages =")[0])
    words = ["-m", "mcp_actors", "serve", str(tmp_path / "served.py"), "--listen", "http://127.0.0.1:0/mcp"]
    words += ["--workers", str(workers)] if workers else []
    command = f"echo $$ > {made}/cgroup.procs && exec {shlex.join([sys.executable, *words])} 2>&1"
    attack, times = OVER_HTTP[name]
    async with bounded_server(["sh", "-c", command], checkout_environment()) as (url, process):
        limit = int((made / use).read_text()) + 24 * MIB
        (made / bound).write_text(str(limit))
        serves = await attacked(url, attack, times, process)
        (made / bound).write_text("-1" if "limit" in bound else "max")
        if not serves:
            assert process.returncode in (1, -6, -9, -11)
