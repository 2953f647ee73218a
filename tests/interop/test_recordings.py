"""A session with the reference server: recorded, served again to MCP Inspector, compared, and disturbed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client
from mcp_actors.errors import RpcError

from .installation import Peers
from .servers import SERVERS, Launch, Served
from .test_gateways import Inspector
from .user import LIMIT, stdio, text_of

MCP = [sys.executable, "-m", "mcp_actors"]


@pytest.fixture(scope="module")
def server(peers: Peers) -> str:
    return stdio(*SERVERS["everything"](peers, "stdio").command)


async def _used(target: str) -> dict[str, Any]:
    with trio.fail_after(LIMIT):
        async with Client(target) as client:
            reports: list[float] = []
            words = {"duration": 1, "steps": 2}
            return {
                "name": client.server_info.name,
                "tools": sorted([each.name async for each in client.tools()]),
                "prompts": sorted([each.name async for each in client.prompts()]),
                "echo": text_of((await client.call_tool("echo", {"message": "hello"})).content),
                "sum": text_of((await client.call_tool("get-sum", {"a": 2, "b": 3})).content),
                "long": text_of(
                    (
                        await client.call_tool(
                            "trigger-long-running-operation",
                            words,
                            on_progress=lambda report: reports.append(report.progress),
                        )
                    ).content
                ),
                "reports": reports,
                "prompt": len((await client.get_prompt("simple-prompt")).messages),
            }


@pytest.fixture(scope="module")
def day(server: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A recording of a session with the reference server, and what its client saw."""
    path = tmp_path_factory.mktemp("day") / "day.jsonl"
    return path, trio.run(_used, stdio(*MCP, "record", server, path))


@pytest.fixture(scope="module")
def mock(day: tuple[Path, dict[str, Any]]) -> Iterator[str]:
    """The URL of a server that is made of the recording."""
    command = [*MCP, "mock", str(day[0]), "--listen", "http://127.0.0.1:0/mcp"]
    served = Served(Launch(command, r"serving \S+ at http://127\.0\.0\.1:(\d+)/mcp"))
    yield f"http://127.0.0.1:{served.port()}/mcp"
    served.stop()


def test_the_client_sees_the_same_of_the_recording(mock: str, day: tuple[Path, dict[str, Any]]) -> None:
    _, seen = day
    assert seen["name"] == "mcp-servers/everything"
    assert seen["reports"]
    assert trio.run(_used, mock) == seen


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_is_served_the_recording(
    peers: Peers, mock: str, day: tuple[Path, dict[str, Any]], tmp_path: Path, era: str
) -> None:
    inspect = Inspector(peers, tmp_path)
    at = ("--server-url", mock)
    listed = inspect(era, *at, "--method", "tools/list")
    assert sorted(each["name"] for each in listed["tools"]) == day[1]["tools"]
    words = ("--method", "tools/call", "--tool-name", "echo", "--tool-arg", "message=hello")
    called = inspect(era, *at, *words)
    assert called["content"][0]["text"] == day[1]["echo"]


def test_the_recording_is_compared_with_the_server_and_with_another_one(
    server: str, day: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    def diff(target: str) -> subprocess.CompletedProcess[str]:
        words = [*MCP, "diff", str(day[0]), target]
        return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)

    same = diff(server)
    assert same.returncode == 0, same.stdout + same.stderr
    other = diff(stdio(sys.executable, "-m", "mcp_actors.examples.everything"))
    assert other.returncode == 6, other.stderr
    assert "tools/list" in other.stdout
    assert re.search(r"\d+ requests compared, [1-9]\d* with another answer", other.stdout)


async def test_the_server_is_disturbed(server: str) -> None:
    with trio.fail_after(2 * LIMIT):
        late = stdio(*MCP, "bridge", server, "stdio:", "--chaos", "latency=50ms jitter=20ms duplicate=5%")
        async with Client(late) as client:
            for number in range(5):
                result = await client.call_tool("get-sum", {"a": number, "b": 1})
                assert str(number + 1) in text_of(result.content)
        lost = ["--chaos", "loss=30%", "--chaos-seed", "7", "--timeout", "5"]
        codes: list[int | None] = []
        async with Client(stdio(*MCP, "bridge", server, "stdio:", *lost)) as client:
            for number in range(12):
                try:
                    await client.call_tool("get-sum", {"a": number, "b": 1})
                    codes.append(None)
                except RpcError as error:
                    codes.append(error.code)
        assert None in codes
        assert set(codes) - {None} <= {502, 504}
        assert len(set(codes)) > 1


def test_nothing_of_the_environment_is_in_the_recording(day: tuple[Path, dict[str, Any]]) -> None:
    lines = day[0].read_text().splitlines()
    assert json.loads(lines[0]) == {"recording": 1}
    assert os.environ["PATH"] not in day[0].read_text()
    assert shlex.join(MCP) not in day[0].read_text()
