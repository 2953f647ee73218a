"""Servers that have no memory left: they answer others, or end; they never hang."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import Client, McpError, Server
from tests import messages

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
server.run()
"""
HUGE = 1 << 33
MIB = 1024 * 1024


def lines_of(*told: Any) -> bytes:
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in told)


def answers_of(megabytes: int, *told: Any) -> tuple[dict[Any, Any], int]:
    """Returns the answers of a bounded server by their ids, and its exit code; it has a minute to end."""
    opening = (messages.initialize(0), messages.INITIALIZED)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(megabytes)],
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
